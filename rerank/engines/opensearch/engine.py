"""The engine in an OpenSearch cluster.

The first index of the alias NAME is NAME-000001. An empty or replaced collection gets a new index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import EngineError
from rerank.common.values import without
from rerank.documents.records import Candidates, Document, Query, SearchTemplate
from rerank.engines.base import DEFAULT_WRITE, Engine, FeatureStore, TermStatistics, WriteOptions, WriteResult
from rerank.engines.opensearch.attached_features import AttachedFeatures
from rerank.engines.opensearch.auth import check_trust, trust
from rerank.engines.opensearch.connection import Settings, check
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.hook_source import ClusterHits
from rerank.engines.opensearch.index import Index
from rerank.engines.opensearch.layout import Layout, fields_of
from rerank.engines.opensearch.reading import Reader
from rerank.engines.opensearch.search import Searcher
from rerank.engines.opensearch.templates import Templates
from rerank.engines.opensearch.term_statistics import term_statistics
from rerank.engines.opensearch.writing import Writer
from rerank.engines.search_request import SearchRequest, batches
from rerank.engines.template_hits import hits_of_run, union_with_search

_OWN_WORDS = ("content", "title", "text", "normalized")
"""Fields with words in an index that rerank made."""


class OpenSearchEngine(Engine):
    """Documents, text index and features in a cluster. Opening sends no request.

    Each shard uses its own idf, unless ``search_type`` is ``dfs_query_then_fetch``.

    >>> from pathlib import Path
    >>> from rerank.engines.opensearch import Settings
    >>> settings = Settings(("http://localhost:9200",), "articles")
    >>> OpenSearchEngine.open(settings, Path("waiting"), "en").first_stages
    ('bm25', 'tfidf')
    """

    shared = True

    def __init__(self, index: Index) -> None:
        self.index = index
        self.settings = index.settings
        self.layout = index.layout
        self.lang = index.lang
        self.first_stages = index.layout.first_stages
        self.reader = Reader(index)
        self.doc_values = DocValueFeatures(self.reader)
        self.writer = Writer(self.reader, self.doc_values)
        self.attached_features = AttachedFeatures(self.doc_values) if index.layout.attached else None
        self.searcher = Searcher(self.doc_values, self.attached_features)
        self.templates = Templates(index, self.attached_features)
        self._hits = ClusterHits(self.reader, self.attached_features, self.doc_values)

    @classmethod
    def create(cls, settings: Settings, folder: Path, lang: str | None = None) -> OpenSearchEngine:
        """Create an empty index in the cluster, and its alias.

        lang: language of the documents; None: unknown or mixed.

        Raises EngineError if the cluster has an index or alias of this name.
        """
        index = Index(settings, folder, lang=lang)
        check(index.client, settings)
        if index.indices():
            raise EngineError(
                f"{settings.where} has an index {settings.index!r} already; choose another name,"
                f" `rerank attach` it unchanged, or open the workspace that made it"
            )
        index.make(f"{settings.index}-000001", alias=True)
        return cls(index)

    @classmethod
    def open(
        cls,
        settings: Settings,
        folder: Path,
        lang: str | None = None,
        fields: Mapping[str, Sequence[str]] = {},
    ) -> OpenSearchEngine:
        """Return an engine for an existing index. It sends no request yet.

        folder: the engine's folder in the workspace.
        lang:   language of the documents; None: unknown or mixed.
        fields: the document fields of an attached index (:func:`fields_of`).
        """
        return cls(Index(settings, folder, Layout(fields, lang), lang))

    @classmethod
    def in_workspace(
        cls, folder: Path, lang: str | None, settings: Mapping[str, Any], *, new: bool, settings_file: str
    ) -> OpenSearchEngine:
        connection, fields = _read(settings, settings_file)
        check_trust(connection, settings_file)
        return cls.create(connection, folder, lang) if new else cls.open(connection, folder, lang, fields)

    @classmethod
    def trust_hosts(cls, settings: Mapping[str, Any], settings_file: str) -> None:
        connection, _ = _read(settings, settings_file)
        trust(connection)

    @classmethod
    def location(cls, settings: Mapping[str, Any], settings_file: str) -> str:
        connection, _ = _read(settings, settings_file)
        return f"index {connection.index} at {connection.where}"

    @property
    def condition_words(self) -> tuple[str, ...]:
        """The fields in which a required match does not restrict the documents of other retrievers."""
        return self.word_fields or _OWN_WORDS

    def hook_source(self) -> ClusterHits:
        return self._hits

    def discard(self) -> None:
        """Delete the index in the cluster if it has no documents, and if rerank made it."""
        with self.index.asking("removing the empty index"):
            for name, state in self.index.indices().items():
                if "rerank" in state["mappings"].get("_meta", {}) and not len(self):
                    self.index.client.indices.delete(index=name)

    def close(self) -> None:
        self.index.client.close()

    def __len__(self) -> int:
        """Count the documents."""
        return self.index.count()

    def ids(self) -> list[str]:
        return self.reader.ids()

    def contains(self, ids: Iterable[str]) -> set[str]:
        return self.reader.contains(ids)

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        return self.reader.get(ids)

    def documents(self) -> Iterator[Document]:
        return self.reader.documents()

    def write(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        options: WriteOptions = DEFAULT_WRITE,
    ) -> WriteResult:
        return self.writer.write(documents, delete, options)

    def lock(self) -> AbstractContextManager[None]:
        return self.writer.lock()

    def search(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        for batch in batches(requests):
            if batch[0].template is not None:
                yield from self._search_by_template(batch, batch[0].template.template.kind)
            elif batch[0].ids is not None:
                yield from map(self.searcher.select, batch)
            else:
                yield from self.searcher.search(batch)

    def _search_by_template(self, requests: Sequence[SearchRequest], kind: str) -> Iterator[Candidates]:
        """Yield the hits of requests with one template or run, and of their other retrievers."""
        hits_of_requests = map(hits_of_run, requests) if kind == "run" else self.templates.find(requests)
        for request, hits in zip(requests, hits_of_requests):
            if request.retrievers:
                yield self._union(request, hits)
            else:
                yield hits

    def _union(self, request: SearchRequest, hits: Candidates) -> Candidates:
        """Join the hits of a template with the results of other retrievers, under its filters."""
        assert request.template is not None
        search, query = request.template
        plain_request = request.without_template(self.first_stages[0])
        if search.kind == "run":
            (retrieved,) = self.searcher.search([plain_request])
            return union_with_search(request, hits, retrieved)
        conditions = self.templates.filters(search, query, self.condition_words)
        (retrieved,) = self.searcher.search([plain_request], conditions)
        new_ids = set(retrieved.ids).difference(hits.ids)
        rescored = self.templates.score(request, sorted(new_ids))
        return union_with_search(request, hits, retrieved, rescored)

    def check_template(self, search: SearchTemplate, query: Query) -> SearchTemplate:
        return search if search.kind == "run" else self.templates.check(search, query)

    def field_values(self, ids: Sequence[str], fields: Sequence[str]) -> list[NDArray[np.float64]]:
        if self.layout.attached:
            return self.searcher.fields.field_values(ids, fields)
        return super().field_values(ids, fields)

    def term_statistics(self, text: str) -> TermStatistics:
        return term_statistics(self.index, text)

    def score(self, text: str, signal: str, candidates: Candidates) -> NDArray[np.float64]:
        return self.searcher.score(text, signal, candidates.ids)

    @property
    def features(self) -> FeatureStore:
        return self.attached_features or self.doc_values


def _read(table: Mapping[str, Any], settings_file: str) -> tuple[Settings, dict[str, tuple[str, ...]]]:
    """Return the connection's settings, and the fields of an attached index."""
    fields = fields_of(table.get("fields", {}), settings_file)
    connection = without(table, ["fields"])
    return Settings.read(connection, settings_file), fields
