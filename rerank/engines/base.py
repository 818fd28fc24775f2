"""What an engine is: where documents, their text index and their features live.

``local`` keeps them in a folder (tantivy); ``opensearch`` will keep them in a cluster. Every engine
passes the same conformance suite (tests/conformance/test_engines.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.records import Candidates, Document

FIRST_STAGES = ("bm25", "tfidf")
"""The lexical signals every engine can retrieve with and score with."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one call of :meth:`Engine.ingest` did."""

    added: int
    updated: int
    deleted: int
    unknown_deletes: tuple[str, ...] = ()


class Engine(ABC):
    """Documents, their text index, and their features.

    All orders are by score descending, then document id ascending, before anything is cut.
    Query texts are plain words: no query syntax is interpreted. A text without any usable term
    retrieves nothing.
    """

    @abstractmethod
    def ingest(self, documents: Iterable[Document], delete: Iterable[str] = ()) -> Ingested:
        """Add or update ``documents`` by id and remove the ids of ``delete``, all or nothing.

        Documents are consumed as a stream. Whatever happens in between (an exception of the iterable,
        a full disk, a kill), the engine afterwards holds the old state or the new one.

        Raises BusyError when another process is writing, InputError when an id occurs twice.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Count the documents."""

    @abstractmethod
    def state(self) -> str:
        """A short text that is another one after every change of the documents."""

    @abstractmethod
    def ids(self) -> list[str]:
        """All document ids, ascending."""

    @abstractmethod
    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents with these ids, in this order; None where there is none."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """All documents as a stream, in an order that stays the same while nothing is written."""

    @abstractmethod
    def search(
        self, text: str, *, first_stage: str, depth: int, features: Mapping[str, str] | None = None
    ) -> Candidates:
        """Retrieve the ``depth`` best documents for ``text`` by ``first_stage`` (``bm25`` or ``tfidf``).

        ``features`` maps ranker names to versions: the stored features of just those versions come
        back in ``Candidates.features``, with ``Candidates.missing`` marking rows that have none.
        """

    def search_many(
        self, texts: Sequence[str], *, first_stage: str, depth: int, features: Mapping[str, str] | None = None
    ) -> Iterator[Candidates]:
        """Search for many texts, in order; engines override this where a batch is cheaper."""
        for text in texts:
            yield self.search(text, first_stage=first_stage, depth=depth, features=features)

    @abstractmethod
    def select(
        self, text: str, ids: Sequence[str], *, first_stage: str, features: Mapping[str, str] | None = None
    ) -> Candidates:
        """Like :meth:`search`, but over the given documents, whether they match or not.

        A document that shares no term with the query scores 0. Raises KeyError for an unknown id.
        """

    @abstractmethod
    def lexical(self, text: str, rows: NDArray[np.int64], signal: str) -> NDArray[np.float64]:
        """Score the documents with these handles by a lexical signal: (n,) float64, 0 = no shared term.

        The same numbers as :meth:`search` gives for them.
        """

    @abstractmethod
    def write_features(
        self,
        name: str,
        version: str,
        encode: Callable[[Sequence[Document]], NDArray[Any]],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Bring the features of ranker ``name`` up to ``version`` for every document.

        ``encode`` turns a batch of documents into an (n, width) array of a fixed dtype and width. Only
        documents that lack a feature of that version are encoded; features of other versions
        of this ranker are dropped once the new ones are complete. ``progress`` is called with the
        number of documents done by each batch. Returns how many documents were encoded.
        """

    @abstractmethod
    def missing_features(self, name: str, version: str) -> int:
        """Count the documents that have no feature of this ranker in this version."""

    @abstractmethod
    def feature_versions(self) -> dict[str, str]:
        """Ranker name -> version of the features that are stored."""
