"""Options of ``concept``, and how it is registered. They are read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rerank.errors import setting_hint
from rerank.rankers.concept.graph import Concentration
from rerank.rankers.encoder.config import EncoderConfig
from rerank.rankers.training.registry import Training
from rerank.settings import setting

Objective = Literal["graph-component", "classifier"]
Batches = Literal["concepts", "pairs"]
Start = Literal["distance", "random"]
Score = Literal["head", "cosine"]

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
_CENTROIDS = ("concentration",)
_MOMENTUM = ("queue", "momentum", "temperature")


@dataclass(frozen=True)
class ConceptConfig(EncoderConfig):
    """Options of a training. The preset ``paper`` has those of Ma et al. 2023."""

    epochs: int = setting(3, "at most this many", low=1, common=True)

    objective: Objective = setting(
        "graph-component", "the classifier with both contrasts, or the classifier only", common=True
    )
    score: Score = setting(
        "head", "of a document: the head's probability, or the encoder's cosine", common=True
    )
    batches: Batches = setting("concepts", "drawn by components with all their pairs, or pair by pair")
    hops: int | None = setting(
        1, "draw related pairs so many labelled pairs apart; 1: none; none: of a whole component", low=1
    )
    ratio: float | None = setting(
        2.0, "all pairs, drawn and labelled, over the labelled ones; none: all", low=1
    )
    head_start: Start = setting(
        "distance", "first weights of the head: the distance, or random ones (the paper)"
    )
    beta: float = setting(0.1, "weight of the two contrasts", low=0)
    gc_nce: bool = setting(True, "contrast texts with components")
    moco: bool = setting(True, "contrast texts with each other, by a momentum encoder")
    concentration: Concentration = setting(
        "rescaled", "of components: cut at the 10th and 90th percentile and scaled; or raw"
    )
    queue: int = setting(256, "keys of the momentum encoder that are kept", low=1)
    momentum: float = setting(0.99, "m: how slowly the second encoder follows", low=0, below=1)
    temperature: float = setting(0.1, "of the softmax over the queue", above=0)

    @property
    def contrasts(self) -> tuple[bool, bool]:
        """Whether texts are contrasted with components, and with each other."""
        both = self.objective == "graph-component" and self.beta > 0
        return both and self.gc_nce, both and self.moco

    def unread(self) -> dict[str, str]:
        """Settings that have no effect with others, with the reason."""
        found = super().unread()
        if self.hops == 1:
            found["ratio"] = setting_hint("hops", 1)
        for switch, names in (("gc_nce", _CENTROIDS), ("moco", _MOMENTUM)):
            if not getattr(self, switch):
                found |= dict.fromkeys(names, setting_hint(switch, "false"))
        idle = (*_CENTROIDS, *_MOMENTUM, "gc_nce", "moco")
        if self.objective == "classifier":
            found |= dict.fromkeys(("beta", *idle), setting_hint("objective", "classifier"))
        elif not self.beta:
            found |= dict.fromkeys(idle, setting_hint("beta", 0))
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

    Raises UsageError for a change that has no effect.

    >>> concept_config("paper", beta=0.2).beta, concept_config("paper").momentum
    (0.2, 0.9999)
    """
    given = {name: value for name, value in changes.items() if value is not None}
    config: ConceptConfig = TRAINING.configure(given, preset)
    return config
