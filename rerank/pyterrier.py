"""A workspace as a transformer of PyTerrier. Import it only with PyTerrier installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pyterrier

from rerank.records import Query
from rerank.scoring.scorer import ScoringInput
from rerank.stack.stack import Stack
from rerank.workspace import Workspace, WorkspaceOrPath


class RerankTransformer(pyterrier.Transformer):  # type: ignore[misc]
    """Retrieves documents of a workspace, or reranks documents that another transformer has retrieved.

    A frame with the columns qid and query gets the ``count`` best documents of each query. If it also has the
    column docno, these documents get the scores of the stack. Their texts and first-stage scores are those of
    the workspace; documents that it does not have keep no score and are left out.

    stack: signals, weights or a Stack. Default: the active stack.
    """

    def __init__(
        self, workspace: WorkspaceOrPath, stack: str | Stack | None = None, count: int = 1000
    ) -> None:
        self.workspace = Workspace.open(workspace)
        name = stack or self.workspace.default_stack
        self.stack = name if isinstance(name, Stack) else self.workspace.stack(name)
        self.count = count
        self._pipeline = self.workspace.pipeline(
            self.stack.signals, retrieve=self.stack.retrieve, versions=self.workspace.versions(self.stack)
        )

    def transform(self, frame: Any) -> Any:
        """Return a frame with the columns qid, query, docno, score and rank (from 0)."""
        rows: list[dict[str, Any]] = []
        documents = frame.groupby("qid")["docno"].apply(list).to_dict() if "docno" in frame else {}
        for record in frame.drop_duplicates("qid").to_dict("records"):
            ids = documents.get(record["qid"])
            query = Query(record["qid"], record["query"])
            hits = self._retrieve(query) if ids is None else self._rerank(query, ids)
            for rank, (id, score) in enumerate(hits):
                row = {"qid": record["qid"], "query": record["query"], "docno": id, "score": score}
                rows.append({**row, "rank": rank})
        return pandas.DataFrame(rows, columns=["qid", "query", "docno", "score", "rank"])

    def _retrieve(self, query: Query) -> list[tuple[str, float]]:
        return self._pipeline.answer(query, self.stack).ranking.run()[: self.count]

    def _rerank(self, query: Query, ids: list[str]) -> list[tuple[str, float]]:
        engine = self.workspace.engine
        existing = engine.contains(ids)
        own_ids = [id for id in dict.fromkeys(ids) if id in existing]
        if not own_ids:
            return []
        scorer = self._pipeline.scorer(self.stack.signals, self.stack.first_stage)
        scored = scorer.score(query, ScoringInput(own_ids, {}, documents=engine.get))
        ranking = self.stack.for_case(scored.case).rank(own_ids, np.asarray(scored.raw))
        return ranking.run()
