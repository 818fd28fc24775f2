"""Training shared by ``dense`` and ``concept``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rerank.config import values_of
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.base import Ranker, content_hash
from rerank.rankers.encoder.batching import BatchEncoder, Loss, with_vectors
from rerank.rankers.encoder.config import EncoderConfig
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.checkpoint import Checkpoint, TrainingRun
from rerank.rankers.training.job import TrainingResult
from rerank.rankers.training.trainer import Task, Trainer, TrainerOptions

LEAST_STEPS, PARTS = 10, 2
"""The task is evaluated PARTS times an epoch, but not more often than every LEAST_STEPS steps."""
NO_MEMORY = (
    *("out of memory", "can't allocate memory", "bad_alloc", "ALLOC_FAILED"),
    "could not create a primitive",
)
"""Parts of messages of torch about a lack of memory: CUDA, CPU, C++, cuBLAS and cuDNN, oneDNN."""


class Sampler(Protocol):
    """Draws reproducible batches."""

    def steps(self) -> int:
        """Return batches per epoch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Any]:
        """Yield batches, from ``first``."""


class EncoderTask(Task):
    """Trains encoder and loss.

    text: document -> evaluation tokens.
    loss: Default: :meth:`make_loss`.
    """

    text: Callable[[int], NDArray[np.int32]]

    def __init__(
        self,
        encoder: TextEncoder,
        config: EncoderConfig,
        sampler: Sampler,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.encoder, self.config, self.sampler = encoder, config, sampler
        self.progress, self.steps_per_epoch = progress or Progress(), sampler.steps()
        self.checkpoint: Checkpoint | None = None
        if checkpoint is not None:
            settings, arrays = self.identity()
            key = content_hash([values_of(config), encoder.version(), settings], arrays)
            self.checkpoint = Checkpoint(checkpoint, key)
        if torch.cuda.is_available():
            encoder.model.to("cuda")
        encoder.precision = config.precision
        self.encoding = BatchEncoder(encoder, config.learning_layers(encoder.model.config.num_hidden_layers))
        self.objective = (loss or self.make_loss()).to(encoder.device)
        self._losses = [one for one in self.objective.modules() if isinstance(one, Loss)]
        self.model = torch.nn.ModuleDict({"encoder": encoder.model, "loss": self.objective})

    def make_loss(self) -> Loss:
        """Return a loss that needs the encoder."""
        raise NotImplementedError

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        """Return the training data, which checkpoints must match: JSON and arrays."""
        raise NotImplementedError

    def passages(self) -> Iterable[NDArray[np.int32]]:
        """Yield texts encoded repeatedly."""
        raise NotImplementedError

    def fit(self) -> TrainingRun:
        """Train, and leave the best encoder, possibly untrained, on the CPU.

        Raises TrainingError for insufficient memory or failure.
        """
        config, each = self.config, self.steps_per_epoch
        options = TrainerOptions(
            steps=config.steps or config.epochs * each,
            every=config.every or max(LEAST_STEPS, each // PARTS),
            patience=config.patience,
            average=config.average,
            seed=config.seed,
        )
        try:
            run = Trainer(self, options, self.checkpoint, self.progress).fit()
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(part in str(error) for part in NO_MEMORY):
                raise
            raise TrainingError(
                f"a batch of {config.batch} does not fit into memory; lower --batch or --passage-tokens"
            ) from error
        self.encoder.precision = "auto"
        self.encoder.model.to("cpu").eval()
        return run

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Adam, with separate learning rates."""
        rate = self.config.rate
        groups: list[dict[str, Any]] = [{"params": self.encoder.trainable()}]
        if own := [one for one in self.objective.parameters() if one.requires_grad]:
            groups.append({"params": own, "lr": rate * self.objective.rate_factor})
        return [torch.optim.Adam(groups, lr=rate, eps=1e-8)]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Yield batches."""
        return self.sampler.epoch(epoch, skip)

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        reads = self.objective.reads
        encoded = self.encoding.encode([text for name in reads for text in getattr(batch, name)])
        loss: Tensor = self.objective(with_vectors(batch, reads, encoded))
        return loss

    def vectors(self, documents: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return unit vectors, (n, E), without dropout."""
        return self.encoding.unit_vectors([self.text(document) for document in documents.tolist()])

    def on_start(self, resumed: bool) -> None:
        """Run the frozen layers once for each text, if that can be useful."""
        if not self.encoding.keeps:
            return
        different = {passage.tobytes(): passage for passage in self.passages()}
        with self.progress.step("frozen layers", len(different), "text") as advance:
            filled = self.encoding.fill(different.values(), advance)
        if not filled:
            self.progress.say("frozen layers: their outputs do not fit into memory; computed at every step")

    def on_epoch_start(self) -> None:
        """Notify the losses."""
        for one in self._losses:
            one.on_epoch_start(self.vectors)

    def on_step_end(self) -> None:
        """Notify the losses."""
        for one in self._losses:
            one.on_step_end()

    def mixes(self, name: str) -> bool:
        """Return whether a weight is pretrained."""
        return name.startswith("encoder.")

    def record(self, run: TrainingRun) -> dict[str, Any]:
        """Return fields for ``ranker.json``."""
        history = [one.row() for one in run.history]
        return {"settings": values_of(self.config), "history": history, "best": run.best, "share": run.share}

    def result(
        self, run: TrainingRun, ranker: Ranker, pairs: str, remark: str, details: Mapping[str, Any]
    ) -> TrainingResult:
        """Return the result. pairs: name of evaluation pairs."""
        return TrainingResult(
            ranker,
            run.best,
            run.steps,
            run.kept.value,
            run.history[0].value,
            run.interrupted,
            f"{next(iter(run.kept.measures), 'nothing')} of {pairs}",
            "untrained",
            "step",
            (remark,),
            {**details, "history": self.record(run)["history"], "share": run.share},
            [(one.step, one.loss, one.value) for one in run.history if one.share == 1],
            self.checkpoint.discard if self.checkpoint and not run.interrupted else dict,
        )
