"""Write judgments in the forms of other tools."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, get_args

from rerank.common.errors import InputError, UsageError
from rerank.common.files import check_new_file, write_text
from rerank.common.results import Report
from rerank.common.values import items_at, items_not_in
from rerank.documents.records import Qrels, Query
from rerank.documents.text import count_of, join_names
from rerank.formats import read_qrels
from rerank.formats.inputs import Queries, as_queries, with_query_ids
from rerank.formats.lines import first_line, read_numbered_lines
from rerank.formats.opening import Source, name_of
from rerank.judging.judgments import read_judgments, summarize_judgments

Target = Literal["srw", "queryset", "quepid", "rank-eval", "trec"]
TARGETS: tuple[Target, ...] = get_args(Target)

_MARKS: dict[Target, str | re.Pattern[bytes]] = {
    "srw": '"judgmentRatings"',
    "queryset": '"querySetQueries"',
    "quepid": "query,docid,rating",
    "rank-eval": '"requests"',
    "trec": re.compile(rb"\A\S+ 0 \S+ -?\d+\n"),
}
"""How each form begins: other files are not replaced."""

_LARGEST_SRW = 3
"""SRW computes nDCG with the gain 2^rating - 1, so one larger rating decides the whole measure."""


@dataclass
class ConvertReport(Report):
    """Judgments in another form.

    file: with the result. agreement: of several judges, in one line; empty with one judge.
    warnings: properties of the other tool that change measures on these judgments.
    """

    file: str
    queries: int
    judgments: int
    agreement: str = ""
    warnings: list[str] = field(default_factory=list)


def convert_judgments(
    source: Source,
    target_file: str | os.PathLike[str],
    *,
    queries: Queries,
    to: Target,
    index: str | None = None,
) -> ConvertReport:
    """Read judgments and write them in the form of another tool.

    source:  judgments in a form of :func:`rerank.read_qrels`, or the file of ``rerank serve --judge``, of
        which the median of several judges counts.
    queries: have the texts of the judged queries.
    to:      ``srw`` and ``queryset`` for Search Relevance Workbench, ``quepid``, ``rank-eval`` for the body
        of ``_rank_eval``, or ``trec``.
    index:   of the documents, for ``rank-eval``.

    Raises InputError for invalid files, and for judged queries that ``queries`` does not have; UsageError for
    a missing index, and for ids that the form cannot contain.

    >>> path = folder / "quepid.csv"
    >>> _ = path.write_text("query,docid,rating\\nhunts at night,owl,2\\n")
    >>> report = convert_judgments(path, folder / "out.txt", queries={"q1": "hunts at night"}, to="trec")
    >>> (folder / "out.txt").read_text()
    'q1 0 owl 2\\n'
    """
    if to not in TARGETS:
        raise UsageError(f"--to {to}: use {', '.join(TARGETS)}")
    if to == "rank-eval" and index is None:
        raise UsageError("--to rank-eval needs --index NAME, the index of the documents")
    known_queries = as_queries(queries)
    qrels, agreement = _read(source)
    qrels = with_query_ids(qrels, known_queries)
    judged = _judged_queries(qrels, known_queries, source)
    text = _WRITERS[to](judged, qrels, index or "")
    check_new_file(target_file, _MARKS[to])
    write_text(target_file, text, follow=True)
    return ConvertReport(
        file=os.fspath(target_file),
        queries=len(qrels),
        judgments=sum(len(qrels[query]) for query in qrels),
        agreement=agreement,
        warnings=_warnings(qrels, to),
    )


def _read(source: Source) -> tuple[Qrels, str]:
    """Return judgments, and the agreement of several judges."""
    if not _is_by_hand(source):
        return read_qrels(source), ""
    summary = summarize_judgments(read_judgments(source))
    if not len(summary.qrels):
        raise InputError(f"{name_of(source)}: no grades; judge some documents first")
    return summary.qrels, summary.describe()


def _judged_queries(qrels: Qrels, known_queries: Sequence[Query], source: Source) -> list[Query]:
    """Return the queries of judgments, in their order. Raises InputError for a query without a text."""
    by_id = {query.id: query for query in known_queries}
    missing = items_not_in(qrels, by_id)
    if missing:
        raise InputError(
            f"{name_of(source)}: {count_of(len(missing), 'judged query')} without a text in --queries:"
            f" {join_names(missing, 3)}; add their texts"
        )
    return items_at(by_id, qrels)


def _is_by_hand(source: Source) -> bool:
    """Return whether the first line is a judgment by hand."""
    if os.fspath(source) == "-":
        return False  # standard input can be read only once
    first, _ = first_line(read_numbered_lines(source))
    return first.startswith(b"{") and all(f'"{name}"'.encode() in first for name in ("query_id", "id", "by"))


def _warnings(qrels: Qrels, to: Target) -> list[str]:
    """Describe the grades that the other tool measures in another way."""
    grades = set(chain.from_iterable(qrels[query].values() for query in qrels))
    highest = max(grades)
    warnings: list[str] = []
    if to == "srw" and highest > _LARGEST_SRW:
        warnings.append(
            f"grades up to {highest}: Search Relevance Workbench computes nDCG with the gain"
            " 2^rating - 1; use grades from 0 to 3"
        )
    if to == "rank-eval" and highest > 1:
        warnings.append(
            "the dcg metric of _rank_eval has the gain 2^rating - 1; it equals nDCG of rerank for grades 0"
            " and 1"
        )
    if to not in ("trec", "queryset") and min(grades) < 0:
        warnings.append("negative grades are written as 0")
    return warnings


def _srw(queries: Sequence[Query], qrels: Qrels, index: str) -> str:
    judgments: list[dict[str, object]] = []
    for query in queries:
        ratings = [{"docId": id, "rating": f"{max(grade, 0)}.000"} for id, grade in qrels[query.id].items()]
        judgments.append({"query": query.text, "ratings": ratings})
    body = {
        "name": "Judgments",
        "description": "Judgments of rerank",
        "type": "IMPORT_JUDGMENT",
        "judgmentRatings": judgments,
    }
    return _json(body)


def _query_set(queries: Sequence[Query], qrels: Qrels, index: str) -> str:
    texts = [{"queryText": query.text} for query in queries]
    return _json(
        {
            "name": "Queries",
            "description": "Queries of rerank",
            "sampling": "manual",
            "querySetQueries": texts,
        }
    )


def _quepid(queries: Sequence[Query], qrels: Qrels, index: str) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("query", "docid", "rating"))
    for query in queries:
        rows.writerows((query.text, id, max(grade, 0)) for id, grade in qrels[query.id].items())
    return text.getvalue()


def _rank_eval(queries: Sequence[Query], qrels: Qrels, index: str) -> str:
    requests: list[dict[str, object]] = []
    for query in queries:
        ratings = [
            {"_index": index, "_id": id, "rating": max(grade, 0)} for id, grade in qrels[query.id].items()
        ]
        request = {"query": {"multi_match": {"query": query.text}}}
        requests.append({"id": query.id, "request": request, "ratings": ratings})
    return _json({"requests": requests, "metric": {"dcg": {"k": 10, "normalize": True}}})


def _trec(queries: Sequence[Query], qrels: Qrels, index: str) -> str:
    lines: list[str] = []
    for query in queries:
        for id, grade in qrels[query.id].items():
            lines.append(f"{_word(query.id)} 0 {_word(id)} {grade}\n")
    return "".join(lines)


def _word(id: str) -> str:
    """Return an id, which TREC separates by white space."""
    if len(id.split()) != 1 or id != id.strip():
        raise UsageError(f"--to trec: the id {id[:60]!r} has a space; TREC files cannot contain it")
    return id


def _json(body: Mapping[str, object]) -> str:
    return json.dumps(body, ensure_ascii=False, indent=1) + "\n"


_WRITERS: dict[Target, Callable[[Sequence[Query], Qrels, str], str]] = {
    "srw": _srw,
    "queryset": _query_set,
    "quepid": _quepid,
    "rank-eval": _rank_eval,
    "trec": _trec,
}
