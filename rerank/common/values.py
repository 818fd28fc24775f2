"""Forms of values that users and files give: one value or several, and values that are empty."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def is_collection(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is several values. A text is one value, not its characters.

    >>> is_collection(["wolf"]), is_collection({"wolf": 1}), is_collection("wolf"), is_collection(7)
    (True, True, False, False)
    """
    return isinstance(value, Iterable) and not isinstance(value, str)


def is_series(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is several values without names. A text, a path and a mapping are one value.

    >>> is_series(["wolf"]), is_series({"text": "wolf"}), is_series("wolf"), is_series(7)
    (True, False, False, False)
    """
    return isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike, Mapping))


def is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a value is the name of a file: a text or a path."""
    return isinstance(value, (str, os.PathLike))


def is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Return whether a value is a list or a tuple."""
    return isinstance(value, (list, tuple))


def listed(value: object) -> list[Any]:
    """Return the items of a list or tuple; any other value is the only item.

    >>> listed(["wolf", "fox"]), listed("wolf"), listed(None)
    (['wolf', 'fox'], ['wolf'], [None])
    """
    if is_list(value):
        return list(value)
    return [value]


def items_of(value: object) -> Iterable[Any]:
    """Return the items of a collection; any other value, also a text, is the only item.

    >>> items_of({"wolf": 1}.keys()), items_of("wolf")
    (dict_keys(['wolf']), ('wolf',))
    """
    if is_collection(value):
        return value
    return (value,)


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping itself, and an empty mapping for any other value.

    >>> as_mapping({"title": "wolf"}), as_mapping("wolf"), as_mapping(None)
    ({'title': 'wolf'}, {}, {})
    """
    return value if isinstance(value, Mapping) else {}


def objects_inside(json_value: object) -> Iterator[Mapping[Any, Any]]:
    """Yield the objects of a JSON value, at any depth and without recursion, in no order.

    >>> list(objects_inside([{"bool": {"must": []}}]))
    [{'bool': {'must': []}}, {'must': []}]
    """
    values = [json_value]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            yield value
            values += value.values()
        elif is_list(value):
            values += value


def items_at(items: Sequence[Value], positions: Iterable[int]) -> list[Value]:
    """Return the items at these positions, in the order of the positions.

    >>> items_at(["wolf", "fox", "bear"], [2, 0])
    ['bear', 'wolf']
    """
    return list(map(items.__getitem__, positions))


def only(values: Mapping[Key, Value], keys: Container[Key]) -> dict[Key, Value]:
    """Return a mapping with these keys only. Keys that it does not have are ignored.

    >>> only({"title": "Wolves", "text": "A wolf"}, ["title", "lang"])
    {'title': 'Wolves'}
    """
    return {key: value for key, value in values.items() if key in keys}


def without(values: Mapping[Key, Value], keys: Container[object]) -> dict[Key, Value]:
    """Return a mapping without these keys.

    >>> without({"title": "Wolves", "text": "A wolf"}, ["title"])
    {'text': 'A wolf'}
    """
    return {key: value for key, value in values.items() if key not in keys}


def without_empty(values: Mapping[Key, Value | None]) -> dict[Key, Value]:
    """Return a mapping without its empty values: None, empty texts and lists, and 0.

    >>> without_empty({"title": "", "text": "A wolf", "links": ()})
    {'text': 'A wolf'}
    """
    return {key: value for key, value in values.items() if value}


def without_none(values: Mapping[Key, Value | None]) -> dict[Key, Value]:
    """Return a mapping without the keys whose value is None.

    >>> without_none({"seed": 0, "epochs": None})
    {'seed': 0}
    """
    return {key: value for key, value in values.items() if value is not None}


def first_in(values: Iterable[Value], container: Container[Value]) -> Value | None:
    """Return the first value that the container has, or None.

    >>> first_in(("id", "doc-id"), {"text", "doc-id"})
    'doc-id'
    """
    for value in values:
        if value in container:
            return value
    return None
