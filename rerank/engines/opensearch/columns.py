"""Features as doc values: one binary field per ranker and version, in the object ``rerank_features``.

Rankers that retrieve also have a k-NN field. Rows are padded to a multiple of three bytes for fast Base64.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import passage_counts, split_passages
from rerank.common.errors import EngineError
from rerank.common.values import items_at
from rerank.documents.records import Document
from rerank.engines.base import Encoder
from rerank.engines.file_features import check_features, other_kind

FEATURES = "rerank_features"
"""The object field that contains the features."""

DOCUMENT = "document"
"""The field next to the features with id and categories, as one value: keywords take longer to read."""


def document_row(id: str, categories: Sequence[str]) -> str:
    """Return the value of ``DOCUMENT``, as Base64.

    >>> rows([binascii.a2b_base64(document_row("a", ["x", "y"]))])
    [['a', 'x', 'y']]
    """
    return binascii.b2a_base64(msgspec.json.encode([id, *categories]), newline=False).decode()


def rows(values: Sequence[bytes]) -> list[list[str]]:
    """Return the id and the categories in each value of ``DOCUMENT``; the inverse of :func:`document_row`.

    Raises msgspec.DecodeError for a value that another client has written.
    """
    return msgspec.json.decode(b"[" + b",".join(values) + b"]", type=list[list[str]])


def feature_key(name: str, version: str) -> str:
    """Return the name of the field with the features of a ranker in one version. Dots are escaped.

    >>> feature_key("text", "v1.2")
    'text@v1%2E2'
    """
    return f"{name}@{version}".replace(".", "%2E")


def ranker_of(key: str) -> tuple[str, str]:
    """Return the ranker and the version of a feature key; the inverse of :func:`feature_key`.

    >>> ranker_of("text@v1%2E2")
    ('text', 'v1.2')
    """
    name, _, version = key.replace("%2E", ".").rpartition("@")
    return name, version


def vector_key(key: str, passages: int) -> str:
    """Return the name of a feature's k-NN field, or of its nested field, which all versions share.

    >>> vector_key("s2net@v1", 0), vector_key("dense@v1", 8)
    ('s2net@v1:knn', 'dense:knn')
    """
    return f"{key.rpartition('@')[0] if passages else key}:knn"


def vector_field(key: str, passages: int) -> tuple[str, str]:
    """Return the paths of the k-NN field and of its nested field, or "".

    >>> vector_field("s2net@v1", 0), vector_field("dense@v1", 8)
    (('rerank_features.s2net@v1:knn', ''), ('rerank_features.dense:knn.v1', 'rerank_features.dense:knn'))
    """
    path = f"{FEATURES}.{vector_key(key, passages)}"
    if not passages:
        return path, ""
    version = key.rpartition("@")[2]
    return f"{path}.{version}", path


def without_vectors(key: str, passages: int) -> dict[str, Any]:
    """Return the query for the documents that have no vector of a feature, in the language of OpenSearch."""
    field, path = vector_field(key, passages)
    exists: dict[str, Any] = {"exists": {"field": field}}
    if path:
        exists = {"nested": {"path": path, "query": exists, "ignore_unmapped": True}}
    return {"bool": {"must_not": exists}}


@dataclass(frozen=True, slots=True)
class Column:
    """The features of one ranker and version in an index, as its mapping describes them.

    dtype:    type of the numbers, as NumPy writes it.
    width:    numbers per row.
    since:    time of the first write, in seconds since 1970.
    vectors:  how the index searches for them: ``hnsw``, a k-NN graph; ``exact``, a script that reads all
              documents; empty: not at all.
    passages: maximum number of vectors per row; 0: the row is one vector.
    """

    dtype: str
    width: int
    since: float
    vectors: str = ""
    passages: int = 0

    @property
    def bytes(self) -> int:
        """The number of bytes of a row, without padding."""
        return self.width * np.dtype(self.dtype).itemsize

    @property
    def stored_bytes(self) -> int:
        """The number of bytes of a stored row: a multiple of three."""
        return -(-self.bytes // 3) * 3

    def mapping(self) -> dict[str, Any]:
        """Return the mapping of the binary field. It describes the column, for :func:`columns`."""
        meta = {"dtype": self.dtype, "width": str(self.width), "since": f"{self.since:.3f}"}
        return {"type": "binary", "doc_values": True, "meta": meta}

    def vector_mapping(self, key: str, graph: bool) -> dict[str, Any]:
        """Return the name of the k-NN field, or of the nested field around it, and its mapping.

        key: of the feature. graph: the index can have a graph, because ``index.knn`` is set.
        """
        dimension = (self.width - 1) // self.passages if self.passages else self.width
        mapping: dict[str, Any] = {"type": "knn_vector", "dimension": dimension}
        if graph:
            mapping["method"] = {"name": "hnsw", "engine": "lucene", "space_type": "innerproduct"}
        if self.passages:
            inside = {key.rpartition("@")[2]: mapping}
            mapping = {"type": "nested", "dynamic": "false", "properties": inside}
        return {vector_key(key, self.passages): mapping}

    def add_vectors(self, key: str, sources: Sequence[dict[str, Any]]) -> None:
        """Add vectors to the features of documents. Zeros mean no vector: no search finds them."""
        values, missing = self.decode([source.get(key) for source in sources])
        field = vector_key(key, self.passages)
        if not self.passages:
            vectors = np.round(values.astype(np.float64), 6)
            for position in np.flatnonzero(~missing).tolist():
                sources[position][field] = vectors[position].tolist()
            return
        version = key.rpartition("@")[2]
        passages = split_passages(values, self.passages).astype(np.float64)
        lengths = np.sqrt(np.einsum("nfe,nfe->nf", passages, passages))
        passages = np.round(passages / np.maximum(lengths, 1e-9)[..., None], 6)
        counts = np.maximum(passage_counts(values, self.passages), 1).tolist()
        for position in np.flatnonzero(~missing).tolist():
            vectors_of_document = passages[position, : counts[position]].tolist()
            nested = sources[position].setdefault(field, [])
            nested.extend({version: vector} for vector in vectors_of_document)

    def encode(self, values: NDArray[Any]) -> list[str]:
        """Return each of the (n, width) rows as Base64, with padding."""
        raw = np.zeros((len(values), self.stored_bytes), np.uint8)
        raw[:, : self.bytes] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), self.bytes)
        size = raw.shape[1] // 3 * 4
        text = binascii.b2a_base64(raw.tobytes(), newline=False).decode()
        return [text[i * size : (i + 1) * size] for i in range(len(values))]

    def decode(self, texts: Sequence[str | None]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the (n, width) rows of texts in Base64, and (n,) bool: missing. Missing rows are 0.

        Raises EngineError for a text that is not a row of this column.
        """
        missing = np.array([text is None for text in texts], np.bool_)
        stored_texts = [text for text in texts if text is not None]
        raw = self._bytes_of(stored_texts)
        return self.fill(raw, missing), missing

    def _bytes_of(self, texts: Sequence[str]) -> NDArray[np.uint8]:
        """Return the (k, stored_bytes) bytes of k texts in Base64, which other clients may have written."""
        text_length = self.stored_bytes // 3 * 4
        if all(len(text) == text_length for text in texts):
            with suppress(ValueError):  # not Base64, or padding where a row has none
                raw = np.frombuffer(binascii.a2b_base64("".join(texts)), np.uint8)
                return raw.reshape(len(texts), self.stored_bytes)
        raise EngineError(f"stored features are not {self.width} values of {self.dtype}; encode them again")

    def fill(self, raw: NDArray[np.uint8], missing: NDArray[np.bool_]) -> NDArray[Any]:
        """Return (n, width) rows of (k, stored_bytes) bytes; 0 for the missing. missing: (n,) bool, n - k."""
        rows = np.ascontiguousarray(raw[:, : self.bytes]).view(self.dtype)
        if not missing.any():
            return rows
        values = np.zeros((len(missing), self.width), self.dtype)
        values[~missing] = rows
        return values


