"""Families of rankers. Packages add them by the entry point group ``rerank.rankers``.

``myfamily = "mypackage:FAMILY"`` names a :class:`Family`, or a ranker class that is not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rerank.common.config import Options, build, options_of
from rerank.common.errors import UsageError, WorkspaceError, option_name
from rerank.common.files import as_system_error, parse_json
from rerank.rankers.base import Ranker

if TYPE_CHECKING:
    from rerank.rankers.training.job import TrainingJob, TrainingResult

GROUP = "rerank.rankers"
Source = Literal["judgments", "pairs", "links", "labeled pairs"]
"""Training data: judged queries; texts that belong together; documents related by links, categories or
citations; pairs of documents with labels."""


class Fitter(Protocol):
    """Fits the rankers of a family on the data of one training job."""

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Return a new ranker and the record of its training.

        variant: one of the rankers of the family. name: of the new ranker.
        """


@dataclass(frozen=True)
class Family:
    """A family of rankers. Places are ``module:name``, imported on first use.

    name:        ``family`` in ``ranker.json``.
    rankers:     variants, also default names.
    ranker:      its class or place.
    learns_from: sources; one is required.
    options:     place of its :class:`rerank.common.config.Options`.
    fitter:      place of its :class:`Fitter`; "": not trained.
    resumes:     whether interrupted trainings continue.
    reads_query_text: rankers that learn from more texts of queries, ``--query-text``.
    """

    name: str
    rankers: tuple[str, ...]
    ranker: str | type[Ranker]
    learns_from: tuple[Source, ...] = ()
    options: str = ""
    fitter: str = ""
    resumes: bool = False
    reads_query_text: tuple[str, ...] = ()

    def ranker_class(self) -> type[Ranker]:
        """Return the class of its rankers, which is imported on first use."""
        ranker: type[Ranker] = resolve_name(self.ranker) if isinstance(self.ranker, str) else self.ranker
        return ranker

    def options_class(self) -> type[Options]:
        """Return the class of its options, which is imported on first use."""
        options: type[Options] = resolve_name(self.options)
        return options

    def make_fitter(self, job: TrainingJob, options: Options) -> Fitter:
        """Return a new fitter for a training job, with the options of this family."""
        fitter: Fitter = resolve_name(self.fitter)(job, options)
        return fitter

    def reads(self, name: str, ranker: str) -> bool:
        """Return whether a ranker of the family reads the option with this name."""
        for option in options_of(self.options_class()):
            if option.name == name:
                return not option.only or ranker in option.only
        return False


_HERE = "rerank.rankers"
BUILT_IN = (
    Family(
        "cnn",
        ("text", "meta", "joint"),
        f"{_HERE}.cnn.ranker:CnnRanker",
        ("judgments",),
        f"{_HERE}.cnn.config:CnnConfig",
        f"{_HERE}.cnn.fit:CnnTrainer",
        resumes=True,
        reads_query_text=("text", "joint"),
    ),
    Family(
        "projection",
        ("lsi", "cllsi", "opca", "cca", "s2net"),
        f"{_HERE}.projection.ranker:Projection",
        ("judgments", "pairs"),
        f"{_HERE}.projection.config:ProjectionConfig",
        f"{_HERE}.projection.fit:ProjectionTrainer",
        reads_query_text=("lsi", "cllsi", "opca", "cca", "s2net"),
    ),
    Family(
        "dense",
        ("dense",),
        f"{_HERE}.dense.ranker:DenseRanker",
        ("links", "judgments"),
        f"{_HERE}.dense.config:DenseConfig",
        f"{_HERE}.dense.fit:DenseFitter",
        resumes=True,
    ),
    Family(
        "adapter",
        ("adapter",),
        f"{_HERE}.dense.ranker:DenseRanker",
        ("judgments",),
        f"{_HERE}.dense.adapter:AdapterConfig",
        f"{_HERE}.dense.adapter:AdapterFitter",
    ),
    Family(
        "concept",
        ("concept",),
        f"{_HERE}.concept.ranker:ConceptRanker",
        ("labeled pairs",),
        f"{_HERE}.concept.config:ConceptConfig",
        f"{_HERE}.concept.fit:ConceptFitter",
        resumes=True,
    ),
)


