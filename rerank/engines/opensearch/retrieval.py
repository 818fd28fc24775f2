"""Searches by words or vectors, and scores of given documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import feature_width, passage_cosines
from rerank.engines.base import SearchRequest, VectorQuery, cannot_retrieve, check_signal
from rerank.engines.opensearch.attached_features import AttachedFeatures
from rerank.engines.opensearch.columns import Column, feature_key
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.filtering import Fields
from rerank.engines.opensearch.index import Index
from rerank.engines.opensearch.reading import usable
from rerank.engines.opensearch.searching import Clauses, Found, Search, Searcher, pieces
from rerank.errors import EngineError, WorkspaceError
from rerank.order import rank
from rerank.records import Candidates

_TOGETHER = 2000  # hits that one _msearch returns, about


class Retrieval:
    """Finds and scores documents. attached: the features of an attached index."""

    def __init__(self, index: Index, features: DocValueFeatures, attached: AttachedFeatures | None) -> None:
        self._attached = attached
        self._index, self._features = index, features
        self._settings, self._layout = index.settings, index.layout
        self._searcher = Searcher(index)
        self.fields = Fields(index)

    def search(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        """Search for one batch of requests; see :func:`batches`.

        A second request to the cluster gets first-stage scores if the first one cannot.
        """
        one = requests[0]
        one.check(self._layout.first_stages)
        found_by = {query.name: query.version for query in one.vector_queries}
        wanted = self._wanted({**({} if self._attached else one.features), **found_by})
        columns = {query.name: self._prepared(query) for query in one.vector_queries}
        keys, kept = list(wanted.values()), self.fields.clauses(one.filters)
        depths = [one.depth for _ in one.signals] + [query.depth or one.depth for query in one.vector_queries]
        together = max(1, _TOGETHER // sum(depths))
        for i in range(0, len(requests), together):
            some = [replace(request, text=_encodable(request.text)) for request in requests[i : i + together]]
            searches = [self._searches(request, columns, kept) for request in some]
            flat = [search for of_request in searches for search in of_request]
            texts = [request.text for request, of in zip(some, searches) for _ in of]
            answers = iter(self._searcher.find(flat, texts, keys))
            for request, of in zip(some, searches):
                hits = [next(answers) for _ in of]
                parts = self._parts(request, hits, columns, wanted, kept)
                yield self._union(parts, request, wanted)

    def _searches(self, request: SearchRequest, columns: Mapping[str, Column], kept: Clauses) -> list[Search]:
        """The searches of a request, by signal, then by vector."""
        lexical = [
            self._searcher.lexical(request.text, signal, request.depth, kept) for signal in request.signals
        ]
        return lexical + [
            self._searcher.nearest(query, columns[query.name], request, request.text, kept)
            for query in request.vector_queries
        ]

    def _parts(
        self,
        request: SearchRequest,
        hits: Sequence[Found | None],
        columns: Mapping[str, Column],
        wanted: Mapping[str, str],
        kept: Clauses,
    ) -> dict[str, Found]:
        """Retriever -> its hits, cut to its depth."""
        keys = list(wanted.values())
        parts: dict[str, Found] = {}
        for signal, found in zip(request.signals, hits):
            found = found or self._best_of_pieces(request, signal, keys, kept)
            parts[signal] = found.pick(rank(found.ids, np.array(found.scores))[: request.depth].tolist())
        for query, found in zip(request.vector_queries, hits[len(request.signals) :], strict=True):
            column = columns[query.name]
            if found is None:  # more words than a query may have: search without them
                search = self._searcher.nearest(query, column, request, None, kept)
                (found,) = self._searcher.find([search], [request.text], keys)
                assert found is not None
                found = found._replace(scores=[])
            elif column.vectors == "exact":
                found = found._replace(scores=[])
            parts[query.name] = self._products(found, query, wanted[query.name], query.depth or request.depth)
        return parts

    def _prepared(self, one: VectorQuery) -> Column:
        column = self._features.searchable(one.name, one.version)
        if column is None:
            raise cannot_retrieve(one.name)
        expected = feature_width(one.passages, len(one.vector))
        if column.width != expected:
            raise WorkspaceError(
                f"the stored {one.name} features have {column.width} numbers, not {expected};"
                f" train {one.name} again"
            )
        return column

    def _best_of_pieces(
        self, request: SearchRequest, signal: str, keys: Sequence[str], kept: Clauses
    ) -> Found:
        """The best hits of a long text: all hits of its pieces are scored."""
        texts = pieces(request.text)
        searches = [self._searcher.lexical(text, signal, request.depth, kept) for text in texts]
        ids: set[str] = set()
        for hits in self._searcher.find(searches, texts, ()):
            if hits is None:
                raise _too_long(request.text)
            ids.update(hits.ids)
        scores = dict(zip(ids, self._scores(request.text, list(ids), signal).tolist()))
        best = sorted(ids, key=lambda id: (-scores[id], id))[: request.depth]
        found = self._searcher.among(best, "", signal, keys)
        assert found is not None
        return found._replace(scores=[scores[id] for id in found.ids])

    def _products(self, found: Found, one: VectorQuery, key: str, depth: int) -> Found:
        """The hits with the largest positive products."""
        values, _ = self._features.columns[key].decode(found.features[key])
        vector = one.vector.astype(np.float64)
        if one.passages:
            exact = passage_cosines(vector, values, one.passages).max(axis=1)
        else:
            exact = values.astype(np.float64) @ vector
        products = exact.astype(np.float32)
        order = [i for i in rank(found.ids, products).tolist() if products[i] > 0]
        return found.pick(order[:depth])

    def _union(
        self, parts: Mapping[str, Found], request: SearchRequest, wanted: Mapping[str, str]
    ) -> Candidates:
        """The hits of all retrievers, with first-stage scores."""
        if not request.retrievers:
            (part,) = parts.values()
            return self._candidates(part, request.features, wanted)
        scores: dict[str, float] = {}
        for name, part in parts.items():
            if part.scores and (name == request.first_stage or name not in self._layout.first_stages):
                scores.update(zip(part.ids, part.scores))
        ids = list(dict.fromkeys(id for part in parts.values() for id in part.ids))
        unscored = [id for id in ids if id not in scores]
        if unscored:
            scores |= zip(unscored, self._scores(request.text, unscored, request.first_stage).tolist())
        versions = {id: one for part in parts.values() for id, one in zip(part.ids, part.versions)}
        texts = {
            key: {id: text for part in parts.values() for id, text in zip(part.ids, part.features[key])}
            for key in wanted.values()
        }
        found = Found(
            ids,
            [scores[id] for id in ids],
            {key: [some[id] for id in ids] for key, some in texts.items()},
            max(part.took for part in parts.values()),
            [versions[id] for id in ids if id in versions],
        )
        found = found.pick(rank(ids, np.array(found.scores)).tolist())
        members = {name: set(part.ids) for name, part in parts.items()}
        by = {name: np.array([id in some for id in found.ids], np.bool_) for name, some in members.items()}
        return replace(self._candidates(found, request.features, wanted), retrieved_by=by)

    def select(self, request: SearchRequest) -> Candidates:
        """Score and order the requested documents."""
        request.check(self._layout.first_stages)
        wanted = self._wanted({} if self._attached else request.features)
        ids = [id for id in dict.fromkeys(request.ids or ()) if usable(id)]
        text = _encodable(request.text)
        found = self._searcher.among(ids, text, request.first_stage, list(wanted.values()))
        if found is None:
            raise _too_long(text)
        found = found.pick(rank(found.ids, np.array(found.scores)).tolist())
        return self._candidates(found, request.features, wanted)

    def score(self, text: str, signal: str, candidates: Candidates) -> NDArray[np.float64]:
        """Score candidates; see :meth:`Engine.score`."""
        check_signal(signal, self._layout.first_stages)
        return self._scores(_encodable(text), candidates.ids, signal)

    def _scores(self, text: str, ids: Sequence[str], signal: str) -> NDArray[np.float64]:
        """(n,) scores. Long texts are summed over pieces."""
        for texts in ([text], pieces(text)):
            scores = dict.fromkeys(ids, 0.0)
            for piece in texts:
                found = self._searcher.among(ids, piece, signal, matching=True)
                if found is None:
                    break
                for id, score in zip(found.ids, found.scores):
                    scores[id] += score
            else:
                return np.array([scores[id] for id in ids], np.float64)
        raise _too_long(text)

    def _candidates(self, found: Found, features: Mapping[str, str], wanted: Mapping[str, str]) -> Candidates:
        ids, scores = found.ids, np.array(found.scores, np.float64)
        values: dict[str, NDArray[Any]] = {}
        missing: dict[str, NDArray[np.bool_]] = {}
        if self._attached and features:
            values, missing = self._attached.read(features, ids, found.versions)
        for name in () if self._attached else features:
            if name in wanted:
                texts = found.features[wanted[name]]
                values[name], missing[name] = self._features.columns[wanted[name]].decode(texts)
            else:
                values[name] = np.empty((len(ids), 0), np.float32)
                missing[name] = np.ones(len(ids), np.bool_)
        return Candidates(ids, scores, np.arange(len(ids), dtype=np.int64), values, missing, took=found.took)

    def _wanted(self, features: Mapping[str, str]) -> dict[str, str]:
        """Ranker -> key of features in the requested version."""
        keys = {name: feature_key(name, version) for name, version in features.items()}
        if any(key not in self._features.columns for key in keys.values()):
            self._features.stored()
        return {name: key for name, key in keys.items() if key in self._features.columns}


def _too_long(text: str) -> EngineError:
    return EngineError(
        f"a query of {len(text):,} characters has more terms than OpenSearch accepts"
        " (indices.query.bool.max_clause_count); shorten it"
    )


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()