def column(name: str, values: NDArray[Any], count: int, stored: Column | None) -> Column:
    """Return the column of encoded values: the stored one, or a new one.

    name: of the ranker. values: (count, width) features.

    Raises EngineError if the values do not fit ``stored``.
    """
    check_features(name, values, count)
    new = values.dtype.str, values.shape[1]
    if stored is None:
        return Column(*new, time.time())
    if new != (stored.dtype, stored.width):
        raise other_kind(name, new, (stored.dtype, stored.width))
    return stored


def with_vectors(column: Column | None) -> Column | None:
    """Return a column whose vectors the index can search for; None if it cannot, or without a column."""
    return column if column is not None and column.vectors else None


def searched_keys(columns: Mapping[str, Column]) -> set[str]:
    """Return the keys of the columns whose vectors the index can search. columns: feature key -> column."""
    return {key for key, column in columns.items() if column.vectors}


def encode(
    encoder: Encoder,
    documents: Sequence[Document],
    features: Sequence[dict[str, Any]],
    stored: dict[str, Column],
    *,
    retrieves: bool,
) -> list[int]:
    """Encode the documents that lack a feature, and return their positions.

    features:  feature key -> Base64, for each document. The new features are added, and the vectors of all
               documents if the column is searched.
    stored:    feature key -> column of the index. A new column is added.
    retrieves: the features are also searched, so a new column gets a vector field.
    """
    key = feature_key(encoder.name, encoder.version)
    missing = [position for position, stored_features in enumerate(features) if key not in stored_features]
    if missing:
        values = encoder.encode(items_at(documents, missing))
        new_column = column(encoder.name, values, len(missing), stored.get(key))
        if retrieves:
            new_column = replace(new_column, vectors="hnsw", passages=encoder.passages)
        stored[key] = new_column
        texts = new_column.encode(values)
        for position, text in zip(missing, texts):
            features[position][key] = text
    searched = with_vectors(stored.get(key))
    if searched is not None:
        searched.add_vectors(key, features)
    return missing


