"""What the names in a stack stand for: a lexical signal, which every engine has, or a ranker's.

A name is resolved once, where its rankers are at hand (:func:`resolve`, :func:`resolve_retrievers`), and
whoever works with the signal asks the object. Where no ranker is loaded, :func:`lexical` and :func:`learned`
tell names apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rerank.engines.base import FIRST_STAGES, Nearest, Retriever
from rerank.errors import UsageError, setting_hint
from rerank.rankers.base import Ranker
from rerank.records import Query

DEFAULT_FIRST_STAGE = FIRST_STAGES[0]


def lexical(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are lexical signals.

    >>> lexical(["text", "tfidf", "meta"]), learned(["text", "tfidf", "meta"])
    (('tfidf',), ('text', 'meta'))
    """
    return tuple(name for name in names if name in FIRST_STAGES)


def learned(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are rankers'."""
    return tuple(name for name in names if name not in FIRST_STAGES)


@dataclass(frozen=True, slots=True)
class LexicalSignal:
    """A score that the engine has of every document. Also a retriever: the best documents by it."""

    name: str

    def asked(self, queries: Sequence[Query]) -> Retriever:
        """What the engine is to retrieve with for these queries."""
        return self.name


@dataclass(frozen=True, slots=True)
class RankerSignal:
    """A ranker's score, from the features of a document that the engine stores."""

    ranker: Ranker

    @property
    def name(self) -> str:
        """The name in stacks."""
        return self.ranker.name

    @property
    def version(self) -> str:
        """Version of the features that it needs."""
        return self.ranker.version


@dataclass(frozen=True, slots=True)
class NearestRetriever:
    """A ranker that retrieves; ``depth``: how many, None: as many as the others."""

    ranker: Ranker
    depth: int | None = None

    @property
    def name(self) -> str:
        """The ranker's name."""
        return self.ranker.name

    def asked(self, queries: Sequence[Query]) -> Nearest:
        """What the engine is to retrieve with: the vectors of these queries, as they came.

        Categories are not inferred for them: they come from candidates.
        """
        ranker = self.ranker
        vectors = np.array([ranker.encode_query(query) for query in queries], np.float32)
        return Nearest(ranker.name, ranker.version, vectors, self.depth, ranker.fragments)


Signal = LexicalSignal | RankerSignal


def resolve(names: Iterable[str], rankers: Mapping[str, Ranker]) -> tuple[Signal, ...]:
    """What each name stands for. Raises UsageError for one that is neither lexical nor among the rankers."""
    return tuple(
        LexicalSignal(name) if lexical([name]) else RankerSignal(_ranker(name, rankers)) for name in names
    )


def resolve_retrievers(
    depths: Mapping[str, int | None], rankers: Mapping[str, Ranker]
) -> tuple[LexicalSignal | NearestRetriever, ...]:
    """The same for retrievers (``rerank.stack.parse.retriever_depths``); UsageError also for a ranker that
    cannot retrieve.
    """
    found: list[LexicalSignal | NearestRetriever] = []
    for name, depth in depths.items():
        if lexical([name]):
            found.append(LexicalSignal(name))
            continue
        ranker = _ranker(name, rankers)
        check_retrieves(ranker)
        found.append(NearestRetriever(ranker, depth))
    return tuple(found)


def _ranker(name: str, rankers: Mapping[str, Ranker]) -> Ranker:
    if name not in rankers:
        there = ", ".join((*FIRST_STAGES, *rankers))
        raise UsageError(f"signal {name!r} is not trained in this workspace; there are {there}")
    return rankers[name]


def check_retrieves(ranker: Ranker) -> None:
    """Raise UsageError for a ranker that is no retriever."""
    if not ranker.retrieves:
        raise UsageError(
            f"ranker {ranker.name} cannot retrieve: its score is no inner product of two vectors; leave it"
            f" out of {setting_hint('retrieve')}"
        )
