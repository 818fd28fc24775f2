"""Options of ``dense``, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated, Any, ClassVar, Literal

from rerank.common.config import Count, Natural, Positive, option, refuse_ineffective
from rerank.common.values import items_not_in
from rerank.rankers.dense.ranker import BEST
from rerank.rankers.encoder.config import EncoderConfig, Tokens
from rerank.rankers.graphs.cocitation import Level

Objective = Literal["contrastive", "quintuplet", "cocitation"]

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "whole": {
        "train_layers": 0,
        "passages": 4,
        "batch": 256,
        "steps": 240,
        "patience": 25,
    },
    "judged": {
        "train_layers": 12,
        "passage_tokens": 128,
        "passages": 1,
        "batch": 16,
        "rate": 5e-5,
        "steps": 100,
        "average": False,
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
        "rate": 2e-5,
        "epochs": 2,
        "held_out": 0.0,
        "average": False,
    },
}
"""``whole``: all layers learn, on a GPU. ``judged``: all layers learn from judged queries, on a CPU.
``paper``: Raman et al. 2021; ``cocitation``: Ding et al."""

Neighbors = Annotated[
    Natural,
    option(
        "Move the vectors of a document toward its N nearest documents. It helps if queries have several"
        " relevant documents, which are similar."
    ),
]
_UNTRAINED = {
    "untrained",
    "model",
    "layers",
    "pooling",
    "passage_tokens",
    "passages",
    "best",
    "neighbors",
    "names",
}
"""Options that also have an effect without training."""
_LINKS_ONLY = ("untrained", "objective", "relation", "strategy", "related", "held_out")
"""Options of a training on links, without effect on a training on judged queries."""


class DenseConfig(EncoderConfig, frozen=True):
    """Options of ``dense``, an encoder that is trained on links, citations or judgments."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    judged_presets: ClassVar[Set[str]] = {"judged"}
    upper: ClassVar[int] = 2

    untrained: Annotated[bool, option("Use the model without training; this needs no links.")] = False
    passage_tokens: Annotated[
        Tokens | None,
        option(
            "Tokens of a passage, special ones included. none: as the model's folder says, the default of"
            " --untrained."
        ),
    ] = 64
    train_layers: Annotated[
        Natural | None,
        option(
            "Train the last N layers, or all of a smaller model. 0: also the embeddings of tokens; none: 2."
        ),
    ] = None
    rate: Annotated[Positive, option("Learning rate.")] = 2e-4

    passages: Annotated[int, option("Maximum number of passages of a document.", ge=1, le=100)] = 8
    best: Annotated[Count, option("Number of passages whose cosines make the score of a document.")] = BEST

    neighbors: Neighbors = 0
    names: Annotated[
        bool, option("Read the names of the categories of a document instead of its title and text.")
    ] = False

    objective: Annotated[Objective, option("Loss.")] = "contrastive"
    relation: Annotated[
        Literal["links", "categories"],
        option("Relation to learn: links, which count as often as they are repeated, or shared categories."),
    ] = "links"
    strategy: Annotated[
        Level | None,
        option(
            "Learn from texts that are cited together in a sentence, paragraph, section or document."
            " none: from links."
        ),
    ] = None
    related: Annotated[
        Natural, option("quintuplet: maximum number of related documents of each document. 0: all.")
    ] = 64
    held_out: Annotated[
        float, option("Share of the related pairs that measures the training.", ge=0, le=0.9)
    ] = 0.1

    @property
    def separator(self) -> bool:
        """Whether the separator of the tokenizer follows the title of a text, as in Ding et al."""
        return self.strategy is not None

    @classmethod
    def derived_defaults(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the strategy of a loss of co-citations, and passages as the model knows them."""
        defaults: dict[str, Any] = {}
        if values.get("objective") == "cocitation":
            defaults["strategy"] = "sentence"
        if values.get("untrained"):
            defaults["passage_tokens"] = None
        return defaults

    def validate(self, set_names: Set[str] = frozenset(), *, with_judgments: bool = False) -> None:
        super().validate(set_names, with_judgments=with_judgments)
        training_options = items_not_in(self.__struct_fields__, _UNTRAINED)
        conditions = (
            (self.untrained, "--untrained", training_options),
            (self.strategy is not None, f"--strategy {self.strategy}", ["relation", "names"]),
            (self.objective != "quintuplet", f"--objective {self.objective}", ["related"]),
            (self.held_out == 0, "--held-out 0", ["patience", "average"]),
        )
        for holds, cause, ineffective_options in conditions:
            if holds:
                refuse_ineffective(ineffective_options, set_names, cause)
        if with_judgments:
            refuse_ineffective(_LINKS_ONLY, {*set_names, *self._changed()}, "--qrels")

    def _changed(self) -> list[str]:
        """Return the options that do not have their defaults, for example because of a preset."""
        defaults = DenseConfig()
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(defaults, name)]
