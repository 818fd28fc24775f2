"""Settings as dataclasses: the one place where the name, default, range and help of an option stand.

A configuration is a frozen dataclass whose fields are made by :func:`setting`, :func:`part` or :func:`group`.
The command line, ``--set``, ``--config`` files, the documentation and the library read them from there.

>>> @dataclass(frozen=True)
... class Hinge:
...     margin: float = setting(1.0, "of the hinge", above=0)
>>> @dataclass(frozen=True)
... class Softmax:
...     temperature: float = setting(0.05, "of the softmax", above=0)
>>> @dataclass(frozen=True)
... class Config:
...     epochs: int = setting(8, "at most this many", low=1, common=True)
...     loss: Hinge | Softmax = part({"hinge": Hinge, "softmax": Softmax}, "softmax", "which loss")
>>> build(Config, {"loss": "hinge", "margin": 2})
Config(epochs=8, loss=Hinge(margin=2.0))
>>> build(Config, {"margin": 2})
Traceback (most recent call last):
    ...
rerank.errors.UsageError: margin has no effect with loss softmax; it is a setting of loss hinge
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from rerank.errors import UsageError, setting_hint

Config = TypeVar("Config")
_KEY = "rerank"


@dataclass(frozen=True)
class Setting:
    """One setting, as :func:`settings_of` lists it.

    name:    in code, in ``--set`` and in TOML; the command line writes it with hyphens.
    kind:    int, float, bool, str, or tuple (of ``item``); many-valued settings are tuples.
    help:    one phrase, lower case, without a full stop.
    low, high: the range, both included. above, below: the same, excluded.
    choices: the values there are, where they are named.
    optional: None is allowed, and means what ``help`` says.
    common:  an option of its own on the command line; the others are set by ``--set``.
    only:    of a family's rankers, those that read it; (): all do.
    instead_of: another setting, which has no effect beside this one; the one that is given counts.
    of:      what reads it: ``()`` the configuration itself, else (part, choice) as ("loss", "hinge").
    """

    name: str
    kind: type
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    item: type = str
    common: bool = False
    only: tuple[str, ...] = ()
    instead_of: str | None = None
    metavar: str | None = None
    of: tuple[str, str] | tuple[()] = ()

    @property
    def range(self) -> str:
        """What values there are, for people: ``1 or more``, ``above 0``, ``hinge, softmax``; or nothing."""
        if self.choices:
            return ", ".join(self.choices)
        parts = []
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            parts.append(f"{self.low:g} or more")
        if self.above is not None:
            parts.append(f"above {self.above:g}")
        if self.high is not None:
            parts.append(f"at most {self.high:g}")
        if self.below is not None:
            parts.append(f"below {self.below:g}")
        return ", ".join(parts)

    def read(self, value: Any) -> Any:
        """Check a value, which may be its text. Raises UsageError, naming the setting."""
        if value is None or (isinstance(value, str) and value == "none" and "none" not in self.choices):
            if self.optional:
                return None
            raise self._wrong(value)
        if self.kind is tuple:
            if isinstance(value, str):
                value = [one.strip() for one in value.split(",") if one.strip()]
            elif not isinstance(value, Iterable):
                value = [value]
            if self.item is not str:  # an option that was given once, as 400,400
                value = [
                    part for one in value for part in (one.split(",") if isinstance(one, str) else [one])
                ]
            return tuple(self._one(one, self.item) for one in value)
        return self._one(value, self.kind)

    def _one(self, value: Any, kind: type) -> Any:
        if kind is bool:
            words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
            if isinstance(value, str) and value.lower() in words:
                return words[value.lower()]
            if not isinstance(value, bool):
                raise self._wrong(value)
            return value
        if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
            raise self._wrong(value)
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise self._wrong(value)
        try:
            found = kind(value)
        except (TypeError, ValueError):
            raise self._wrong(value) from None
        if self.choices and found not in self.choices:
            raise self._wrong(value)
        if kind in (int, float) and not (
            isfinite(found)
            and (self.low is None or found >= self.low)
            and (self.high is None or found <= self.high)
            and (self.above is None or found > self.above)
            and (self.below is None or found < self.below)
        ):
            raise self._wrong(value)
        return found

    def _wrong(self, value: Any) -> UsageError:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        of = "" if self.kind is not tuple else "a list, comma between, each "
        what = self.range if self.choices else words[self.item if self.kind is tuple else self.kind]
        also = f", {self.range}" if self.range and not self.choices else ""
        none = ", or none" if self.optional else ""
        return UsageError(f"{setting_hint(self.name)} takes {of}{what}{also}{none}, not {value!r}")


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    common: bool = False,
    only: tuple[str, ...] = (),
    instead_of: str | None = None,
    metavar: str | None = None,
) -> Any:
    """A field of a configuration; for the arguments see :class:`Setting`. Choices come from ``Literal``."""
    metadata = {
        "help": help,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "common": common,
        "only": only,
        "instead_of": instead_of,
        "metavar": metavar,
    }
    return dataclasses.field(default=default, metadata={_KEY: metadata})


def part(choices: Mapping[str, type], default: str, help: str, *, common: bool = True) -> Any:
    """A field that is one of several configurations, chosen by name; their settings belong to the whole."""
    metadata = {"part": choices, "chosen": default, "help": help, "common": common}
    return dataclasses.field(default_factory=choices[default], metadata={_KEY: metadata})


def group(config: type) -> Any:
    """A field that is a configuration of its own; its settings belong to the whole."""
    return dataclasses.field(default_factory=config, metadata={_KEY: {"group": config}})


def settings_of(config: type) -> list[Setting]:
    """All settings of a configuration, those of its groups and of every choice of its parts included."""
    return list(_walk(config, ()))


def _walk(config: type, of: tuple[str, str] | tuple[()]) -> Iterator[Setting]:
    for field in dataclasses.fields(config):
        about = field.metadata.get(_KEY)
        if about is None:
            continue
        if "group" in about:
            yield from _walk(about["group"], of)
        elif "part" in about:
            names = tuple(about["part"])
            yield Setting(
                field.name, str, about["chosen"], about["help"], choices=names, common=about["common"], of=of
            )
            for name, chosen in about["part"].items():
                yield from _walk(chosen, (field.name, name))
        else:
            yield Setting(field.name, default=field.default, of=of, **_typed(config, field.name), **about)


def _typed(config: type, name: str) -> dict[str, Any]:
    """Kind, item, choices and optional, as the field's annotation says."""
    home = next(one for one in config.__mro__ if name in inspect.get_annotations(one))
    names = vars(sys.modules[home.__module__])
    lone = type("_", (), {"__annotations__": {name: home.__annotations__[name]}})  # a part's need not resolve
    hint = typing.get_type_hints(lone, names)[name]
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        rest = [one for one in get_args(hint) if one is not type(None)]
        optional, hint = len(rest) < len(get_args(hint)), rest[0]
    if get_origin(hint) is Literal:
        return {"kind": str, "choices": get_args(hint), "optional": optional}
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if get_origin(item) is Literal:
            return {"kind": tuple, "item": str, "choices": get_args(item), "optional": optional}
        return {"kind": tuple, "item": item, "optional": optional}
    return {"kind": hint, "optional": optional}


