"""Fits ``dense`` on relations between documents, or on judged queries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.config import values_of
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.corruption import Vocabulary
from rerank.rankers.dense.held_out import HeldOut
from rerank.rankers.dense.judged import JudgedTask
from rerank.rankers.dense.losses import make_loss
from rerank.rankers.dense.neighbors import Structure
from rerank.rankers.dense.quintuplets import QuintupletSampler
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import CitationGraph
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.training.checkpoint import Measurement
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.text import plural

POOL = 2000
"""Number of documents that are searched for the held-out ones."""


class DenseTask(EncoderTask):
    """Trains on links or co-citations.

    structure, loss: None: from options.
    graph:           training pairs.
    held:            (H, 2) held-out pairs, which measure the training.
    """

    name: str = "dense"
    config: DenseConfig
    sampler: QuintupletSampler

    def __init__(
        self,
        texts: Texts,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        *,
        structure: Structure | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.texts, self._loss = texts, loss or make_loss(config.objective)
        structure = structure or Structure.find(texts, config, progress)
        self.graph, self.held = structure.graph, structure.held_out
        self.cut = Passages(texts.tokens, encoder.room, config.passages)
        self.text = self.cut.get
        sampler = QuintupletSampler(
            structure.neighbors,
            self.cut,
            Vocabulary.of(encoder.tokenizer),
            config.batch,
            isolated="corrupted" in self._loss.reads,
            seed=config.seed,
        )
        evaluator = None
        if texts.usable[self.held].all(axis=1).any():
            evaluator = HeldOut.of(self.graph, self.held, texts.usable, size=POOL, seed=config.seed)
        super().__init__(encoder, config, sampler, evaluator, progress, checkpoint)

    def make_loss(self) -> Loss:
        """Return the loss."""
        return self._loss

    def identity(self) -> Iterable[bytes]:
        """Yield texts and links."""
        graph = self.texts.graph
        yield json.dumps(graph.ids).encode()
        yield self.texts.tokens.flat.tobytes()
        if isinstance(graph, CitationGraph):
            yield graph.digest().encode()
        else:
            for array in (graph.adjacency.indptr, graph.adjacency.indices):
                yield array.tobytes()

    def passages(self) -> Iterable[NDArray[np.int32]]:
        """Yield all passages."""
        for document in np.flatnonzero(self.texts.usable).tolist():
            for start in self.cut.starts(document):
                yield self.cut.get(document, start)

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError if no anchor has a negative."""
        if not measured.loss:
            raise TrainingError(
                "no anchor had a negative: all documents of a batch are related, or none is; add documents,"
                " raise --batch, or lower --related"
            )


_LINKS = {
    "documents": "document[|s]",
    "outside": "reference[|s] outside the collection",
    "without_text": "text[|s] without words",
    "unknown": "link[|s] to unknown ids",
    "train_links": "pair[|s] {} to learn from",
    "held_out": "pair[|s] held out",
}
_JUDGED = {"pairs": "pair[|s] to learn from"}
"""Names and words of the numbers that a training reports."""


@dataclass(frozen=True)
class DenseFitter:
    """Fits encoders on judged queries, if there are any, or relations; resumes from checkpoints."""

    job: TrainingJob
    config: DenseConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune an encoder, unless ``untrained``."""
        job, config = self.job, self.config
        encoder = config.load()
        texts = self._read(encoder)

        def ranker(trained: Mapping[str, Any]) -> DenseRanker:
            passages = texts.longest(encoder, config.passages)
            return DenseRanker(
                name=name,
                source=encoder,
                trained=trained,
                passages=passages,
                best=config.best,
                separator=config.separator,
            )

        if config.untrained:
            made = ranker({"settings": values_of(config)})
            return TrainingResult(made, 0, 0, None, None, False, remarks=(f"{config.model}, untrained",))
        given = encoder, config, job.progress, job.checkpoint(name)
        task: JudgedTask | DenseTask
        if job.data is not None:
            task = JudgedTask(job.data, texts.tokens, *given)
            measured, relation, words = "dev queries", "", _JUDGED
            details = {"pairs": len(task.neighbors.ids)}
        else:
            task = DenseTask(texts, *given)
            measured, words = "held-out pairs", _LINKS
            relation, details = _relation(texts, task, config)
        run = task.fit()
        if not run.best and task.evaluator:
            job.progress.say(f"no step was better than the untrained encoder, which {name} uses")
        parts = [plural(count, words[one].format(relation)) for one, count in details.items() if count]
        return task.result(run, ranker(task.record(run)), measured, ", ".join(parts), details)

    def _read(self, encoder: TextEncoder) -> Texts:
        """Tokenize the documents and read their relation. Raises TrainingError without documents."""
        engine, cited = self.job.engine, self.config.strategy is not None
        if not (size := len(engine)):
            raise TrainingError("there are no documents yet; run `rerank ingest` first")
        separator = encoder.separator if cited else None
        with self.job.progress.step("read documents", size, "doc") as advance:
            return Texts.read(engine.documents(), encoder.tokens, advance, cited=cited, separator=separator)


def _relation(texts: Texts, task: DenseTask, config: DenseConfig) -> tuple[str, dict[str, int]]:
    """Return the relation of pairs, and the numbers of a training on it."""
    graph = task.graph
    if isinstance(graph, LinkGraph):
        relation, pairs, unknown = "linked", len(graph.pairs()), graph.unknown
    else:
        assert config.strategy is not None
        relation, pairs, unknown = "cited together", graph.network.levels[config.strategy].pairs(), 0
    return relation, {
        "documents": len(texts.tokens) - texts.outside,
        "outside": texts.outside,
        "without_text": int((~texts.usable).sum()),
        "unknown": unknown,
        "train_links": pairs,
        "held_out": len(task.held),
    }
