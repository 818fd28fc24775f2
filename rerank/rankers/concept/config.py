"""Settings of a training of ``concept``, and how it is registered. They are read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rerank.errors import setting_hint
from rerank.rankers.concept.batches import DRAWINGS, Drawing
from rerank.rankers.concept.graph import World
from rerank.rankers.concept.losses import OBJECTIVES
from rerank.rankers.dense.config import ModelConfig, TrainingConfig
from rerank.rankers.dense.losses import Loss
from rerank.rankers.training.registry import Training
from rerank.settings import group, part, setting, values_of

Score = Literal["head", "cosine"]
WITHOUT_HEAD = ("components", "momentum")

PAPER: Mapping[str, Any] = {
    "batches": "pairs",
    "batch": 32,
    "rate": 1e-5,
    "warmup": 0.0,
    "epochs": 5,
    "average": False,
    "fragment_tokens": 256,
    "train_layers": 0,
    "head_start": "random",
    "head_rate": 1.0,
    "concentration": "raw",
    "queue": 32,
    "momentum": 0.9999,
    "temperature": 0.1,
    "beta": 0.1,
    "hops": 2,
    "ratio": 2.0,
}
"""Ma et al. 2023, section 4.2 and table 4. The batch and the length of texts are not in the paper."""
WHOLE: Mapping[str, Any] = {"train_layers": 0, "steps": 200, "every": 20, "rate": 5e-5}
"""All layers learn: for a GPU or a night."""


@dataclass(frozen=True)
class GraphConfig:
    """What is made of the labelled pairs."""

    hops: int | None = setting(
        1, "draw related pairs so many labelled pairs apart; 1: none; none: of a whole component", low=1
    )
    ratio: float | None = setting(
        2.0, "of all pairs, drawn ones and labelled ones, over the labelled ones; none: all", low=1
    )
    world: World = setting(
        "closed", "unrelated pairs that are drawn: of any components, or witnessed by a labelled pair"
    )

    def unread(self) -> dict[str, str]:
        """Settings of drawn pairs, where none are drawn."""
        return dict.fromkeys(("ratio", "world"), setting_hint("hops", 1)) if self.hops == 1 else {}


@dataclass(frozen=True)
class StepsConfig(TrainingConfig):
    """The same, for a few hundred texts that each epoch has several times."""

    epochs: int = setting(3, "at most this many", low=1, common=True)


@dataclass(frozen=True)
class ConceptConfig:
    """Settings of ``concept``. The preset ``paper`` has those of Ma et al. 2023."""

    encoder: ModelConfig = group(ModelConfig)
    objective: Loss = part(OBJECTIVES, "graph-component", "what is learned: the loss")
    batches: Drawing = part(
        DRAWINGS,
        "concepts",
        "drawn by components, with all pairs among their texts, or pair by pair",
        common=False,
    )
    graph: GraphConfig = group(GraphConfig)
    training: StepsConfig = group(StepsConfig)
    score: Score = setting(
        "head", "of a document: the head's probability, or the encoder's cosine", common=True
    )
    seed: int = setting(0, "of everything random", low=0, common=True)

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A loss without a head scores by the cosine."""
        return {"score": "cosine"} if values.get("objective") in WITHOUT_HEAD else {}

    def unread(self) -> dict[str, str]:
        """Settings that have no effect with others, with the reason."""
        found = {}
        name = values_of(self)["objective"]
        if name in WITHOUT_HEAD and self.score == "head":
            found["score"] = f"{setting_hint('objective', name)}, which has no head"
        return found


TRAINING = Training(
    learns_from=("labelled pairs",),
    config=ConceptConfig,
    fitter="rerank.rankers.concept.fit:ConceptFitter",
    presets={"default": {}, "whole": WHOLE, "paper": PAPER},
    resumes=("concept",),
)


def concept_config(preset: str = "default", **changes: Any) -> ConceptConfig:
    """Return the settings of a preset, with changes; None changes nothing.

    Raises UsageError for a change that nothing reads.

    >>> from rerank.settings import values_of
    >>> values_of(concept_config("paper", beta=0.2))["beta"], concept_config(objective="momentum").score
    (0.2, 'cosine')
    """
    given = {name: value for name, value in changes.items() if value is not None}
    config: ConceptConfig = TRAINING.configure(given, preset)
    return config
