"""Options as msgspec Structs.

>>> class Config(Options, frozen=True):
...     epochs: Annotated[Count, option("Maximum number of epochs.")] = 8
...     rate: Annotated[float, option("Learning rate.", gt=0, lt=1)] = 0.1
>>> build(Config, {"epochs": "20"})
Config(epochs=20, rate=0.1)
>>> build(Config, {"rate": 2})
Traceback (most recent call last):
    ...
rerank.common.errors.UsageError: --rate takes a number, above 0, below 1, not 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from math import isfinite
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import FieldInfo, asdict, fields

from rerank.common.errors import UsageError, did_you_mean, option_name
from rerank.common.values import items_of, without, without_none

if TYPE_CHECKING:
    from typing_extensions import Self

Config = TypeVar("Config", bound="Options")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

_LIMIT_TEXTS = {"ge": "{:g} or more", "gt": "above {:g}", "le": "at most {:g}", "lt": "below {:g}"}
"""Limits of msgspec -> their descriptions."""

Count = Annotated[int, Meta(ge=1)]
"""1, 2, 3, ..."""
Natural = Annotated[int, Meta(ge=0)]
"""0, 1, 2, ..."""
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
"""From 0 to 1."""


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of configurations; annotate fields by :func:`option`.

    presets:        name -> changed values.
    judged_presets: names of the presets for a training on judged queries.
    judged_options: names of the options that have no effect without judged queries.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    judged_presets: ClassVar[Set[str]] = frozenset()
    judged_options: ClassVar[Sequence[str]] = ()

    @classmethod
    def of(cls, preset: str = "default", **values: object) -> Self:
        """Return a preset with changes; None changes nothing. Raises UsageError as :func:`build`."""
        return build(cls, without_none(values), preset)

    @classmethod
    def derived_defaults(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return name -> default of the options whose default depends on other values.

        values: of the preset and of the user.
        """
        return {}

    def validate(self, set_names: Set[str] = frozenset(), *, with_judgments: bool = False) -> None:
        """Raise UsageError for a value that its option refuses, and for an option without effect.

        A family adds the rules for options that depend on each other; see :func:`refuse_ineffective`.

        set_names:      options that the user set, also to their defaults.
        with_judgments: whether the training reads judged queries.
        """
        for option in options_of(type(self)):
            option.read(getattr(self, option.name))

    def check(self) -> None:
        """Raise an error for an input that does not exist or cannot be used, before any work."""


class Option(Struct, frozen=True):
    """One option.

    item:       the type of one value, or of one item of a list, with its limits.
    default:    the value if the user gives none.
    kind:       the type without limits: int, float, bool or str.
    choices:    the values of a Literal.
    is_list:    whether it takes a list.
    optional:   whether None is allowed.
    only:       rankers of a family that read it; (): all.
    instead_of: the option that this one replaces.
    """

    name: str
    item: object
    default: object
    help: str
    kind: type = str
    choices: tuple[str, ...] = ()
    is_list: bool = False
    optional: bool = False
    only: tuple[str, ...] = ()
    instead_of: str | None = None
    metavar: str | None = None

    @property
    def values(self) -> str:
        """Describe the accepted values, such as ``a whole number, 1 or more``."""
        parts = [*(self.choices or [_TYPES[self.kind]]), *self._limits()]
        if self.optional:
            parts.append("or none")
        description = ", ".join(parts)
        if self.is_list:
            return f"a list, comma between, each {description}"
        return description

    def _limits(self) -> list[str]:
        """Describe the limits of a number, such as ``1 or more``."""
        texts: list[str] = []
        for meta in getattr(self.item, "__metadata__", ()):
            limits = without_none({name: getattr(meta, name) for name in _LIMIT_TEXTS})
            if limits.keys() >= {"ge", "le"}:
                texts.append(f"{meta.ge:g} to {meta.le:g}")
                continue
            texts += [_LIMIT_TEXTS[name].format(limit) for name, limit in limits.items()]
        return texts

    def read(self, value: object) -> Any:
        """Return a value, or the text of one, in the type of the option; ``none`` is None.

        A list is a text with commas, or any iterable. Raises UsageError for values that it does not accept.
        """
        if self._is_none(value):
            if self.optional:
                return None
            raise self._error(value)
        if not self.is_list:
            return self._read_item(value)
        return tuple(map(self._read_item, _split_items(value)))

    def _is_none(self, value: object) -> bool:
        """Return whether a value stands for None; ``none`` can also be a choice of the option."""
        if "none" in self.choices:
            return value is None
        return value is None or value == "none"

    def _read_item(self, value: object) -> object:
        """Convert one value, or one item of a list."""
        if isinstance(value, str):
            value = value.strip()
            if self.kind is bool:
                value = _BOOLEANS.get(value.lower(), value)
        try:
            converted: object = convert(value, self.item, strict=self.kind in (bool, str))
        except ValidationError:
            raise self._error(value) from None
        if isinstance(converted, float) and not isfinite(converted):
            raise self._error(value)
        return converted

    def _error(self, value: object) -> UsageError:
        return UsageError(f"{option_name(self.name)} takes {self.values}, not {value!r}")


