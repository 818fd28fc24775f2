"""The interface of engines. ``tests/conformance`` tests its rules."""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.common.progress import ignore_count
from rerank.documents.filters import period
from rerank.documents.records import Candidates, Document, Query, SearchTemplate
from rerank.engines.search_request import SearchRequest

if TYPE_CHECKING:
    from rerank.engines.hook_source import HookSource

FIRST_STAGES = ("bm25", "tfidf")
"""Lexical signals of an engine, by default."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """How many documents :meth:`Engine.write` has changed.

    unknown_deletes: ids to delete that no document has.
    refused:         id and reason of each document that was not accepted.
    encoded:         documents that were written with all features.
    unchanged:       documents that were skipped, because they are stored as they are.
    """

    added: int
    updated: int
    deleted: int
    unknown_deletes: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    encoded: int = 0
    unchanged: int = 0


class Encoder(NamedTuple):
    """Computes the features of one ranker.

    encode:       turns n documents into an (n, width) array; dtype and width are always the same.
    retrieves:    whether to store the inputs of a search for the nearest features, such as a k-NN field.
    passages:     the largest number of vectors in a feature; 0 if a feature is one vector.
    can_retrieve: whether a search for the nearest features makes sense for the ranker.
    """

    name: str
    version: str
    encode: Callable[[Sequence[Document]], NDArray[Any]]
    retrieves: bool = False
    passages: int = 0
    can_retrieve: bool = False


class IndexSlice(NamedTuple):
    """One of ``total`` parts of an index that have no document in common. ``number`` counts from 1.

    >>> IndexSlice.parse("3/8")
    IndexSlice(number=3, total=8)
    """

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> IndexSlice:
        """Read a slice from a text such as ``3/8``. Raises UsageError for a text that is not a slice."""
        match = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(f"{text!r} is not a slice; write NUMBER/COUNT, for example 3/8")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Encoding:
    """A request to encode documents.

    force:       encode all documents again.
    keep:        ranker -> versions whose features are not removed.
    progress:    called with the number of (document, ranker) pairs in each finished batch.
    index_slice: the part of the documents to encode; None: all. Several machines encode one index by slices.
    """

    encoders: Sequence[Encoder]
    force: bool = False
    keep: Mapping[str, Collection[str]] = field(default_factory=dict)
    progress: Callable[[int], object] = ignore_count
    index_slice: IndexSlice | None = None

    def versions(self, name: str) -> set[str]:
        """Return the versions of a ranker whose features stay: the encoded one, and all in ``keep``."""
        encoded = {encoder.version for encoder in self.encoders if encoder.name == name}
        return encoded.union(self.keep.get(name, ()))

    def advance(self, count: int) -> None:
        """Report progress. count: (document, ranker) pairs that were finished since the last call."""
        self.progress(count)


@dataclass(frozen=True)
class WriteOptions:
    """How :meth:`Engine.write` writes documents.

    encoders:     the rankers whose features are written together with the documents.
    replace:      remove all documents that are not written.
    skip_refused: report refused documents in the result, instead of raising EngineError.
    progress:     called with the number of documents in each finished part.
    """

    encoders: Sequence[Encoder] = ()
    replace: bool = False
    skip_refused: bool = False
    progress: Callable[[int], object] = ignore_count


DEFAULT_WRITE = WriteOptions()
"""Add or update documents without features, and refuse invalid ones."""


class FeatureStore(ABC):
    """The stored features of an engine's documents, by ranker and version.

    A search never returns the feature of an older text or of another version.

    has_slices: whether several machines can write the features of different documents.
    """

    has_slices = False

    @abstractmethod
    def write(self, encoding: Encoding) -> dict[str, int]:
        """Encode the documents without a feature; return ranker -> number of documents.

        See :meth:`Engine.write_features`.
        """

    @abstractmethod
    def missing(self, name: str, version: str) -> int:
        """Count the documents that have no feature of a ranker in this version."""

    def count_missing_vectors(self, name: str, version: str) -> int | None:
        """Count the documents that a ranker cannot retrieve yet; None: it cannot retrieve at all.

        See :meth:`Engine.count_missing_vectors`.
        """
        return None


def field_number(value: object) -> float:
    """Return the finite number in a field, of a date its first second; NaN for other values."""
    if isinstance(value, str):
        return _first_second(value)
    if not isinstance(value, (int, float)) or abs(value) > sys.float_info.max:
        return math.nan
    return float(value)


def _first_second(text: str) -> float:
    """Return the first second of a date, since 1970; NaN for a text that is not a date."""
    if "-" not in text:
        return math.nan
    seconds = period(text)
    if seconds is None:
        return math.nan
    return seconds[0]


@dataclass(frozen=True)
class TermStatistics:
    """How frequent terms are in the collection, to score documents outside of it.

    documents:   number of documents.
    mean_length: mean number of terms per document.
    frequencies: term -> number of documents with it. A term that is not listed was not asked for.
    bm25_scale:  factor of the engine's BM25. Lucene leaves out the factor k1 + 1.
    """

    documents: int
    mean_length: float
    frequencies: Mapping[str, int]
    bm25_scale: float = 1.0


class Engine(ABC):
    """Documents, their text index, and their features.

    Required: :meth:`write`, :meth:`search`, :meth:`score`, :meth:`get`, :meth:`documents`.
    Features are stored, or computed for each search. Results are ordered by score descending, then
    id ascending, before any cut.

    first_stages: the lexical signals.
    shared: whether searches of other clients can be reranked.
    lang: language of the documents; None: unknown or mixed.
    word_fields: fields that other clients search for the words of users; empty: all.

    >>> import tempfile
    >>> from rerank import Workspace
    >>> engine = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en").engine
    >>> engine.write([Document("wolf", text="A grey wolf"), Document("fox", text="A red fox")]).added
    2
    >>> engine.find(SearchRequest("red foxes", "tfidf", depth=10)).ids
    ['fox']
    """

    first_stages: tuple[str, ...] = FIRST_STAGES
    shared: bool = False
    lang: str | None = None
    word_fields: tuple[str, ...] = ()

    @classmethod
    def in_workspace(
        cls, folder: Path, lang: str | None, settings: Mapping[str, Any], *, new: bool, settings_file: str
    ) -> Engine:
        """Open the engine of a workspace, or create a ``new`` one.

        lang: language of the documents; None if it is unknown or mixed.
        settings: the engine's table in ``settings_file``, which errors name.
        """
        raise NotImplementedError(f"{cls.__name__} cannot be used in a workspace")

    @classmethod
    def location(cls, settings: Mapping[str, Any], settings_file: str) -> str:
        """Return the location of the documents, for messages; empty: they are in the folder of the workspace.

        Raises UsageError for settings that cannot be read.
        """
        return ""

    @classmethod  # noqa: B027 (most engines keep no secrets)
    def trust_hosts(cls, settings: Mapping[str, Any], settings_file: str) -> None:
        """Trust the hosts of settings that the user typed. Hosts from a file are not trusted."""

    @abstractmethod
    def write(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        options: WriteOptions = DEFAULT_WRITE,
    ) -> WriteResult:
        """Add or update ``documents`` by id, and remove the ids of ``delete``.

        An interruption leaves the old or the new state. In a cluster, run an interrupted ingest in place
        again.

        Raises BusyError if another process writes, InputError for a repeated id.
        """

    def lock(self) -> AbstractContextManager[None]:
        """Return a context in which no other process can write through this workspace.

        Raises BusyError if another process writes.
        """
        return nullcontext()

    def discard(self) -> None:  # noqa: B027 (most engines have nothing elsewhere)
        """Remove what an engine without documents has outside its folder, such as an index in a cluster."""

    def stores_documents(self) -> bool:
        """Return whether the engine has documents, also documents that cannot be searched yet."""
        return len(self) > 0

    def close(self) -> None:  # noqa: B027 (an engine may hold nothing)
        """Close the files and connections of the engine. It cannot be used afterwards."""

    def __len__(self) -> int:
        """Count the documents."""
        return sum(1 for _ in self.documents())

    def ids(self) -> list[str]:
        """Return the ids of all documents, ascending by code point."""
        return sorted(document.id for document in self.documents())

    def contains(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that a document of the engine has, without unknown ones."""
        documents = filter(None, self.get(list(ids)))
        return {document.id for document in documents}

    @abstractmethod
    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents of these ids, in this order; None for an id that no document has."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield all documents, each once. The order is the same until the next write."""

    @abstractmethod
    def search(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        """Yield the candidates of each request, the ``depth`` best documents of every retriever.

        Requests with equal options (:func:`batches`) are faster together.

        Raises UsageError for unknown signals, invalid filters, and rankers that cannot retrieve
        (:meth:`count_missing_vectors`).
        """

    def find(self, request: SearchRequest) -> Candidates:
        """Return the candidates of one request; see :meth:`search`."""
        (candidates,) = self.search([request])
        return candidates

    @abstractmethod
    def score(self, text: str, signal: str, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) scores of candidates by a lexical signal; 0 for a document that shares no term.

        text:   plain words.
        signal: one of ``first_stages``.
        """

    def term_statistics(self, text: str) -> TermStatistics | None:
        """Return the frequencies of the terms of a text in the collection, or None if the engine has none."""
        return None

    def check_template(self, search: SearchTemplate, query: Query) -> SearchTemplate:
        """Test a template, or a run, with a query; return its current version.

        Raises UsageError if the engine has no such search, InputError if the search is invalid, EngineError
        if the cluster does not answer.
        """
        if search.kind != "run":
            raise UsageError(
                f"--first-stage {search}: only OpenSearch can make that search; give a file of its results:"
                " --first-stage run:FILE"
            )
        return search

    def field_values(self, ids: Sequence[str], fields: Sequence[str]) -> list[NDArray[np.float64]]:
        """Return (n,) numbers for each field. Dates are in seconds since 1970.

        NaN stands for no value, and for a value that is not a number, such as a text.
        """
        extras: list[Mapping[str, Any]] = []
        for document in self.get(ids):
            extras.append({} if document is None else document.extra)
        columns = []
        for name in fields:
            numbers = [field_number(extra.get(name)) for extra in extras]
            columns.append(np.array(numbers, np.float64))
        return columns

    @property
    def features(self) -> FeatureStore | None:
        """The stored features of documents; None: rankers encode the candidates of each search."""
        return None

    def count_missing_vectors(self, name: str, version: str) -> int | None:
        """Return how many documents a ranker cannot retrieve yet.

        0 means that a search can find every document by its vector. None means that the engine has no vectors
        of this ranker, so it cannot retrieve at all; :meth:`write_features` stores them for an encoder that
        ``retrieves``.
        """
        return self._feature_store.count_missing_vectors(name, version)

    def hook_source(self) -> HookSource | None:
        """Return what reads the hits that a cluster sends to the hook; None for an engine without cluster."""
        return None

    def write_features(
        self,
        encoders: Sequence[Encoder],
        *,
        force: bool = False,
        keep: Mapping[str, Collection[str]] | None = None,
        progress: Callable[[int], object] = ignore_count,
        index_slice: IndexSlice | None = None,
    ) -> dict[str, int]:
        """Encode documents that have no feature of an encoder's version; return ranker -> number of them.

        Older versions stay until the new one is complete. If interrupted, completed work is kept. For the
        options, see :class:`Encoding`.

        Raises UsageError for a slice of an engine whose features cannot be written from several machines.
        """
        store = self._feature_store
        if index_slice is not None and not store.has_slices:
            raise UsageError("a slice is encoded only if the features are in an OpenSearch index of rerank")
        encoding = Encoding(encoders, force, keep or {}, progress, index_slice)
        return store.write(encoding)

    def missing_features(self, name: str, version: str) -> int:
        """Count the documents that have no stored feature of a ranker in this version."""
        return self._feature_store.missing(name, version)

    @property
    def _feature_store(self) -> FeatureStore:
        features = self.features
        if features is None:
            return _NoFeatures(self)
        return features


class _NoFeatures(FeatureStore):
    """The features of an engine that stores none, so all are missing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def write(self, encoding: Encoding) -> dict[str, int]:
        return {encoder.name: 0 for encoder in encoding.encoders}

    def missing(self, name: str, version: str) -> int:
        return len(self._engine)
