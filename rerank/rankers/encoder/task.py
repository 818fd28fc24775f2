"""Training of a transformer as a text encoder: what the tasks of ``dense`` and ``concept`` share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rerank.config import values_of
from rerank.progress import Progress
from rerank.rankers.encoder.batching import Batch, BatchEncoder, Encode, Loss
from rerank.rankers.encoder.config import EncoderConfig
from rerank.rankers.encoder.frozen_layers import LowerLayers
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.checkpoint import Checkpoint
from rerank.rankers.training.trainer import Task, Trainer, TrainerOptions, TrainingRun

LEAST_STEPS, PARTS = 10, 2
"""The task is evaluated PARTS times an epoch, but not more often than every LEAST_STEPS steps."""
CLIP = 1.0
"""Largest norm of a gradient."""


class Batches(Protocol):
    """Draws the batches of an epoch; the same for the same number, whatever was drawn before."""

    def steps(self) -> int:
        """Steps of an epoch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Draw the batches of an epoch, from batch ``first`` on."""


class Evaluator(Protocol):
    """Measures an encoder during a training."""

    def measure(self, encode: Encode) -> dict[str, float]:
        """Name -> value; the first one decides, and higher is better."""


@dataclass(frozen=True)
class TrainedEncoder(TrainingRun):
    """A trained encoder and its training. rate: sequences per second, forward and backward."""

    encoder: TextEncoder
    rate: float


class EncoderTask(Task):
    """Trains one encoder, and the parameters of its loss.

    evaluator: None: nothing is measured, and the last step is kept.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        config: EncoderConfig,
        sampler: Batches,
        evaluator: Evaluator | None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.encoder, self.config, self.sampler, self.evaluator = encoder, config, sampler, evaluator
        self.progress, self.counts = progress or Progress(), {}
        self.steps_per_epoch = sampler.steps()
        self.sequences = 0
        self.checkpoint = None
        if checkpoint is not None:
            self.checkpoint = Checkpoint(checkpoint, self._key(), self.name, values_of(config))
        if torch.cuda.is_available():
            encoder.model.to("cuda")
        layers = config.learning_layers(encoder.model.config.num_hidden_layers)
        self.lower = LowerLayers(encoder, layers, config.precision) if layers else None
        self.encoding = BatchEncoder(encoder, self.lower, config.precision)
        self.objective = self.make_loss().to(encoder.device)
        self.model = torch.nn.ModuleDict({"encoder": encoder.model, "loss": self.objective})

    def make_loss(self) -> Loss:
        """Make the loss."""
        raise NotImplementedError

    def identity(self) -> Iterable[bytes]:
        """Everything that the training depends on besides settings and model: a checkpoint belongs to it."""
        raise NotImplementedError

    def text(self, document: int) -> NDArray[np.int32]:
        """Tokens that represent a document in an evaluation."""
        raise NotImplementedError

    def pieces(self) -> Iterable[NDArray[np.int32]]:
        """Tokens of all texts that are encoded more than once."""
        raise NotImplementedError

    def look(self) -> None:
        """Report the data and the untrained encoder before the first evaluation."""
        raise NotImplementedError

    def _key(self) -> str:
        digest = hashlib.sha256(json.dumps(values_of(self.config), sort_keys=True).encode())
        digest.update(self.encoder.version().encode())
        for part in self.identity():
            digest.update(part)
        return digest.hexdigest()

    @property
    def options(self) -> TrainerOptions:
        """Options of the loop, from the settings."""
        config, each = self.config, self.steps_per_epoch
        return TrainerOptions(
            steps=config.steps or config.epochs * each,
            every=config.every or max(LEAST_STEPS, each // PARTS),
            patience=config.patience,
            warmup=config.warmup,
            clip=CLIP,
            average=config.average,
            threads=config.threads,
            seed=config.seed,
        )

    def trainer(self) -> Trainer:
        """Return the trainer of this task."""
        return Trainer(self, self.options, self.checkpoint, self.progress)

    def fit(self) -> TrainedEncoder:
        """Train. The untrained encoder is one of the choices."""
        run = self.trainer().fit()
        self.encoder.model.to("cpu").eval()
        rate = self.sequences / run.wall if run.wall else 0.0
        return TrainedEncoder(**vars(run), encoder=self.encoder, rate=rate)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam; parameters of the loss have a rate of their own."""
        rate = self.config.rate
        own = [one for one in self.objective.parameters() if one.requires_grad]
        groups: list[dict[str, Any]] = [{"params": self.encoder.learning()}]
        if own:
            groups.append({"params": own, "lr": rate * self.objective.faster})
        return [torch.optim.Adam(groups, lr=rate, eps=1e-8)]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Draw the batches of an epoch."""
        return self.sampler.epoch(epoch, skip)

    def backward(self, batch: Batch) -> float:
        """Add the gradient of a batch, encoded in ``accumulate`` parts."""
        reads = self.objective.reads
        texts = batch.texts(reads)
        self.sequences += len(texts)

        def loss(encoded: Tensor) -> Tensor:
            vectors = batch.placed(encoded, reads)
            self.count(vectors)
            value: Tensor = self.objective(vectors)
            return value

        return self.encoding.backward(texts, loss, self.config.accumulate)

    def count(self, vectors: Any) -> None:
        """Count the anchors of a batch, and those that had something to learn from."""
        with torch.no_grad():
            found = self.objective.count(vectors)
        for name, value in {"anchors": len(vectors.anchor), **found}.items():
            self.counts[name] = self.counts.get(name, 0) + value

    def vectors(self, documents: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, E) vectors of length 1 of documents, without dropout."""
        texts = [self.text(document).tolist() for document in documents.tolist()]
        return (self.encoder if self.lower is None else self.lower).encode(texts)

    def evaluate(self) -> dict[str, float]:
        """Return the evaluator's measures."""
        return self.evaluator.measure(self.vectors) if self.evaluator else {}

    def on_start(self, resumed: bool) -> None:
        """Compute the layers that do not learn, and look at the untrained encoder."""
        if self.lower is not None:
            self.keep_lower(self.lower)
        if not resumed:
            self.look()

    def keep_lower(self, lower: LowerLayers) -> None:
        """Compute the outputs of the layers that do not learn, and keep them in memory."""
        self.progress.start("lower layers", len({piece.tobytes() for piece in self.pieces()}), "text")
        try:
            kept = lower.keep(self.pieces, self.progress.advance)
        finally:
            self.progress.finish()
        if not kept and self.encoder.device.type == "cpu":
            self.progress.say("too little memory for the outputs of the lower layers: computed at every step")

    def on_epoch_start(self, epoch: int) -> None:
        """Call the loss."""
        self.objective.on_epoch_start(epoch, self.vectors)

    def on_step_end(self, step: int) -> None:
        """Call the loss."""
        self.objective.on_step_end(step)

    def mixes(self, name: str) -> bool:
        """The encoder was trained before; the loss was not."""
        return name.startswith("encoder.")
