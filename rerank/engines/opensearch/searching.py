"""Searches that return ids, scores and features in one answer.

In the indices that rerank makes, hits are sorted by score and ``id``: ties are settled by the cluster
before anything is cut, the sort values are the ids, and no stored field has to be read (a thousand ids come
in two thirds of the time).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch.columns import FEATURES
from rerank.engines.opensearch.errors import asking, explain
from rerank.engines.opensearch.index import NO_PIPELINE, Index
from rerank.text import words

_DOING = "searching"
COPIES = 64  # among so many preferences the copies of a shard are shared out
_PIECE = 500  # words of a long query that are sent at once; OpenSearch takes 1,024 terms


class Found(NamedTuple):
    """Hits of one search.

    features: feature key -> Base64 of each hit, None: no feature. took: seconds measured by the cluster.
    versions: index, sequence number and primary term of each hit, of an attached index.
    """

    ids: list[str]
    scores: list[float]
    features: dict[str, list[str | None]]
    took: float
    versions: Sequence[tuple[str, int, int]] = ()


Clauses = Sequence[Mapping[str, Any]]
"""Queries that hits must match. They do not change scores."""


def only(query: Mapping[str, Any], kept: Clauses) -> Mapping[str, Any]:
    """A query with the same scores, limited to hits that match all clauses."""
    return {"bool": {"must": [query], "filter": list(kept)}} if kept else query


class Search(NamedTuple):
    """A query, and how many hits are wanted."""

    query: Mapping[str, Any]
    size: int


class Searcher:
    """Sends searches to one index."""

    def __init__(self, index: Index) -> None:
        self._index, self._client = index, index.client
        self._settings, self._layout = index.settings, index.layout

    @property
    def window(self) -> int:
        """How many hits the index returns at once."""
        return self._index.shape().window

    @property
    def shards(self) -> int:
        """How many shards a search goes to."""
        return self._index.shape().shards

    def top(
        self,
        texts: Sequence[str],
        signals: Sequence[str],
        depth: int,
        keys: Sequence[str],
        vector_searches: Sequence[Sequence[Search]] = (),
        kept: Clauses = (),
    ) -> Iterator[list[Found | None]]:
        """For each text, the ``depth`` best hits by each signal and, where the cluster does not settle ties,
        those tied with the last; then the hits of its vector searches. None: a text of too many terms.

        All go in one request. keys: the features to return. vector_searches: some for each text.
        kept: what every hit must match.
        """
        by_id = self._layout.has_id
        size = depth if by_id or depth >= self.window else min(depth + 1 + min(depth // 8, 32), self.window)
        searches: list[list[Search]] = []
        for i, text in enumerate(texts):
            lexical = [Search(only(self._layout.query(text, signal), kept), size) for signal in signals]
            searches.append(lexical + list(vector_searches[i] if vector_searches else ()))
        flat = [(search, text) for some, text in zip(searches, texts) for search in some]
        answers = iter(self.find([search for search, _ in flat], [text for _, text in flat], keys))
        for some, text in zip(searches, texts, strict=True):
            hits = [next(answers) for _ in some]
            for i in range(0 if by_id else len(signals)):
                hits[i] = self._widened(some[i], text, depth, keys, hits[i])
            yield hits

    def _widened(
        self, search: Search, text: str, depth: int, keys: Sequence[str], found: Found | None
    ) -> Found | None:
        """Search for more hits until all ties with the ``depth``-th hit are included."""
        wide = search.size
        while found and len(found.ids) == wide > depth and found.scores[-1] == found.scores[depth - 1]:
            if wide == self.window:
                break  # more ties than the index returns: those it returns are as good as any
            wide = min(4 * wide, self.window)
            (found,) = self.find([Search(search.query, wide)], [text], keys)
        return found

    def nearest(
        self,
        field: tuple[str, str],
        how: str,
        vector: Sequence[float],
        text: str | None,
        signal: str,
        depth: int,
        kept: Clauses = (),
    ) -> Search:
        """Return the search for the nearest vectors; with a ``text``, its hits have the scores of ``signal``.

        field: the field of vectors, and the nested one that it is in, or nothing; of several vectors in a
            document the nearest counts.
        how: ``hnsw`` or ``exact``. By ``exact``, the text has no say, and a score is the similarity's. By
        ``hnsw``, every shard returns its nearest, so that there may be more than ``depth``.
        """
        name, path = field

        def inside(query: dict[str, Any]) -> dict[str, Any]:
            return {"nested": {"path": path, "query": query, "score_mode": "max"}} if path else query

        if how == "exact":
            values = {"field": name, "query_value": list(vector), "space_type": "innerproduct"}
            script = {"source": "knn_score", "lang": "knn", "params": values}
            query = {"bool": {"filter": {"exists": {"field": name}}}}
            scored = inside({"script_score": {"query": query, "script": script}})
            return Search(only(scored, kept), min(depth, self.window))
        # A shard holds its share of the nearest, and some more or less.
        count = min(depth, 2 * depth // self.shards + 100, self.window)
        # Within the graph's search, so that its nearest are of those; and outside, whatever it makes of that.
        inner = {"filter": {"bool": {"filter": list(kept)}}} if kept else {}
        near = inside({"knn": {name: {"vector": list(vector), "k": count, **inner}}})
        should = [] if text is None else [self._layout.query(text, signal)]
        return Search(
            {"bool": {"filter": [near, *kept], "should": should}}, min(self.shards * count, self.window)
        )

    def among(
        self, ids: Sequence[str], text: str, signal: str, keys: Sequence[str], *, matching: bool
    ) -> Iterator[Found | None]:
        """Hits among the given documents. matching: only documents that share a term with ``text``."""
        kind = "must" if matching else "should"
        for i in range(0, len(ids), self.window):
            some = list(ids[i : i + self.window])
            query = {"bool": {"filter": {"ids": {"values": some}}, kind: self._layout.query(text, signal)}}
            yield from self.find([Search(query, len(some))], [text], keys)

    def find(
        self, searches: Sequence[Search], texts: Sequence[str], keys: Sequence[str]
    ) -> list[Found | None]:
        """Send one ``_search``, or one ``_msearch`` for several."""
        bodies = [self._body(query, size, keys, self._layout.has_id) for query, size in searches]
        found = []
        for body, text, answer in zip(bodies, texts, self._send(bodies, texts), strict=True):
            hits = None if answer is None else _found(answer, keys, self._layout.has_id)
            if answer is not None and hits is None:  # documents that somebody has indexed without an `id`
                plain = [self._body(body["query"], body["size"], keys, False)]
                (answer,) = self._send(plain, [text])
                hits = None if answer is None else _found(answer, keys, False)
            found.append(hits)
        return found

    def _body(self, query: Mapping[str, Any], size: int, keys: Sequence[str], by_id: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "query": query,
            "size": size,
            "track_total_hits": False,
            "search_pipeline": NO_PIPELINE,
        }
        if by_id:
            body.update(stored_fields="_none_", sort=[{"_score": "desc"}, {"id": "asc"}])
        else:
            body["_source"] = False
            body["seq_no_primary_term"] = not self._layout.has_id
        if keys:
            body["docvalue_fields"] = [f"{FEATURES}.{key}" for key in keys]
        return body

    def _send(
        self, bodies: Sequence[dict[str, Any]], texts: Sequence[str]
    ) -> Iterator[dict[str, Any] | None]:
        # The same text goes to the same copy of a shard: copies differ in deleted documents, and so in idf.
        options = [
            {
                "preference": f"rerank-{zlib.crc32(text.encode()) % COPIES}",
                "search_type": self._settings.search_type,
                "allow_partial_search_results": "false",
            }
            for text in texts
        ]
        if len(bodies) == 1:
            yield self._ask(bodies[0], options[0])
            return
        lines: list[Any] = []
        for option, body in zip(options, bodies):
            lines += [{**option, "index": self._settings.index}, body]
        with asking(self._settings, _DOING):
            answers = self._client.msearch(body=lines)["responses"]
        for body, option, answer in zip(bodies, options, answers, strict=True):
            yield self._ask(body, option) if "error" in answer else answer

    def _ask(self, body: dict[str, Any], option: dict[str, str]) -> dict[str, Any] | None:
        """Send one search; None when it has too many terms."""
        for again in (True, False):
            try:
                answer: dict[str, Any] = self._client.search(
                    index=self._settings.index, body=body, params=option
                )
                return answer
            except client_errors.OpenSearchException as error:
                if _too_many_terms(error):
                    return None
                status = getattr(error, "status_code", None)
                # A node that dies takes the searches on its shards with it; their copies answer the next one.
                if not (again and isinstance(status, int) and status >= 500):
                    raise explain(error, self._settings, _DOING) from error
        raise AssertionError


def _found(answer: Mapping[str, Any], keys: Sequence[str], by_id: bool) -> Found | None:
    """Take ids, scores and features from an answer; None when a hit has no ``id``."""
    hits = answer["hits"]["hits"]
    if by_id:
        ids = [hit["sort"][1] for hit in hits]
        scores = [hit["sort"][0] for hit in hits]
        if None in ids:
            return None
    else:
        ids = [hit["_id"] for hit in hits]
        scores = [hit["_score"] for hit in hits]
    features: dict[str, list[str | None]] = {}
    for key in keys:
        field = f"{FEATURES}.{key}"
        features[key] = [
            fields[field][0] if (fields := hit.get("fields")) and field in fields else None for hit in hits
        ]
    versions = [(hit["_index"], hit["_seq_no"], hit["_primary_term"]) for hit in hits if "_seq_no" in hit]
    return Found(ids, scores, features, answer["took"] / 1000, versions)


def _too_many_terms(error: client_errors.OpenSearchException) -> bool:
    text = str(getattr(error, "info", ""))
    return ("too_many" in text and "clause" in text) or "maxClauseCount" in text


def pieces(text: str) -> list[str]:
    """Cut a long query's words into queries that OpenSearch takes; their scores add up to its score.

    >>> [len(piece.split()) for piece in pieces("word " * 1200)]
    [500, 500, 200]
    """
    found = words(text)
    return [" ".join(found[i : i + _PIECE]) for i in range(0, len(found), _PIECE)]
