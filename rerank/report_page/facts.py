"""Further tables of the evaluation page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rerank.evaluation.leakage import HOW
from rerank.report_page.tables import EvaluationReport
from rerank.stack.stack import Stack
from rerank.workspace import Workspace


def splits(
    workspace: Workspace, stacks: Mapping[str, Stack], judged: Sequence[str]
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (ranker or stack, use) -> number of queries that it was fitted on, and those measured here."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for label, stack in stacks.items():
        for name, known in workspace.training_records(stack).items():
            for kind, how in HOW.items():
                if known.get(kind):
                    counts = len(known[kind]), len(known.among(kind, judged))
                    found.setdefault((name or label, how), counts)
    return found


def coverage(
    workspace: Workspace, report: EvaluationReport, stacks: Sequence[Stack]
) -> list[tuple[str, int, int]]:
    """Return queries and documents that can be scored: text, count and total."""
    scoring = next(iter(report.scoring.values()))
    queries, judged = scoring.queries, scoring.queries + scoring.unknown_queries
    rows = [
        ("judged queries with a text", queries, judged),
        ("queries with candidates", queries - scoring.without_hits, queries),
    ]
    if scoring.inferred_categories:
        rows.append(("queries with inferred categories", scoring.inferred_categories, queries))
    if report.pairs:
        rows.append(
            ("relevant documents in the workspace", report.pairs - scoring.unknown_documents, report.pairs)
        )
        for one in report.category_overlap[:1]:
            what = "relevant documents with categories whose query has categories"
            rows.append((what, one.pairs, one.pairs + one.without_query + one.without_document))
    documents = len(workspace.engine)
    for name, version in _versions(workspace, stacks).items():
        missing = workspace.engine.missing_features(name, version)
        rows.append((f"documents with features of {name}", documents - missing, documents))
    return rows


def _versions(workspace: Workspace, stacks: Sequence[Stack]) -> dict[str, str]:
    return {name: version for stack in stacks for name, version in workspace.versions(stack).items()}


def histories(workspace: Workspace, stacks: Sequence[Stack]) -> dict[str, dict[str, Any]]:
    """Return ranker -> training history."""
    curves = {}
    for name, version in _versions(workspace, stacks).items():
        history = workspace.history(name, version)
        if len(history.get("curve", ())) > 1:
            curves[name] = history
    return curves
