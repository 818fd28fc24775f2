"""Fits ``dense`` on relations between documents, or on judged queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rerank.config import values_of
from rerank.errors import TrainingError
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.judged import JudgedTask
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.task import DenseTask
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.checkpoint import TrainingRun
from rerank.rankers.training.data import TrainingData
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.text import plural

RELATED = {"links": "linked", "categories": "with a common category", "cocitation": "cited together"}
"""Pairs of documents, by their relation."""
_LEFT_OUT = {
    "unknown": "link[ to an id|s to ids] that no document has",
    "self_links": "link[|s] of a document to itself",
    "duplicates": "link[|s] given twice",
    "judged": "linked pair[|s] that judgments give the same query",
    "without_text": "document[|s] without text",
    "left_out": "categor[y|ies] or linking document[|s] that relate[s|] too many documents",
}


@dataclass(frozen=True)
class DenseFitter:
    """Fits encoders on judged queries, if there are any, or relations; resumes from checkpoints."""

    job: TrainingJob
    config: DenseConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune an encoder, unless ``untrained``."""
        job, config, progress = self.job, self.config, self.job.progress
        encoder = config.load()
        texts = self._read(encoder)

        def ranker(trained: Mapping[str, Any]) -> DenseRanker:
            passages = texts.longest(encoder, config.passages)
            return DenseRanker.of(
                name, encoder, passages, trained, best=config.best, separator=config.separator
            )

        if config.untrained:
            made = ranker({"settings": values_of(config)})
            return TrainingResult(made, 0, 0, None, None, False, remarks=(f"{config.model}, untrained",))
        if job.data is not None:
            return self._judged(job.data, texts, encoder, ranker, name)
        task = DenseTask(texts, encoder, config, progress, job.checkpoint(name))
        run = self._run(task, name)
        counts = {**asdict(texts.graph.counts), "left_out": texts.graph.left_out}
        counts["without_text"] = int((~texts.usable).sum())
        missing = {reason: counts[reason] for reason in _LEFT_OUT}
        for reason, count in missing.items():
            if count:
                progress.say(plural(count, f"{_LEFT_OUT[reason]} [is|are] left out"))
        pairs, relation = len(task.graph.pairs()), config.structure_from
        details = {
            "documents": len(texts.tokens),
            "outside": texts.outside,
            "structure_from": relation,
            "links": texts.graph.counts.links,
            "train_links": pairs,
            "held_out": len(task.held),
            **run.counts,
        }
        outside = f" and {plural(texts.outside, 'reference[|s] outside the collection')}"
        remark = (
            f"{plural(len(texts.tokens) - texts.outside, 'document[|s]')}{outside * bool(texts.outside)},"
            f" {plural(pairs, 'pair[|s]')} {RELATED[relation]} to learn from,"
            f" {len(task.held):,} held out"
        )
        return task.result(run, ranker(task.record(run)), "held-out pairs", remark, {**missing, **details})

    def _run(self, task: EncoderTask, name: str) -> TrainingRun:
        run = task.fit()
        if not run.best and task.evaluator:
            self.job.progress.say(f"no step was better than the untrained encoder, which {name} uses")
        return run

    def _judged(
        self,
        data: TrainingData,
        texts: Texts,
        encoder: TextEncoder,
        ranker: Callable[[Mapping[str, Any]], DenseRanker],
        name: str,
    ) -> TrainingResult:
        job = self.job
        task = JudgedTask(data, texts.tokens, encoder, self.config, job.progress, job.checkpoint(name))
        run, pairs = self._run(task, name), len(task.neighbors.ids)
        remark, details = f"{plural(pairs, 'pair[|s]')} to learn from", {"pairs": pairs, **run.counts}
        return task.result(run, ranker(task.record(run)), "dev queries", remark, details)

    def _read(self, encoder: TextEncoder) -> Texts:
        """Tokenize the documents and read their relation. Raises TrainingError without documents."""
        engine, config = self.job.engine, self.config
        if not (size := len(engine)):
            raise TrainingError("there are no documents yet; run `rerank ingest` first")
        separator = encoder.separator if config.separator else None
        relation = config.structure_from
        with self.job.progress.step("read documents", size, "doc") as advance:
            documents = engine.documents()
            texts = Texts.read(
                documents, encoder.tokens, advance, structure_from=relation, separator=separator
            )
        return texts.without_judged(config.leave_out)
