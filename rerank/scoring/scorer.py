"""Score candidates by signals. Documents unknown to the engine are scored as empty ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import scatter
from rerank.common.errors import UsageError
from rerank.common.order import rank
from rerank.common.values import items_at, items_not_in, of_type, without, without_none
from rerank.documents.categories import CategoryNames, infer_categories
from rerank.documents.records import Candidates, Document, Query
from rerank.engines.base import Engine
from rerank.engines.search_request import SearchRequest
from rerank.rankers.base import Ranker
from rerank.scoring.encoding import fill_missing_features
from rerank.scoring.timer import StageTimer
from rerank.scoring.vector_cache import VectorCache
from rerank.stack.signals import SEARCH, FieldSignal, LexicalSignal, Signal, is_leg

Array = NDArray[np.float64]

ReadDocuments = Callable[[Sequence[str]], Sequence[Document | None]]
"""Ids -> their documents, in the same order; None for an unknown id."""

FEEDBACK_DEPTH = 10
"""Number of first candidates whose categories are counted for a query without categories."""


@dataclass(frozen=True)
class ScoringInput:
    """n documents to score, and their known scores and features. The scorer adds the other ones.

    ids:        n different ids.
    scores:     signal of the engine or of the user's search -> (n,) scores.
    features:   ranker -> (n, width) stored features.
    missing:    ranker -> (n,) bool, whether a document has no stored features.
    categories: id -> categories of the document.
    documents:  reads documents instead of :meth:`Engine.get`.
    candidates: the search result with the same n documents.
    vectors:    ranker -> vector of the query.
    validated:  whether ``missing`` also marks corrupt features.
    """

    ids: Sequence[str]
    scores: Mapping[str, Array]
    features: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    documents: ReadDocuments | None = None
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
        return cls(list(by_id), scores, features, missing, documents=partial(items_at, by_id))

    @classmethod
    def from_candidates(
        cls,
        candidates: Candidates,
        first_stage: str,
        vectors: Mapping[str, NDArray[np.float32]] = {},
    ) -> ScoringInput:
        """Return the input for the results of a search.

        first_stage: the signal of ``candidates.scores``.
        vectors: ranker -> query vector, of the rankers that already encoded the query.
        """
        scores = {first_stage: candidates.scores, **candidates.legs}
        if first_stage == SEARCH:  # these have only ids
            return cls(candidates.ids, scores, vectors=vectors)
        return cls(
            candidates.ids,
            scores,
            candidates.features,
            candidates.missing,
            candidates=candidates,
            vectors=vectors,
        )

    def reader(self, engine: Engine) -> ReadDocuments:
        """Return the function that reads the documents: the one of this input, or of the engine."""
        return self.documents or engine.get


@dataclass(frozen=True)
class ScoringResult:
    """n candidates with their scores by S signals.

    ids:        n ids, in the order of the input.
    raw:        (n, S) scores, not normalized.
    query:      the query with the categories that were used.
    inferred:   whether the categories of the query were inferred from candidates.
    recomputed: ranker -> number of documents whose features were computed, if there are any.
    """

    ids: Sequence[str]
    raw: Array
    query: Query
    inferred: bool = False
    recomputed: Mapping[str, int] = field(default_factory=dict)

    @property
    def case(self) -> str:
        """Source of the query's categories: ``given``, ``inferred`` or ``none``."""
        if self.inferred:
            return "inferred"
        return "given" if self.query.categories else "none"


