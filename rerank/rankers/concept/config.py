"""Options of ``concept``, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated, Any, ClassVar, Literal

from rerank.common.config import Count, option, refuse_ineffective
from rerank.rankers.encoder.config import EncoderConfig

Objective = Literal["graph-component", "classifier"]

PAPER: Mapping[str, Any] = {
    "batch": 32,
    "rate": 1e-5,
    "epochs": 5,
    "average": False,
    "passage_tokens": 256,
    "train_layers": 0,
    "queue": 32,
    "momentum": 0.9999,
}
"""Ma et al. 2023, section 4.2 and table 4. The batch and the length of texts are not in the paper."""
WHOLE: Mapping[str, Any] = {"train_layers": 0, "steps": 200, "every": 20, "rate": 5e-5}
"""All layers learn: for a GPU or a night."""


class ConceptConfig(EncoderConfig, frozen=True):
    """Options of ``concept``, the classifier of document pairs (Ma et al. 2023)."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "whole": WHOLE, "paper": PAPER}

    epochs: Annotated[Count, option("Maximum number of epochs.")] = 3

    objective: Annotated[
        Objective, option("Loss: the classifier with both contrasts, or the classifier only.")
    ] = "graph-component"
    queue: Annotated[Count, option("Maximum number of keys of the momentum encoder that are kept.")] = 256
    momentum: Annotated[float, option("Momentum m of the second encoder.", ge=0, lt=1)] = 0.99

    def validate(self, set_names: Set[str] = frozenset(), *, with_judgments: bool = False) -> None:
        super().validate(set_names, with_judgments=with_judgments)
        if self.objective == "classifier":
            refuse_ineffective(["queue", "momentum"], set_names, "--objective classifier")
