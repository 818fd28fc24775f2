"""Rank documents for many queries without judgments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.documents.filters import filters_of
from rerank.formats.inputs import Queries, as_queries
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace, WorkspaceOrPath


@dataclass
class RankReport(Report):
    """Rankings of queries. rankings: query id -> (document id, score) pairs, best first."""

    stack: str
    rankings: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each query and document, with the rank from 1."""
        return [
            {"query": query, "rank": rank, "id": document, "score": score}
            for query, hits in self.rankings.items()
            for rank, (document, score) in enumerate(hits, 1)
        ]


def rank(
    workspace: WorkspaceOrPath,
    queries: Queries,
    k: int = 100,
    *,
    stack: str | Stack | None = None,
    filter: str | Sequence[str] = (),
    infer: bool = True,
    progress: Progress = SILENT,
) -> RankReport:
    """Return the first ``k`` documents for each query.

    stack: Default: the active stack. filter: see :meth:`Workspace.search`.
    infer: infer missing categories of queries.

    >>> rank(workspace, {"q1": "wolf"}, 1, stack="bm25").rows()[0]["id"]
    'wolf'
    """
    workspace = Workspace.open(workspace)
    resolved = workspace.stack(stack or workspace.default_stack)
    pipeline = workspace.pipeline_of(resolved, infer_categories=infer)
    filters = filters_of(filter)
    report = RankReport(str(resolved))
    for query in progress.over(as_queries(queries), "rank", unit="query"):
        hits = pipeline.hits(pipeline.answer(query, resolved, filters=filters), k)
        report.rankings[query.id] = [(hit["id"], hit["score"]) for hit in hits]
    return report
