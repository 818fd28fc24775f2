"""Learned signals on top of BM25 and tf-idf, for OpenSearch.

>>> import rerank
>>> rerank.Document("1", title="Sorting").content
'Sorting'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rerank.engines.base import Engine, SearchRequest
    from rerank.engines.local import LocalEngine
    from rerank.engines.opensearch import OpenSearchEngine
    from rerank.errors import RerankError
    from rerank.formats import read_corpus, read_labeled_pairs, read_qrels, read_queries, read_run
    from rerank.notebook import NotebookProgress
    from rerank.rankers.base import Ranker
    from rerank.records import Candidates, Document, LabeledPair, Qrels, Query
    from rerank.search.pipeline import Pipeline, SearchResult
    from rerank.stack.ranking import Hit, Ranking
    from rerank.stack.stack import Stack
    from rerank.workflows.attach import attach
    from rerank.workflows.auto import auto
    from rerank.workflows.cocitation import mine_cocitation
    from rerank.workflows.compare import compare
    from rerank.workflows.encode import compact, encode
    from rerank.workflows.evaluate import evaluate
    from rerank.workflows.ingest import ingest
    from rerank.workflows.mine import mine
    from rerank.workflows.mine_pairs import mine_pairs
    from rerank.workflows.pairs import evaluate_pairs, predict_pairs
    from rerank.workflows.promote import promote, rollback
    from rerank.workflows.report import report
    from rerank.workflows.status import status
    from rerank.workflows.train import train
    from rerank.workflows.tune import tune
    from rerank.workspace import Workspace

_HOMES = {
    "Candidates": "rerank.records",
    "Document": "rerank.records",
    "Engine": "rerank.engines.base",
    "Hit": "rerank.stack.ranking",
    "LabeledPair": "rerank.records",
    "LocalEngine": "rerank.engines.local",
    "NotebookProgress": "rerank.notebook",
    "OpenSearchEngine": "rerank.engines.opensearch",
    "Pipeline": "rerank.search.pipeline",
    "Qrels": "rerank.records",
    "Query": "rerank.records",
    "Ranker": "rerank.rankers.base",
    "Ranking": "rerank.stack.ranking",
    "RerankError": "rerank.errors",
    "SearchRequest": "rerank.engines.base",
    "SearchResult": "rerank.search.pipeline",
    "Stack": "rerank.stack.stack",
    "Workspace": "rerank.workspace",
    "attach": "rerank.workflows.attach",
    "auto": "rerank.workflows.auto",
    "compact": "rerank.workflows.encode",
    "compare": "rerank.workflows.compare",
    "encode": "rerank.workflows.encode",
    "evaluate": "rerank.workflows.evaluate",
    "evaluate_pairs": "rerank.workflows.pairs",
    "ingest": "rerank.workflows.ingest",
    "mine": "rerank.workflows.mine",
    "mine_cocitation": "rerank.workflows.cocitation",
    "mine_pairs": "rerank.workflows.mine_pairs",
    "predict_pairs": "rerank.workflows.pairs",
    "promote": "rerank.workflows.promote",
    "read_corpus": "rerank.formats",
    "read_labeled_pairs": "rerank.formats",
    "read_qrels": "rerank.formats",
    "read_queries": "rerank.formats",
    "read_run": "rerank.formats",
    "report": "rerank.workflows.report",
    "rollback": "rerank.workflows.promote",
    "status": "rerank.workflows.status",
    "train": "rerank.workflows.train",
    "tune": "rerank.workflows.tune",
}

__all__ = [
    "Candidates",
    "Document",
    "Engine",
    "Hit",
    "LabeledPair",
    "LocalEngine",
    "NotebookProgress",
    "OpenSearchEngine",
    "Pipeline",
    "Qrels",
    "Query",
    "Ranker",
    "Ranking",
    "RerankError",
    "SearchRequest",
    "SearchResult",
    "Stack",
    "Workspace",
    "attach",
    "auto",
    "compact",
    "compare",
    "encode",
    "evaluate",
    "evaluate_pairs",
    "ingest",
    "mine",
    "mine_cocitation",
    "mine_pairs",
    "predict_pairs",
    "promote",
    "read_corpus",
    "read_labeled_pairs",
    "read_qrels",
    "read_queries",
    "read_run",
    "report",
    "rollback",
    "status",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rerank' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
