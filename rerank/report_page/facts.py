"""What a page says beside the measures: who learned from what, how long a query takes, what is covered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank.errors import RerankError
from rerank.evaluation.leakage import HOW
from rerank.records import Query
from rerank.report_page.tables import EvaluationReport
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

TIMED = 20
"""Queries that are asked to tell the time."""
_WARM = 2  # asked before: the first ones open files


@dataclass(frozen=True)
class Split:
    """What learned from how many queries, and how many of those are measured here."""

    of: str
    how: str
    queries: int
    shared: int


def splits(workspace: Workspace, stacks: Mapping[str, Stack], judged: Sequence[str]) -> list[Split]:
    """List what rankers were trained and stopped on, and weights tuned on."""
    found: dict[tuple[str, str], Split] = {}
    for label, stack in stacks.items():
        for name, known in workspace.training_records(stack).items():
            for kind, how in HOW.items():
                if known.get(kind):
                    of = name or label
                    shared = len(known.among(kind, judged))
                    found.setdefault((of, how), Split(of, how, len(known[kind]), shared))
    return list(found.values())


@dataclass(frozen=True)
class Stage:
    """Milliseconds of one stage of a query: the median, and the longest."""

    stage: str
    median: float
    longest: float


def latency(workspace: Workspace, stack: Stack, queries: Sequence[Query]) -> tuple[int, list[Stage]]:
    """Ask some of the queries, one after the other; nothing where that cannot be.

    Returns how many were timed, and the stages, the last one ``together``.
    """
    asked = [query for query in queries if query.text.strip()]
    asked = asked[:: max(1, len(asked) // (TIMED + _WARM))][: TIMED + _WARM]
    rows: list[Mapping[str, float]] = []
    try:
        versions = workspace.versions(stack)
        pipeline = workspace.pipeline(stack.signals, retrieve=stack.retrieve, versions=versions)
        for query in asked:
            rows.append(pipeline.answer(query, stack).seconds)
    except RerankError:  # a run cannot be searched, and a cluster can be gone
        return 0, []
    rows = rows[_WARM:] or rows
    if not rows:
        return 0, []
    stages = list(dict.fromkeys(name for row in rows for name in row))
    times = 1000 * np.array([[row.get(name, 0.0) for name in stages] for row in rows])
    together = times.sum(axis=1)
    return len(rows), [
        Stage(name, float(np.median(of)), float(of.max()))
        for name, of in zip([*stages, "together"], [*times.T, together])
    ]


@dataclass(frozen=True)
class Covered:
    """How many of how many, of something."""

    what: str
    count: int
    of: int


def coverage(workspace: Workspace, report: EvaluationReport, stacks: Sequence[Stack]) -> list[Covered]:
    """Count what can be found and scored at all."""
    scoring = next(iter(report.scoring.values()))
    judged = scoring.queries + scoring.unknown_queries
    rows = [
        Covered("judged queries whose text is known", scoring.queries, judged),
        Covered(
            "of these, queries that find a document", scoring.queries - scoring.without_hits, scoring.queries
        ),
    ]
    if scoring.inferred_categories:
        rows.append(
            Covered("queries whose categories are inferred", scoring.inferred_categories, scoring.queries)
        )
    if report.pairs:
        here = report.pairs - scoring.unknown_documents
        rows.append(Covered("relevant documents that are in the workspace", here, report.pairs))
        for one in report.category_overlap[:1]:
            what = "pairs of a query and a relevant document that both have categories"
            rows.append(Covered(what, one.pairs, one.pairs + one.without_query + one.without_document))
    documents = len(workspace.engine)
    for name, version in _versions(workspace, stacks).items():
        missing = workspace.engine.missing_features(name, version)
        rows.append(Covered(f"documents with features of {name}", documents - missing, documents))
    return rows


def _versions(workspace: Workspace, stacks: Sequence[Stack]) -> dict[str, str]:
    """Ranker -> the version that the stacks are scored by, the last one's where they differ."""
    return {name: version for stack in stacks for name, version in workspace.versions(stack).items()}


def histories(workspace: Workspace, stacks: Sequence[Stack]) -> dict[str, dict[str, Any]]:
    """Ranker -> how it was trained, of those that have more than one point to show."""
    found = {}
    for name, version in _versions(workspace, stacks).items():
        history = workspace.history(name, version)
        if len(history.get("curve", ())) > 1:
            found[name] = history
    return found
