"""Score candidates by signals. Documents unknown to the engine are scored as empty ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.categories import CategoryNames, infer_categories
from rerank.engines.base import Engine, SearchRequest
from rerank.errors import UsageError
from rerank.order import rank
from rerank.rankers.base import Ranker
from rerank.records import Candidates, Document, Query
from rerank.search.vector_cache import VectorCache
from rerank.stack.signals import SEARCH, FieldSignal, LexicalSignal, Signal, is_from_search

Array = NDArray[np.float64]

INFERENCE_DEPTH = 10
"""Number of first candidates that vote for missing categories."""


class StageTimer:
    """Measures ``seconds`` per stage. Subclasses can raise to stop the work."""

    seconds: dict[str, float]

    def __init__(self) -> None:
        self.seconds = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block."""
        begin = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def left(self) -> float:
        """Return the seconds left for a second phase."""
        return math.inf

    def leaves(self) -> None:
        """Called before slow engine searches or encoding."""

    def encoded(self, ranker: str, seconds: float) -> None:
        """Called with a ranker's CPU seconds per query."""


@dataclass(frozen=True)
class ScoringInput:
    """n documents to score. The scorer adds unknown scores and features.

    ids:        n unique ids.
    scores:     lexical or search signal -> (n,) float64.
    features:   ranker -> (n, width).
    missing:    ranker -> (n,) bool, True without features.
    categories: id -> categories, if known.
    documents:  replaces :meth:`Engine.get`.
    candidates: engine results, if any.
    vectors:    ranker -> query vector, if known.
    """

    ids: Sequence[str]
    scores: Mapping[str, Array]
    features: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    documents: Callable[[Sequence[str]], Sequence[Document | None]] | None = None
    candidates: Candidates | None = None
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @classmethod
    def unseen(
        cls, documents: Sequence[Document], scores: Mapping[str, Array], rankers: Iterable[str]
    ) -> ScoringInput:
        """Return input for a request's documents: all features are computed."""
        by_id = {document.id: document for document in documents}
        nothing, all_of_them = np.empty((len(by_id), 0), np.float32), np.ones(len(by_id), np.bool_)
        features, missing = dict.fromkeys(rankers, nothing), dict.fromkeys(rankers, all_of_them)
        return cls(list(by_id), scores, features, missing, documents=lambda ids: [by_id[id] for id in ids])

    @classmethod
    def of_candidates(cls, found: Candidates, first_stage: str, **options: Any) -> ScoringInput:
        """Return input for search results."""
        scores = {first_stage: found.scores, **found.signals}
        if first_stage == SEARCH:  # these have only ids
            return cls(found.ids, scores, **options)
        return cls(found.ids, scores, found.features, found.missing, candidates=found, **options)


@dataclass(frozen=True)
class ScoringResult:
    """Candidates with scores of S signals.

    ids:        n ids, in input order.
    raw:        (n, S) float64 raw scores.
    query:      with the categories used.
    inferred:   whether these were inferred.
    recomputed: ranker -> number of features computed.
    """

    ids: Sequence[str]
    raw: Array
    query: Query
    inferred: bool = False
    recomputed: Mapping[str, int] = field(default_factory=dict)

    @property
    def case(self) -> str:
        """Source of the categories: ``given``, ``inferred`` or ``none``."""
        return "inferred" if self.inferred else "given" if self.query.categories else "none"


