"""Settings of a training of ``dense``. They are read, and listed, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rerank.errors import UsageError, setting_hint
from rerank.rankers.dense.draws import DRAWS, Draws, Triplets
from rerank.rankers.dense.losses import OBJECTIVES, Loss
from rerank.rankers.dense.neighbours import NEIGHBOURS, Cited, Neighbourhood
from rerank.rankers.encoder.passages import BEST
from rerank.rankers.encoder.transformer import Pooling, TextEncoder
from rerank.rankers.graphs.citation_graph import WEIGHTS
from rerank.rankers.graphs.relations import Relation
from rerank.rankers.training.registry import Training
from rerank.settings import build, group, over, part, setting, settings_of, values_of

Precision = Literal["auto", "fp32", "bf16"]
Anchors = Literal["document", "fragment"]

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "whole": {
        "train_layers": 0,
        "fragments": 4,
        "batch": 256,
        "steps": 240,
        "patience": 25,
    },
    "paper": {
        "objective": "quintuplet",
        "related": 0,
        "mask_related": False,
        "fragment_tokens": 128,
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
    "cocitation": {
        "objective": "cocitation",
        "pooling": "cls",
        "fragment_tokens": 512,
        "fragments": 1,
        "train_layers": 0,
        "batch": 256,
        "accumulate": 32,
        "rate": 2e-5,
        "epochs": 2,
        "held_out": 0.0,
        "average": False,
    },
}
"""What a preset changes. ``whole``: all layers learn, from large batches, for a GPU or a night; ``paper``: as
Raman et al. 2021 have it, wherever that is well defined; ``cocitation``: as Ding et al. have it."""


@dataclass(frozen=True)
class ModelConfig:
    """The encoder that a training starts from, and how much of a text it reads at once.

    upper: layers that learn, where nothing else is asked for.
    """

    upper: ClassVar[int] = 3

    model: str = setting("minilm", "a folder, or a model on this machine", common=True, metavar="NAME")
    layers: int | None = setting(None, "keep the model's first N layers only; none: all", low=1)
    train_layers: int | None = setting(
        None, "train the last N layers alone; 0: all; none: 3, or all where there are no more", low=0
    )
    random_weights: bool = setting(False, "the model's shape, none of what it has learned")
    pooling: Pooling = setting("mean", "of token vectors: their mean, or the first one's")
    fragment_tokens: int = setting(128, "tokens of a fragment, special ones included", low=8, common=True)
    precision: Precision = setting("auto", "of the training; auto: bf16 where the hardware multiplies it")

    def learning_layers(self, layers: int) -> int:
        """Count the layers that learn of a model that has so many; 0: all, and the embeddings."""
        if self.train_layers is None:
            return 0 if self.random_weights or layers <= self.upper else self.upper
        return self.train_layers

    def load(self, seed: int = 0) -> TextEncoder:
        """Load it. Needs torch."""
        return TextEncoder.load(
            self.model,
            pooling=self.pooling,
            longest=self.fragment_tokens,
            layers=self.layers,
            random_weights=self.random_weights,
            seed=seed,
        )


@dataclass(frozen=True)
class EncoderConfig(ModelConfig):
    """The same, of documents that are read in fragments."""

    upper: ClassVar[int] = 2

    fragment_tokens: int = setting(64, "tokens of a fragment, special ones included", low=8, common=True)
    train_layers: int | None = setting(
        None, "train the last N layers alone; 0: all; none: 2, or all where there are no more", low=0
    )
    fragments: int = setting(8, "of a document, at most", low=1, high=100, common=True)


@dataclass(frozen=True)
class TrainingConfig:
    """Steps of Adam, and what ends them."""

    epochs: int = setting(8, "at most this many", low=1, common=True)
    steps: int | None = setting(
        None, "at most this many, instead of epochs", low=1, common=True, instead_of="epochs"
    )
    batch: int = setting(64, "anchors of a step", low=2, common=True)
    accumulate: int = setting(1, "encode a batch in so many parts, to save memory", low=1)
    rate: float = setting(1e-4, "learning rate", above=0, common=True)
    warmup: float = setting(0.1, "share of the steps in which the rate rises", low=0, high=1)
    clip: float = setting(1.0, "largest norm of a gradient", above=0)
    every: int | None = setting(None, "steps between measurements; none: half an epoch, 10 at least", low=1)
    patience: int = setting(6, "measurements without gain that end it", low=1)
    average: bool = setting(True, "at the end, also try weights between the untrained and the last ones")
    threads: int | None = setting(None, "of the processor; none: all", low=1)

    def __post_init__(self) -> None:
        if self.batch % self.accumulate:
            raise UsageError(
                f"{setting_hint('batch', self.batch)} cannot be cut into {self.accumulate} equal parts; give"
                f" a multiple, or another {setting_hint('accumulate')}"
            )

    def unread(self) -> dict[str, str]:
        """Settings that have no effect with others, with the reason."""
        return {"epochs": setting_hint("steps", self.steps)} if self.steps else {}


@dataclass(frozen=True)
class StepsConfig(TrainingConfig):
    """The same, at the rate of ``benchmarks/dense.py`` on cf."""

    rate: float = setting(2e-4, "learning rate", above=0, common=True)


@dataclass(frozen=True)
class HeldOutConfig:
    """Held-out links: what is looked for to see how good the encoder is."""

    held_out: float = setting(
        0.1, "share of the related pairs that stops the training", low=0, high=0.9, common=True
    )
    held_out_pool: int = setting(2000, "documents that they are looked for in", low=2)


@dataclass(frozen=True)
class DenseConfig:
    """Settings of a training. The preset ``paper`` has those of Raman et al. 2021, section 4.2, and
    ``cocitation`` those of Ding et al.

    neighbours, positives, objective: who is related to whom, how pairs are drawn from that, and what is
    learned from them; each with settings of its own.
    """

    encoder: EncoderConfig = group(EncoderConfig)
    objective: Loss = part(OBJECTIVES, "contrastive", "what is learned: the loss")
    positives: Draws = part(
        DRAWS, "hierarchical", "drawn level by level, or from all neighbours alike", common=False
    )
    neighbours: Neighbourhood = part(NEIGHBOURS, "intimacy", "who is related to whom", common=False)
    structure_from: Relation = setting(
        "links",
        "what relates documents: links, shared categories, or a document that cites both",
        common=True,
    )
    level_weights: tuple[float, ...] = setting(
        WEIGHTS, "of being cited in one sentence, paragraph, section, document", low=0
    )
    separator: bool = setting(False, "between title and text, as CCHT and SPECTER have it")
    leave_out: tuple[str, ...] = setting(
        (),
        "do not learn from links between documents that these judgements give the same query",
        common=True,
        metavar="QRELS",
    )
    measured: HeldOutConfig = group(HeldOutConfig)
    anchors: Anchors = setting("document", "what an epoch has as an anchor once")
    training: StepsConfig = group(StepsConfig)
    best: int = setting(BEST, "fragments whose cosines make a document's score", low=1)
    decay: float = setting(0.05, "omega: the k-th best of them weighs exp(-omega k)", low=0)
    normalise: bool = setting(True, "divide a document's score by the weights of its fragments")
    seed: int = setting(0, "of everything random", low=0, common=True)

    def __post_init__(self) -> None:
        drawn, cited = isinstance(self.positives, Triplets), isinstance(self.neighbours, Cited)
        if drawn != cited:
            raise UsageError(
                f"{setting_hint('positives', 'triplets')} and {setting_hint('neighbours', 'cited')} need each"
                " other; give both, or neither"
            )
        if cited and self.structure_from != "cocitation":
            raise UsageError(
                f"{setting_hint('neighbours', 'cited')} reads citations; give"
                f" {setting_hint('structure_from', 'cocitation')}, or leave it out"
            )
        weights = self.level_weights
        if len(weights) != len(WEIGHTS) or list(weights) != sorted(weights, reverse=True) or not weights[0]:
            raise UsageError(
                f"{setting_hint('level_weights')} takes {len(WEIGHTS)} numbers, none of them above the one"
                f" before, the first above 0, not {', '.join(f'{one:g}' for one in weights)}"
            )

    def unread(self) -> dict[str, str]:
        """Settings that have no effect with others, with the reason."""
        found = {}
        if self.structure_from != "cocitation":
            found["level_weights"] = setting_hint("structure_from", self.structure_from)
        if set(self.objective.branches) <= {"anchor", "corrupted"}:
            name = values_of(self)["objective"]
            for read in ("positives", *values_of(self.positives)):
                found[read] = setting_hint("objective", name)
        if not self.measured.held_out:
            for read in ("held_out_pool", "patience", "average"):
                found[read] = setting_hint("held_out", 0)
        return found


def dense_config(preset: str = "default", **changes: Any) -> DenseConfig:
    """Return the settings of a preset, with changes; None changes nothing.

    Raises UsageError for a change that nothing reads, such as a setting of another objective.

    >>> dense_config("paper").training.epochs, dense_config("paper", epochs=3).training.epochs
    (1, 3)
    """
    if preset not in PRESETS:
        raise UsageError(f"preset {preset!r} is unknown; use {', '.join(PRESETS)}")
    given = {name: value for name, value in changes.items() if value is not None}
    return build(DenseConfig, given, PRESETS[preset])


def changed(config: DenseConfig, **changes: Any) -> DenseConfig:
    """Return the settings with changes; those that nothing reads are dropped, not refused.

    >>> changed(dense_config(temperature=0.1), objective="quintuplet", epochs=2).training.epochs
    2
    """
    return build(DenseConfig, {}, over(values_of(config), changes, settings_of(DenseConfig)))


TRAINING = Training(
    learns_from=("links",),
    config=DenseConfig,
    fitter="rerank.rankers.dense.fit:DenseFitter",
    presets=PRESETS,
    resumes=("dense",),
)
