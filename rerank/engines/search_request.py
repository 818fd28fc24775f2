"""The request of a search to an engine: its text, retrievers and conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.documents.filters import Filter
from rerank.documents.records import Query, SearchTemplate


class VectorQuery(NamedTuple):
    """Retrieves the documents whose features have the largest inner products with a vector, above 0.

    vector: (width,) float32.
    depth: number of documents; None: the request's depth.
    passages: vectors per feature, compared by largest cosine (``vector`` has length 1). 0: one vector.
    """

    name: str
    version: str
    vector: NDArray[np.float32]
    depth: int | None = None
    passages: int = 0

    @property
    def options(self) -> tuple[object, ...]:
        """The fields that are equal in queries whose vectors can be compared together."""
        return self.name, self.version, self.depth, self.passages


Retriever = str | VectorQuery
"""The name of a lexical signal, or a ranker's vectors."""


class FilledTemplate(NamedTuple):
    """A search template and its query."""

    template: SearchTemplate
    query: Query


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """One search.

    text: plain words, without query syntax. A text without known terms finds nothing.
    first_stage: the lexical signal that scores and orders all candidates.
    depth: number of documents per retriever.
    filters: conditions that every document must meet.
    ids: score only these documents and ignore retrieval options; 0: no shared term. Unknown ids are skipped.
    retrievers: default: the first stage.
    features: ranker -> version, returned with candidates.
    template: search by this template instead of the text, without features. Then ``first_stage`` is the
        name of this search, also among the retrievers.
    legs: clauses of the template, as ``leg:NAME``, whose scores are returned with candidates.

    >>> SearchRequest("red foxes", "bm25", depth=10).depth
    10
    """

    text: str
    first_stage: str
    depth: int = 1000
    filters: Sequence[Filter] = ()
    ids: Sequence[str] | None = None
    retrievers: Sequence[Retriever] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    template: FilledTemplate | None = None
    legs: Sequence[str] = ()

    @property
    def vector_queries(self) -> list[VectorQuery]:
        """The retrievers that find the documents whose features are nearest to a vector."""
        return [retriever for retriever in self.retrievers if isinstance(retriever, VectorQuery)]

    @property
    def signals(self) -> list[str]:
        """The lexical signals that retrieve: those among the retrievers, or the first stage."""
        if not self.retrievers:
            return [self.first_stage]
        return [retriever for retriever in self.retrievers if isinstance(retriever, str)]

    def depth_of(self, query: VectorQuery) -> int:
        """Return the number of documents that a vector retrieves: its own depth, or the common one."""
        return query.depth or self.depth

    def without_template(self, first_stage: str) -> SearchRequest:
        """Return the request to the other retrievers, whose candidates are scored by ``first_stage``."""
        retrievers: list[Retriever] = []
        for retriever in self.retrievers:
            if retriever != self.first_stage:
                retrievers.append(retriever)
        return replace(self, template=None, first_stage=first_stage, retrievers=retrievers)

    def check(self, first_stages: Sequence[str]) -> None:
        """Raise UsageError for signals that are not among ``first_stages``, and for depths below 1."""
        depth = self.depth
        if self.ids is not None:  # the depth is ignored
            depth = 1
        for signal in (self.first_stage, *self.signals):
            check_signal(signal, first_stages, depth)

    def _options(self) -> tuple[object, ...]:
        """Return everything but text, ids, query and vectors."""
        template = None
        if self.template is not None:
            template = id(self.template.template)
        return (
            self.first_stage,
            self.depth,
            list(self.filters),
            self.ids is None,
            bool(self.retrievers),
            self.signals,
            [query.options for query in self.vector_queries],
            dict(self.features),
            template,
            list(self.legs),
        )


def batches(requests: Iterable[SearchRequest]) -> Iterator[list[SearchRequest]]:
    """Group consecutive requests that differ only in text, ids, query and vectors.

    >>> few = [SearchRequest("a", "bm25"), SearchRequest("b", "bm25"), SearchRequest("b", "tfidf")]
    >>> [[request.text for request in batch] for batch in batches(few)]
    [['a', 'b'], ['b']]
    """
    for _, batch in groupby(requests, SearchRequest._options):
        yield list(batch)


def check_signal(signal: str, first_stages: Sequence[str], depth: int = 1) -> None:
    """Raise UsageError for a signal that is not among ``first_stages``, and for a depth below 1."""
    if signal not in first_stages:
        raise UsageError(f"{signal!r} is not a first stage; choose one of {', '.join(first_stages)}")
    if depth < 1:
        raise UsageError(f"a depth of {depth} retrieves nothing; choose at least 1")


def cannot_retrieve(name: str) -> UsageError:
    """Return the error for a ranker whose features the index cannot search. name: of the ranker."""
    return UsageError(
        f"ranker {name} cannot retrieve on this index yet; run `rerank encode --retrieve {name}`"
    )
