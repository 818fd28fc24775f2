"""Settings of a training of ``dense``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rerank.errors import UsageError
from rerank.graph.intimacy import Axis
from rerank.graph.links import Direction
from rerank.rankers.transformer import Pooling

Corruption = Literal["mixed", "random", "mask"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class DenseConfig:
    """Settings of a training; the defaults are the paper's, where it gives one (Raman et al. 2021, section
    4.2).

    model, layers, random_weights, pooling: the encoder; see ``TextEncoder.load``.
    train_layers: how many layers learn, from the last one down; None: all, and the embeddings.
    fragment_tokens, fragments: tokens of a fragment, and how many of a document are kept at most.
    objective: one of OBJECTIVES; gamma, structural_margin, semantic_margin, temperature are its settings.
    corrupted, corruption: share of the tokens of the semantic positive that are replaced, and by what:
        ``random`` tokens, the ``mask`` token, or each of the two for half of them (``mixed``).
    same_fragment: the semantic positive is made from the anchor's own fragment, not from any of the document.
    related, grey, alpha, axis, direction, tolerance, most_levels: the structure; see ``Structure.of``.
    batch, accumulate: anchors of a step, in so many parts. rate, warmup, clip: Adam's learning rate, the
        share of the steps in which it rises, largest norm of a gradient.
    epochs, steps: how long; ``steps`` overrides. every: steps between measurements; patience: measurements
        without a better one that end the training.
    held_out: share of the links that is held out for those measurements; pool: documents they are looked for
        in.
    """

    model: str = "minilm"
    layers: int | None = None
    train_layers: int | None = None
    random_weights: bool = False
    pooling: Pooling = "mean"
    fragment_tokens: int = 128
    fragments: int = 8
    objective: str = "contrastive"
    gamma: float = 0.5
    structural_margin: float = 2.0
    semantic_margin: float = 0.5
    temperature: float = 0.05
    corrupted: float = 0.25
    corruption: Corruption = "mixed"
    same_fragment: bool = False
    related: int = 64
    grey: int = 0
    alpha: float = 0.15
    axis: Axis = "row"
    direction: Direction = "sym"
    tolerance: float = 1e-3
    most_levels: int | None = None
    batch: int = 24
    accumulate: int = 1
    rate: float = 5e-5
    warmup: float = 0.1
    clip: float = 1.0
    epochs: int = 5
    steps: int | None = None
    every: int | None = None
    patience: int = 4
    held_out: float = 0.1
    pool: int = 2000
    precision: Precision = "auto"
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (("gamma", 0, 1), ("corrupted", 0, 1), ("alpha", 0, 1), ("held_out", 0, 0.9)):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} {getattr(self, name)} is not between {low} and {high}")
        if self.fragment_tokens < 8:
            raise UsageError(f"fragments of {self.fragment_tokens} tokens are too short; use 8 or more")
        if self.batch < 2 or self.batch % self.accumulate:
            raise UsageError(f"a batch of {self.batch} cannot be cut into {self.accumulate} equal parts")
