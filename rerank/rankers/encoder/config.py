"""Options of a training of a transformer; shared by ``dense`` and ``concept``, and read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rerank.errors import UsageError, setting_hint
from rerank.rankers.encoder.transformer import Pooling, TextEncoder
from rerank.settings import setting

Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder that a training starts from, and the steps of the training.

    upper: layers that learn by default.
    """

    upper: ClassVar[int] = 3

    model: str = setting("minilm", "a folder, or a model on this machine", common=True, metavar="NAME")
    layers: int | None = setting(None, "keep the model's first N layers only; none: all", low=1)
    train_layers: int | None = setting(
        None, "train the last N layers only; 0: all; none: 3, or all of a model with no more", low=0
    )
    random_weights: bool = setting(False, "use the model's shape with random weights")
    pooling: Pooling = setting("mean", "of token vectors: their mean, or the first one")
    fragment_tokens: int = setting(128, "tokens of a fragment, special ones included", low=8, common=True)
    precision: Precision = setting("auto", "of the training; auto: bf16 where the hardware multiplies it")

    epochs: int = setting(8, "at most this many", low=1, common=True)
    steps: int | None = setting(
        None, "at most this many, instead of epochs", low=1, common=True, instead_of="epochs"
    )
    batch: int = setting(64, "texts of a step that are compared with each other", low=2, common=True)
    accumulate: int = setting(1, "encode a batch in so many parts, to save memory", low=1)
    rate: float = setting(1e-4, "learning rate", above=0, common=True)
    warmup: float = setting(0.1, "share of the steps in which the rate rises", low=0, high=1)
    every: int | None = setting(None, "steps between measurements; none: half an epoch, 10 at least", low=1)
    patience: int = setting(6, "measurements without gain that end the training", low=1)
    average: bool = setting(True, "at the end, also try weights between the untrained and the last ones")
    threads: int | None = setting(None, "of the processor; none: all", low=1)
    seed: int = setting(0, "of everything random", low=0, common=True)

    def __post_init__(self) -> None:
        if self.batch % self.accumulate:
            raise UsageError(
                f"{setting_hint('batch', self.batch)} cannot be cut into {self.accumulate} equal parts; give"
                f" a multiple, or another {setting_hint('accumulate')}"
            )

    def unread(self) -> dict[str, str]:
        """Settings that have no effect with others, with the reason."""
        return {"epochs": setting_hint("steps", self.steps)} if self.steps else {}

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
            longest=self.fragment_tokens,
            layers=self.layers,
            random_weights=self.random_weights,
            seed=self.seed,
        )