@dataclass(frozen=True)
class Scorer:
    """Scores candidates by signals.

    signals:     S resolved signals (``rerank.stack.signals``).
    first_stage: signal that orders candidates.
    infer:       infer missing categories.
    vectors:     query vector cache.
    """

    engine: Engine
    signals: tuple[Signal, ...]
    first_stage: str
    infer: bool = True
    vectors: VectorCache = field(default_factory=lambda: VectorCache(0))

    @cached_property
    def infers(self) -> bool:
        """Whether to infer missing categories."""
        return self.infer and any(signal.uses_categories for signal in self.signals)

    def with_known_categories(self, query: Query) -> tuple[Query, tuple[str, ...]]:
        """Return the query with known categories (case-insensitive), and the unknown ones.

        If any category is accepted, all are kept.
        """
        names = self._category_names
        if names is None or not query.categories:
            return query, ()
        matches = {
            category: next((found for one in names if (found := one.find(category)) is not None), None)
            for category in query.categories
        }
        unknown = tuple(category for category, match in matches.items() if match is None)
        known = tuple(dict.fromkeys(match for match in matches.values() if match is not None))
        return query if known == query.categories else replace(query, categories=known), unknown

    def similar_categories(self, category: str) -> list[str]:
        """Return known categories with similar names, best first."""
        return [name for one in self._category_names or () for name in one.similar(category)]

    @cached_property
    def _category_names(self) -> list[CategoryNames] | None:
        """None: any is accepted."""
        names = [s.categories for s in self.signals if isinstance(s, Ranker) and s.uses_categories]
        known = [one for one in names if one is not None]
        return known if known and len(known) == len(names) else None

    @cached_property
    def features(self) -> dict[str, str]:
        """Ranker -> feature version."""
        return {s.name: s.version for s in self.signals if isinstance(s, Ranker)}

    @cached_property
    def _checked(self) -> set[str]:
        """Signals whose fields exist."""
        return set()

    def score(
        self,
        query: Query,
        given: ScoringInput,
        *,
        voters: Candidates | None = None,
        stages: StageTimer | None = None,
    ) -> ScoringResult:
        """Score documents by each signal.

        voters: candidates for inferring categories; None: the given ones.
        """
        stages = stages or StageTimer()
        query, _ = self.with_known_categories(query)
        if not len(given.ids):
            return ScoringResult(given.ids, np.zeros((0, len(self.signals))), query)
        with stages.stage("engine"):
            known = self.fetched(query, given, stages)
            documents = self._documents(known, stages)
            used = query
            if self.infers and not query.categories:
                used = replace(query, categories=self._voted(known, voters, stages))
        raw = np.empty((len(given.ids), len(self.signals)))
        recomputed: dict[str, int] = {}
        for column, signal in enumerate(self.signals):
            if not isinstance(signal, Ranker):
                raw[:, column] = _search_scores(signal.name, known)
                continue
            with stages.stage("encode"):
                if known.missing[signal.name].any():
                    recomputed[signal.name] = int(known.missing[signal.name].sum())
                features = completed(signal, known, documents)
                vector = given.vectors.get(signal.name)
                if vector is None or (used is not query and signal.uses_categories):
                    vector = self.vectors.encode(signal, used, stages.encoded)
            with stages.stage("score"):
                raw[:, column] = signal.score(vector, features)
        return ScoringResult(given.ids, raw, used, used.categories != query.categories, recomputed)

    def fetched(self, query: Query, given: ScoringInput, stages: StageTimer | None = None) -> ScoringInput:
        """Add missing lexical scores and features from the engine."""
        given = self._with_fields(given, stages)
        signals = (self.first_stage, *(s.name for s in self.signals if isinstance(s, LexicalSignal)))
        lacking = [name for name in dict.fromkeys(signals) if name not in given.scores]
        for name in filter(is_from_search, lacking):
            _search_scores(name, given)  # raises without a search
        lacking = [name for name in lacking if not is_from_search(name)]
        versions = {name: v for name, v in self.features.items() if name not in given.features}
        if not lacking and not versions:
            return given
        (stages or StageTimer()).leaves()
        return self._read(query.search_text(self.engine.lang), given, lacking, versions)

    def _read(
        self, text: str, given: ScoringInput, lacking: list[str], versions: Mapping[str, str]
    ) -> ScoringInput:
        """Add these lexical scores and features."""
        found, by, n = given.candidates, self.first_stage, len(given.ids)
        if found is not None and not versions:
            rows = np.arange(n)
        else:
            by = (lacking or self.engine.first_stages)[0]
            found = self.engine.find(SearchRequest(text, by, ids=given.ids, features=versions))
            place = {id: i for i, id in enumerate(given.ids)}
            rows = np.array([place[id] for id in found.ids], np.int64)

        def spread(values: NDArray[Any], rest: float) -> NDArray[Any]:
            whole = np.full((n, *values.shape[1:]), rest, values.dtype)
            whole[rows] = values
            return whole

        scores = {}
        for name in lacking:
            same = name == by or not len(found)
            scores[name] = spread(found.scores if same else self.engine.score(text, name, found), 0)
        return replace(
            given,
            scores={**given.scores, **scores},
            features={**given.features, **{name: spread(found.features[name], 0) for name in versions}},
            missing={**given.missing, **{name: spread(found.missing[name], True) for name in versions}},
        )

    def _with_fields(self, given: ScoringInput, stages: StageTimer | None) -> ScoringInput:
        lacking = [s for s in self.signals if isinstance(s, FieldSignal) and s.name not in given.scores]
        if not lacking:
            return given
        (stages or StageTimer()).leaves()
        fields = list(dict.fromkeys(signal.field for signal in lacking))
        numbers = dict(zip(fields, self.engine.field_values(given.ids, fields)))
        for signal in lacking:
            if signal.name not in self._checked:
                signal.check(self.engine)
                self._checked.add(signal.name)
        found = {signal.name: signal.values(numbers[signal.field]) for signal in lacking}
        return replace(given, scores={**given.scores, **found})

    def _documents(self, given: ScoringInput, stages: StageTimer) -> dict[int, Document | None]:
        lacking = [given.missing[name] for name in self.features if given.missing[name].any()]
        if not lacking:
            return {}
        stages.leaves()
        where = np.flatnonzero(np.logical_or.reduce(lacking)).tolist()
        return dict(zip(where, (given.documents or self.engine.get)([given.ids[i] for i in where])))

    def _voted(self, given: ScoringInput, voters: Candidates | None, stages: StageTimer) -> tuple[str, ...]:
        def categories(ids: Sequence[str]) -> Sequence[Sequence[str]]:
            if all(id in given.categories for id in ids):
                return [given.categories[id] for id in ids]
            stages.leaves()
            found = (given.documents or self.engine.get)(ids)
            return [document.categories if document is not None else () for document in found]

        if voters is not None:
            return vote(voters.ids, voters.scores, categories)
        return vote(given.ids, given.scores[self.first_stage], categories)


