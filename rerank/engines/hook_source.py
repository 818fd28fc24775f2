"""The interface for the hits that a cluster sends to the hook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rerank.documents.records import Document
from rerank.engines.search_request import VectorQuery, cannot_retrieve

if TYPE_CHECKING:
    from rerank.engines.opensearch.text_rows import TextRows


class NearestByRanker(NamedTuple):
    """How a search finds the documents nearest to the vector of a ranker: by their ids, or by a k-NN query.

    name:   name of the ranker.
    ids:    ids of the documents, best first; None: a k-NN query finds them.
    depth:  number of ids that are needed if all documents meet the conditions of the search.
    field:  k-NN field with the vectors.
    path:   path of the nested field with several vectors per document; "": each document has one vector.
    vector: vector of the query.
    k:      number of documents that the k-NN query returns.
    """

    name: str
    ids: Sequence[str] | None = None
    depth: int = 0
    field: str = ""
    path: str = ""
    vector: Sequence[float] = ()
    k: int = 0


class NearestDocuments(NamedTuple):
    """The nearest documents by several rankers.

    uuids: uuids of the indices that contain the documents.
    size:  the largest number of documents that a search finds.
    """

    retrievers: Sequence[NearestByRanker]
    uuids: Sequence[str]
    size: int


class HookSource(ABC):
    """Reads the documents and features of hits that a cluster sends to the hook."""

    @property
    def files(self) -> TextRows | None:
        """Rows and features in the files of the workspace; None if the hits contain the features."""
        return None

    @abstractmethod
    def owned(self, uuids: Sequence[str]) -> list[bool]:
        """Return (n,) whether each index, given by its uuid, belongs to the workspace now."""

    def nearest(self, queries: Sequence[VectorQuery], *, over_fetch: bool) -> NearestDocuments:
        """Return where the nearest documents of vectors are, for a search with the rights of a user.

        queries: with depths. over_fetch: name more, because conditions will leave out some.

        Raises UsageError for a ranker that cannot retrieve.
        """
        raise cannot_retrieve(queries[0].name)

    def refresh(self) -> None:  # noqa: B027 (a source may keep nothing)
        """Read documents again that :meth:`nearest` keeps in memory, if they changed."""

    @abstractmethod
    def documents_at(self, locations: Sequence[tuple[str, int, int]]) -> list[Document | None]:
        """Return the documents at these locations; None if a document was changed or deleted.

        locations: uuid of the index, number of the shard, and sequence number of the document.
        """
