"""The families of rankers, a line each; a package of its own adds one with an entry point.

In the group ``rerank.rankers``: ``mykind = "mypackage:FAMILY"`` names a :class:`Family`, and
``mykind = "mypackage:MyRanker"`` a ranker's class that ``train`` knows nothing of.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rerank.errors import WorkspaceError
from rerank.files import parse_json, trouble
from rerank.rankers.base import Ranker

GROUP = "rerank.rankers"


@dataclass(frozen=True)
class Family:
    """A family of rankers. The places are ``module:name``, imported when they are first used.

    name:     the ``kind`` in ``ranker.json``.
    rankers:  the rankers it makes, by the names they have unless they are given others.
    ranker:   the class that loads, encodes and scores, or its place.
    training: the place of its :class:`rerank.rankers.training.registry.Training`; None: fitted elsewhere.
    """

    name: str
    rankers: tuple[str, ...]
    ranker: str | type[Ranker]
    training: str | None = None

    def ranker_class(self) -> type[Ranker]:
        """Import the class that loads its rankers."""
        found: type[Ranker] = imported(self.ranker) if isinstance(self.ranker, str) else self.ranker
        return found


BUILT_IN = (
    Family(
        "cnn",
        ("text", "meta", "joint"),
        "rerank.rankers.cnn.ranker:CnnRanker",
        "rerank.rankers.cnn.config:TRAINING",
    ),
    Family(
        "projection",
        ("lsi", "cllsi", "opca", "cca", "s2net"),
        "rerank.rankers.projection.ranker:Projection",
        "rerank.rankers.projection.config:TRAINING",
    ),
    Family(
        "dense",
        ("dense",),
        "rerank.rankers.dense.ranker:DenseRanker",
        "rerank.rankers.dense.config:TRAINING",
    ),
    Family(
        "concept",
        ("concept",),
        "rerank.rankers.concept.ranker:ConceptRanker",
        "rerank.rankers.concept.config:TRAINING",
    ),
)


def imported(place: str) -> Any:
    """Import what ``module:name`` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def families() -> dict[str, Family]:
    """Name -> every family, those of installed packages last."""
    built_in = {one.name: one for one in BUILT_IN}
    return built_in | {
        entry.name: _family(entry.name, entry.load())
        for entry in entry_points(group=GROUP)
        if entry.name not in built_in
    }


def family(kind: str) -> Family:
    """Find a family; WorkspaceError when no installed package has it."""
    for one in BUILT_IN:
        if one.name == kind:
            return one
    for entry in entry_points(group=GROUP, name=kind):
        return _family(kind, entry.load())
    raise WorkspaceError(
        f"no installed package provides rankers of the kind {kind!r}; install the one that trained it"
    )


def _family(kind: str, brought: Family | type[Ranker]) -> Family:
    return brought if isinstance(brought, Family) else Family(kind, (), brought)


def maker(ranker: str) -> Family | None:
    """Find the family that makes a ranker of this name unless told otherwise.

    >>> maker("lsi").name, maker("dense").name, maker("bm25")
    ('projection', 'dense', None)
    """
    found = (one for one in families().values() if ranker in one.rankers and one.training is not None)
    return next(found, None)


def load_ranker(folder: Path) -> Ranker:
    """Load the ranker that was saved in ``folder``, whatever its family."""
    try:
        kind = parse_json((folder / "ranker.json").read_text("utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        none = WorkspaceError(f"{folder}: no readable ranker ({error}); train it again")
        raise trouble(error, folder) or none from error
    return family(kind).ranker_class().load(folder)
