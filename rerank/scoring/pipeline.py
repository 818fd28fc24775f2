"""The query path: query -> candidates with features -> one column of scores a signal -> ranking.

NumPy only; nothing here imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import FIRST_STAGES, Engine, Nearest, Retriever
from rerank.errors import UsageError
from rerank.graph.categories import infer_categories
from rerank.rankers.base import Ranker
from rerank.records import Candidates, Query
from rerank.stack.parse import retriever_depths
from rerank.stack.ranking import Ranking
from rerank.stack.stack import Stack

INFERENCE_DEPTH = 10
"""First candidates whose categories vote for those of a query that brings none."""


@dataclass(frozen=True)
class Answer:
    """A ranking and how it came about.

    query:      with the categories that were used, given or inferred.
    inferred:   True when the categories were inferred from the first candidates.
    found:      retriever -> how many candidates it found.
    recomputed: ranker -> candidates whose stored features were missing or of another version, and were
                computed from the document instead.
    seconds:    stage -> time taken: ``engine`` (retrieval and features), ``transfer`` (the answer of a
                distant engine, and unpacking it), ``encode`` (the query), ``score``.
    """

    query: Query
    ranking: Ranking
    inferred: bool
    found: Mapping[str, int]
    recomputed: Mapping[str, int]
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Pipeline:
    """An engine and the rankers whose signals can be asked for.

    infer_categories: guess the categories of queries that bring none from their first candidates.
    """

    engine: Engine
    rankers: Mapping[str, Ranker]
    infer_categories: bool = True

    def features(self, signals: Sequence[str]) -> dict[str, str]:
        """Ranker -> version of the features that these signals need."""
        return {name: self.rankers[name].version for name in signals if name not in FIRST_STAGES}

    def retrievers(
        self, queries: Sequence[Query], names: Sequence[str]
    ) -> tuple[list[Retriever], dict[str, NDArray[np.float32]]]:
        """What the engine is to retrieve with for these queries.

        Returns also the queries' vectors, ranker -> (Q, width). Categories are not inferred for them: they
        come from candidates.

        Raises UsageError for a ranker that cannot retrieve.
        """
        retrievers: list[Retriever] = []
        encoded: dict[str, NDArray[np.float32]] = {}
        for name, depth in retriever_depths(names).items():
            if name in FIRST_STAGES:
                retrievers.append(name)
                continue
            ranker = self.rankers[name]
            check_retrieves(ranker)
            encoded[name] = np.array([ranker.encode_query(query) for query in queries], np.float32)
            retrievers.append(Nearest(name, ranker.version, encoded[name], depth, ranker.fragments))
        return retrievers, encoded

    def answer(self, query: Query, stack: Stack) -> Answer:
        """Retrieve, score and order the candidates of one query."""
        first = time.perf_counter()
        retrieve, encoded = self.retrievers([query], stack.retrieve)
        begin = time.perf_counter()
        candidates = self.engine.search(
            query.text,
            first_stage=stack.first_stage,
            depth=stack.depth,
            features=self.features(stack.signals),
            retrieve=retrieve,
        )
        searched = time.perf_counter()
        raw, used, recomputed, encoding = self.score(
            query,
            candidates,
            stack.signals,
            stack.first_stage,
            encoded={name: vectors[0] for name, vectors in encoded.items()},
        )
        found = candidates.found or {stack.first_stage: np.ones(len(candidates), np.bool_)}
        ranking = stack.rank(candidates.ids, raw, found)
        done = time.perf_counter()
        seconds = {"engine": searched - begin}
        if candidates.took is not None:
            transfer = max(searched - begin - candidates.took, 0.0)
            seconds = {"engine": candidates.took, "transfer": transfer}
        seconds |= {"encode": begin - first + encoding, "score": done - searched - encoding}
        counts = {name: int(np.count_nonzero(where)) for name, where in found.items()}
        return Answer(used, ranking, used.categories != query.categories, counts, recomputed, seconds)

    def score(
        self,
        query: Query,
        candidates: Candidates,
        signals: Sequence[str],
        first_stage: str,
        *,
        voters: Candidates | None = None,
        encoded: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> tuple[NDArray[np.float64], Query, dict[str, int], float]:
        """Score the candidates by each signal.

        voters: what a query's missing categories are inferred from; None: from the candidates.
        encoded: ranker -> vector of the query as it came, where that is known.

        Returns (n, S) raw scores, the query with the categories that were used, how many features had to
        be recomputed for each ranker, and the seconds spent on encoding the query.
        """
        raw = np.zeros((len(candidates), len(signals)), dtype=np.float64)
        recomputed: dict[str, int] = {}
        encoding = 0.0
        voters = candidates if voters is None else voters
        used = self.with_categories(query, voters, signals) if len(voters) else query
        for column, name in enumerate(signals if len(candidates) else ()):
            if name == first_stage:
                raw[:, column] = candidates.scores
            elif name in FIRST_STAGES:
                raw[:, column] = self.engine.lexical(query.text, candidates, name)
            else:
                ranker = self.rankers[name]
                features, count = self._features(ranker, candidates)
                if count:
                    recomputed[name] = count
                begin = time.perf_counter()
                vector = (encoded or {}).get(name)
                if vector is None or (used is not query and ranker.uses_categories):
                    vector = ranker.encode_query(used)
                encoding += time.perf_counter() - begin
                raw[:, column] = ranker.score(vector, features)
        return raw, used, recomputed, encoding

    def infers(self, query: Query, signals: Sequence[str]) -> bool:
        """Whether the query's categories are to be inferred: it brings none, and a signal reads them."""
        needed = any(name in self.rankers and self.rankers[name].uses_categories for name in signals)
        return needed and self.infer_categories and not query.categories

    def with_categories(self, query: Query, candidates: Candidates, signals: Sequence[str]) -> Query:
        """Infer the query's categories if it brings none and a signal reads them."""
        if not self.infers(query, signals):
            return query
        first = self.engine.get(candidates.ids[:INFERENCE_DEPTH])
        ranked = [
            (score, d.categories)
            for score, d in zip(candidates.scores.tolist(), first)
            if d is not None and score > 0  # what only other retrievers found has no score to vote with
        ]
        return replace(query, categories=infer_categories(ranked))

    def _features(self, ranker: Ranker, candidates: Candidates) -> tuple[NDArray[np.generic], int]:
        features = candidates.features[ranker.name]
        missing = candidates.missing[ranker.name]
        count = int(missing.sum())
        if not count:
            return features, 0
        where = np.flatnonzero(missing)
        documents = [d for d in self.engine.get([candidates.ids[i] for i in where.tolist()]) if d is not None]
        fresh = ranker.encode_documents(documents)
        if features.shape[1:] != fresh.shape[1:] or features.dtype != fresh.dtype:
            features = np.zeros((len(candidates), *fresh.shape[1:]), dtype=fresh.dtype)
        else:
            features = features.copy()
        features[where] = fresh
        return features, count


def check_retrieves(ranker: Ranker) -> None:
    """Raise UsageError for a ranker that is no retriever."""
    if not ranker.retrieves:
        raise UsageError(
            f"ranker {ranker.name} cannot retrieve: its score is no inner product of two vectors; leave it"
            " out of --retrieve"
        )
