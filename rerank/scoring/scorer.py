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
from rerank.scoring.vector_cache import VectorCache
from rerank.stack.signals import SEARCH, FieldSignal, LexicalSignal, Signal, is_leg

Array = NDArray[np.float64]

FEEDBACK_DEPTH = 10
"""Number of first candidates whose categories are counted for a query without categories."""

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


class StageTimer:
    """Measures the ``seconds`` of each stage of the work.

    A subclass can limit the work: its methods raise an exception to stop it.
    """

    seconds: dict[str, float]

    def __init__(self) -> None:
        self.seconds = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to this stage."""
        begin = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def check(self) -> None:
        """Called between the steps of long work. A subclass raises an exception to stop it."""

    def remaining_seconds(self) -> float:
        """Return the seconds left for a second phase."""
        return math.inf

    def encoding_limit(self, rankers: Iterable[str]) -> int | None:
        """Return how many candidates without features these rankers may encode, or None for all of them."""
        return None

    def on_documents_encoded(self, ranker: str, characters: int, seconds: float) -> None:
        """Called after each chunk of documents, so that a subclass can learn the speed of a ranker.

        characters: size of the chunk, as in :func:`encoding_size`.
        """


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
    validated:  whether corrupt features are marked as missing.
    """

    ids: Sequence[str]
    scores: Mapping[str, Array]
    features: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    documents: Callable[[Sequence[str]], Sequence[Document | None]] | None = None
    candidates: Candidates | None = None
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    validated: bool = False

    @classmethod
    def from_documents(
        cls, documents: Sequence[Document], scores: Mapping[str, Array], rankers: Iterable[str]
    ) -> ScoringInput:
        """Return the input for documents that a request contains. All their features are computed."""
        by_id = {document.id: document for document in documents}
        names = list(rankers)
        features = dict.fromkeys(names, np.empty((len(by_id), 0), np.float32))
        missing = dict.fromkeys(names, np.ones(len(by_id), np.bool_))
        return cls(list(by_id), scores, features, missing, documents=lambda ids: [by_id[id] for id in ids])

    @classmethod
    def from_candidates(
        cls,
        candidates: Candidates,
        first_stage: str,
        vectors: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> ScoringInput:
        """Return the input for the results of a search.

        first_stage: the signal of ``candidates.scores``.
        vectors: ranker -> query vector, of the rankers that already encoded the query.
        """
        scores = {first_stage: candidates.scores, **candidates.legs}
        if first_stage == SEARCH:  # these have only ids
            return cls(candidates.ids, scores, vectors=vectors or {})
        return cls(
            candidates.ids,
            scores,
            candidates.features,
            candidates.missing,
            candidates=candidates,
            vectors=vectors or {},
        )


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
        """Return the query with the categories that a ranker knows, and the categories that none knows.

        Upper and lower case do not matter. If a ranker accepts any category, the query does not change.
        """
        if self._category_names is None or not query.categories:
            return query, ()
        matches: dict[str, None] = {}
        unknown: dict[str, None] = {}
        for category in query.categories:
            match = self._find_category(category)
            if match is None:
                unknown[category] = None
            else:
                matches[match] = None
        categories = tuple(matches)
        if categories != query.categories:
            query = replace(query, categories=categories)
        return query, tuple(unknown)

    def _find_category(self, category: str) -> str | None:
        for names in self._category_names or ():
            match = names.find(category)
            if match is not None:
                return match
        return None

    def similar_categories(self, category: str) -> list[str]:
        """Return known categories with similar names, best first."""
        similar: list[str] = []
        for names in self._category_names or ():
            similar += names.similar(category)
        return similar

    @cached_property
    def _category_names(self) -> list[CategoryNames] | None:
        """The categories that each ranker knows, or None if a ranker accepts any category."""
        names: list[CategoryNames] = []
        for signal in self.signals:
            if isinstance(signal, Ranker) and signal.uses_categories:
                if signal.categories is None:
                    return None
                names.append(signal.categories)
        return names or None

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
        inputs: ScoringInput,
        *,
        feedback_candidates: Candidates | None = None,
        timer: StageTimer | None = None,
    ) -> ScoringResult:
        """Score documents by each signal.

        feedback_candidates: their categories are used for a query without categories. Default: ``inputs``.
        timer: limits the work; it may raise an exception.
        """
        timer = timer or StageTimer()
        query, _ = self.with_known_categories(query)
        if not len(inputs.ids):
            return ScoringResult(inputs.ids, np.zeros((0, len(self.signals))), query)
        with timer.stage("engine"):
            inputs = self.load_missing_scores_and_features(query, inputs)
            documents = self._documents_without_features(inputs)
            scored_query = query
            if self.infers and not query.categories:
                scored_query = replace(query, categories=self._inferred(inputs, feedback_candidates))
        raw = np.empty((len(inputs.ids), len(self.signals)))
        recomputed: dict[str, int] = {}
        for column, signal in enumerate(self.signals):
            if not isinstance(signal, Ranker):
                raw[:, column] = _search_scores(signal.name, inputs)
                continue
            with timer.stage("encode"):
                if inputs.missing[signal.name].any():
                    recomputed[signal.name] = int(inputs.missing[signal.name].sum())
                features = fill_missing_features(signal, inputs, documents, timer)
                vector = inputs.vectors.get(signal.name)
                if vector is None or (scored_query is not query and signal.uses_categories):
                    vector = self.vectors.encode(signal, scored_query)
            with timer.stage("score"):
                raw[:, column] = signal.score(vector, features)
        inferred = scored_query.categories != query.categories
        return ScoringResult(inputs.ids, raw, scored_query, inferred, recomputed)

    def load_missing_scores_and_features(self, query: Query, inputs: ScoringInput) -> ScoringInput:
        """Add the lexical scores, fields and features that the engine has. Corrupt features are missing."""
        inputs = self._with_fields(inputs)
        lexical_signals = [signal.name for signal in self.signals if isinstance(signal, LexicalSignal)]
        missing_scores: list[str] = []
        for name in dict.fromkeys((self.first_stage, *lexical_signals)):
            if name in inputs.scores:
                continue
            if name == SEARCH:
                _search_scores(name, inputs)  # raises without a search
            else:
                missing_scores.append(name)
        versions = {name: v for name, v in self.features.items() if name not in inputs.features}
        if missing_scores or versions:
            text = query.search_text(self.engine.lang)
            inputs = self._read(text, inputs, missing_scores, versions)
        return inputs if inputs.validated else self._validated(inputs)

    def _validated(self, inputs: ScoringInput) -> ScoringInput:
        missing = dict(inputs.missing)
        for signal in self.signals:
            if isinstance(signal, Ranker):
                missing[signal.name] = missing[signal.name] | ~signal.valid(inputs.features[signal.name])
        return replace(inputs, missing=missing, validated=True)

    def _read(
        self, text: str, inputs: ScoringInput, lexical: list[str], versions: Mapping[str, str]
    ) -> ScoringInput:
        """Add these lexical scores and features."""
        candidates = inputs.candidates
        scored_by = self.first_stage
        count = len(inputs.ids)
        if candidates is not None and not versions:
            rows = np.arange(count)
        else:
            scored_by = (lexical or self.engine.first_stages)[0]
            request = SearchRequest(text, scored_by, ids=inputs.ids, features=versions)
            candidates = self.engine.find(request)
            positions = {id: i for i, id in enumerate(inputs.ids)}
            rows = np.array([positions[id] for id in candidates.ids], np.int64)

        def spread(values: NDArray[Any], default: float) -> NDArray[Any]:
            column = np.full((count, *values.shape[1:]), default, values.dtype)
            column[rows] = values
            return column

        scores = dict(inputs.scores)
        for name in lexical:
            is_scored = name == scored_by or not len(candidates)
            values = candidates.scores if is_scored else self.engine.score(text, name, candidates)
            scores[name] = spread(values, 0)
        features = {name: spread(candidates.features[name], 0) for name in versions}
        missing = {name: spread(candidates.missing[name], True) for name in versions}
        return replace(
            inputs,
            scores=scores,
            features={**inputs.features, **features},
            missing={**inputs.missing, **missing},
        )

    def _with_fields(self, inputs: ScoringInput) -> ScoringInput:
        field_signals = [signal for signal in self.signals if isinstance(signal, FieldSignal)]
        unscored = [signal for signal in field_signals if signal.name not in inputs.scores]
        if not unscored:
            return inputs
        fields = list(dict.fromkeys(signal.field for signal in unscored))
        numbers = dict(zip(fields, self.engine.field_values(inputs.ids, fields)))
        scores = dict(inputs.scores)
        for signal in unscored:
            if signal.name not in self._checked:
                signal.check(self.engine)
                self._checked.add(signal.name)
            scores[signal.name] = signal.values(numbers[signal.field])
        return replace(inputs, scores=scores)

    def _documents_without_features(self, inputs: ScoringInput) -> dict[int, Document | None]:
        """Return position -> document, for documents without features of any ranker."""
        missing = [inputs.missing[name] for name in self.features if inputs.missing[name].any()]
        if not missing:
            return {}
        positions = np.flatnonzero(np.logical_or.reduce(missing)).tolist()
        read_documents = inputs.documents or self.engine.get
        return dict(zip(positions, read_documents([inputs.ids[i] for i in positions])))

    def _inferred(self, inputs: ScoringInput, feedback_candidates: Candidates | None) -> tuple[str, ...]:
        def categories(ids: Sequence[str]) -> Sequence[Sequence[str]]:
            if all(id in inputs.categories for id in ids):
                return [inputs.categories[id] for id in ids]
            documents = (inputs.documents or self.engine.get)(ids)
            return [document.categories if document is not None else () for document in documents]

        if feedback_candidates is not None:
            return feedback_categories(feedback_candidates.ids, feedback_candidates.scores, categories)
        return feedback_categories(inputs.ids, inputs.scores[self.first_stage], categories)


