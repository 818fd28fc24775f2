"""Forms of values that users and files give: one value or several, and values that are empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def is_collection(value: object) -> TypeGuard[Iterable[Any]]:
    """Return whether a value is several values. A text is one value, not its characters.

    >>> is_collection(["wolf"]), is_collection({"wolf": 1}), is_collection("wolf"), is_collection(7)
    (True, True, False, False)
    """
    return isinstance(value, Iterable) and not isinstance(value, str)


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


def without_empty(values: Mapping[Key, Value]) -> dict[Key, Value]:
    """Return a mapping without its empty values: None, empty texts and lists, and 0.

    >>> without_empty({"title": "", "text": "A wolf", "links": ()})
    {'text': 'A wolf'}
    """
    return {key: value for key, value in values.items() if value}
