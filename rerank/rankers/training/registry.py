"""How a family's rankers are fitted: what they learn from, their settings, and what fits them.

:class:`rerank.rankers.registry.Family` names the place of a family's :class:`Training`. Nothing here imports
torch, nor does the module that holds a ``Training``: its ``fitter`` is imported when something is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Protocol

from rerank.config import Option, build, options_of, over, values_of
from rerank.engines.base import Engine
from rerank.errors import UsageError, option_name
from rerank.progress import Progress
from rerank.rankers.base import Ranker
from rerank.rankers.registry import Family, families, imported
from rerank.rankers.training.data import TrainingData
from rerank.records import LabeledPair

Source = Literal["judgments", "pairs", "links", "labeled pairs"]
"""What rankers learn from: judged queries; texts that belong together; documents that are related by links,
categories or citations; pairs of documents with labels."""
SHARED = ("epochs", "batch", "rate", "seed")
"""Settings that mean one thing in every family, so that one value can be given to several."""


@dataclass(frozen=True)
class Fitted:
    """A fitted ranker and how it came about.

    epoch, epochs: the one kept, and how many there were, each a ``unit`` (epoch, iteration, step); 0 where
        nothing iterates.
    dev, baseline: the ``measure`` of held-out data with the ranker, and ``without`` what makes it better.
    interrupted: the user stopped it, the best epoch was kept.
    remarks: what it learned from, for people. details: the same and more, for programs.
    curve: the way there: (step, loss, measure), whatever of both there was.
    settle: what is left to do once the ranker is in use, as dropping a checkpoint.
    """

    ranker: Ranker
    epoch: int
    epochs: int
    dev: float | None
    baseline: float | None
    interrupted: bool
    measure: str = "dev NDCG weighted with the first stage"
    without: str = "without it"
    unit: str = "epoch"
    remarks: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    curve: Sequence[tuple[int, float | None, float | None]] = ()
    settle: Callable[[], object] = dict


@dataclass(frozen=True)
class Job:
    """What a fitter is given.

    data: judgments and pairs, if the family learns from them. folder: for what an interruption leaves, a
    folder for each ranker. restart: go on from nothing that is there. labeled: pairs to learn from, and
    others to measure by, if the family learns from labels.
    """

    engine: Engine
    data: TrainingData | None
    folder: Path
    restart: bool = False
    progress: Progress = field(default_factory=Progress)
    labeled: tuple[Sequence[LabeledPair], Sequence[LabeledPair]] | None = None


class Fitter(Protocol):
    """Fits a family's rankers, one after the other."""

    def fit(self, role: str, name: str) -> Fitted:
        """Fit the family's ranker ``role`` under a name."""


@dataclass(frozen=True)
class Training:
    """How the rankers of a family are fitted.

    learns_from: any one of these must be there.
    config:  the Struct of its options (see :mod:`rerank.config`). Options whose defaults follow from
        other settings are given by its classmethod ``implied(values)``, if it has one.
    fitter:  the place, ``module:name``, of what makes a :class:`Fitter` of a :class:`Job` and a config.
    presets: name -> the settings that it changes.
    resumes: those of the family's rankers whose interrupted training goes on.
    """

    learns_from: tuple[Source, ...]
    config: type
    fitter: str
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    resumes: tuple[str, ...] = ()

    def configure(self, given: Mapping[str, Any], preset: str = "default") -> Any:
        """Make the configuration of a preset with changes. Raises UsageError as ``settings.build`` does."""
        if preset not in self.presets:
            raise UsageError(f"--preset {preset!r} is unknown; use {', '.join(self.presets)}")
        values = self.presets[preset]
        implied: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None
        implied = getattr(self.config, "implied", None)
        if implied is not None:
            values = {**implied({**values, **given}), **values}
        return build(self.config, given, values)

    def settings(self) -> list[Option]:
        """List its settings."""
        return options_of(self.config)

    def fitter_of(self, job: Job, config: Any) -> Fitter:
        """Import the fitter and make one."""
        made: Fitter = imported(self.fitter)(job, config)
        return made


def training_of(family: Family) -> Training:
    """Import how a family is fitted; UsageError where rerank does not know."""
    if family.training is None:
        raise UsageError(f"rankers of the family {family.name!r} are fitted by the package that brings them")
    found: Training = imported(family.training)
    return found


