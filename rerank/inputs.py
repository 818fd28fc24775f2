"""Values accepted in several forms."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rerank.errors import UsageError
from rerank.formats import read_labeled_pairs, read_qrels, read_queries, read_run
from rerank.order import rank
from rerank.records import LabeledPair, Qrels, Query

Value = TypeVar("Value")
File = str | os.PathLike[str]

Queries = Iterable[Query] | Mapping[str, str] | File
"""Queries, their texts by their ids, or a file of them."""

Judgments = Mapping[str, Mapping[str, int]] | Iterable[tuple[str, str, int]] | File
"""Judgments, as :class:`rerank.Qrels`, as its arguments, or as a file."""

Run = Mapping[str, Sequence[str] | Sequence[tuple[str, float]] | Mapping[str, float]] | File
"""Query id -> document ids (best first), pairs of id and score, or scores by id; or a file of them."""


Pairs = Sequence[LabeledPair] | File
"""Labeled pairs of documents, or a file of them."""


def as_list(values: Any) -> list[Any]:
    """Return a list; a single value is its only item, None is empty.

    >>> as_list("text"), as_list(("text", "meta"))
    (['text'], ['text', 'meta'])
    """
    if isinstance(values, Iterable) and not isinstance(values, (str, os.PathLike)):
        return list(values)
    return [] if values is None else [values]


def as_queries(queries: Queries, *, ignore_categories: bool = False) -> list[Query]:
    """Return queries as a list. Raises UsageError.

    ignore_categories: return them without categories.

    >>> as_queries({"q1": "wolf"}) == [Query("q1", "wolf")]
    True
    """
    if isinstance(queries, (str, os.PathLike)):
        queries = read_queries(queries)
    if isinstance(queries, Mapping):
        queries = [Query(id, text) if isinstance(text, str) else text for id, text in queries.items()]
    found = list(queries) if isinstance(queries, Iterable) else [queries]
    for one in found:
        if not isinstance(one, Query):
            raise UsageError(f"queries: {_short(one)} is not a Query; give queries, texts by id, or a file")
    return [replace(query, categories=()) for query in found] if ignore_categories else found


def as_qrels(qrels: Judgments) -> Qrels:
    """Return judgments as :class:`rerank.Qrels`. Raises UsageError."""
    if isinstance(qrels, Qrels):
        return qrels
    if isinstance(qrels, (str, os.PathLike)):
        return read_qrels(qrels)
    try:
        return Qrels(qrels)
    except (TypeError, ValueError, AttributeError):
        raise UsageError(
            f"qrels: {_short(qrels)} are not judgments; give Qrels, a mapping like"
            ' {"q1": {"d1": 1}}, or a file'
        ) from None


def from_file(values: Value | File, read: Callable[[File], Value]) -> Value:
    """Return the content of a file, or other values unchanged."""
    return read(values) if isinstance(values, (str, os.PathLike)) else values


def as_pairs(pairs: Pairs, known: Callable[[Iterable[str]], Collection[str]]) -> Sequence[LabeledPair]:
    """Return labeled pairs. known: returns the existing ids among given ids, to check a file."""
    return from_file(pairs, lambda file: read_labeled_pairs(file, known))


def as_run(name: str, run: Run) -> dict[str, list[str]]:
    """Return query id -> document ids, best first. Raises UsageError.

    >>> as_run("new", {"q1": [("d1", 0.5), ("d2", 2)], "q2": {"d3": 1.5}, "q3": ["d4", "d5"]})
    {'q1': ['d2', 'd1'], 'q2': ['d3'], 'q3': ['d4', 'd5']}
    """
    if isinstance(run, (str, os.PathLike)):
        run = read_run(run)
    try:
        return {query: _ids(hits) for query, hits in run.items()}
    except (TypeError, ValueError, AttributeError):
        raise UsageError(
            f"run {name!r}: {_short(run)} is not a run; give lists of document ids by query id, or a file"
        ) from None


def _ids(hits: Any) -> list[str]:
    scored = list(hits.items() if isinstance(hits, Mapping) else hits)
    if isinstance(hits, str) or not all(isinstance(one, (str, tuple, list)) for one in scored):
        raise TypeError
    if not scored or isinstance(scored[0], str):
        return scored
    ids = [id for id, _ in scored]
    return [ids[place] for place in rank(ids, [float(score) for _, score in scored]).tolist()]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}... ({type(value).__name__})"
