"""Training of ``dense`` on the relations between the documents of a collection."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.corruption import Vocabulary
from rerank.rankers.dense.held_out import HeldOut
from rerank.rankers.dense.losses import loss_of
from rerank.rankers.dense.quintuplets import Quintuplets, Sampler
from rerank.rankers.dense.structure import Structure
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.task import EncoderTask, Evaluator, TrainedEncoder
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citation_graph import CitationGraph
from rerank.rankers.training.checkpoint import Measurement

POOL = 2000
"""Documents among which the held-out ones are looked for."""


@dataclass(frozen=True)
class TrainedDense(TrainedEncoder):
    """The same on links. masked: share of the anchors without a structural pair."""

    masked: float
    held_out: int
    train_links: int


class DenseTask(EncoderTask):
    """Trains one encoder on links, shared categories or co-citations.

    evaluator: None: held-out links. structure, loss: None: as the settings have them.
    """

    name: str = "dense"
    config: DenseConfig
    sampler: Sampler

    def __init__(
        self,
        texts: Texts,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        evaluator: Evaluator | None = None,
        *,
        structure: Structure | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.texts, self._loss = texts, loss or loss_of(config)
        structure = structure or Structure.find(texts, config, progress)
        self.graph, self.held = structure.graph, structure.held_out
        self.passages = Passages.of(texts, encoder, config.passages)
        sampler = Sampler(
            structure.neighbors,
            self.passages,
            Vocabulary.of(encoder.tokenizer),
            config.batch,
            isolated="corrupted" in self._loss.reads,
            mask_related=config.mask_related,
            seed=config.seed,
        )
        if evaluator is None and texts.usable[self.held].all(axis=1).any():
            evaluator = HeldOut.of(self.graph, self.held, texts.usable, size=POOL, seed=config.seed)
        super().__init__(encoder, config, sampler, evaluator, progress, checkpoint)

    def make_loss(self) -> Loss:
        """Return the loss."""
        return self._loss

    def fit(self) -> TrainedDense:
        """Train on the links."""
        fit = super().fit()
        masked = fit.counts.get("masked", 0) / max(fit.counts.get("anchors", 0), 1)
        return TrainedDense(
            **vars(fit), masked=masked, held_out=len(self.held), train_links=len(self.graph.pairs())
        )

    def identity(self) -> Iterable[bytes]:
        """The texts and the links."""
        yield json.dumps(self.texts.graph.ids).encode()
        if isinstance(self.texts.graph, CitationGraph):
            yield self.texts.graph.digest().encode()
        links = self.texts.graph.adjacency
        for array in (self.texts.tokens.flat, links.indptr, links.indices, links.data):
            yield array.tobytes()

    def text(self, document: int) -> NDArray[np.int32]:
        """Tokens of its first passage."""
        return self.passages.get(document)

    def pieces(self) -> Iterable[NDArray[np.int32]]:
        """All passages."""
        for one in np.flatnonzero(self.texts.usable).tolist():
            for start in self.passages.starts(one):
                yield self.passages.get(one, start)

    def count(self, vectors: Any) -> None:
        """Count also the anchors without a structural pair."""
        super().count(vectors)
        self.counts["masked"] = self.counts.get("masked", 0) + int((vectors.level == 0).sum())

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError if no anchor had anything to learn from."""
        if any(self.counts.get(name, 0) for name in ("structural", "semantic")):
            return
        raise TrainingError(
            f"in {int(self.counts['anchors'])} draws no document had another one to be told from: all of a"
            f" batch are related, or alone; add documents, raise --batch, lower"
            f" --related, or give --mask-related false"
        )

    def look(self) -> None:
        """Report how far texts of a batch are from each other; warn if a margin is larger."""
        batch: Quintuplets = next(self.sampler.epoch(0))
        self.encoder.model.eval()
        with torch.no_grad():
            found = self.encoding.encode(batch.anchor).float()
        apart = float(torch.pdist(found).median()) if len(found) > 1 else 0.0
        self.counts["distance"] = apart
        self.progress.say(f"median distance of two texts of a batch: {apart:.3f}")
        margin, unit = self.config.margin, bool(((found.norm(dim=1) - 1).abs() < 1e-3).all())
        if "negative" in self.objective.reads and margin > (min(apart, 1.0) if unit else apart):
            why = " of vectors of length 1" if unit else ""
            self.progress.say(
                f"a structural margin of {margin:g} can hardly be kept at a median distance of"
                f" {apart:.3f}{why}; lower --structural-margin"
            )