def chosen(names: Iterable[str]) -> dict[str, tuple[Family, Training]]:
    """Ranker -> who makes it, for rankers by the names that their families give them.

    >>> {name: family.name for name, (family, _) in chosen(["s2net", "text"]).items()}
    {'s2net': 'projection', 'text': 'cnn'}
    """
    makers = {
        ranker: one for one in families().values() if one.training is not None for ranker in one.rankers
    }
    names = list(names)
    if not names:
        raise UsageError(f"no ranker is named; choose from {', '.join(makers)}")
    for name in names:
        if name not in makers:
            raise UsageError(f"{name!r} cannot be trained; choose from {', '.join(makers)}")
    return {name: (makers[name], training_of(makers[name])) for name in names}


def configurations(names: Iterable[str], config: Any = None, preset: str | None = None) -> dict[str, Any]:
    """Family -> its configuration, for rankers by the names that their families give them.

    config: a configuration, which is its family's; or name -> value of settings, and family -> a
        configuration or a mapping of its own.
    preset: of the families that have it.

    Raises UsageError for a preset or a setting that none of these rankers reads, and for a setting that
    means one thing in one family and another in the next.

    >>> configurations(["lsi", "text"], {"epochs": 3, "projection": {"dim": 50}})["projection"].dim
    50
    >>> configurations(["lsi"], {"gamma": 3})
    Traceback (most recent call last):
        ...
    rerank.errors.UsageError: --gamma has no effect with lsi; it is a setting of s2net, dense
    """
    makers = chosen(names)
    found = {family.name: training for family, training in makers.values()}
    if preset is not None and not any(preset in one.presets for one in found.values()):
        raise UsageError(
            f"--preset {preset!r} is none of {', '.join(makers)}; there are"
            f" {', '.join(dict.fromkeys(name for one in found.values() for name in one.presets))}"
        )
    if config is not None and not isinstance(config, Mapping):
        kind = next((kind for kind, one in found.items() if isinstance(config, one.config)), None)
        if kind is None:
            raise UsageError(f"a {type(config).__name__} is no configuration of {', '.join(makers)}")
        config = {kind: config}
    own, shared = _by_family(config or {}, makers, found)
    made = {}
    for kind, training in found.items():
        if not isinstance(own[kind], Mapping):
            build(training.config, {}, values_of(own[kind]))  # checks the ranges
            made[kind] = own[kind]
            continue
        mine = {role: one for role, one in makers.items() if one[0].name == kind}
        values = over(shared[kind], own[kind], training.settings())
        for name in values:
            _readers(name, mine)
        has = preset if preset is not None and preset in training.presets else "default"
        made[kind] = training.configure(values, has)
    return made


def _by_family(
    config: Mapping[str, Any], makers: Mapping[str, tuple[Family, Training]], found: Mapping[str, Training]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Family -> its own configuration or settings; and family -> other settings that it reads."""
    own: dict[str, Any] = {kind: {} for kind in found}
    shared: dict[str, dict[str, Any]] = {kind: {} for kind in found}
    known = families()
    for name, value in config.items():
        kind, _, setting = name.partition(".")
        if name in known and name not in found:
            raise UsageError(f"settings of {name} have no effect with {', '.join(makers)}; leave them out")
        if name in known:
            own[name] = dict(value) if isinstance(value, Mapping) else value
        elif setting and kind in found:
            own[kind] = over(own[kind], {setting: value}, found[kind].settings())
        else:
            for reader in _readers(name, makers):
                shared[reader][name] = value
    return own, shared


def _readers(setting: str, makers: Mapping[str, tuple[Family, Training]]) -> list[str]:
    """Families that read a setting for one of these rankers; UsageError where none or several do."""

    def read_by(ranker: str, training: Training) -> bool:
        return any(
            one.name == setting and (not one.only or ranker in one.only) for one in training.settings()
        )

    readers = [family.name for role, (family, training) in makers.items() if read_by(role, training)]
    readers = list(dict.fromkeys(readers))
    if not readers:
        everybody = chosen(ranker for one in families().values() if one.training for ranker in one.rankers)
        others = [role for role, (_, training) in everybody.items() if read_by(role, training)]
        if others:
            raise UsageError(
                f"{option_name(setting)} has no effect with {', '.join(makers)}; it is a setting of"
                f" {', '.join(others)}"
            )
        known = {one.name for _, training in makers.values() for one in training.settings()}
        close = get_close_matches(setting, known, 1)
        also = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"there is no setting {setting!r}{also}")
    if len(readers) > 1 and setting not in SHARED:
        raise UsageError(
            f"{option_name(setting)} means one thing for {readers[0]} and another for {readers[1]}; give it"
            f" to one of them as {readers[0]}.{setting}, or train them one after the other"
        )
    return readers