def _split_items(value: object) -> list[object]:
    """Return the items of a list, without empty texts. Texts are split at commas, also inside of a list."""
    items: list[object] = []
    for item in items_of(value):
        if isinstance(item, str):
            items += filter(None, item.split(","))
        else:
            items.append(item)
    return items


def option(
    help: str,
    *,
    only: tuple[str, ...] = (),
    instead_of: str | None = None,
    metavar: str | None = None,
    **limits: Any,
) -> Meta:
    """Annotate a field as an option; see :class:`Option`.

    help:       the meaning of the option, as a sentence for the user.
    only, instead_of, metavar: as in :class:`Option`.
    limits: ``ge``, ``gt``, ``le``, ``lt`` of a number. Inside other types, annotate the number:
        ``Annotated[Count | None, option("Maximum number.")]``.
    """
    extra = {"only": only, "instead_of": instead_of, "metavar": metavar}
    return Meta(description=help, extra=extra, **limits)


def _without_limits(annotation: Any) -> Any:
    """Return the type inside of ``Annotated``."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    return annotation


@cache  # msgspec reads the annotations of a class as text each time
def options_of(config: type) -> tuple[Option, ...]:
    """Return the options that the annotations of a configuration class declare, in their order."""
    return tuple(map(_option_of_field, fields(config)))


def _option_of_field(field: FieldInfo) -> Option:
    """Read the annotation of a field, such as ``Annotated[Count | None, option("Maximum number.")]``."""
    meta = next(meta for meta in field.type.__metadata__ if meta.description)
    item = field.type
    optional = get_origin(_without_limits(item)) in (Union, UnionType)
    if optional:
        members = get_args(_without_limits(item))
        item = next(member for member in members if member is not type(None))
    is_list = get_origin(_without_limits(item)) is tuple
    if is_list:
        item = get_args(_without_limits(item))[0]
    kind = _without_limits(item)
    choices: tuple[str, ...] = ()
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        kind = str
    return Option(
        name=field.name,
        item=item,
        default=field.default,
        help=meta.description,
        kind=kind,
        choices=choices,
        is_list=is_list,
        optional=optional,
        **meta.extra,
    )


def merge_options(
    defaults: Mapping[str, Any], overrides: Mapping[str, Any], options: Iterable[Option]
) -> dict[str, Any]:
    """Merge values. An override also removes the default of the option that it replaces.

    >>> steps = Option("steps", int, None, "At most.", instead_of="epochs")
    >>> merge_options({"epochs": 3, "rate": 0.1}, {"steps": 40}, [steps])
    {'rate': 0.1, 'steps': 40}
    >>> merge_options({"steps": 40}, {"epochs": 3}, [steps])
    {'epochs': 3}
    """
    set_names = {name for name, value in overrides.items() if value not in (None, "none")}
    replaced: set[str | None] = set()
    for option in options:
        if option.name in set_names:
            replaced.add(option.instead_of)
        if option.instead_of in set_names:
            replaced.add(option.name)
    return {**without(defaults, replaced), **overrides}


def build(config: type[Config], overrides: Mapping[str, Any], preset: str = "default") -> Config:
    """Build a configuration from values and a preset.

    overrides: name -> value, which overrides the preset.

    Raises UsageError for unknown names, invalid values, and options without effect.
    """
    if preset not in config.presets:
        raise UsageError(f"--preset {preset!r} is unknown; use {', '.join(config.presets)}")
    preset_values = config.presets[preset]
    derived_defaults = config.derived_defaults({**preset_values, **overrides})
    options = {option.name: option for option in options_of(config)}
    values = merge_options({**derived_defaults, **preset_values}, overrides, options.values())
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in options:
            raise unknown_option(name, options)
        arguments[name] = options[name].read(value)
    configuration = config(**arguments)
    configuration.validate(overrides.keys())
    return configuration


def refuse_ineffective(names: Iterable[str], set_names: Set[str], reason: str) -> None:
    """Raise UsageError if the user set one of these options, which have no effect.

    reason: the option that makes them ineffective, such as ``--steps 4``.
    """
    for name in names:
        if name in set_names:
            raise UsageError(f"{option_name(name)} has no effect with {reason}; leave it out")


def unknown_option(name: str, known_names: Iterable[str]) -> UsageError:
    """Return the error for an unknown option, with a similar name if there is one."""
    return UsageError(f"setting {name!r} is unknown{did_you_mean(name, known_names)}")


def values_of(config: Options) -> dict[str, Any]:
    """Return the name -> value of all options, for example to store them with a ranker."""
    return asdict(config)