def _search_scores(name: str, given: ScoringInput) -> Array:
    if name not in given.scores and name != SEARCH and SEARCH in given.scores:
        return np.zeros(len(given.ids))  # the clause matches no hit
    if name not in given.scores:
        raise UsageError(
            f"the signal {name} is the score of your own search; give --first-stage template:FILE"
        )
    return given.scores[name]


def vote(
    ids: Sequence[str], scores: Array, categories: Callable[[Sequence[str]], Iterable[Sequence[str]]]
) -> tuple[str, ...]:
    """Infer categories from the best INFERENCE_DEPTH of n candidates with positive scores.

    scores: (n,) of the first stage. categories: ids -> categories.
    """
    if len(scores) and scores.min() < 0:  # scores of a run file
        scores = scores - scores.min()
    where = np.flatnonzero(scores > 0)
    best = where[rank([ids[i] for i in where.tolist()], scores[where])[:INFERENCE_DEPTH]].tolist()
    return infer_categories(zip(scores[best].tolist(), categories([ids[i] for i in best])))


def completed(ranker: Ranker, known: ScoringInput, documents: Mapping[int, Document | None]) -> NDArray[Any]:
    """Return (n, width) features; missing ones are computed. documents: by place."""
    features, where = known.features[ranker.name], np.flatnonzero(known.missing[ranker.name])
    if not len(where):
        return features
    fresh = ranker.encode_documents([documents[i] or Document("") for i in where.tolist()])
    if features.shape[1:] != fresh.shape[1:]:  # no document has features of this version
        features = np.zeros((len(features), *fresh.shape[1:]), fresh.dtype)
    else:
        features = features.copy()  # the input may be read-only
    features[where] = fresh
    return features
