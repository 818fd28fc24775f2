"""Fits ``dense`` on relations between documents, or on judged queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.training.checkpoint import TrainingRun
from rerank.rankers.training.data import TrainingData
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.text import plural


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
        graph = task.graph
        if isinstance(graph, LinkGraph):
            pairs, relation, unknown = len(graph.pairs()), "linked", graph.unknown
        else:
            assert config.strategy is not None
            pairs, relation, unknown = graph.network.levels[config.strategy].pairs(), "cited together", 0
        details = {
            "documents": len(texts.tokens) - texts.outside,
            "outside": texts.outside,
            "without_text": int((~texts.usable).sum()),
            "unknown": unknown,
            "train_links": pairs,
            "held_out": len(task.held),
        }
        words = {
            "documents": "document[|s]",
            "outside": "reference[|s] outside the collection",
            "without_text": "text[|s] without words",
            "unknown": "link[|s] to unknown ids",
            "train_links": f"pair[|s] {relation} to learn from",
            "held_out": "pair[|s] held out",
        }
        parts = (plural(count, words[name]) for name, count in details.items() if count)
        return task.result(run, ranker(task.record(run)), "held-out pairs", ", ".join(parts), details)

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
        remark, details = f"{plural(pairs, 'pair[|s]')} to learn from", {"pairs": pairs}
        return task.result(run, ranker(task.record(run)), "dev queries", remark, details)

    def _read(self, encoder: TextEncoder) -> Texts:
        """Tokenize the documents and read their relation. Raises TrainingError without documents."""
        engine, cited = self.job.engine, self.config.strategy is not None
        if not (size := len(engine)):
            raise TrainingError("there are no documents yet; run `rerank ingest` first")
        separator = encoder.separator if cited else None
        with self.job.progress.step("read documents", size, "doc") as advance:
            return Texts.read(engine.documents(), encoder.tokens, advance, cited=cited, separator=separator)
