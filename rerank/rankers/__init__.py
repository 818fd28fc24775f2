"""The rankers, and the registry through which a workspace finds the class that loads one.

A package of its own adds a family with an entry point in the group ``rerank.rankers``:
``mykind = "mypackage:MyRanker"``.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path

from rerank.errors import WorkspaceError
from rerank.rankers.base import Ranker

GROUP = "rerank.rankers"
FAMILIES = {
    "cnn": ("text", "meta", "joint"),
    "projection": ("lsi", "cllsi", "opca", "cca", "s2net"),
    "dense": ("dense",),
}
"""Kind -> the signals of it that ``rerank train`` knows by name."""
TRAINABLE = tuple(name for names in FAMILIES.values() for name in names)


def ranker_class(kind: str) -> type[Ranker]:
    """Return the class for a family; WorkspaceError when no installed package has it."""
    if kind == "cnn":
        from rerank.rankers.cnn.ranker import CnnRanker

        return CnnRanker
    if kind == "projection":
        from rerank.rankers.projection.ranker import Projection

        return Projection
    if kind == "dense":
        from rerank.rankers.dense.ranker import DenseRanker

        return DenseRanker
    for entry in entry_points(group=GROUP, name=kind):
        loaded: type[Ranker] = entry.load()
        return loaded
    raise WorkspaceError(
        f"no installed package provides rankers of the kind {kind!r}; install the one that trained it"
    )


def load_ranker(folder: Path) -> Ranker:
    """Load the ranker that was saved in ``folder``, whatever its family."""
    try:
        kind = json.loads((folder / "ranker.json").read_text("utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkspaceError(f"{folder}: no readable ranker ({error}); train it again") from error
    return ranker_class(kind).load(folder)
