"""Families of rankers. Packages add them by the entry point group ``rerank.rankers``.

``myfamily = "mypackage:FAMILY"`` names a :class:`Family`, or a ranker class that is not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rerank.config import Options, build, check, options_of, over, unknown_option
from rerank.errors import UsageError, WorkspaceError, option_name
from rerank.files import parse_json
from rerank.rankers.base import Ranker, unreadable

if TYPE_CHECKING:
    from rerank.rankers.training.job import TrainingJob, TrainingResult

GROUP = "rerank.rankers"
Source = Literal["judgments", "pairs", "links", "labeled pairs"]
"""Training data: judged queries; texts that belong together; documents related by links, categories or
citations; pairs of documents with labels."""
SHARED = ("epochs", "batch", "rate", "seed")
"""Options with the same meaning in every family: one value can be given to several."""


class Fitter(Protocol):
    """Fits rankers of a family."""

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fit a variant under a name."""


@dataclass(frozen=True)
class Family:
    """A family of rankers. Places are ``module:name``, imported on first use.

    name:        ``family`` in ``ranker.json``.
    rankers:     variants, also default names.
    ranker:      its class or place.
    learns_from: sources; one is required.
    options:     place of its :class:`rerank.config.Options`.
    fitter:      place of its :class:`Fitter`; "": not trained.
    resumes:     whether interrupted trainings continue.
    """

    name: str
    rankers: tuple[str, ...]
    ranker: str | type[Ranker]
    learns_from: tuple[Source, ...] = ()
    options: str = ""
    fitter: str = ""
    resumes: bool = False

    def ranker_class(self) -> type[Ranker]:
        """Class of its rankers."""
        made: type[Ranker] = load_object(self.ranker) if isinstance(self.ranker, str) else self.ranker
        return made

    def options_class(self) -> type[Options]:
        """Class of its options."""
        made: type[Options] = load_object(self.options)
        return made

    def make_fitter(self, job: TrainingJob, options: Options) -> Fitter:
        """New fitter for a job."""
        made: Fitter = load_object(self.fitter)(job, options)
        return made

    def reads(self, option: str, ranker: str) -> bool:
        """Whether a ranker reads an option."""
        options = options_of(self.options_class())
        return any(one.name == option and (not one.only or ranker in one.only) for one in options)


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
    ),
    Family(
        "projection",
        ("lsi", "cllsi", "opca", "cca", "s2net"),
        f"{_HERE}.projection.ranker:Projection",
        ("judgments", "pairs"),
        f"{_HERE}.projection.config:ProjectionConfig",
        f"{_HERE}.projection.fit:ProjectionTrainer",
    ),
    Family(
        "dense",
        ("dense",),
        f"{_HERE}.dense.ranker:DenseRanker",
        ("links",),
        f"{_HERE}.dense.config:DenseConfig",
        f"{_HERE}.dense.fit:DenseFitter",
        resumes=True,
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


def load_object(place: str) -> Any:
    """Import ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def families() -> dict[str, Family]:
    """Name -> family; installed packages last."""
    built_in = {one.name: one for one in BUILT_IN}
    return built_in | {
        entry.name: _family(entry.name, entry.load())
        for entry in entry_points(group=GROUP)
        if entry.name not in built_in
    }


def family(name: str) -> Family:
    """Find a family. Raises WorkspaceError if missing."""
    for one in BUILT_IN:
        if one.name == name:
            return one
    for entry in entry_points(group=GROUP, name=name):
        return _family(name, entry.load())
    raise WorkspaceError(
        f"no installed package provides rankers of the family {name!r}; install the one that trained it"
    )


def _family(name: str, loaded: Family | type[Ranker]) -> Family:
    return loaded if isinstance(loaded, Family) else Family(name, (), loaded)


def load_ranker(folder: Path) -> Ranker:
    """Load a ranker of any family."""
    try:
        name = parse_json((folder / "ranker.json").read_text("utf-8"))["family"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(folder, error) from error
    return family(name).ranker_class().load(folder)


def trainable() -> dict[str, Family]:
    """Variant -> trainable family."""
    return {variant: one for one in families().values() if one.fitter for variant in one.rankers}


def families_of(variants: Iterable[str]) -> dict[str, Family]:
    """Variant -> family. Raises UsageError for none, or for untrainable ones.

    >>> {name: family.name for name, family in families_of(["s2net", "text"]).items()}
    {'s2net': 'projection', 'text': 'cnn'}
    """
    known, variants = trainable(), list(variants)
    if not variants:
        raise UsageError(f"no ranker is named; choose from {', '.join(known)}")
    for name in variants:
        if name not in known:
            raise UsageError(f"{name!r} cannot be trained; choose from {', '.join(known)}")
    return {name: known[name] for name in variants}


def configurations(
    variants: Iterable[str], config: Options | Mapping[str, Any] | None = None, preset: str | None = None
) -> dict[str, Options]:
    """Family -> options.

    config: options of one family, or mapping of ``OPTION``, ``FAMILY.OPTION`` or family.
    preset: for families that have it.

    Raises UsageError for a preset or an option that no ranker reads, or that is ambiguous.

    >>> configurations(["lsi", "text"], {"epochs": 3, "projection": {"dim": 50}})["projection"].dim
    50
    >>> configurations(["lsi"], {"gamma": 3})
    Traceback (most recent call last):
        ...
    rerank.errors.UsageError: --gamma has no effect with lsi; it is a setting of s2net, dense
    """
    chosen = families_of(variants)
    classes = {one.name: one.options_class() for one in chosen.values()}
    if preset is not None and not any(preset in one.presets for one in classes.values()):
        known = dict.fromkeys(name for one in classes.values() for name in one.presets)
        raise UsageError(f"--preset {preset!r} is none of {', '.join(chosen)}; there are {', '.join(known)}")
    if isinstance(config, Options):
        name = next((name for name, one in classes.items() if isinstance(config, one)), None)
        if name is None:
            raise UsageError(f"a {type(config).__name__} does not configure {', '.join(chosen)}")
        config = {name: config}
    own, shared = _by_family(config or {}, chosen, classes)
    made = {}
    for name, one in classes.items():
        given = own[name]
        if isinstance(given, Options):
            check(given)
            made[name] = given
            continue
        values = over(shared[name], given, options_of(one))
        for option in values:
            _readers(option, {variant: of for variant, of in chosen.items() if of.name == name})
        made[name] = build(one, values, preset if preset in one.presets and preset else "default")
    return made


def _by_family(
    config: Mapping[str, Any], chosen: Mapping[str, Family], classes: Mapping[str, type[Options]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split into options given for a family and options given without one."""
    own: dict[str, Any] = {name: {} for name in classes}
    shared: dict[str, dict[str, Any]] = {name: {} for name in classes}
    known = families()
    for key, value in config.items():
        name, _, option = key.partition(".")
        if name not in known:
            for reader in _readers(key, chosen):
                shared[reader][key] = value
        elif name not in classes:
            raise UsageError(f"settings of {name} have no effect with {', '.join(chosen)}; leave them out")
        elif isinstance(value, Options):
            own[name] = value
        else:
            own[name] = over(own[name], {option: value} if option else value, options_of(classes[name]))
    return own, shared


def _readers(option: str, chosen: Mapping[str, Family]) -> list[str]:
    """Families that read an option. Raises UsageError if none does, or if it is ambiguous."""
    readers = list(dict.fromkeys(one.name for variant, one in chosen.items() if one.reads(option, variant)))
    if not readers:
        others = [variant for variant, one in trainable().items() if one.reads(option, variant)]
        if not others:
            raise unknown_option(
                option, {o.name for one in chosen.values() for o in options_of(one.options_class())}
            )
        raise UsageError(
            f"{option_name(option)} has no effect with {', '.join(chosen)}; it is a setting of"
            f" {', '.join(others)}"
        )
    if len(readers) > 1 and option not in SHARED:
        raise UsageError(
            f"{option_name(option)} means one thing for {readers[0]} and another for {readers[1]}; give it"
            f" to one of them as {readers[0]}.{option}, or train them one after the other"
        )
    return readers