_BUILT_IN_BY_NAME = {family.name: family for family in BUILT_IN}


def families() -> dict[str, Family]:
    """Return the families by name, with the families of installed packages last."""
    external = [entry.name for entry in entry_points(group=GROUP)]
    return {name: family(name) for name in (*_BUILT_IN_BY_NAME, *external)}


def family(name: str) -> Family:
    """Return the family with this name. Raises WorkspaceError if no installed package has it."""
    if name in _BUILT_IN_BY_NAME:
        return _BUILT_IN_BY_NAME[name]
    for entry in entry_points(group=GROUP, name=name):
        loaded = entry.load()
        return loaded if isinstance(loaded, Family) else Family(name, (), loaded)
    raise WorkspaceError(
        f"no installed package provides rankers of the family {name!r}; install the one that trained it"
    )


def load_ranker(folder: Path) -> Ranker:
    """Load a ranker of any family. Raises WorkspaceError if it is damaged or unreadable."""
    try:
        name = parse_json((folder / "ranker.json").read_text("utf-8"))["family"]
        return family(name).ranker_class().load(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        raise as_system_error(error, folder) or WorkspaceError(
            f"{folder}: the ranker cannot be read ({problem}); train it again with `rerank train`"
        ) from error


def trainable() -> dict[str, Family]:
    """Return the family of each variant that can be trained."""
    trainable_families: dict[str, Family] = {}
    for family in families().values():
        if family.fitter:
            trainable_families |= dict.fromkeys(family.rankers, family)
    return trainable_families


def group_by_family(variants: Iterable[str]) -> dict[Family, list[str]]:
    """Return the families of rankers with their rankers, both in the order of ``variants``.

    Raises UsageError for no ranker, or one that cannot be trained.
    """
    families_by_variant = trainable()
    groups: dict[Family, list[str]] = {}
    for name in dict.fromkeys(variants):
        if name not in families_by_variant:
            raise UsageError(f"{name!r} cannot be trained; choose from {', '.join(families_by_variant)}")
        groups.setdefault(families_by_variant[name], []).append(name)
    if not groups:
        raise UsageError(f"no ranker is named; choose from {', '.join(families_by_variant)}")
    return groups


def configurations(
    groups: Mapping[Family, Sequence[str]],
    config: Options | Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> dict[Family, Options]:
    """Return the options of each family.

    groups: family -> its rankers that are trained.
    config: options of one of the families, or a mapping of names to values. A family gets the values of the
        options that one of its rankers reads.
    preset: initial values. Every family needs a preset of this name.

    Raises UsageError for a preset that a family lacks, or an option that no ranker reads.
    """
    variants = list(chain.from_iterable(groups.values()))
    if isinstance(config, Options):
        options_classes = tuple(family.options_class() for family in groups)
        if not isinstance(config, options_classes):
            raise UsageError(f"a {type(config).__name__} does not configure {', '.join(variants)}")
        config.validate()

    options_by_family: dict[Family, Options] = {}
    for family, names in groups.items():
        options_class = family.options_class()
        if isinstance(config, options_class):
            options_by_family[family] = config
        else:
            values = config if isinstance(config, Mapping) else {}
            family_values = _values_of_family(values, names, variants)
            options_by_family[family] = build(options_class, family_values, preset or "default")
    return options_by_family


def _values_of_family(
    values: Mapping[str, Any], names: Sequence[str], variants: Sequence[str]
) -> dict[str, Any]:
    """Return the values for rankers of one family, and values that belong to no ranker at all.

    names:    the rankers of the family. variants: all rankers that are trained.

    Raises UsageError for an option that only other rankers read.
    """
    selected: dict[str, Any] = {}
    for option, value in values.items():
        readers = readers_of(option)
        is_for_family = not readers or not set(names).isdisjoint(readers)
        if is_for_family:
            selected[option] = value
        elif set(variants).isdisjoint(readers):
            raise UsageError(
                f"{option_name(option)} has no effect with {', '.join(variants)}; it is a setting of"
                f" {', '.join(readers)}"
            )
    return selected


def readers_of(option: str) -> list[str]:
    """Return the rankers that read an option."""
    return [name for name, family in trainable().items() if family.reads(option, name)]