def over(below: Mapping[str, Any], given: Mapping[str, Any], settings: Iterable[Setting]) -> dict[str, Any]:
    """Put values over others: each takes the place of its own, and of what it is given instead of.

    >>> steps = Setting("steps", int, None, "at most", instead_of="epochs")
    >>> over({"epochs": 3, "rate": 0.1}, {"steps": 40}, [steps])
    {'rate': 0.1, 'steps': 40}
    >>> over({"steps": 40}, {"epochs": 3}, [steps])
    {'epochs': 3}
    """
    said = {name for name, value in given.items() if value not in (None, "none")}
    gone = set()
    for one in settings:
        if one.instead_of and one.name in said:
            gone.add(one.instead_of)
        if one.instead_of in said:
            gone.add(one.name)
    return {name: value for name, value in below.items() if name not in gone} | dict(given)


def build(config: type[Config], given: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> Config:
    """Make a configuration of what was ``given`` (name -> value, or its text), on top of a preset's values.

    Raises UsageError for an unknown name, a value out of range, and a given setting that nothing reads: one
    of another choice of a part, or one that the ``unread()`` of the configuration, or of a part or group of
    it, names (it returns name -> why, as "objective contrastive"). A part's choice may have ``implies``,
    defaults for the settings of later fields.
    """
    wanted = over(preset or {}, given, settings_of(config))
    read: set[str] = set()
    made: Config = _make(config, wanted, read)
    known = settings_of(config)
    for name in wanted:
        if name in read:
            continue
        readers = [one.of for one in known if one.name == name]
        if not readers:
            close = get_close_matches(name, [one.name for one in known], 1)
            also = f"; did you mean {close[0]}?" if close else ""
            raise UsageError(f"there is no setting {name!r}{also}")
        if name in given:
            where = readers[0]
            assert where
            chosen = _chosen(config, where[0], wanted)
            names = ", ".join(one[1] for one in readers if one)
            raise UsageError(
                f"{setting_hint(name)} has no effect with {setting_hint(where[0], chosen)}; it is a setting"
                f" of {where[0]} {names}"
            )
    for name, why in _unread(made):
        if name in given:
            asked = [
                one for one in preset or {} if one not in given and why.startswith(f"{setting_hint(one)} ")
            ]
            do = ", as the preset has it; give that, too, or leave this out" if asked else "; leave it out"
            raise UsageError(f"{setting_hint(name)} has no effect with {why}{do}")
    return made


def _unread(config: Any) -> Iterator[tuple[str, str]]:
    """What a configuration, its groups and the choices of its parts say that they do not read."""
    unread: Callable[[], Mapping[str, str]] | None = getattr(config, "unread", None)
    yield from (unread() if unread else {}).items()
    for field in dataclasses.fields(config):
        if not {"group", "part"}.isdisjoint(field.metadata.get(_KEY, {})):
            yield from _unread(getattr(config, field.name))


def _chosen(config: type, name: str, wanted: Mapping[str, Any]) -> str:
    found = next(one for one in settings_of(config) if one.name == name)
    return str(wanted.get(name, found.default))


def _make(config: type, wanted: dict[str, Any], read: set[str]) -> Any:
    values: dict[str, Any] = {}
    known = {one.name: one for one in _own(config)}
    for field in dataclasses.fields(config):
        about = field.metadata.get(_KEY)
        if about is None:  # no setting: given by code alone, as an object
            if field.name in wanted:
                values[field.name] = wanted[field.name]
                read.add(field.name)
        elif "group" in about:
            values[field.name] = _make(about["group"], wanted, read)
        elif "part" in about:
            name = wanted.get(field.name, about["chosen"])
            read.add(field.name)
            chosen = about["part"][known[field.name].read(name)]
            for other, value in getattr(chosen, "implies", {}).items():
                wanted.setdefault(other, value)
            values[field.name] = _make(chosen, wanted, read)
        else:
            read.add(field.name)
            if field.name in wanted:
                values[field.name] = known[field.name].read(wanted[field.name])
    return config(**values)


def _own(config: type) -> Iterable[Setting]:
    """The settings of a configuration itself, and the names of its parts."""
    return (one for one in _walk(config, ()) if not one.of)


def values_of(config: Any) -> dict[str, Any]:
    """Name -> value of every setting of a configuration, flat; of a part, its choice's name.

    ``build(type(config), {}, values_of(config))`` makes an equal one.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        about = field.metadata.get(_KEY)
        value = getattr(config, field.name)
        if about is None:
            continue
        if "group" in about:
            found |= values_of(value)
        elif "part" in about:
            found[field.name] = next(name for name, one in about["part"].items() if type(value) is one)
            found |= values_of(value)
        else:
            found[field.name] = value
    return found
