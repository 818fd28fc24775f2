"""Options of ``dense``, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from rerank.config import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Share,
    option,
)
from rerank.errors import UsageError, option_name
from rerank.rankers.dense.triplets import Strategy
from rerank.rankers.encoder.config import EncoderConfig
from rerank.rankers.encoder.passages import BEST
from rerank.rankers.graphs.relations import Relation

Objective = Literal["contrastive", "quintuplet", "cocitation"]
Positives = Literal["levels", "linked", "cited"]

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "whole": {
        "train_layers": 0,
        "passages": 4,
        "batch": 256,
        "steps": 240,
        "patience": 25,
    },
    "paper": {
        "objective": "quintuplet",
        "related": 0,
        "passage_tokens": 128,
        "passages": 100,
        "train_layers": 0,
        "batch": 24,
        "rate": 5e-5,
        "epochs": 1,
        "held_out": 0.0,
        "average": False,
        "best": 5,
    },
    "cocitation": {
        "objective": "cocitation",
        "pooling": "cls",
        "passage_tokens": 512,
        "passages": 1,
        "train_layers": 0,
        "batch": 256,
        "accumulate": 32,
        "rate": 2e-5,
        "epochs": 2,
        "held_out": 0.0,
        "average": False,
    },
}
"""``whole``: all layers learn, on a GPU. ``paper``: Raman et al. 2021; ``cocitation``: Ding et al."""

_UNTRAINED = {"untrained", "model", "layers", "pooling", "passage_tokens", "passages", "best"}
"""Options that also have an effect without training."""
_READ: Mapping[str, Mapping[str, frozenset[str]]] = {
    "objective": {
        "contrastive": frozenset({"temperature"}),
        "quintuplet": frozenset({"gamma", "structural_margin", "semantic_margin"}),
        "cocitation": frozenset({"structural_margin"}),
    },
    "positives": {
        "levels": frozenset({"related"}),
        "linked": frozenset(),
        "cited": frozenset({"strategy", "hard"}),
    },
}
"""Option -> value -> options that only some of its values read."""


class DenseConfig(EncoderConfig, frozen=True):
    """Training options."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    upper: ClassVar[int] = 2
    unjudged: ClassVar[tuple[str, ...]] = (
        "untrained",
        "objective",
        "structure_from",
        "positives",
        "related",
        "strategy",
        "hard",
        "leave_out",
        "held_out",
        "gamma",
        "structural_margin",
        "semantic_margin",
    )

    untrained: Annotated[bool, option("Use the model without training; this needs no links.")] = False
    passage_tokens: Annotated[int, option("Tokens of a passage, special ones included.", ge=8)] = 64
    train_layers: Annotated[
        Natural | None, option("Train the last N layers. 0: all; none: 2, or all of a smaller model.")
    ] = None
    rate: Annotated[Positive, option("Learning rate.")] = 2e-4

    passages: Annotated[int, option("Maximum number of passages of a document.", ge=1, le=100)] = 8
    best: Annotated[Count, option("Number of passages whose cosines make the score of a document.")] = BEST

    objective: Annotated[Objective, option("Loss.")] = "contrastive"
    structure_from: Annotated[
        Relation,
        option("Relation: links, common categories, or a document that cites both."),
    ] = "links"
    positives: Annotated[
        Positives, option("Positives: by levels of PageRank; linked documents; or documents cited together.")
    ] = "levels"
    related: Annotated[Natural, option("Maximum number of related documents of each document. 0: all.")] = 64
    strategy: Annotated[
        Strategy, option("Place that cites two texts together. direct: one cites the other.")
    ] = "sentence"
    hard: Annotated[
        int, option("Number of the 5 triplets of a text with a negative of the same section.", ge=0, le=5)
    ] = 0
    leave_out: Annotated[
        tuple[str, ...],
        option(
            "Do not learn from pairs of documents that these judgments give the same query.",
            metavar="QRELS",
        ),
    ] = ()
    held_out: Annotated[
        float, option("Share of the related pairs that measures the training.", ge=0, le=0.9)
    ] = 0.1

    temperature: Annotated[Positive, option("Temperature of the contrastive loss.")] = 0.05
    gamma: Annotated[Share, option("Weight of the semantic half of the quintuplet loss.")] = 0.5
    structural_margin: Annotated[
        NonNegative | None, option("Margin between positive and negative. none: 2, of cocitation 1.")
    ] = None
    semantic_margin: Annotated[NonNegative, option("Margin of the semantic half.")] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positives == "cited" and self.structure_from != "cocitation":
            raise UsageError(
                "--positives cited reads citations; give --structure-from cocitation, or leave it out"
            )

    @property
    def margin(self) -> float:
        """Structural margin."""
        if self.structural_margin is not None:
            return self.structural_margin
        return 1.0 if self.objective == "cocitation" else 2.0

    @property
    def separator(self) -> bool:
        """Whether a separator follows titles (Ding et al.)."""
        return self.positives == "cited"

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Derive positives and structure from a co-citation loss or strategy."""
        found: dict[str, Any] = {}
        if values.get("objective") == "cocitation" or values.get("strategy") is not None:
            found["positives"] = "cited"
        if {**found, **values}.get("positives") == "cited":
            found["structure_from"] = "cocitation"
        return found

    def unread(self) -> dict[str, str]:
        """Return options without effect, and why."""
        if self.untrained:
            return dict.fromkeys({*self.__struct_fields__} - _UNTRAINED, "--untrained")
        found = super().unread()
        for choice, reads in _READ.items():
            chosen = getattr(self, choice)
            others = frozenset[str]().union(*reads.values()) - reads[chosen]
            found |= dict.fromkeys(others, f"{option_name(choice)} {chosen}")
        if self.objective == "quintuplet" and self.gamma in (0, 1):
            idle = ("semantic_margin",) if not self.gamma else ("structural_margin", "positives", "related")
            found |= dict.fromkeys(idle, f"--gamma {self.gamma:g}")
        if self.positives == "cited" and self.strategy not in ("sentence", "paragraph"):
            found["hard"] = f"--strategy {self.strategy}"
        if not self.held_out:
            found |= dict.fromkeys(("patience", "average"), "--held-out 0")
        return found