@dataclass(frozen=True)
class Scorer:
    """Scores candidates by S signals: the same way for tuning, evaluation, searches and the service.

    signals:     S signals, as :func:`rerank.stack.signals.resolve` returns them.
    first_stage: the signal that orders the candidates.
    infer:       whether the categories of a query that has none may be inferred from its candidates.
    vectors:     cache of query vectors.
    """

    engine: Engine
    signals: tuple[Signal, ...]
    first_stage: str
    infer: bool = True
    vectors: VectorCache = field(default_factory=lambda: VectorCache(0))

    @cached_property
    def infers(self) -> bool:
        """Whether missing categories are inferred: it is allowed, and a signal uses categories."""
        return self.infer and any(signal.uses_categories for signal in self.signals)

    def with_known_categories(self, query: Query) -> tuple[Query, tuple[str, ...]]:
        """Return the query with the categories that a ranker knows, and the categories that none knows.

        Upper and lower case do not matter. If a ranker accepts any category, the query does not change.
        """
        if not self._category_names or not query.categories:
            return query, ()
        name_of = {category: self._find_category(category) for category in query.categories}
        known_name_of = without_none(name_of)
        unknown_categories = items_not_in(query.categories, known_name_of)
        categories = tuple(dict.fromkeys(known_name_of.values()))
        if categories != query.categories:
            query = replace(query, categories=categories)
        return query, tuple(unknown_categories)

    def _find_category(self, category: str) -> str | None:
        for names in self._category_names:
            match = names.find(category)
            if match is not None:
                return match
        return None

    def similar_categories(self, category: str) -> list[str]:
        """Return known categories with similar names, best first."""
        similar: list[str] = []
        for names in self._category_names:
            similar += names.similar(category)
        return similar

    @cached_property
    def _category_names(self) -> list[CategoryNames]:
        """The categories that each ranker knows; empty if a ranker accepts any category, or none does."""
        names: list[CategoryNames] = []
        for ranker in self.rankers:
            if ranker.uses_categories:
                if ranker.categories is None:
                    return []
                names.append(ranker.categories)
        return names

    @cached_property
    def rankers(self) -> tuple[Ranker, ...]:
        """The signals that score by features of the documents."""
        return tuple(signal for signal in self.signals if isinstance(signal, Ranker))

    @cached_property
    def features(self) -> dict[str, str]:
        """Ranker -> feature version."""
        return {ranker.name: ranker.version for ranker in self.rankers}

    @cached_property
    def _search_signals(self) -> tuple[str, ...]:
        """The names of the first stage and of the lexical signals, which a search scores."""
        lexical_names = [signal.name for signal in of_type(self.signals, LexicalSignal)]
        return tuple(dict.fromkeys((self.first_stage, *lexical_names)))

    @cached_property
    def _field_signals(self) -> tuple[FieldSignal, ...]:
        """The signals that are values of fields."""
        return tuple(of_type(self.signals, FieldSignal))

    @cached_property
    def _existing_fields(self) -> set[str]:
        """Field signals for which the engine was found to have values."""
        return set()

    def score(
        self,
        query: Query,
        inputs: ScoringInput,
        *,
        feedback_candidates: Candidates | None = None,
        timer: StageTimer | None = None,
    ) -> ScoringResult:
        """Score n documents by each signal.

        feedback_candidates: the categories of a query without categories are inferred from these. Default:
            from ``inputs``.
        timer: limits the work; it may raise an exception.

        Raises UsageError if the scores of the user's search are missing, or a field has no numbers.
        """
        timer = timer or StageTimer()
        query, _ = self.with_known_categories(query)
        if not len(inputs.ids):
            return ScoringResult(inputs.ids, np.zeros((0, len(self.signals))), query)
        with timer.stage("engine"):
            inputs = self.load_missing_scores_and_features(query, inputs)
            documents = self._documents_without_features(inputs)
            inferred: tuple[str, ...] = ()
            if self.infers and not query.categories:
                inferred = self._infer_categories(inputs, feedback_candidates)
        vectors = inputs.vectors
        if inferred:
            query = replace(query, categories=inferred)
            vectors = self._vectors_without_categories(vectors)
        raw = np.empty((len(inputs.ids), len(self.signals)))
        recomputed: dict[str, int] = {}
        for column, signal in enumerate(self.signals):
            if not isinstance(signal, Ranker):
                raw[:, column] = _search_scores(signal.name, inputs)
                continue
            missing = inputs.missing[signal.name]
            if missing.any():
                recomputed[signal.name] = int(missing.sum())
            with timer.stage("encode"):
                features = fill_missing_features(
                    signal, inputs.features[signal.name], missing, documents, timer
                )
                vector = vectors.get(signal.name)
                if vector is None:
                    vector = self.vectors.encode(signal, query)
            with timer.stage("score"):
                raw[:, column] = signal.score(vector, features)
        return ScoringResult(inputs.ids, raw, query, bool(inferred), recomputed)

    def _vectors_without_categories(
        self, vectors: Mapping[str, NDArray[np.float32]]
    ) -> dict[str, NDArray[np.float32]]:
        """Return the vectors that do not change with the categories of the query."""
        unchanged = dict(vectors)
        for signal in self.signals:
            if signal.uses_categories:
                unchanged.pop(signal.name, None)
        return unchanged

    def load_missing_scores_and_features(self, query: Query, inputs: ScoringInput) -> ScoringInput:
        """Return the input with all scores and features that the engine has.

        Features that the ranker cannot use, such as corrupt ones, are marked as missing. Raises UsageError if
        the scores of the user's search are missing, which the engine does not have.
        """
        inputs = self._with_fields(inputs)
        missing_scores = self._missing_scores(inputs)
        versions = without(self.features, inputs.features)
        if missing_scores or versions:
            text = query.search_text(self.engine.lang)
            inputs = self._read(text, inputs, missing_scores, versions)
        return inputs if inputs.validated else self._validated(inputs)

    def _missing_scores(self, inputs: ScoringInput) -> list[str]:
        """Return the first stage and the lexical signals for which the input has no scores."""
        if SEARCH in self._search_signals:
            _search_scores(SEARCH, inputs)  # raises UsageError without a search
        return items_not_in(self._search_signals, inputs.scores)

    def _validated(self, inputs: ScoringInput) -> ScoringInput:
        """Mark the features as missing that their ranker cannot use."""
        missing = dict(inputs.missing)
        for ranker in self.rankers:
            missing[ranker.name] = missing[ranker.name] | ~ranker.valid(inputs.features[ranker.name])
        return replace(inputs, missing=missing, validated=True)

    def _read(
        self, text: str, inputs: ScoringInput, lexical: list[str], versions: Mapping[str, str]
    ) -> ScoringInput:
        """Add lexical scores for a text, and features.

        lexical: names of signals. versions: ranker -> version of its features.
        """
        candidates = inputs.candidates
        scored_by = self.first_stage
        rows = np.arange(len(inputs.ids))
        if candidates is None or versions:
            scored_by = (lexical or self.engine.first_stages)[0]
            request = SearchRequest(text, scored_by, ids=inputs.ids, features=versions)
            candidates = self.engine.find(request)
            position_of = {id: position for position, id in enumerate(inputs.ids)}
            rows = np.array(items_at(position_of, candidates.ids), np.int64)

        spread = partial(scatter, rows=rows, count=len(inputs.ids))
        scores = dict(inputs.scores)
        for name in lexical:
            is_scored = name == scored_by or not len(candidates)
            values = candidates.scores if is_scored else self.engine.score(text, name, candidates)
            scores[name] = spread(values, fill=0)
        features = {name: spread(candidates.features[name], fill=0) for name in versions}
        missing = {name: spread(candidates.missing[name], fill=True) for name in versions}
        return replace(
            inputs,
            scores=scores,
            features={**inputs.features, **features},
            missing={**inputs.missing, **missing},
        )

    def _with_fields(self, inputs: ScoringInput) -> ScoringInput:
        """Add the scores of fields. Raises UsageError for a field without numbers and dates."""
        unscored = [signal for signal in self._field_signals if signal.name not in inputs.scores]
        if not unscored:
            return inputs
        # The engine is read first: it knows better what is wrong with a field.
        fields = [signal.field for signal in unscored]
        values = self.engine.field_values(inputs.ids, fields)
        scores = dict(inputs.scores)
        for signal, numbers in zip(unscored, values):
            self._check_field(signal)
            scores[signal.name] = signal.values(numbers)
        return replace(inputs, scores=scores)

    def _check_field(self, signal: FieldSignal) -> None:
        """Raise UsageError for a field without numbers and dates. The engine is asked once."""
        if signal.name not in self._existing_fields:
            signal.check(self.engine)
            self._existing_fields.add(signal.name)

    def _documents_without_features(self, inputs: ScoringInput) -> dict[int, Document | None]:
        """Return position -> document, for documents without features of any ranker."""
        missing = items_at(inputs.missing, self.features)
        positions = np.flatnonzero(np.logical_or.reduce(missing)).tolist()
        if not positions:
            return {}
        read_documents = inputs.reader(self.engine)
        return dict(zip(positions, read_documents(items_at(inputs.ids, positions))))

    def _infer_categories(
        self, inputs: ScoringInput, feedback_candidates: Candidates | None
    ) -> tuple[str, ...]:
        read_categories = partial(_read_categories, inputs.categories, inputs.reader(self.engine))
        ids = inputs.ids
        scores = inputs.scores[self.first_stage]
        if feedback_candidates is not None:
            ids = feedback_candidates.ids
            scores = feedback_candidates.scores
        return feedback_categories(ids, scores, read_categories)


def _read_categories(
    categories: Mapping[str, Sequence[str]], read_documents: ReadDocuments, ids: Sequence[str]
) -> list[Sequence[str]]:
    """Return the categories of documents. They are read only if ``categories`` does not have all of them."""
    if categories.keys() >= {*ids}:
        return items_at(categories, ids)
    documents_categories: list[Sequence[str]] = []
    for document in read_documents(ids):
        documents_categories.append(() if document is None else document.categories)
    return documents_categories


def _search_scores(name: str, inputs: ScoringInput) -> Array:
    """Return (n,) scores of the input. Raises UsageError if the user's search has not computed them."""
    if name in inputs.scores:
        return inputs.scores[name]
    if is_leg(name):
        clause = name.partition(":")[2]
        raise UsageError(
            f"the signal {name} is the score of a clause of your search; give --first-stage"
            f' template:FILE with a clause that has "_name": "{clause}"'
        )
    raise UsageError(f"the signal {name} is the score of your search; give --first-stage template:FILE")


def feedback_categories(
    ids: Sequence[str], scores: Array, categories: Callable[[Sequence[str]], Iterable[Sequence[str]]]
) -> tuple[str, ...]:
    """Infer the categories of a query from its best candidates (pseudo-relevance feedback).

    The :data:`FEEDBACK_DEPTH` best candidates with positive scores vote; see
    :func:`rerank.documents.categories.infer_categories`.

    ids:        n candidates.
    scores:     (n,) of the first stage. If one is negative, as in a run file, the lowest becomes 0.
    categories: reads the categories of documents by id.
    """
    scores = scores - scores.min(initial=0)
    positive = np.flatnonzero(scores > 0)
    order = rank(items_at(ids, positive.tolist()), scores[positive])
    best = positive[order[:FEEDBACK_DEPTH]].tolist()
    return infer_categories(zip(scores[best].tolist(), categories(items_at(ids, best))))
