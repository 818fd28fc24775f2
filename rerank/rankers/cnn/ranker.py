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
from rerank.rankers.cnn.towers import Head, Network, Part, Tower, Vocabulary

PARTS: dict[str, tuple[Part, ...]] = {"text": ("text",), "meta": ("meta",), "joint": ("text", "meta")}
"""Variant -> inputs of its towers."""


@dataclass(kw_only=True, repr=False)
class CnnRanker(ArrayRanker):
    """Scores a document by its text, its categories or both, with convolutions (Kuwa et al. 2020).

    The features of a document are fp16 numbers. With N networks, which is not in the paper, they are the N
    vectors of length 1, divided by the root of N: the score is the mean of the cosines, an inner product.

    networks: networks with the same inputs; with an MLP as head, only one.
    """

    family: ClassVar[str] = "cnn"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # type: ignore[misc]

    networks: list[Network]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses_text = "text" in PARTS[self.variant]
        self.uses_categories = "meta" in PARTS[self.variant]
        first = self.networks[0]
        names = [tower.vocabulary.names for tower in first.query if tower.vocabulary.part == "meta"]
        self.categories = CategoryNames(names[0]) if names else None
        self.retrieves = first.head.cosine  # the MLP's score is not an inner product

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        vectors = [network.encode_documents(documents) for network in self.networks]
        return _joined(vectors).astype(np.float16)

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        return _joined([network.encode_query(query) for network in self.networks])

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        return self.networks[0].head.score(query, features)

    def content(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str] | str], dict[str, Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        vocabularies: dict[str, list[str] | str] = {}
        towers: dict[str, dict[str, Any]] = {}
        first: dict[int, str] = {}
        for number, network in enumerate(self.networks):
            prefix = _prefix(number)
            for name, array in network.head.arrays.items():
                arrays[f"{prefix}head.{name}"] = array
            sides = [("document", tower) for tower in network.document]
            sides += [("query", tower) for tower in network.query]
            for side, tower in sides:
                vocabulary = tower.vocabulary
                name = f"{prefix}{side}.{vocabulary.part}"
                shared_name = first.setdefault(id(vocabulary), name)  # towers can share a vocabulary
                vocabularies[name] = vocabulary.names if shared_name == name else shared_name
                towers[name] = {"longest": vocabulary.longest, "mean": tower.mean}
                for array_name, array in tower.arrays().items():
                    arrays[f"{name}.{array_name}"] = array
        return arrays, vocabularies, {"towers": towers, "networks": len(self.networks)}

    @classmethod
    def fields_of(
        cls, arrays: Mapping[str, NDArray[Any]], vocabularies: dict[str, Any], record: dict[str, Any]
    ) -> dict[str, Any]:
        loaded: dict[str, Vocabulary] = {}
        networks: list[Network] = []
        for number in range(record.get("networks", 1)):  # older files have no number
            prefix = _prefix(number)
            sides: dict[str, list[Tower]] = {"document": [], "query": []}
            for side, part in product(sides, PARTS[record["variant"]]):
                name = f"{prefix}{side}.{part}"
                settings = record["towers"][name]
                names = vocabularies[name]  # of the words, or the name of a tower with the same vocabulary
                is_shared = isinstance(names, str)
                vocabulary = loaded[names] if is_shared else Vocabulary(part, names, settings["longest"])
                loaded[name] = vocabulary
                tower_arrays: dict[str, Any] = {"importance": None, **strip_prefix(arrays, f"{name}.")}
                sides[side].append(Tower(vocabulary, mean=settings["mean"], **tower_arrays))
            head = Head(strip_prefix(arrays, f"{prefix}head."))
            networks.append(Network(**sides, head=head))
        return {"networks": networks}


def _prefix(number: int) -> str:
    """Return the start of the names of a network's arrays. The first network has none."""
    return f"{number}." if number else ""


def _joined(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the vectors of N networks, (..., z), as one, (..., N * z), with the mean of their products."""
    joined: NDArray[np.float32] = np.concatenate(vectors, axis=-1) / np.float32(np.sqrt(len(vectors)))
    return joined
