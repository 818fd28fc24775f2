"""Settings of a training of ``dense``."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal, get_args

from rerank.errors import UsageError
from rerank.graph.intimacy import Axis
from rerank.graph.links import Direction
from rerank.graph.relations import Relation
from rerank.rankers.dense.fragments import BEST
from rerank.rankers.dense.transformer import Pooling

Corruption = Literal["mixed", "random", "mask"]
Precision = Literal["auto", "fp32", "bf16"]
Margin = Literal["harmonic", "geometric", "constant"]
Pool = Literal["anchors", "all"]
Anchors = Literal["document", "fragment"]
Isolated = Literal["semantic", "skip"]
Sampling = Literal["hierarchical", "row"]

_LEVELS = frozenset({"positives", "level", "max_level"})
_SEMANTIC = frozenset({"semantic_margin", "corrupted", "corruption", "same_fragment", "pool", "mask_related"})
_BOTH = _LEVELS | _SEMANTIC | {"gamma", "structural_margin", "isolated"}
OBJECTIVES = {
    "quintuplet": _BOTH | {"margin"},
    "contrastive": _LEVELS | {"temperature", "mask_related"},
    "structure": _LEVELS | {"structural_margin", "margin"},
    "semantics": _SEMANTIC | {"isolated"},
    "fixed-margin": _BOTH,
    "triplet": frozenset({"structural_margin"}),
}
"""Objective -> the settings that not all objectives read, but this one does.

