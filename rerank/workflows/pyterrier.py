"""A workspace in the pipelines of PyTerrier."""

from __future__ import annotations

from typing import Any

from rerank.common.errors import NotInstalledError
from rerank.common.results import frame_of
from rerank.common.values import items_in
from rerank.documents.records import Query
from rerank.scoring.scorer import ScoringInput
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

_COLUMNS = ("qid", "query", "docno", "score", "rank")


class StackRanker:
    """Ranks the queries of a frame by a stack.

    stack: signals, weights or a Stack. Default: the active stack. count: documents to retrieve for a query.
    """

    def __init__(
        self, workspace: WorkspaceOrPath, stack: str | Stack | None = None, count: int = 1000
    ) -> None:
        self.workspace = Workspace.open(workspace)
        self.stack = self.workspace.stack(stack or self.workspace.default_stack)
        self.count = count
        self._pipeline = self.workspace.pipeline_of(self.stack)

    def transform(self, frame: Any) -> Any:
        """Return a frame with the columns qid, query, docno, score and rank (from 0).

        frame: the columns qid and query, to retrieve documents; also docno, to rerank these documents.
        Documents that the workspace does not have are left out.
        """
        rows: list[dict[str, Any]] = []
        documents = frame.groupby("qid")["docno"].apply(list).to_dict() if "docno" in frame else {}
        for record in frame.drop_duplicates("qid").to_dict("records"):
            query = Query(record["qid"], record["query"])
            ids = documents.get(record["qid"])
            hits = self._retrieve(query) if ids is None else self._rerank(query, ids)
            for rank, (id, score) in enumerate(hits):
                rows.append(dict(zip(_COLUMNS, (record["qid"], record["query"], id, score, rank))))
        return frame_of(rows, _COLUMNS)

    def _retrieve(self, query: Query) -> list[tuple[str, float]]:
        return self._pipeline.answer(query, self.stack).ranking.run()[: self.count]

    def _rerank(self, query: Query, ids: list[str]) -> list[tuple[str, float]]:
        engine = self.workspace.engine
        existing = engine.contains(ids)
        known_ids = items_in(dict.fromkeys(ids), existing)
        if not known_ids:
            return []
        scorer = self._pipeline.scorer(self.stack.signals, self.stack.first_stage)
        scored = scorer.score(query, ScoringInput(known_ids, {}, documents=engine.get))
        return self.stack.for_case(scored.case).rank(known_ids, scored.raw).run()


def transformer(workspace: WorkspaceOrPath, stack: str | Stack | None = None, count: int = 1000) -> Any:
    """Return a transformer of PyTerrier that retrieves or reranks documents: see :class:`StackRanker`.

    Raises NotInstalledError without PyTerrier.
    """
    try:
        import pyterrier
    except ModuleNotFoundError as error:
        raise NotInstalledError("python-terrier", "a transformer of PyTerrier") from error

    class RerankTransformer(StackRanker, pyterrier.Transformer):  # type: ignore[misc]
        """A stack in a pipeline of PyTerrier."""

    return RerankTransformer(workspace, stack, count)
