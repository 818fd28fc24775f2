"""The projection rankers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import to_float32
from rerank.errors import WorkspaceError
from rerank.rankers.base import Ranker, read_model, write_model
from rerank.rankers.projection.terms import Terms
from rerank.records import Document, Query
from rerank.text import plural


@dataclass(frozen=True)
class Side:
    """One side's vocabulary and projection matrix (V, k), fp16."""

    terms: Terms
    matrix: NDArray[np.float16]

    def project(self, text: str) -> NDArray[np.float32]:
        """A^T f of one text, length 1: (k,); zeros without known terms."""
        columns, weights = self.terms.vector(text)
        projected: NDArray[np.float32] = weights @ self.matrix[columns].astype(np.float32)
        length = float(np.sqrt(projected @ projected))
        return projected / np.float32(length) if length > 0 else projected


@dataclass(repr=False)
class Projection(Ranker):
    """Cosine of projected term vectors (Yih et al. 2011, section 3.1). Features: k fp16 numbers.

    query, document: sides, possibly one object.
    trained: how it was fitted.
    variant: one of five rankers. Default: its name.

    >>> terms = Terms(["katze", "cat", "dog"], np.ones(3, dtype=np.float32), letters=0, longest=400)
    >>> side = Side(terms, np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float16))
    >>> ranker = Projection("s2net", side, side)
    >>> features = ranker.encode_documents([Document("1", text="eine Katze"), Document("2", text="dog")])
    >>> ranker.score(ranker.encode_query(Query("q", "the cat")), features).tolist()
    [1.0, 0.0]
    """

    family: ClassVar[str] = "projection"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # type: ignore[misc]
    retrieves = True

    name: str
    query: Side
    document: Side
    trained: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    variant: str = ""

    def __post_init__(self) -> None:
        self.variant = self.variant or self.name
        self.version = self.version or self._hash()

    def _hash(self) -> str:
        digest = hashlib.sha256()
        for side in (self.query, self.document):
            terms = side.terms
            settings = [terms.names, terms.letters, terms.longest, side.matrix.shape]
            digest.update(json.dumps(settings).encode())
            digest.update(terms.idf.tobytes())
            digest.update(side.matrix.tobytes())
        return digest.hexdigest()[:16]

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        """(n, k) fp16 of length 1; 0 without known terms."""
        vectors = np.zeros((len(documents), self.document.matrix.shape[1]), dtype=np.float16)
        for row, document in enumerate(documents):
            vectors[row] = self.document.project(document.content)
        return vectors

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """(k,) of length 1; 0 without known terms."""
        return self.query.project(query.text)

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) cosines in [-1, 1]; 0 without known terms.

        Raises WorkspaceError if the widths differ.
        """
        if features.shape[1:] != query.shape:
            raise WorkspaceError(
                f"the stored {self.name} features have {features.shape[-1]} numbers, not {len(query)};"
                f" train {self.name} again"
            )
        cosines: NDArray[np.float64] = (to_float32(features) @ query).astype(np.float64)
        return np.clip(cosines, -1.0, 1.0)  # fp16 lengths are 1 only nearly

    def save(self, folder: Path) -> None:
        """Write ``ranker.json``, ``vocabularies.json`` and ``model.safetensors``."""
        sides = {"query": self.query, "document": self.document}
        if self.document is self.query:
            del sides["document"]
        arrays: dict[str, NDArray[Any]] = {}
        vocabularies: dict[str, list[str] | str] = {}
        for name, side in sides.items():
            arrays[f"{name}.matrix"] = side.matrix
            shared = name == "document" and side.terms is self.query.terms
            vocabularies[name] = "query" if shared else side.terms.names
            if not shared:
                arrays[f"{name}.idf"] = side.terms.idf
        terms = {"letters": self.query.terms.letters, "longest": self.query.terms.longest}
        write_model(self, folder, arrays, vocabularies, **terms, trained=dict(self.trained))

    @classmethod
    def load(cls, folder: Path) -> Projection:
        """Memory-map a saved ranker. Raises WorkspaceError if damaged."""
        with read_model(folder) as (record, vocabularies, arrays):
            sides: dict[str, Side] = {}
            for name in vocabularies:
                if vocabularies[name] == "query":
                    terms = sides["query"].terms
                else:
                    idf = arrays[f"{name}.idf"]
                    terms = Terms(vocabularies[name], idf, record["letters"], record["longest"])
                matrix = arrays[f"{name}.matrix"]
                if not len(terms.names) == len(terms.idf) == len(matrix) or matrix.ndim != 2:
                    raise ValueError(
                        f"a matrix of {matrix.shape} is not of {plural(len(terms.names), 'term[|s]')}"
                    )
                sides[name] = Side(terms, matrix)
            query = sides["query"]
            known = [record[key] for key in ("trained", "version", "variant")]
            ranker = cls(record["name"], query, sides.get("document", query), *known)
        return ranker
