"""Encoder training options, without torch."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from rerank.common.config import Count, Natural, Options, Positive, option, refuse_ineffective
from rerank.common.errors import UsageError
from rerank.rankers.encoder.folder import check_encoder, runs_in_onnx
from rerank.rankers.encoder.published import Pooling
from rerank.rankers.encoder.transformer import TextEncoder

Precision = Literal["auto", "fp32", "bf16"]
Tokens = Annotated[int, Meta(ge=8)]
"""Tokens of a passage, special ones included."""


class ModelConfig(Options, frozen=True):
    """Options of a pretrained encoder that is only read."""

    model: Annotated[
        str, option("Folder of a model, or name of a model on this machine.", metavar="NAME")
    ] = "minilm"
    layers: Annotated[Count | None, option("Keep the first N layers of the model. none: all.")] = None
    pooling: Annotated[
        Pooling | None,
        option("Use the mean of the token vectors, or the first vector. none: as the model's folder says."),
    ] = None
    passage_tokens: Annotated[
        Tokens | None, option("Tokens of a passage, special ones included. none: as the model's folder says.")
    ] = 128

    def check(self) -> None:
        """Raise UsageError for a model that is missing, damaged or not supported."""
        check_encoder(self.model)

    def load(self) -> TextEncoder:
        """Return the encoder with these options. It needs torch, unless it is a file of ONNX."""
        return TextEncoder.load(
            self.model, pooling=self.pooling, longest=self.passage_tokens, layers=self.layers
        )


class EncoderConfig(ModelConfig, frozen=True):
    """Options of an encoder that is trained.

    upper: number of last layers that are trained by default.
    """

    upper: ClassVar[int] = 3

    train_layers: Annotated[
        Natural | None,
        option(
            "Train the last N layers, or all of a smaller model. 0: also the embeddings of tokens; none: 3."
        ),
    ] = None
    precision: Annotated[
        Precision, option("Precision of the training. auto: bf16 if the hardware multiplies it.")
    ] = "auto"

    epochs: Annotated[Count, option("Maximum number of epochs.")] = 8
    steps: Annotated[
        Count | None, option("Maximum number of steps, instead of epochs.", instead_of="epochs")
    ] = None
    batch: Annotated[int, option("Texts of a step, which are compared with each other.", ge=2)] = 64
    rate: Annotated[Positive, option("Learning rate.")] = 1e-4
    every: Annotated[
        Count | None, option("Steps between measurements. none: half an epoch, at least 10.")
    ] = None
    patience: Annotated[Count, option("Stop after N measurements without a gain.")] = 6
    average: Annotated[
        bool, option("At the end, also try the mean of the untrained and the last weights.")
    ] = True
    seed: Annotated[Natural, option("Random seed.")] = 0

    def validate(self, set_names: Set[str] = frozenset(), *, with_judgments: bool = False) -> None:
        super().validate(set_names, with_judgments=with_judgments)
        if self.steps:
            refuse_ineffective(["epochs"], set_names, f"--steps {self.steps}")

    def check(self) -> None:
        """Raise UsageError for a model that is missing, damaged, not supported, or cannot learn."""
        folder = check_encoder(self.model)
        if runs_in_onnx(folder) and not getattr(self, "untrained", False):
            raise UsageError(
                f"{self.model} is a file of ONNX, which cannot learn; give --untrained or train `adapter`"
            )

    def learning_layers(self, layers: int) -> int:
        """Return the number of last layers to train. 0 stands for all layers and the embeddings.

        layers: number of layers of the model.
        """
        if self.train_layers is None:
            return 0 if layers <= self.upper else self.upper
        return min(self.train_layers, layers)
