"""The CNN rankers (Kuwa, Schamoni, Riezler 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.documents.categories import CategoryNames
from rerank.documents.records import Document, Query
from rerank.rankers.base import ArrayRanker, strip_prefix
from rerank.rankers.cnn.towers import Head, Part, Tower, Vocabulary

PARTS: dict[str, tuple[Part, ...]] = {"text": ("text",), "meta": ("meta",), "joint": ("text", "meta")}
"""Variant -> inputs of its towers."""


@dataclass(kw_only=True, repr=False)
class CnnRanker(ArrayRanker):
    """Scores a document by its text, its categories or both, with convolutions (Kuwa et al. 2020).

    The features of a document are fp16 numbers.

    query:    the towers of queries, one per part of ``PARTS[variant]``.
    document: the towers of documents, in the same order.
    """

    family: ClassVar[str] = "cnn"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # type: ignore[misc]

    query: list[Tower]
    document: list[Tower]
    head: Head

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses_text = "text" in PARTS[self.variant]
        self.uses_categories = "meta" in PARTS[self.variant]
        names = [tower.vocabulary.names for tower in self.query if tower.vocabulary.part == "meta"]
        self.categories = CategoryNames(names[0]) if names else None
        self.retrieves = self.head.cosine  # the MLP's score is not an inner product

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        return self.head.encode("document", _pooled(self.document, documents)).astype(np.float16)

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        encoded: NDArray[np.float32] = self.head.encode("query", _pooled(self.query, [query]))[0]
        return encoded

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        return self.head.score(query, features)

    def content(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str] | str], dict[str, Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for name, array in self.head.arrays.items():
            arrays[f"head.{name}"] = array
        vocabularies: dict[str, list[str] | str] = {}
        towers: dict[str, dict[str, Any]] = {}
        first: dict[int, str] = {}
        sides = [("document", tower) for tower in self.document]
        sides += [("query", tower) for tower in self.query]
        for side, tower in sides:
            vocabulary = tower.vocabulary
            name = f"{side}.{vocabulary.part}"
            shared_name = first.setdefault(id(vocabulary), name)  # both sides can share a vocabulary
            vocabularies[name] = vocabulary.names if shared_name == name else shared_name
            towers[name] = {"longest": vocabulary.longest, "mean": tower.mean}
            for array_name, array in tower.arrays().items():
                arrays[f"{name}.{array_name}"] = array
        return arrays, vocabularies, {"towers": towers}

    @classmethod
    def fields_of(
        cls, arrays: Mapping[str, NDArray[Any]], vocabularies: dict[str, Any], record: dict[str, Any]
    ) -> dict[str, Any]:
        loaded: dict[str, Vocabulary] = {}
        sides: dict[str, list[Tower]] = {"document": [], "query": []}
        for side, part in product(sides, PARTS[record["variant"]]):
            name = f"{side}.{part}"
            settings = record["towers"][name]
            names = vocabularies[name]  # of the words, or the name of the tower with the same vocabulary
            shared = isinstance(names, str)
            vocabulary = loaded[names] if shared else Vocabulary(part, names, settings["longest"])
            loaded[name] = vocabulary
            tower_arrays: dict[str, Any] = {"importance": None, **strip_prefix(arrays, f"{name}.")}
            sides[side].append(Tower(vocabulary, mean=settings["mean"], **tower_arrays))
        return {**sides, "head": Head(strip_prefix(arrays, "head."))}


def _pooled(towers: Sequence[Tower], records: Sequence[Document] | Sequence[Query]) -> NDArray[np.float32]:
    pooled = [tower.encode(records) for tower in towers]
    return pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)
