"""Click logs as teams have them, and judgments by plain loops."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rerank.formats import read_qrels, read_queries


def event(
    action: str, query_id: str, document: object, ordinal: object = None, **more: Any
) -> dict[str, Any]:
    """A record of ubi_events."""
    attributes: dict[str, Any] = {"object": {"object_id": document}}
    if ordinal is not None:
        attributes["position"] = {"ordinal": ordinal}
    return {"action_name": action, "query_id": query_id, "event_attributes": attributes, **more}


def page(
    query_id: str, text: str, shown: Iterable[str], clicked: Iterable[str] = (), first: int = 1
) -> list[Any]:
    """The events of a page view; the ranks of the hits begin with ``first``."""
    ranks = {document: rank for rank, document in enumerate(shown, first)}
    events = [event("impression", query_id, name, rank, user_query=text) for name, rank in ranks.items()]
    return events + [event("click", query_id, name, ranks[name], user_query=text) for name in clicked]


FOUR_PAGES = [
    *page("1", "a", ["d1", "d2"], ["d1"]),
    *page("2", "a", ["d1", "d2"], ["d2"]),
    *page("3", "b", ["d3", "d4"]),
    *page("4", "b", ["d4", "d3"], ["d4"]),
]
"""Click rates .5 and .25. Clicks over expected clicks: 1.0, 1.3333, 0.5714, 1.1429."""


def write(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return path


def judgments(folder: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Return file -> query text -> document -> grade."""
    texts = {query.id: query.text for query in read_queries(folder / "queries.jsonl")}
    files = {}
    for name in ("train", "dev"):
        file = folder / f"{name}.tsv"
        rows = file.read_text("utf-8").splitlines() if file.exists() else []
        qrels = read_qrels(file) if len(rows) > 1 else {}
        files[name] = {texts[query]: dict(qrels[query]) for query in qrels}
    return files


def grades_by_loops(pages: Iterable[tuple[str, dict[str, int], set[str]]]) -> tuple[Any, Any]:
    """Return the grades for training and for tuning: text -> document -> grade.

    pages: text, document -> rank, and clicked documents of each page view.
    """
    shown: Counter[int] = Counter()
    clicked: Counter[int] = Counter()
    ranks = defaultdict(list)
    clicks: Counter[tuple[str, str]] = Counter()
    for text, hits, chosen in pages:
        for document, rank in hits.items():
            shown[rank] += 1
            clicked[rank] += document in chosen
            ranks[text, document].append(rank)
            clicks[text, document] += document in chosen
    mean = sum(clicked.values()) / sum(shown.values())
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    train: dict[str, dict[str, int]] = defaultdict(dict)
    dev: dict[str, dict[str, int]] = defaultdict(dict)
    for (text, document), seen in ranks.items():
        ratios[text][document] = (clicks[text, document] + 5 * mean) / ((len(seen) + 5) * mean)
        expected = sum(clicked[rank] / shown[rank] for rank in seen)
        ratio = (clicks[text, document] + 1) / (expected + 1)
        dev[text][document] = grade(ratio) if clicks[text, document] else 0
    for text, row in ratios.items():
        for document, ratio in row.items():
            near = ratio >= 0.8 * max(row.values()) - 1e-9
            train[text][document] = grade(ratio) if clicks[text, document] and near else 0
    return train, dev


def grade(ratio: float) -> int:
    """Return the grade of a ratio."""
    return sum(ratio >= limit - 1e-9 for limit in (1.25, 2, 3))


def dropped(report: Any) -> dict[str, int]:
    """Return reason -> number of dropped records."""
    return {part.reason: part.count for part in report.dropped}
