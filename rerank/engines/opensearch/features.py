"""Features in the index: one binary field for each ranker and version, with doc values.

The name of the field holds the version, so versions cannot mix, `exists` counts what is missing, and the
last version serves until the new one is complete. There may also be a field of the k-NN plugin with the
same numbers, for rankers that retrieve; for those with several vectors a document it is in nested documents.
Values are the raw bytes of a row, padded to a multiple of three: Base64 of many rows can then be decoded at
once.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import split_passages
from rerank.engines.opensearch.layout import FEATURES, passages_key, vector_key
from rerank.errors import EngineError


@dataclass(frozen=True, slots=True)
class Column:
    """Description of one ranker's features in one version, from the mapping.

    since: when they were first written.
    vectors: how documents are found by them: ``hnsw``, the k-NN plugin's graph; ``exact``, by a script that
        looks at every document, where an index has no setting index.knn; empty where they are not.
    passages: vectors that a row holds at most, where documents are found by several; else 0.
    """

    dtype: str
    width: int
    since: float
    vectors: str = ""
    passages: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of a row, without padding."""
        return self.width * np.dtype(self.dtype).itemsize

    def mapping(self) -> dict[str, Any]:
        """Return the mapping of its field."""
        meta = {"dtype": self.dtype, "width": str(self.width), "since": f"{self.since:.3f}"}
        return {"type": "binary", "doc_values": True, "meta": meta}

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        return (self.width - 1) // self.passages if self.passages else self.width

    def vector_mapping(self, key: str, graph: bool) -> dict[str, Any]:
        """Return name and mapping of the k-NN field; ``graph``: the index has the setting index.knn."""
        mapping: dict[str, Any] = {"type": "knn_vector", "dimension": self.dimension}
        if graph:
            mapping["method"] = {"name": "hnsw", "engine": "lucene", "space_type": "innerproduct"}
        if not self.passages:
            return {vector_key(key): mapping}
        name, version = _parts(key)
        return {passages_key(name): {"type": "nested", "dynamic": "false", "properties": {version: mapping}}}

    def add_vectors(self, key: str, sources: Sequence[dict[str, Any]], texts: Sequence[str | None]) -> None:
        """Add the vectors of stored rows to the documents' features, as the k-NN field takes them.

        A document without a vector in any passage gets a vector of zeros, which nothing finds.
        """
        values, missing = self.decode(texts)
        if not self.passages:
            rows: list[list[float]] = np.round(values.astype(np.float64), 6).tolist()
            for source, row, lacks in zip(sources, rows, missing.tolist()):
                if not lacks:
                    source[vector_key(key)] = row
            return
        name, version = _parts(key)
        vectors = split_passages(values, self.passages).astype(np.float64)
        vectors /= np.maximum(np.sqrt(np.einsum("nfe,nfe->nf", vectors, vectors)), 1e-9)[..., None]
        counts = np.maximum(values[:, -1].astype(int), 1)
        for source, row, count, lacks in zip(sources, vectors, counts.tolist(), missing.tolist()):
            if not lacks:
                some = np.round(row[:count], 6).tolist()
                source.setdefault(passages_key(name), []).extend({version: vector} for vector in some)

    def encode(self, values: NDArray[Any]) -> list[str]:
        """Rows as Base64."""
        raw = np.zeros((len(values), -(-self.bytes // 3) * 3), np.uint8)
        raw[:, : self.bytes] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), self.bytes)
        size = raw.shape[1] // 3 * 4
        text = binascii.b2a_base64(raw.tobytes(), newline=False).decode()
        return [text[i * size : (i + 1) * size] for i in range(len(values))]

    def decode(self, texts: Sequence[str | None]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return (n, width) rows of Base64, and which were None; these rows are 0."""
        size = -(-self.bytes // 3)
        there = [text for text in texts if text is not None]
        raw = np.frombuffer(binascii.a2b_base64("".join(there)), np.uint8)
        if raw.size != len(there) * size * 3 or any(len(text) != 4 * size for text in there):
            raise EngineError(
                f"stored features are not of {self.width} values of {self.dtype}; encode them again"
            )
        rows = np.ascontiguousarray(raw.reshape(len(there), size * 3)[:, : self.bytes]).view(self.dtype)
        if len(there) == len(texts):
            return rows, np.zeros(len(texts), np.bool_)
        missing = np.fromiter((text is None for text in texts), np.bool_, len(texts))
        values = np.zeros((len(texts), self.width), self.dtype)
        values[~missing] = rows
        return values, missing


def column(name: str, values: NDArray[Any], count: int, known: Column | None) -> Column:
    """Return the column that ``values`` belong into; EngineError when they do not fit the ``known`` one."""
    if values.ndim != 2 or len(values) != count or not values.shape[1]:
        raise EngineError(
            f"ranker {name!r} encoded {count} documents into an array of shape {values.shape}, not"
            f" ({count}, width)"
        )
    found = Column(values.dtype.str, values.shape[1], time.time())
    if known is None:
        return found
    if (found.dtype, found.width) != (known.dtype, known.width):
        raise EngineError(
            f"ranker {name!r} encoded features of dtype {found.dtype} and width {found.width}, but its stored"
            f" ones have dtype {known.dtype} and width {known.width}; give it a new version"
        )
    return known


def check_mapping(index: str, mappings: Mapping[str, Any], field: str) -> None:
    """Raise EngineError if an index cannot store features; an index that rerank made can."""
    there = mappings.get("properties", {}).get(field, {})
    kind = "object, not enabled" if there.get("enabled") is False else there.get("type", "object")
    inside = there.get("properties", {})
    wrong = [key for key, about in inside.items() if "@" in key and about.get("type") in ("text", "keyword")]
    if kind != "object" or wrong:
        kind = kind if kind != "object" else inside[wrong[0]]["type"]
        raise EngineError(
            f"index {index!r} has a field {field!r} of type {kind}, which vectors cannot be stored in;"
            " reindex without it"
        )
    source = mappings.get("_source", {})
    left_out = [path for path in source.get("excludes", ()) if path not in (field, f"{field}.*")]
    left_out += [f"all but {path}" for path in source.get("includes", ())]
    if source.get("enabled") is False or left_out:
        # Storing features writes a document again from its _source: the rest of it would be gone.
        raise EngineError(
            f"index {index!r} leaves {', '.join(left_out) or 'everything'} out of _source, which storing"
            " vectors would lose; reindex it with the whole _source"
        )


def columns(mappings: Mapping[str, Any]) -> dict[str, Column]:
    """Feature key -> column, from the mappings of one index."""
    there = mappings.get("properties", {}).get(FEATURES, {}).get("properties", {})
    found = {}
    for key, field in there.items():
        meta = field.get("meta", {})
        if "@" in key and field.get("type") == "binary" and {"dtype", "width"} <= meta.keys():
            width, passages, (name, version) = int(meta["width"]), 0, _parts(key)
            knn = there.get(vector_key(key), {})
            if not knn:
                knn = there.get(passages_key(name), {}).get("properties", {}).get(version, {})
                passages = (width - 1) // knn["dimension"] if knn else 0
            vectors = ("hnsw" if "method" in knn else "exact") if knn.get("type") == "knn_vector" else ""
            since = float(meta.get("since", 0))
            found[key] = Column(meta["dtype"], width, since, vectors, passages)
    return found


def vector_field(key: str, passages: int) -> tuple[str, str]:
    """Name of the k-NN field, and of the nested field that contains it; empty if none does.

    >>> vector_field("s2net@v1", 0), vector_field("dense@v1", 8)
    (('rerank_features.s2net@v1:knn', ''), ('rerank_features.dense:knn.v1', 'rerank_features.dense:knn'))
    """
    if not passages:
        return f"{FEATURES}.{vector_key(key)}", ""
    name, version = _parts(key)
    path = f"{FEATURES}.{passages_key(name)}"
    return f"{path}.{version}", path


def without_vectors(key: str, passages: int) -> dict[str, Any]:
    """Return the query for the documents that a ranker cannot find."""
    field, path = vector_field(key, passages)
    there: dict[str, Any] = {"exists": {"field": field}}
    if path:
        there = {"nested": {"path": path, "query": there, "ignore_unmapped": True}}
    return {"bool": {"must_not": there}}


def _parts(key: str) -> tuple[str, str]:
    """Ranker and version of a feature key as they stand in it, with no dots."""
    name, _, version = key.rpartition("@")
    return name, version


def ranker_of(key: str) -> tuple[str, str]:
    """Ranker and version of a feature key.

    >>> ranker_of("text@v1%2E2")
    ('text', 'v1.2')
    """
    name, _, version = key.replace("%2E", ".").rpartition("@")
    return name, version
