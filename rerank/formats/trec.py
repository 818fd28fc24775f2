"""TREC run files, in an order that trec_eval reproduces."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rerank.common.errors import InputError
from rerank.common.files import atomic_write
from rerank.formats.contents import describe_line
from rerank.formats.lines import check_columns, number, read_texts
from rerank.formats.opening import Source, name_of

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
    """Read query id -> (document id, score) pairs, by score descending, then by the rank column, then by id.

    Raises InputError (``FILE:LINE: ...``), also for a score that is not finite or above 3.4e38, a repeated
    document, or an empty file.

    >>> path = folder / "old.run"
    >>> _ = path.write_text("q1 Q0 d7 2 12.5 old\\nq1 Q0 d9 1 12.5 old\\n")
    >>> read_run(path)
    {'q1': [('d9', 12.5), ('d7', 12.5)]}
    """
    run: dict[str, dict[str, tuple[float, float]]] = {}
    for location, text in read_texts(source):
        columns = text.split()
        if not run and len(columns) != 6:
            _refuse_other_content(location, text)
        check_columns(location, columns, 6, _LAYOUT)
        query, _, document, rank_text, score_text, _ = columns
        hits = run.setdefault(query, {})
        if document in hits:
            raise InputError(
                f"{location}: document {document!r} was already retrieved for query {query!r}; "
                "remove one of the lines"
            )
        hits[document] = (_score(location, score_text), number(rank_text))
    if not run:
        raise InputError(f"{name_of(source)}: the run is empty; {_LAYOUT}")
    return {query: _ordered(hits) for query, hits in run.items()}


def _refuse_other_content(location: str, text: str) -> None:
    """Raise InputError for a line that is not of a run, and whose kind of file is known."""
    kind = describe_line(text)
    if kind:
        raise InputError(f"{location}: not a TREC run, it looks like {kind}; {_LAYOUT}")


def _score(location: str, text: str) -> float:
    score = number(text)
    if math.isnan(score):
        raise InputError(f"{location}: score {text!r} is not a number; {_LAYOUT}")
    if abs(score) > 1.000001 * float(_LIMIT):  # written runs are rounded
        raise InputError(
            f"{location}: score {text!r} is too large, the limit is {_LIMIT:.1e}; use finite scores, such as"
            " the negative rank"
        )
    return score


def _ordered(hits: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    return [(document, score) for document, (score, _) in sorted(hits.items(), key=_sort_key)]


def _sort_key(hit: tuple[str, tuple[float, float]]) -> tuple[float, float, str]:
    """Return the negative score, the rank and the id of a document. Ranks that are not numbers come last."""
    document, (score, position) = hit
    if math.isnan(position):
        position = math.inf
    return -score, position, document


def _refuse_space(field: str, value: str) -> None:
    if value.split() != [value]:  # also if it is empty
        raise InputError(f"{field} {value!r} is empty or contains white space; rename it for a TREC run")
