"""The CNN rankers (Kuwa, Schamoni, Riezler 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.categories import CategoryNames
from rerank.rankers.base import Ranker, read_model, write_model
from rerank.rankers.cnn.heads import HEADS, Head
from rerank.rankers.cnn.towers import Part, Tower, Vocabulary
from rerank.records import Document, Query

PARTS: dict[str, tuple[Part, ...]] = {"text": ("text",), "meta": ("meta",), "joint": ("text", "meta")}
"""Variant -> inputs of its towers."""


@dataclass(repr=False)
class CnnRanker(Ranker):
    """A CNN ranker with fp16 features.

    query, document: one tower per part of ``PARTS[variant]``.
    """

    family: ClassVar[str] = "cnn"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # type: ignore[misc]

    name: str
    version: str
    query: list[Tower]
    document: list[Tower]
    head: Head
    trained: Mapping[str, Any]
    variant: str = ""

    def __post_init__(self) -> None:
        self.variant = self.variant or self.name
        self.uses_text, self.uses_categories = "text" in PARTS[self.variant], "meta" in PARTS[self.variant]
        names = [tower.vocabulary.names for tower in self.query if tower.vocabulary.part == "meta"]
        self.categories = CategoryNames(names[0]) if names else None
        self.retrieves = self.head.name == "cosine"  # the MLP's score is no inner product

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        """(n, width of the head) fp16."""
        return self.head.encode_documents(_pooled(self.document, documents)).astype(np.float16)

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """(width of the head,)."""
        encoded: NDArray[np.float32] = self.head.encode_query(_pooled(self.query, [query]))[0]
        return encoded

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) scores in [-1, 1]."""
        return self.head.score(query, features)

    def save(self, folder: Path) -> None:
        """Write ``ranker.json``, ``vocabularies.json`` and ``model.safetensors``."""
        sides = {"document": self.document, "query": self.query}
        towers = {f"{side}.{one.vocabulary.part}": one for side, own in sides.items() for one in own}
        arrays: dict[str, NDArray[Any]] = {f"head.{k}": v for k, v in self.head.arrays().items()}
        vocabularies: dict[str, list[str] | str] = {}
        first: dict[int, str] = {}
        for name, tower in towers.items():
            same = first.setdefault(id(tower.vocabulary), name)  # both sides can share a vocabulary
            vocabularies[name] = tower.vocabulary.names if same == name else same
            arrays[f"{name}.vectors"] = tower.vectors.astype(np.float16)
            arrays[f"{name}.filters"] = tower.filters
            arrays[f"{name}.bias"] = tower.bias
            if tower.importance is not None:
                arrays[f"{name}.importance"] = tower.importance
        about = {n: {"longest": t.vocabulary.longest, "mean": t.mean} for n, t in towers.items()}
        trained = dict(self.trained)
        write_model(self, folder, arrays, vocabularies, head=self.head.name, towers=about, trained=trained)

    @classmethod
    def load(cls, folder: Path) -> CnnRanker:
        """Memory-map a saved ranker. Raises WorkspaceError if damaged."""
        with read_model(folder) as (record, names, arrays):
            vocabularies: dict[str, Vocabulary] = {}
            sides: dict[str, list[Tower]] = {"document": [], "query": []}
            for side, part in product(sides, PARTS[record["variant"]]):
                name = f"{side}.{part}"
                described = record["towers"][name]
                if isinstance(names[name], str):
                    vocabularies[name] = vocabularies[names[name]]
                else:
                    vocabularies[name] = Vocabulary(part, names[name], described["longest"])
                tower = Tower(
                    vocabularies[name],
                    arrays[f"{name}.vectors"],
                    arrays.get(f"{name}.importance"),
                    arrays[f"{name}.filters"],
                    arrays[f"{name}.bias"],
                    described["mean"],
                )
                sides[side].append(tower)
            of_head = {k.removeprefix("head."): v for k, v in arrays.items() if k.startswith("head.")}
            head = HEADS[record["head"]].from_arrays(of_head)
            about = record["name"], record["version"], sides["query"], sides["document"], head
            ranker = cls(*about, record["trained"], record["variant"])
        return ranker


def _pooled(towers: Sequence[Tower], records: Sequence[Document] | Sequence[Query]) -> NDArray[np.float32]:
    pooled = [tower.encode(records) for tower in towers]
    return pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)