def _search_scores(name: str, inputs: ScoringInput) -> Array:
    if name not in inputs.scores:
        if is_leg(name):
            clause = name.partition(":")[2]
            raise UsageError(
                f"the signal {name} is the score of a clause of your own search; give --first-stage"
                f' template:FILE with a clause that has "_name": "{clause}"'
            )
        raise UsageError(
            f"the signal {name} is the score of your own search; give --first-stage template:FILE"
        )
    return inputs.scores[name]


def feedback_categories(
    ids: Sequence[str], scores: Array, categories: Callable[[Sequence[str]], Iterable[Sequence[str]]]
) -> tuple[str, ...]:
    """Infer categories from the best FEEDBACK_DEPTH of n candidates with positive scores.

    scores: (n,) of the first stage. categories: ids -> categories.
    """
    if len(scores) and scores.min() < 0:  # scores of a run file
        scores = scores - scores.min()
    positive = np.flatnonzero(scores > 0)
    order = rank([ids[i] for i in positive.tolist()], scores[positive])
    best = positive[order[:FEEDBACK_DEPTH]].tolist()
    return infer_categories(zip(scores[best].tolist(), categories([ids[i] for i in best])))


def fill_missing_features(
    ranker: Ranker,
    inputs: ScoringInput,
    documents: Mapping[int, Document | None],
    timer: StageTimer | None = None,
) -> NDArray[Any]:
    """Return (n, width) features of a ranker. Missing ones are computed, chunk by chunk.

    documents: position -> document. timer: it may raise an exception before each chunk.
    """
    timer = timer or StageTimer()
    features = inputs.features[ranker.name]
    positions = np.flatnonzero(inputs.missing[ranker.name])
    if not len(positions):
        return features
    encoded: list[NDArray[Any]] = []
    for chunk in _chunks([documents[i] or Document("unknown") for i in positions.tolist()]):
        timer.check()
        begin = time.perf_counter()
        encoded.append(ranker.encode_documents(chunk))
        timer.on_documents_encoded(ranker.name, encoding_size(chunk), time.perf_counter() - begin)
    computed = np.concatenate(encoded)
    if features.shape[1:] != computed.shape[1:]:  # no document has features of this version
        features = np.zeros((len(features), *computed.shape[1:]), computed.dtype)
    else:
        features = features.copy()  # the input may be read-only
    features[positions] = computed
    return features


def _chunks(documents: Sequence[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    characters = 0
    for document in documents:
        length = len(document.content)
        if chunk and (len(chunk) == _CHUNK_DOCUMENTS or characters + length > _CHUNK_CHARACTERS):
            yield chunk
            chunk = []
            characters = 0
        chunk.append(document)
        characters += length
    yield chunk