def columns(mappings: Mapping[str, Any]) -> dict[str, Column]:
    """Return the columns of one index: feature key -> column. mappings: the mappings of the index."""
    fields = mappings.get("properties", {}).get(FEATURES, {}).get("properties", {})
    columns_by_key = {}
    for key, field in fields.items():
        meta = field.get("meta", {})
        is_feature = "@" in key and field.get("type") == "binary"
        is_described = {"dtype", "width"} <= meta.keys()
        if is_feature and is_described:
            columns_by_key[key] = _column_of_field(key, meta, fields)
    return columns_by_key


def _column_of_field(key: str, meta: Mapping[str, Any], fields: Mapping[str, Any]) -> Column:
    """Return the column of a field. meta: of its mapping. fields: the mappings of all features."""
    width = int(meta["width"])
    passages = 0
    knn = fields.get(vector_key(key, 0), {})
    if not knn:
        nested = fields.get(vector_key(key, 1), {}).get("properties", {})
        knn = nested.get(key.rpartition("@")[2], {})
        passages = (width - 1) // knn["dimension"] if knn else 0
    vectors = ""
    if knn.get("type") == "knn_vector":
        vectors = "hnsw" if "method" in knn else "exact"
    return Column(meta["dtype"], width, float(meta.get("since", 0)), vectors, passages)


def check_mapping(index: str, mappings: Mapping[str, Any]) -> None:
    """Check that features can be stored in an index without a loss of other fields.

    Storing features rewrites a document from its ``_source``: parts that are not in it would be lost.

    Raises EngineError if a part is not in ``_source``, or if another field has the name of the features.
    """
    kind = mappings.get("properties", {}).get(FEATURES, {}).get("type", "object")
    if kind != "object":
        raise EngineError(f"index {index!r} has a field {FEATURES!r} of type {kind}; reindex it without it")
    excluded = _excluded_from_source(mappings.get("_source", {}))
    if excluded:
        raise EngineError(
            f"index {index!r} excludes {', '.join(excluded)} from _source, which storing vectors would lose;"
            " reindex it with the whole _source"
        )


def _excluded_from_source(settings: Mapping[str, Any]) -> list[str]:
    """Describe the parts of documents, other than features, that the settings of ``_source`` leave out."""
    if settings.get("enabled") is False:
        return ["everything"]
    own_paths = (FEATURES, f"{FEATURES}.*")
    excluded = [path for path in settings.get("excludes", ()) if path not in own_paths]
    for path in settings.get("includes", ()):
        excluded.append(f"all but {path}")
    return excluded
