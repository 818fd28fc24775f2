"""TREC run files, in an order that trec_eval reproduces."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rerank.errors import InputError
from rerank.files import atomic_write
from rerank.formats.lines import Source, check_columns, name_of, number, read_texts
from rerank.order import rank

_LAYOUT = "write: query Q0 document rank score tag"
_LIMIT = np.finfo(np.float32).max


def check_run_ids(queries: Iterable[str]) -> None:
    """Raise InputError for an id that a run cannot contain."""
    for query in queries:
        _refuse_space("query id", query)


def write_run(
    path: str | os.PathLike[str], run: Mapping[str, Sequence[tuple[str, float]]], tag: str = "rerank"
) -> None:
    """Write a run atomically: query id -> (document id, score) pairs, best first.

    Scores are made strictly decreasing in float32, because trec_eval sorts ties by id.

    Raises InputError for white space in an id or tag.
    """
    _refuse_space("tag", tag)
    with atomic_write(path, follow=True) as file:
        for query, hits in run.items():
            _refuse_space("query id", query)
            scores = np.clip([score for _, score in hits], -_LIMIT, _LIMIT).astype(np.float32)
            if (np.diff(scores) >= 0).any():
                for i in range(1, len(scores)):
                    scores[i] = min(scores[i], np.nextafter(scores[i - 1], -_LIMIT))
            lines = []
            for position, ((document, _), score) in enumerate(zip(hits, scores.tolist()), 1):
                _refuse_space("document id", document)
                lines.append(f"{query} Q0 {document} {position} {score:.9g} {tag}\n")
            file.write("".join(lines).encode("utf-8"))


def read_run(source: Source) -> dict[str, list[tuple[str, float]]]:
    """Read query id -> (document id, score) pairs, by score descending, then id. Ranks are ignored.

    Raises InputError (``FILE:LINE: ...``), also for a repeated document or an empty file.

    >>> path = folder / "old.run"
    >>> _ = path.write_text("q1 Q0 d7 1 12.5 old\\n")
    >>> read_run(path)
    {'q1': [('d7', 12.5)]}
    """
    run: dict[str, dict[str, float]] = {}
    for where, text in read_texts(source):
        columns = text.split()
        check_columns(where, columns, 6, _LAYOUT)
        query, _, document, _, score_text, _ = columns
        score = number(score_text)
        if math.isnan(score):
            raise InputError(f"{where}: score {score_text!r} is not a number; {_LAYOUT}")
        hits = run.setdefault(query, {})
        if document in hits:
            raise InputError(
                f"{where}: document {document!r} was already retrieved for query {query!r}; "
                "remove one of the lines"
            )
        hits[document] = score
    if not run:
        raise InputError(f"{name_of(source)}: the run is empty; {_LAYOUT}")
    return {query: _ordered(hits) for query, hits in run.items()}


def _ordered(hits: Mapping[str, float]) -> list[tuple[str, float]]:
    ids = list(hits)
    return [(ids[position], hits[ids[position]]) for position in rank(ids, list(hits.values())).tolist()]


def _refuse_space(what: str, value: str) -> None:
    if not value or value.split() != [value]:
        raise InputError(f"{what} {value!r} is empty or contains white space; rename it for a TREC run")
