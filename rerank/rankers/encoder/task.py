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

from rerank.progress import Progress
from rerank.rankers.dense.config import ModelConfig, TrainingConfig
from rerank.rankers.dense.held_out import Evaluator
from rerank.rankers.dense.losses import Loss, Vectors
from rerank.rankers.encoder.batching import Batch, BatchEncoder
from rerank.rankers.encoder.frozen_layers import LowerLayers
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.checkpoint import Checkpoint, Weights
from rerank.rankers.training.trainer import Task, Trainer, TrainerOptions, TrainingRun
from rerank.settings import values_of

LEAST_STEPS, PARTS = 10, 2
"""The task is evaluated PARTS times an epoch, but not more often than every LEAST_STEPS steps."""
LOSS = "loss:"
"""Prefix of the tensors of the loss in the state."""


class Batches(Protocol):
    """Draws the batches of an epoch; the same for the same number, whatever was drawn before."""

    def steps(self) -> int:
        """Steps of an epoch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Draw the batches of an epoch, from batch ``first`` on."""


class Settings(Protocol):
    """What the loop reads of a family's configuration."""

    @property
    def encoder(self) -> ModelConfig:
        """What is trained."""

    @property
    def training(self) -> TrainingConfig:
        """How long."""

    @property
    def objective(self) -> Loss:
        """On what."""

    @property
    def seed(self) -> int:
        """Of everything random."""


@dataclass(frozen=True)
class TrainedEncoder(TrainingRun):
    """A trained encoder and its training. rate: sequences per second, forward and backward."""

    encoder: TextEncoder
    rate: float


class EncoderTask(Task):
    """Trains one encoder, and the parameters of its loss.

    evaluator: None: nothing is measured, and the last step is kept. groups: see ``BatchEncoder``.
    """

    groups: NDArray[np.int64] | None = None

    def __init__(
        self,
        encoder: TextEncoder,
        config: Settings,
        sampler: Batches,
        evaluator: Evaluator | None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.encoder, self.config, self.sampler, self.evaluator = encoder, config, sampler, evaluator
        self.progress, self.counts = progress or Progress(), {}
        self.model: torch.nn.Module = encoder.model
        self.steps_per_epoch = sampler.steps()
        self.sequences = 0
        self.checkpoint = None
        if checkpoint is not None:
            self.checkpoint = Checkpoint(checkpoint, self._key(), self.name, values_of(config))
        if torch.cuda.is_available():
            encoder.model.to("cuda")
        layers = config.encoder.learning_layers(encoder.model.config.num_hidden_layers)
        self.lower = LowerLayers(encoder, layers, config.encoder.precision) if layers else None
        branches = config.objective.branches
        encoding = config.encoder.precision
        self.encoding = BatchEncoder(encoder, self.lower, branches, encoding, self.groups)
        self.objective = config.objective.begin(self.encoding)

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
        config, each = self.config.training, self.steps_per_epoch
        return TrainerOptions(
            steps=config.steps or config.epochs * each,
            every=config.every or max(LEAST_STEPS, each // PARTS),
            patience=config.patience,
            warmup=config.warmup,
            clip=config.clip,
            average=config.average,
            threads=config.threads,
            seed=self.config.seed,
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
        rate, own = self.config.training.rate, list(self.objective.parameters())
        groups: list[dict[str, Any]] = [{"params": self.encoder.learning()}]
        if own:
            groups.append({"params": own, "lr": rate * self.objective.faster})
        return [torch.optim.Adam(groups, lr=rate, eps=1e-8)]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Draw the batches of an epoch."""
        return self.sampler.epoch(epoch, skip)

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        vectors = self.encoding.encode(self.encoding.texts(batch))
        return self.objective(batch.placed(vectors, self.encoding.branches))

    def backward(self, batch: Batch) -> float:
        """Add the gradient of a batch, encoded in ``accumulate`` parts."""

        def counted(vectors: Vectors) -> Tensor:
            self.count(vectors)
            return self.objective(vectors)

        self.sequences += len(self.encoding.texts(batch))
        return self.encoding.backward(batch, counted, self.config.training.accumulate)

    def count(self, vectors: Vectors) -> None:
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
        self.objective.begin_epoch(epoch, self.vectors)

    def on_step_end(self, step: int) -> None:
        """Call the loss."""
        self.objective.after_step(step)

    def state(self) -> Weights:
        """Return the encoder's weights and the loss's state."""
        mine = {LOSS + name: tensor for name, tensor in self.objective.state_dict().items()}
        return {**self.encoder.model.state_dict(), **mine}

    def restore(self, state: Weights) -> None:
        """Restore both."""
        mine = {name: tensor for name, tensor in state.items() if not name.startswith(LOSS)}
        self.encoder.model.load_state_dict(mine)
        self.objective.load_state_dict(
            {name.removeprefix(LOSS): tensor for name, tensor in state.items() if name.startswith(LOSS)}
        )

    def mixes(self, name: str) -> bool:
        """The encoder was trained before; the loss was not."""
        return not name.startswith(LOSS)
