"""Training of ``dense``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.corruption import Vocabulary
from rerank.rankers.dense.held_out import HeldOut
from rerank.rankers.dense.losses import make_loss
from rerank.rankers.dense.quintuplets import QuintupletSampler
from rerank.rankers.dense.structure import Structure
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citation_graph import CitationGraph
from rerank.rankers.training.checkpoint import Measurement

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
        self.cut = Passages.of(texts, encoder, config.passages)
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

    def text(self, document: int) -> NDArray[np.int32]:
        """Return the first passage."""
        return self.cut.get(document)

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
