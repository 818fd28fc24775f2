"""The projection rankers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.base import ArrayRanker, check_width
from rerank.rankers.projection.terms import Terms
from rerank.records import Document, Query


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
class Projection(ArrayRanker):
    """Cosine of projected term vectors (Yih et al. 2011, section 3.1). Features: k fp16 numbers.

    query, document: sides with the same terms, possibly one object.
    trained: how it was fitted.
    variant: one of five rankers. Default: its name.
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
        self.version = self.version or self.content_version()

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
        check_width(self, features, len(query))
        cosines: NDArray[np.float64] = (features.astype(np.float32, copy=False) @ query).astype(np.float64)
        return np.clip(cosines, -1.0, 1.0)  # fp16 lengths are 1 only nearly

    def content(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str] | str], dict[str, Any]]:
        """Arrays, vocabularies and values."""
        terms = self.query.terms
        arrays: dict[str, NDArray[Any]] = {"query.matrix": self.query.matrix, "query.idf": terms.idf}
        vocabularies: dict[str, list[str] | str] = {"query": terms.names}
        if self.document is not self.query:
            arrays["document.matrix"] = self.document.matrix
            vocabularies["document"] = "query"
        return arrays, vocabularies, {"letters": terms.letters, "longest": terms.longest}

    @classmethod
    def of_content(
        cls, arrays: Mapping[str, NDArray[Any]], vocabularies: dict[str, Any], record: dict[str, Any]
    ) -> Projection:
        """Inverse of :meth:`content`."""
        terms = Terms(vocabularies["query"], arrays["query.idf"], record["letters"], record["longest"])
        sides = [Side(terms, arrays[f"{side}.matrix"]) for side in vocabularies]
        for side in sides:
            if not len(terms.names) == len(terms.idf) == len(side.matrix) or side.matrix.ndim != 2:
                raise ValueError(f"a matrix of {side.matrix.shape} does not fit {len(terms.names)} names")
        known = [record[key] for key in ("trained", "version", "variant")]
        return cls(record["name"], sides[0], sides[-1], *known)
