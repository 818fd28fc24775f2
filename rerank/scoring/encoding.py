"""Encode documents without stored features while a query waits: in chunks, so that time limits work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.documents.records import Document
from rerank.rankers.base import Ranker
from rerank.scoring.timer import StageTimer

_CHUNK_DOCUMENTS = 16
"""Documents are encoded in chunks of at most this number; the time limit is checked between them."""

_CHUNK_CHARACTERS = 200_000
"""Most characters of such a chunk."""

LONGEST_COUNTED = 10_000
"""Characters of a document that count for its encoding time: encoders read only the beginning."""

_FIXED_COST = 200
"""Encoding a document without text takes as long as this number of characters."""


def encoding_size(documents: Iterable[Document]) -> int:
    """Return the number of characters to which the encoding time of documents is proportional.

    >>> encoding_size([Document("a", text="wolf")])
    204
    """
    return sum(min(len(document.content), LONGEST_COUNTED) + _FIXED_COST for document in documents)


def fill_missing_features(
    ranker: Ranker,
    features: NDArray[Any],
    is_missing: NDArray[np.bool_],
    documents: Mapping[int, Document | None],
    timer: StageTimer | None = None,
) -> NDArray[Any]:
    """Return (n, width) features of a ranker for n documents. The missing ones are computed, in chunks.

    features:   (n, width) stored features.
    is_missing: (n,) bool, whether a document has none.
    documents:  position -> document, for the documents without features. None: unknown, so it is encoded as
        an empty document.
    timer:      receives the time of each chunk, and may raise an exception before a chunk.
    """
    positions = np.flatnonzero(is_missing)
    if not len(positions):
        return features
    unencoded = [documents[i] or Document("unknown") for i in positions.tolist()]
    computed = _encode_in_chunks(ranker, unencoded, timer or StageTimer())
    if features.shape[1:] != computed.shape[1:]:  # no document has features of this version
        features = np.zeros((len(features), *computed.shape[1:]), computed.dtype)
    else:
        features = features.copy()  # the input may be read-only
    features[positions] = computed
    return features


def _encode_in_chunks(ranker: Ranker, documents: Sequence[Document], timer: StageTimer) -> NDArray[Any]:
    encoded: list[NDArray[Any]] = []
    for chunk in _chunks(documents):
        timer.check()
        begin = time.perf_counter()
        encoded.append(ranker.encode_documents(chunk))
        timer.on_documents_encoded(ranker.name, encoding_size(chunk), time.perf_counter() - begin)
    return np.concatenate(encoded)


def _chunks(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Divide documents into chunks: at most _CHUNK_DOCUMENTS, and _CHUNK_CHARACTERS if it has several."""
    chunk: list[Document] = []
    characters = 0
    for document in documents:
        length = len(document.content)
        is_full = len(chunk) == _CHUNK_DOCUMENTS or characters + length > _CHUNK_CHARACTERS
        if chunk and is_full:
            yield chunk
            chunk = []
            characters = 0
        chunk.append(document)
        characters += length
    yield chunk
