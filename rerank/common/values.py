"""Forms of values that users and files give, and choices of some values of a list or a mapping."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, overload

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


@overload
def items_at(items: Mapping[Key, Value], positions: Iterable[Key]) -> list[Value]: ...
@overload
def items_at(items: Sequence[Value], positions: Iterable[int]) -> list[Value]: ...
def items_at(items: Any, positions: Iterable[Any]) -> list[Any]:
    """Return the items at these positions of a sequence, or at these keys of a mapping, in this order.

    >>> items_at(["wolf", "fox", "bear"], [2, 0]), items_at({"d1": "wolf", "d2": "fox"}, ["d2"])
    (['bear', 'wolf'], ['fox'])
    """
    return list(map(items.__getitem__, positions))


def items_in(items: Iterable[Value], allowed: Container[object]) -> list[Value]:
    """Return the items that are also among others, in their order.

    >>> items_in(["wolf", "fox", "bear"], {"bear", "wolf"})
    ['wolf', 'bear']
    """
    return [item for item in items if item in allowed]


def items_not_in(items: Iterable[Value], excluded: Container[object]) -> list[Value]:
    """Return the items that are not among others, in their order.

    >>> items_not_in(["wolf", "fox", "bear"], ["fox"])
    ['wolf', 'bear']
    """
    return [item for item in items if item not in excluded]


def of_type(items: Iterable[object], kind: type[Value]) -> list[Value]:
    """Return the items that are instances of a class, in their order.

    >>> of_type(["wolf", 7, "fox"], str)
    ['wolf', 'fox']
    """
    return [item for item in items if isinstance(item, kind)]


def only(values: Mapping[Key, Value], keys: Container[Key]) -> dict[Key, Value]:
    """Return a mapping with these keys only. Keys that it does not have are ignored.

    >>> only({"title": "Wolves", "text": "A wolf"}, ["title", "lang"])
    {'title': 'Wolves'}
    """
    return {key: value for key, value in values.items() if key in keys}


def with_keys(values: Mapping[Key, Value], keys: Iterable[Key]) -> dict[Key, Value]:
    """Return the values of these keys, in the order of the keys. Keys that it does not have are ignored.

    >>> with_keys({"title": "Wolves", "text": "A wolf"}, ["text", "lang", "title"])
    {'text': 'A wolf', 'title': 'Wolves'}
    """
    return {key: values[key] for key in keys if key in values}


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
