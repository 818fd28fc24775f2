"""Learned signals on top of BM25 and tf-idf, for OpenSearch.

>>> import rerank
>>> rerank.Document("1", title="Sorting").content
'Sorting'
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Threads of torch that wait for work first wait in a loop, and then sleep. By default they loop so long that,
# beside other processes, most of the processor time is lost. OpenMP reads this once, when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rerank.common.errors import RerankError as RerankError
    from rerank.common.progress import Progress as Progress
    from rerank.documents.records import Candidates as Candidates
    from rerank.documents.records import Document as Document
    from rerank.documents.records import LabeledPair as LabeledPair
    from rerank.documents.records import Qrels as Qrels
    from rerank.documents.records import Query as Query
    from rerank.engines.base import Engine as Engine
    from rerank.engines.local import LocalEngine as LocalEngine
    from rerank.engines.opensearch import OpenSearchEngine as OpenSearchEngine
    from rerank.engines.search_request import SearchRequest as SearchRequest
    from rerank.formats import read_corpus as read_corpus
    from rerank.formats import read_labeled_pairs as read_labeled_pairs
    from rerank.formats import read_qrels as read_qrels
    from rerank.formats import read_queries as read_queries
    from rerank.formats import read_run as read_run
    from rerank.judging.clicks import judge_clicks as judge_clicks
    from rerank.judging.log import ClickOptions as ClickOptions
    from rerank.pairs.evaluate import evaluate_pairs as evaluate_pairs
    from rerank.pairs.evaluate import predict_pairs as predict_pairs
    from rerank.rankers.base import Ranker as Ranker
    from rerank.reports.page import evaluation_page as evaluation_page
    from rerank.scoring.pipeline import Pipeline as Pipeline
    from rerank.scoring.pipeline import SearchResult as SearchResult
    from rerank.stack.ranking import Hit as Hit
    from rerank.stack.ranking import Ranking as Ranking
    from rerank.stack.stack import Stack as Stack
    from rerank.workflows.attach import attach as attach
    from rerank.workflows.auto.run import auto as auto
    from rerank.workflows.encode import encode as encode
    from rerank.workflows.evaluate import evaluate as evaluate
    from rerank.workflows.ingest import ingest as ingest
    from rerank.workflows.promote import promote as promote
    from rerank.workflows.promote import rollback as rollback
    from rerank.workflows.rank import rank as rank
    from rerank.workflows.status import status as status
    from rerank.workflows.train import train as train
    from rerank.workflows.tune import tune as tune
    from rerank.workspace.workspace import Workspace as Workspace

_MODULES = {
    "rerank.engines.base": ("Engine",),
    "rerank.engines.local": ("LocalEngine",),
    "rerank.engines.opensearch": ("OpenSearchEngine",),
    "rerank.engines.search_request": ("SearchRequest",),
    "rerank.common.errors": ("RerankError",),
    "rerank.common.progress": ("Progress",),
    "rerank.formats": ("read_corpus", "read_labeled_pairs", "read_qrels", "read_queries", "read_run"),
    "rerank.judging.clicks": ("judge_clicks",),
    "rerank.judging.log": ("ClickOptions",),
    "rerank.rankers.base": ("Ranker",),
    "rerank.documents.records": ("Candidates", "Document", "LabeledPair", "Qrels", "Query"),
    "rerank.reports.page": ("evaluation_page",),
    "rerank.scoring.pipeline": ("Pipeline", "SearchResult"),
    "rerank.stack.ranking": ("Hit", "Ranking"),
    "rerank.stack.stack": ("Stack",),
    "rerank.workflows.auto.run": ("auto",),
    "rerank.pairs.evaluate": ("evaluate_pairs", "predict_pairs"),
    "rerank.workflows.promote": ("promote", "rollback"),
    "rerank.workspace.workspace": ("Workspace",),
    **{
        f"rerank.workflows.{name}": (name,)
        for name in ("attach", "encode", "evaluate", "ingest", "rank", "status", "train", "tune")
    },
}
"""Module -> its public names, which are imported on first use."""

__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            globals()[name] = value = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module 'rerank' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
