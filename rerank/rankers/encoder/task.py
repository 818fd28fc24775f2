"""Training shared by ``dense`` and ``concept``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rerank.common.config import values_of
from rerank.common.errors import TrainingError
from rerank.common.progress import SILENT, Progress
from rerank.rankers.base import Ranker, content_hash
from rerank.rankers.encoder.batching import BatchEncoder, Loss, with_vectors
from rerank.rankers.encoder.config import EncoderConfig
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.checkpoint import Checkpoint, TrainingRun
from rerank.rankers.training.job import TrainingResult
from rerank.rankers.training.trainer import Task, Trainer, TrainerOptions

MEASUREMENTS_PER_EPOCH = 2
"""How often an epoch is measured by default."""
LEAST_STEPS = 10
"""Least number of steps between measurements by default."""
NO_MEMORY = (
    *("out of memory", "can't allocate memory", "bad_alloc", "ALLOC_FAILED"),
    "could not create a primitive",
)
"""Parts of messages of torch about a lack of memory: CUDA, CPU, C++, cuBLAS and cuDNN, oneDNN."""


class Sampler(Protocol):
    """Draws reproducible batches, from random numbers that depend only on the epoch and the step."""

    def steps(self) -> int:
        """Return the number of batches of an epoch, the same for each epoch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch, from batch number ``first``. All calls yield the same batches."""


class EncoderTask(Task):
    """Trains an encoder, and the parameters of the loss.

    text:       returns the tokens of a document, by its position, for measurements.
    sampler:    draws the batches.
    checkpoint: the folder of the checkpoint; None keeps none.
    loss:       by default the result of :meth:`make_loss`.
    """

    text: Callable[[int], NDArray[np.int32]]

    def __init__(
        self,
        encoder: TextEncoder,
        config: EncoderConfig,
        sampler: Sampler,
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.encoder = encoder
        self.config = config
        self.sampler = sampler
        self.progress = progress
        self.steps_per_epoch = sampler.steps()
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
        self._losses = [module for module in self.objective.modules() if isinstance(module, Loss)]
        self.model = torch.nn.ModuleDict({"encoder": encoder.model, "loss": self.objective})
        self._frozen = {
            f"encoder.{name}"
            for name, parameter in encoder.model.named_parameters()
            if not parameter.requires_grad
        }

    def make_loss(self) -> Loss:
        """Return the loss, if it needs the encoder and so cannot be given to the class."""
        raise NotImplementedError

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        """Return the training data, as JSON and arrays. A checkpoint continues only with the same data."""
        raise NotImplementedError

    def passages(self) -> Iterable[NDArray[np.int32]]:
        """Yield the tokens of all texts that are encoded in more than one step."""
        raise NotImplementedError

    def fit(self) -> TrainingRun:
        """Train, and leave the best encoder on the CPU. It can be the untrained one.

        Raises TrainingError if the memory is too small, or if nothing is learned.
        """
        config = self.config
        options = TrainerOptions(
            steps=config.steps or config.epochs * self.steps_per_epoch,
            every=config.every or max(LEAST_STEPS, self.steps_per_epoch // MEASUREMENTS_PER_EPOCH),
            patience=config.patience,
            average=config.average,
            seed=config.seed,
        )
        try:
            run = Trainer(self, options, self.checkpoint, self.progress).fit()
        except (MemoryError, RuntimeError) as error:
            message = str(error)
            names_memory = any(phrase in message for phrase in NO_MEMORY)
            if isinstance(error, RuntimeError) and not names_memory:
                raise
            raise TrainingError(
                f"a batch of {config.batch} does not fit into memory; lower --batch or --passage-tokens"
            ) from error
        self.encoder.precision = "auto"
        self.encoder.model.to("cpu").eval()
        if not run.best and run.best_measurement.measures:
            self.progress.say(f"no step was better than the untrained encoder, which {self.name} uses")
        return run

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Adam, with one learning rate for the encoder and one for the loss."""
        rate = self.config.rate
        groups: list[dict[str, Any]] = [{"params": self.encoder.trainable()}]
        loss_parameters = [weight for weight in self.objective.parameters() if weight.requires_grad]
        if loss_parameters:
            groups.append({"params": loss_parameters, "lr": rate * self.objective.rate_factor})
        return [torch.optim.Adam(groups, lr=rate, eps=1e-8)]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        return self.sampler.epoch(epoch, skip)

    def loss(self, batch: Any) -> Tensor:
        reads = self.objective.reads
        encoded = self.encoding.encode([text for name in reads for text in getattr(batch, name)])
        loss: Tensor = self.objective(with_vectors(batch, reads, encoded))
        return loss

    def vectors(self, documents: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of documents, (n, E), of length 1 and without dropout.

        documents: (n,) positions.
        """
        return self.encoding.unit_vectors([self.text(document) for document in documents.tolist()])

    def on_start(self, resumed: bool) -> None:
        """Run the frozen layers once for each text, if that can be useful."""
        if not self.encoding.caches_outputs:
            return
        distinct = {passage.tobytes(): passage for passage in self.passages()}
        with self.progress.step("frozen layers", len(distinct), "text") as advance:
            fits = self.encoding.fill(distinct.values(), advance)
        if not fits:
            self.progress.say("frozen layers: their outputs do not fit into memory; computed at every step")

    def on_epoch_start(self) -> None:
        """Let the losses prepare the epoch with the vectors of the current encoder."""
        for loss in self._losses:
            loss.on_epoch_start(self.vectors)

    def on_step_end(self) -> None:
        """Let the losses update the weights that follow the encoder, such as a momentum encoder."""
        for loss in self._losses:
            loss.on_step_end()

    def is_interpolated(self, name: str) -> bool:
        """Return whether a weight is one of the encoder, which was pretrained."""
        return name.startswith("encoder.")

    def is_frozen(self, name: str) -> bool:
        """Return whether a tensor is a weight of a layer that does not learn, or of the embeddings."""
        return name in self._frozen

    def record(self, run: TrainingRun) -> dict[str, Any]:
        """Return what ``ranker.json`` stores about the training, as JSON values."""
        history = [measurement.row() for measurement in run.history]
        return {"settings": values_of(self.config), "history": history, "best": run.best, "share": run.alpha}

    def result(
        self, run: TrainingRun, ranker: Ranker, pairs: str, remark: str, details: Mapping[str, Any]
    ) -> TrainingResult:
        """Return the result of a training.

        pairs: the kind of pairs that measured the training, for messages.
        """
        best = run.best_measurement
        measure = next(iter(best.measures), "nothing")
        trained = [point for point in run.history if point.alpha == 1]
        discard = self.checkpoint.discard if self.checkpoint and not run.interrupted else None
        return TrainingResult(
            ranker,
            epoch=run.best,
            epochs=run.steps,
            dev=best.value,
            baseline_value=run.history[0].value,
            interrupted=run.interrupted,
            measure=f"{measure} of {pairs}",
            baseline_name="untrained",
            unit="step",
            remarks=(remark,),
            details={**details, "history": self.record(run)["history"], "share": run.alpha},
            curve=[(point.step, point.loss, point.value) for point in trained],
            discard_checkpoint=discard,
        )
