"""rerank: learned signals on top of BM25 and tf-idf, combined by tuned weights, for OpenSearch.

The names below are the public interface. They are imported when first used, so `import rerank` is
fast and torch is loaded only by training.

>>> import rerank
>>> rerank.Document("1", title="Sorting").content
'Sorting'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rerank.actions.attach import attach
    from rerank.actions.cocitation import mine_cocitation
    from rerank.actions.compact import compact
    from rerank.actions.compare import compare
    from rerank.actions.evaluate import evaluate
    from rerank.actions.ingest import encode, ingest
    from rerank.actions.mine import mine
    from rerank.actions.mine_pairs import mine_pairs
    from rerank.actions.pairs import evaluate_pairs, predict_pairs
    from rerank.actions.promote import promote, rollback
    from rerank.actions.report import report
    from rerank.actions.status import status
    from rerank.actions.train import train
    from rerank.actions.tune import tune
    from rerank.automatic import auto
    from rerank.engines.base import Engine, SearchRequest
    from rerank.engines.local import LocalEngine
    from rerank.engines.opensearch import OpenSearchEngine
    from rerank.errors import RerankError
    from rerank.formats import read_corpus, read_labelled_pairs, read_qrels, read_queries, read_run
    from rerank.notebook import NotebookProgress
    from rerank.rankers.base import Ranker
    from rerank.records import Candidates, Document, LabelledPair, Qrels, Query
    from rerank.scoring.pipeline import Answer, Pipeline
    from rerank.stack.ranking import Hit, Ranking
    from rerank.stack.stack import Stack
    from rerank.workspace import Workspace

_HOMES = {
    "Answer": "rerank.scoring.pipeline",
    "Candidates": "rerank.records",
    "Document": "rerank.records",
    "Engine": "rerank.engines.base",
    "Hit": "rerank.stack.ranking",
    "LabelledPair": "rerank.records",
    "LocalEngine": "rerank.engines.local",
    "NotebookProgress": "rerank.notebook",
    "OpenSearchEngine": "rerank.engines.opensearch",
    "Pipeline": "rerank.scoring.pipeline",
    "Qrels": "rerank.records",
    "Query": "rerank.records",
    "Ranker": "rerank.rankers.base",
    "Ranking": "rerank.stack.ranking",
    "RerankError": "rerank.errors",
    "SearchRequest": "rerank.engines.base",
    "Stack": "rerank.stack.stack",
    "Workspace": "rerank.workspace",
    "attach": "rerank.actions.attach",
    "auto": "rerank.automatic",
    "compact": "rerank.actions.compact",
    "compare": "rerank.actions.compare",
    "encode": "rerank.actions.ingest",
    "evaluate": "rerank.actions.evaluate",
    "evaluate_pairs": "rerank.actions.pairs",
    "ingest": "rerank.actions.ingest",
    "mine": "rerank.actions.mine",
    "mine_cocitation": "rerank.actions.cocitation",
    "mine_pairs": "rerank.actions.mine_pairs",
    "predict_pairs": "rerank.actions.pairs",
    "promote": "rerank.actions.promote",
    "read_corpus": "rerank.formats",
    "read_labelled_pairs": "rerank.formats",
    "read_qrels": "rerank.formats",
    "read_queries": "rerank.formats",
    "read_run": "rerank.formats",
    "report": "rerank.actions.report",
    "rollback": "rerank.actions.promote",
    "status": "rerank.actions.status",
    "train": "rerank.actions.train",
    "tune": "rerank.actions.tune",
}

__all__ = [
    "Answer",
    "Candidates",
    "Document",
    "Engine",
    "Hit",
    "LabelledPair",
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
    "read_labelled_pairs",
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
