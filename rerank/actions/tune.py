"""Tune: judged queries of a workspace -> a tuned stack and its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rerank.actions.experiment import only_judged
from rerank.actions.ingest import encode
from rerank.errors import EngineError, UsageError, WorkspaceError
from rerank.evaluation.protocols import Protocol
from rerank.progress import Progress
from rerank.records import Qrels, Query
from rerank.scoring.fill import ScoringReport, judged_queries, score_table
from rerank.stack.parse import parse_stack, retriever_depths
from rerank.stack.signals import lexical
from rerank.tuning.search import CrossValidated, Tuned, cross_validate
from rerank.tuning.search import tune as tune_table
from rerank.workspace import Workspace


@dataclass
class TuneReport:
    """A tuned stack, where it was written, and what it was tuned on."""

    tuned: Tuned
    validated: CrossValidated | None
    path: Path
    scoring: ScoringReport

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        result: dict[str, Any] = {
            **self.tuned.stack.to_json(),
            "file": str(self.path),
            "scoring": asdict(self.scoring),
        }
        if self.validated is not None:
            result["cross_validated"] = {
                "value": self.validated.value,
                "first_stage_value": self.validated.first_stage_value,
                "folds": [asdict(fold) for fold in self.validated.folds],
            }
        return result


def tune(
    workspace: Workspace,
    stack: str,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    first_stage: str | None = None,
    retrieve: Sequence[str] = (),
    depth: int = 1000,
    folds: int | None = None,
    normalisations: Sequence[str] = ("min-max", "z-score", "none"),
    out: str | os.PathLike[str] | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> TuneReport:
    """Find the best weights and normalisation of a stack on judged queries and write the stack file.

    retrieve: who retrieves the candidates, ``depth`` each or a depth of its own (``s2net:200``); nobody
        named: the first stage.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.ingest(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> queries = [Query("q1", "hunts at night"), Query("q2", "mice")]
    >>> qrels = Qrels([("q1", "owl", 1), ("q2", "fox", 1)])
    >>> report = tune(workspace, "tfidf,bm25", queries, qrels)
    >>> report.tuned.value, str(report.tuned.stack)
    (1.0, 'tfidf*0.00 + bm25*1.00')
    >>> workspace.stack("tfidf,bm25") == report.tuned.stack
    True
    """
    signals, weights = parse_stack(stack)
    if weights is not None:
        raise UsageError(f"{stack!r} has weights already; name only the signals: {','.join(signals)}")
    named = lexical((*retriever_depths(retrieve), *signals))
    first = first_stage or next((name for name in named if name in signals), None)
    if first is None or first not in signals:
        wanted = first or workspace.first_stage
        raise UsageError(
            f"the first stage's score takes part in the stack: use --stack {wanted},{','.join(signals)}"
        )
    retrieve = () if tuple(retrieve) == (first,) else tuple(retrieve)
    pipeline = workspace.pipeline(signals, retrieve=retrieve, infer_categories=infer)
    with suppress(WorkspaceError, EngineError):  # busy or read-only: what is missing is computed on the way
        encode(workspace, pipeline.rankers, progress=progress)  # once, not again for every query
    report = ScoringReport()
    known, report.unknown_queries = judged_queries(queries, qrels, ignore_categories)
    qrels = only_judged(qrels, known)
    table = score_table(
        pipeline,
        known,
        qrels,
        signals,
        first_stage=first,
        retrieve=retrieve,
        protocol=Protocol("retrieved", depth),
        report=report,
        seed=seed,
        cache=workspace.folder / "cache",
        progress=progress,
    )
    settings: dict[str, Any] = {
        "first_stage": first,
        "normalisations": normalisations,
        "depth": depth,
        "versions": {name: ranker.version for name, ranker in pipeline.rankers.items()},
        "bounds": {name: ranker.bounds for name, ranker in pipeline.rankers.items()},
    }
    validated = None
    if folds is not None:
        validated = cross_validate(table, qrels, folds=folds, seed=seed, **settings)
        tuned = validated.final
    else:
        tuned = tune_table(table, qrels, **settings)
    recall = {name: round(share, 6) for name, share in report.candidate_recall.items()}
    chosen = replace(
        tuned.stack,
        retrieve=retrieve,
        versions=settings["versions"],
        tuned={**tuned.stack.tuned, "candidate_recall": recall},
    )
    tuned = replace(tuned, stack=chosen)
    path = Path(out) if out is not None else workspace.stack_path(signals)
    path.parent.mkdir(parents=True, exist_ok=True)
    tuned.stack.save(path)
    return TuneReport(tuned, validated, path, report)
