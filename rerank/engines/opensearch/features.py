"""Features in the index: one binary field for each ranker and version, with doc values.

The name of the field holds the version, so versions cannot mix, `exists` counts what is missing, and the
last version serves until the new one is complete. Beside it there may be a field of the k-NN plugin with the
same numbers, for rankers that retrieve. Values are the raw bytes of a row, padded to a
multiple of three: Base64 of many rows can then be decoded at once.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.opensearch.layout import FEATURES, vector_key
from rerank.errors import EngineError


@dataclass(frozen=True, slots=True)
class Column:
    """What the mapping says of one ranker's features in one version.

    since: when they were first written.
    vectors: how documents are found by them: ``hnsw``, the k-NN plugin's graph; ``exact``, by a script that
        looks at every document, where an index has no setting index.knn; empty where they are not.
    """

    dtype: str
    width: int
    since: float
    vectors: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of a row, without padding."""
        return self.width * np.dtype(self.dtype).itemsize

    def mapping(self) -> dict[str, Any]:
        """Return the mapping of its field."""
        meta = {"dtype": self.dtype, "width": str(self.width), "since": f"{self.since:.3f}"}
        return {"type": "binary", "doc_values": True, "meta": meta}

    def vector_mapping(self, graph: bool) -> dict[str, Any]:
        """Return the mapping of the k-NN field; ``graph``: the index has the setting index.knn."""
        mapping: dict[str, Any] = {"type": "knn_vector", "dimension": self.width}
        if graph:
            mapping["method"] = {"name": "hnsw", "engine": "lucene", "space_type": "innerproduct"}
        return mapping

    def vector_texts(self, texts: Sequence[str | None]) -> list[list[float] | None]:
        """The numbers of stored rows, as the k-NN field takes them."""
        values, missing = self.decode(texts)
        rows: list[list[float]] = np.round(values.astype(np.float64), 6).tolist()
        return [None if lacks else row for row, lacks in zip(rows, missing.tolist())]

    def encode(self, values: NDArray[Any]) -> list[str]:
        """Rows as Base64."""
        raw = np.zeros((len(values), -(-self.bytes // 3) * 3), np.uint8)
        raw[:, : self.bytes] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), self.bytes)
        size = raw.shape[1] // 3 * 4
        text = binascii.b2a_base64(raw.tobytes(), newline=False).decode()
        return [text[i * size : (i + 1) * size] for i in range(len(values))]

    def decode(self, texts: Sequence[str | None]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Base64 to (n, width) rows, and where there was None; those rows are 0."""
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


def columns(mappings: Mapping[str, Any]) -> dict[str, Column]:
    """Feature key -> column, from the mappings of one index."""
    there = mappings.get("properties", {}).get(FEATURES, {}).get("properties", {})
    found = {}
    for key, field in there.items():
        meta = field.get("meta", {})
        if "@" in key and field.get("type") == "binary" and {"dtype", "width"} <= meta.keys():
            knn = there.get(vector_key(key), {})
            vectors = ("hnsw" if "method" in knn else "exact") if knn.get("type") == "knn_vector" else ""
            found[key] = Column(meta["dtype"], int(meta["width"]), float(meta.get("since", 0)), vectors)
    return found


def ranker_of(key: str) -> tuple[str, str]:
    """Ranker and version of a feature key.

    >>> ranker_of("text@v1%2E2")
    ('text', 'v1.2')
    """
    name, _, version = key.replace("%2E", ".").rpartition("@")
    return name, version