quintuplet: the paper's. contrastive: softmax over the batch. The rest are ablations of the paper's loss: one
half of it, one margin for all levels, and a plain triplet of linked and unlinked documents."""

UPPER = 3
"""Layers that learn, where nothing else is asked for."""

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "objective": "quintuplet",
        "related": 0,
        "mask_related": False,
        "fragments": 100,
        "train_layers": 0,
        "batch": 24,
        "rate": 5e-5,
        "epochs": 1,
        "held_out": 0.0,
        "average": False,
        "best": 5,
        "normalise": False,
    },
}
"""What a preset changes. ``paper``: as Raman et al. 2021 have it, wherever that is well defined."""


@dataclass(frozen=True)
class DenseConfig:
    """Settings of a training. The preset ``paper`` has those of Raman et al. 2021, section 4.2.

    model, layers, random_weights, pooling: the encoder; see ``TextEncoder.load``.
    train_layers: how many layers learn, from the last one down; 0: all, and the embeddings; None: UPPER, or
        all where the model has no more, or has random weights.
    fragment_tokens, fragments: tokens of a fragment, and how many of a document are kept at most.
    best, normalise: the score of a document is the decayed sum of so many fragments, and divided by their
        weights.
    objective: one of OBJECTIVES; gamma, structural_margin, semantic_margin, margin (how it shrinks with the
        level), temperature are its settings. pool: the nearest of the batch is looked for among the other
        ``anchors``, or among ``all`` other texts. mask_related: documents related to an anchor are no
        negatives of it in the batch.
    corrupted, corruption: share of the tokens of the semantic positive that are replaced, and by what:
        ``random`` tokens, the ``mask`` token, or each of the two for half of them (``mixed``).
    same_fragment: the semantic positive is made from the anchor's own fragment, not from any of the document.
    anchors: an epoch has each ``document`` as an anchor once, or each ``fragment`` of it. isolated: documents
        without related ones stay for the ``semantic`` half of the loss, or are left out (``skip``).
    structure_from: what relates documents. leave_out: files of judgements; links between two documents that
        are relevant to the same query are not learned from. positives, related, grey, alpha, axis, direction,
        tolerance, max_level, level: the structure; see ``Structure.of``.
    batch, accumulate: anchors of a step, in so many parts. rate, warmup, clip: Adam's learning rate, the
        share of the steps in which it rises, largest norm of a gradient.
    epochs, steps: how long; ``steps`` overrides. every: steps between measurements; patience: measurements
        without a better one that end the training. average: at the end, weights between the untrained ones
        and the last ones are choices too.
    held_out: share of the links that is held out for those measurements; held_out_pool: documents they are
        looked for in.
    """

    model: str = "minilm"
    layers: int | None = None
    train_layers: int | None = None
    random_weights: bool = False
    pooling: Pooling = "mean"
    fragment_tokens: int = 128
    fragments: int = 8
    best: int = BEST
    normalise: bool = True
    objective: str = "contrastive"
    gamma: float = 0.5
    structural_margin: float = 2.0
    semantic_margin: float = 0.5
    margin: Margin = "harmonic"
    temperature: float = 0.05
    pool: Pool = "anchors"
    mask_related: bool = True
    corrupted: float = 0.25
    corruption: Corruption = "mixed"
    same_fragment: bool = False
    anchors: Anchors = "document"
    isolated: Isolated = "semantic"
    structure_from: Relation = "links"
    leave_out: tuple[str, ...] = ()
    positives: Sampling = "hierarchical"
    related: int = 64
    grey: int = 0
    alpha: float = 0.15
    axis: Axis = "row"
    direction: Direction = "sym"
    tolerance: float = 1e-3
    max_level: int | None = None
    level: int | None = None
    batch: int = 64
    accumulate: int = 1
    rate: float = 1e-4
    warmup: float = 0.1
    clip: float = 1.0
    epochs: int = 8
    steps: int | None = None
    every: int | None = None
    patience: int = 6
    average: bool = True
    held_out: float = 0.1
    held_out_pool: int = 2000
    precision: Precision = "auto"
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective {self.objective!r} is unknown; use {', '.join(OBJECTIVES)}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} {getattr(self, name)!r} is unknown; use {', '.join(choices)}")
        for name, low, high in (
            ("gamma", 0, 1),
            ("corrupted", 0, 1),
            ("alpha", 0, 1),
            ("held_out", 0, 0.9),
            ("warmup", 0, 1),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} {getattr(self, name)} is not between {low} and {high}")
        for name in ("temperature", "tolerance", "rate", "structural_margin", "semantic_margin"):
            value = getattr(self, name)
            if not (0 < value < inf or (value == 0 and name.endswith("margin"))):
                raise UsageError(f"{name} {value} is not a number above 0")
        if self.level is not None and self.max_level is not None:
            raise UsageError("a fixed level and a highest level exclude each other; give one of them")
        if self.fragment_tokens < 8:
            raise UsageError(f"fragments of {self.fragment_tokens} tokens are too short; use 8 or more")
        if self.batch < 2 or self.batch % self.accumulate:
            raise UsageError(f"a batch of {self.batch} cannot be cut into {self.accumulate} equal parts")

    @property
    def pairs(self) -> Sampling:
        """How structural pairs are drawn: ``triplet`` takes what is linked against what is not."""
        return "row" if self.objective == "triplet" else self.positives

    def learning_layers(self, layers: int) -> int:
        """Count the layers that learn of a model that has so many; 0: all, and the embeddings."""
        if self.train_layers is None:
            return 0 if self.random_weights or layers <= UPPER else UPPER
        return self.train_layers

    @property
    def keeps_isolated(self) -> bool:
        """Whether documents without related ones are anchors: for the semantic half of the loss."""
        half = self.gamma > 0 if "gamma" in OBJECTIVES[self.objective] else self.objective == "semantics"
        return half and self.isolated == "semantic"


_CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind)
    for name, kind in {
        "margin": Margin,
        "pool": Pool,
        "corruption": Corruption,
        "anchors": Anchors,
        "isolated": Isolated,
        "structure_from": Relation,
        "positives": Sampling,
        "axis": Axis,
        "direction": Direction,
        "precision": Precision,
        "pooling": Pooling,
    }.items()
}


def dense_config(preset: str = "default", **changes: Any) -> DenseConfig:
    """Return the settings of a preset, with changes; None changes nothing.

    Raises UsageError for a change that the objective does not read.

    >>> dense_config("paper").objective, dense_config("paper", epochs=3).epochs
    ('quintuplet', 3)
    """
    if preset not in PRESETS:
        raise UsageError(f"preset {preset!r} is unknown; use {', '.join(PRESETS)}")
    given = {name: value for name, value in changes.items() if value is not None}
    config = DenseConfig(**{**PRESETS[preset], **given})
    for name in given:
        readers = [one for one, read in OBJECTIVES.items() if name in read]
        if readers and config.objective not in readers:
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect with --objective {config.objective}; it is a"
                f" setting of {', '.join(readers)}"
            )
    return config
