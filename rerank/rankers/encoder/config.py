"""Options of a training of a transformer; shared by ``dense`` and ``concept``, and read without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from rerank.config import Count, Natural, Options, Positive, Share, option
from rerank.errors import UsageError
from rerank.rankers.encoder.transformer import Pooling, TextEncoder

Precision = Literal["auto", "fp32", "bf16"]


class EncoderConfig(Options, frozen=True):
    """The encoder that a training starts from, and the steps of the training.

    upper: layers that learn by default.
    """

    upper: ClassVar[int] = 3

    model: Annotated[str, option("a folder, or a model on this machine", metavar="NAME")] = "minilm"
    layers: Annotated[Count | None, option("keep the model's first N layers only; none: all")] = None
    train_layers: Annotated[
        Natural | None,
        option("train the last N layers only; 0: all; none: 3, or all of a model with no more"),
    ] = None
    random_weights: Annotated[bool, option("use the model's shape with random weights")] = False
    pooling: Annotated[Pooling, option("of token vectors: their mean, or the first one")] = "mean"
    passage_tokens: Annotated[int, option("tokens of a passage, special ones included", ge=8)] = 128
    precision: Annotated[
        Precision, option("of the training; auto: bf16 where the hardware multiplies it")
    ] = "auto"

    epochs: Annotated[Count, option("at most this many")] = 8
    steps: Annotated[Count | None, option("at most this many, instead of epochs", instead_of="epochs")] = None
    batch: Annotated[int, option("texts of a step that are compared with each other", ge=2)] = 64
    accumulate: Annotated[Count, option("encode a batch in so many parts, to save memory")] = 1
    rate: Annotated[Positive, option("learning rate")] = 1e-4
    warmup: Annotated[Share, option("share of the steps in which the rate rises")] = 0.1
    every: Annotated[Count | None, option("steps between measurements; none: half an epoch, 10 at least")] = (
        None
    )
    patience: Annotated[Count, option("measurements without gain that end the training")] = 6
    average: Annotated[
        bool, option("at the end, also try weights between the untrained and the last ones")
    ] = True
    threads: Annotated[Count | None, option("of the processor; none: all")] = None
    seed: Annotated[Natural, option("of everything random")] = 0

    def __post_init__(self) -> None:
        if self.batch % self.accumulate:
            raise UsageError(
                f"--batch {self.batch} cannot be cut into {self.accumulate} equal parts; give"
                f" a multiple, or another --accumulate"
            )

    def unread(self) -> dict[str, str]:
        """Settings that have no effect with others, with the reason."""
        return {"epochs": f"--steps {self.steps}"} if self.steps else {}

    def learning_layers(self, layers: int) -> int:
        """Count the layers that learn of a model that has so many; 0: all, and the embeddings."""
        if self.train_layers is None:
            return 0 if self.random_weights or layers <= self.upper else self.upper
        return self.train_layers

    def load(self) -> TextEncoder:
        """Load the encoder. Needs torch."""
        return TextEncoder.load(
            self.model,
            pooling=self.pooling,
            longest=self.passage_tokens,
            layers=self.layers,
            random_weights=self.random_weights,
            seed=self.seed,
        )
