"""The CNN rankers (Kuwa, Schamoni, Riezler 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.categories import CategoryNames
from rerank.rankers.base import ArrayRanker, within
from rerank.rankers.cnn.towers import Head, Part, Tower, Vocabulary
from rerank.records import Document, Query

PARTS: dict[str, tuple[Part, ...]] = {"text": ("text",), "meta": ("meta",), "joint": ("text", "meta")}
"""Variant -> inputs of its towers."""


@dataclass(kw_only=True, repr=False)
class CnnRanker(ArrayRanker):
    """A CNN ranker with fp16 features. query, document: one tower per part of ``PARTS[variant]``."""

    family: ClassVar[str] = "cnn"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # type: ignore[misc]

    query: list[Tower]
    document: list[Tower]
    head: Head

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses_text, self.uses_categories = "text" in PARTS[self.variant], "meta" in PARTS[self.variant]
        names = [tower.vocabulary.names for tower in self.query if tower.vocabulary.part == "meta"]
        self.categories = CategoryNames(names[0]) if names else None
        self.retrieves = self.head.cosine  # the MLP's score is no inner product

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        """(n, width of the head) fp16."""
        return self.head.encode("document", _pooled(self.document, documents)).astype(np.float16)

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """(width of the head,)."""
        encoded: NDArray[np.float32] = self.head.encode("query", _pooled(self.query, [query]))[0]
        return encoded

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) scores in [-1, 1]."""
        return self.head.score(query, features)

    def content(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str] | str], dict[str, Any]]:
        """Arrays, vocabularies and values."""
        arrays: dict[str, NDArray[Any]] = {f"head.{k}": v for k, v in self.head.arrays.items()}
        vocabularies: dict[str, list[str] | str] = {}
        towers: dict[str, dict[str, Any]] = {}
        first: dict[int, str] = {}
        for side, one in [*product(("document",), self.document), *product(("query",), self.query)]:
            name = f"{side}.{one.vocabulary.part}"
            same = first.setdefault(id(one.vocabulary), name)  # both sides can share a vocabulary
            vocabularies[name] = one.vocabulary.names if same == name else same
            towers[name] = {"longest": one.vocabulary.longest, "mean": one.mean}
            arrays |= {f"{name}.{part}": array for part, array in one.arrays().items()}
        return arrays, vocabularies, {"towers": towers}

    @classmethod
    def fields_of(
        cls, arrays: Mapping[str, NDArray[Any]], vocabularies: dict[str, Any], record: dict[str, Any]
    ) -> dict[str, Any]:
        """Towers and head."""
        made: dict[str, Vocabulary] = {}
        sides: dict[str, list[Tower]] = {"document": [], "query": []}
        for side, part in product(sides, PARTS[record["variant"]]):
            name = f"{side}.{part}"
            names, about = vocabularies[name], record["towers"][name]
            made[name] = made[names] if isinstance(names, str) else Vocabulary(part, names, about["longest"])
            parts: dict[str, Any] = {"importance": None, **within(arrays, f"{name}.")}
            sides[side].append(Tower(made[name], mean=about["mean"], **parts))
        return {**sides, "head": Head(within(arrays, "head."))}


def _pooled(towers: Sequence[Tower], records: Sequence[Document] | Sequence[Query]) -> NDArray[np.float32]:
    pooled = [tower.encode(records) for tower in towers]
    return pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)
