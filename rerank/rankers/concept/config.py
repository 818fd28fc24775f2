"""Options of ``concept``, and how it is registered. They are read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rerank.config import Count, NonNegative, Positive, build, option
from rerank.errors import option_name
from rerank.rankers.concept.graph import Concentration
from rerank.rankers.encoder.config import EncoderConfig

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
    "passage_tokens": 256,
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


class ConceptConfig(EncoderConfig, frozen=True):
    """Options of a training. The preset ``paper`` has those of Ma et al. 2023."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "whole": WHOLE, "paper": PAPER}

    epochs: Annotated[Count, option("at most this many")] = 3

    objective: Annotated[Objective, option("the classifier with both contrasts, or the classifier only")] = (
        "graph-component"
    )
    score: Annotated[Score, option("of a document: the head's probability, or the encoder's cosine")] = "head"
    batches: Annotated[Batches, option("drawn by components with all their pairs, or pair by pair")] = (
        "concepts"
    )
    hops: Annotated[
        Count | None,
        option("draw related pairs so many labeled pairs apart; 1: none; none: of a whole component"),
    ] = 1
    ratio: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        option("all pairs, drawn and labeled, over the labeled ones; none: all"),
    ] = 2.0
    head_start: Annotated[
        Start, option("first weights of the head: the distance, or random ones (the paper)")
    ] = "distance"
    beta: Annotated[NonNegative, option("weight of the two contrasts")] = 0.1
    gc_nce: Annotated[bool, option("contrast texts with components")] = True
    moco: Annotated[bool, option("contrast texts with each other, by a momentum encoder")] = True
    concentration: Annotated[
        Concentration, option("of components: cut at the 10th and 90th percentile and scaled; or raw")
    ] = "rescaled"
    queue: Annotated[Count, option("keys of the momentum encoder that are kept")] = 256
    momentum: Annotated[float, option("m: how slowly the second encoder follows", ge=0, lt=1)] = 0.99
    temperature: Annotated[Positive, option("of the softmax over the queue")] = 0.1

    @property
    def contrasts(self) -> tuple[bool, bool]:
        """Whether texts are contrasted with components, and with each other."""
        both = self.objective == "graph-component" and self.beta > 0
        return both and self.gc_nce, both and self.moco

    def unread(self) -> dict[str, str]:
        """Settings that have no effect with others, with the reason."""
        found = super().unread()
        if self.hops == 1:
            found["ratio"] = "--hops 1"
        for switch, names in (("gc_nce", _CENTROIDS), ("moco", _MOMENTUM)):
            if not getattr(self, switch):
                found |= dict.fromkeys(names, f"{option_name(switch)} false")
        idle = (*_CENTROIDS, *_MOMENTUM, "gc_nce", "moco")
        if self.objective == "classifier":
            found |= dict.fromkeys(("beta", *idle), "--objective classifier")
        elif not self.beta:
            found |= dict.fromkeys(idle, "--beta 0")
        return found


def concept_config(preset: str = "default", **changes: Any) -> ConceptConfig:
    """Return the settings of a preset, with changes; None changes nothing.

    Raises UsageError for a change that has no effect.

    >>> concept_config("paper", beta=0.2).beta, concept_config("paper").momentum
    (0.2, 0.9999)
    """
    given = {name: value for name, value in changes.items() if value is not None}
    return build(ConceptConfig, given, preset)
