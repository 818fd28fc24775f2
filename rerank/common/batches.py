"""Work on a stream in batches, so that memory does not grow with its length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of ``size``, in their order; the last list has the remaining ones.

    An item is read when its batch is asked for, not before. No items give no batch.

    >>> list(batched("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    if size < 1:
        raise ValueError(f"a batch of {size} items never ends; use 1 or more")
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch
