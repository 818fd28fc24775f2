"""The query path, with NumPy only: query -> candidates -> scores -> ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rerank.common.errors import UsageError
from rerank.common.results import Report
from rerank.common.values import with_keys
from rerank.documents.filters import Filter
from rerank.documents.records import Candidates, Query, SearchTemplate
from rerank.documents.text import count_of
from rerank.engines.base import Engine
from rerank.engines.search_request import FilledTemplate, Retriever, SearchRequest, VectorQuery
from rerank.formats.templates import check_values
from rerank.rankers.base import Ranker
from rerank.scoring.candidate_pool import CandidatePool, RankPool, rank_pool
from rerank.scoring.scorer import Scorer, ScoringInput, ScoringResult
from rerank.scoring.timer import StageTimer
from rerank.scoring.unscored import select_scorable
from rerank.scoring.vector_cache import VectorCache
from rerank.stack.parse import retriever_depths
from rerank.stack.ranking import Ranking
from rerank.stack.relevance import check_min_score
from rerank.stack.signals import SEARCH, check_retrieves, leg_names, resolve
from rerank.stack.stack import Stack

STAGES = ("engine", "transfer", "encode", "score", "second_phase")


@dataclass(frozen=True, repr=False, kw_only=True)
class SearchResult(ScoringResult):
    """The ranking of a query, and the scores of its candidates.

    stack:              the stack with the weights for the case of the query.
    ranking:            the ranked candidates.
    found:              retriever -> number of candidates that it found.
    seconds:            stage -> its time: ``engine``, ``transfer`` (only a remote engine), ``encode``,
        ``score`` and ``second_phase``.
    unknown_categories: categories of the query that are ignored, because no signal knows them.
    without_features:   number of candidates without stored features, ``encoded`` or ``unscored``. Unscored
        candidates keep their first-stage position.
    approximate:        retrievers that may have missed some of the nearest documents.

    >>> answer = workspace.pipeline(["bm25"]).answer(Query("query", "wolf"), workspace.stack("bm25"))
    >>> answer.ranking.ids, answer.found, answer.inferred
    (['wolf'], {'bm25': 1}, False)
    """

    stack: Stack
    ranking: Ranking
    found: Mapping[str, int]
    seconds: Mapping[str, float]
    unknown_categories: tuple[str, ...]
    without_features: Mapping[str, int] = field(default_factory=dict)
    approximate: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"SearchResult({self.query.text!r}, {self.stack}, {self.ranking!r})"

    def to_json(self, hits: list[dict[str, Any]]) -> dict[str, Any]:
        """Return JSON values, as ``/v1/search`` answers them.

        hits: JSON values of the first hits, from :meth:`Pipeline.hits`.
        """
        return {
            "query": self.query.text,
            "categories": list(self.query.categories),
            "categories_inferred": self.inferred,
            "unknown_categories": list(self.unknown_categories),
            "case": self.case,
            "stack": str(self.stack),
            "normalization": self.stack.combiner.normalization,
            "candidates": len(self.ranking),
            "found": dict(self.found),
            "approximate": list(self.approximate),
            "recomputed": dict(self.recomputed),
            "unscored": self.without_features.get("unscored", 0),
            "late": self.ranking.late,
            "removed": self.ranking.removed,
            "hits": hits,
        }


@dataclass
class ResultPage(Report):
    """The first hits of an answer, which prints as a table.

    answer: with the ranking of all candidates.
    hits:   JSON values of each hit, with the ``text`` of its document.
    """

    answer: SearchResult
    hits: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return self.hits[position]

    def rows(self) -> list[dict[str, Any]]:
        """Return one table row per hit: its rank, score, id and title, and its weighted scores."""
        rows: list[dict[str, Any]] = []
        for hit in self.hits:
            row = with_keys(hit, ("rank", "score", "id", "title"))
            for name, signal in hit["signals"].items():
                row[name] = signal["weighted"]
            rows.append(row)
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values of the answer with these hits and their texts."""
        return self.answer.to_json(self.hits)


def check_filters(searches: Sequence[SearchTemplate], filters: Sequence[Filter]) -> None:
    """Raise UsageError for filters together with a search of the user, which finds all candidates."""
    if filters and searches:
        raise UsageError(
            f"{searches[0]} finds all candidates: write {filters[0]} into that search, and leave --filter out"
        )


def template_of(stack: Stack) -> SearchTemplate:
    """Return the user's search of a stack as a template.

    Raises UsageError if the stack has none, or only the results of one (a run), which has no new queries.
    """
    if stack.search is None or stack.search.kind == "run":
        tuned = f" was tuned on {stack.search}, and" if stack.search is not None else ""
        raise UsageError(
            f"the stack {stack}{tuned} needs the search that finds its candidates; give"
            f" --first-stage template:FILE"
        )
    return stack.search


@dataclass
class Pipeline:
    """Answers queries, by an engine that finds candidates and rankers that score them.

    engine:           the index.
    rankers:          name -> ranker.
    infer_categories: whether missing categories of a query are inferred from its first candidates.
    vectors:          cache of query vectors.
    rank:             ranks the scored candidates of a query.

    >>> pipeline = workspace.pipeline(["tfidf", "bm25"])
    >>> answer = pipeline.answer(Query("query", "night"), workspace.stack("tfidf*0.5 + bm25*0.5"))
    >>> answer.ranking.ids
    ['wolf', 'owl']
    """

    engine: Engine
    rankers: Mapping[str, Ranker]
    infer_categories: bool = True
    vectors: VectorCache = field(default_factory=lambda: VectorCache(0), repr=False)
    rank: RankPool = rank_pool

    def __repr__(self) -> str:
        signals = ", ".join((*self.engine.first_stages, *self.rankers))
        size = count_of(len(self.engine), "document")
        return f"Pipeline({type(self.engine).__name__}, {size}, signals {signals})"

    def scorer(self, signals: Sequence[str], first_stage: str) -> Scorer:
        """Return the scorer for these signals. Raises UsageError for an unknown signal.

        first_stage: the signal that orders the candidates.
        """
        return Scorer(
            self.engine, resolve(signals, self.rankers), first_stage, self.infer_categories, self.vectors
        )

    def retrievers(self, query: Query, names: Sequence[str]) -> list[Retriever]:
        """Return the retrievers for a query, as an engine needs them: rankers with the vector of the query.

        names: of retrievers, with or without a depth, such as ``s2net:200``.

        Raises UsageError for a ranker that cannot retrieve.
        """
        depths = retriever_depths(names)
        retrievers: list[Retriever] = []
        for signal, depth in zip(resolve(depths, self.rankers), depths.values()):
            if isinstance(signal, Ranker):
                check_retrieves(signal)
                vector = np.asarray(self.vectors.encode(signal, query), np.float32)
                retrievers.append(VectorQuery(signal.name, signal.version, vector, depth, signal.passages))
            else:
                retrievers.append(signal.name)
        return retrievers

    def answer(
        self,
        query: Query | str,
        stack: Stack,
        *,
        filters: Sequence[Filter] = (),
        min_score: float | None = None,
        timer: StageTimer | None = None,
    ) -> SearchResult:
        """Answer a query: retrieve candidates, score them, and rank them.

        query:     a query, or its text.
        filters:   conditions that each candidate meets.
        min_score: probability of relevance from 0 to 1. Documents with a smaller one are left out.
        timer:     limits the work; it may raise an exception.

        Raises UsageError for a ``min_score`` outside of 0 to 1, or a stack without probabilities.
        """
        if min_score is not None:
            check_min_score(min_score, stack.relevance)
        query = Query("query", query) if isinstance(query, str) else query
        timer = timer or StageTimer()
        scorer = self.scorer(stack.signals, stack.first_stage)
        query, unknown_categories = scorer.with_known_categories(query)
        candidates, inputs = self._retrieve(query, stack, filters, scorer, timer)
        if len(candidates):
            with timer.stage("engine"):
                inputs = scorer.load_missing_scores_and_features(query, inputs)
        selected = select_scorable(scorer, inputs, timer)
        scored = scorer.score(query, selected.inputs, timer=timer)
        retrieved_by = candidates.retrieved_by or {stack.first_stage: np.ones(len(candidates), np.bool_)}
        pool = CandidatePool(candidates.ids, selected.scorable, retrieved_by, scored)
        ranking = self.rank(stack, pool, timer, selected.inputs.reader(self.engine))
        return SearchResult(
            ids=scored.ids,
            raw=scored.raw,
            query=scored.query,
            inferred=scored.inferred,
            recomputed=scored.recomputed,
            stack=stack.for_case(scored.case),
            ranking=ranking if min_score is None else ranking.above(min_score),
            found={name: int(np.count_nonzero(rows)) for name, rows in retrieved_by.items()},
            seconds=with_keys(timer.seconds, STAGES),
            unknown_categories=unknown_categories,
            without_features=selected.without_features,
            approximate=candidates.approximate,
        )

    def _retrieve(
        self, query: Query, stack: Stack, filters: Sequence[Filter], scorer: Scorer, timer: StageTimer
    ) -> tuple[Candidates, ScoringInput]:
        template = template_of(stack) if stack.first_stage == SEARCH else None
        if template is not None:
            check_filters([template], filters)
            check_values(template, [query])
        with timer.stage("encode"):
            retrievers = self.retrievers(query, stack.retrieve)
        with timer.stage("engine"):
            request = SearchRequest(
                query.search_text(self.engine.lang),
                stack.first_stage,
                stack.depth,
                filters,
                retrievers=retrievers,
                features={} if template else scorer.features,
                template=FilledTemplate(template, query) if template else None,
                legs=leg_names(stack.signals),
            )
            candidates = self.engine.find(request)
        if candidates.took is not None:
            timer.seconds["transfer"] = max(timer.seconds["engine"] - candidates.took, 0.0)
            timer.seconds["engine"] = candidates.took
        vectors = {retriever.name: retriever.vector for retriever in request.vector_queries}
        return candidates, ScoringInput.from_candidates(candidates, stack.first_stage, vectors=vectors)

    def hits(self, answer: SearchResult, count: int, *, explain: bool = True) -> list[dict[str, Any]]:
        """Return the first ``count`` hits with the titles of their documents, as JSON values."""
        top = answer.ranking.top(count)
        documents = self.engine.get([hit.id for hit in top])
        return [hit.as_dict(document, explain=explain) for hit, document in zip(top, documents)]
