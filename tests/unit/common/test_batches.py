"""Batches of a stream."""

from __future__ import annotations

import ast

import pytest

from rerank.common.batches import batched
from tests.unit.test_architecture import COMMANDS, LIBRARY, name_of, nodes


def test_batches_have_all_items_in_their_order():
    assert list(batched(range(5), 2)) == [[0, 1], [2, 3], [4]]


def test_a_full_last_batch_is_not_followed_by_an_empty_one():
    assert list(batched(range(4), 2)) == [[0, 1], [2, 3]]
    assert list(batched([], 2)) == []


def test_items_are_read_when_their_batch_is_used():
    read = []

    def stream():
        for number in range(4):
            read.append(number)
            yield number

    batches = batched(stream(), 2)
    assert not read
    assert next(batches) == [0, 1]
    assert read == [0, 1]


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="a batch of 0 items"):
        next(batched([1], 0))


def test_no_other_module_divides_a_stream_itself():
    """A loop with an assignment in its condition is the sign of one that does."""
    for path in (*LIBRARY, *COMMANDS):
        if name_of(path) == "rerank/common/batches.py":
            continue
        for node in nodes(path):
            condition = ast.unparse(node.test) if isinstance(node, ast.While) else ""
            assert "islice(" not in condition, f"{name_of(path)}:{node.lineno}: use common.batches.batched"
