"""OpenSearchEngine: documents, text index and features in an OpenSearch cluster.

The name a user gives is an alias; behind it stands an index NAME-000001. Documents that come into an empty
collection, or replace it, go into a new index, and the alias moves when that is complete. Later changes
are written in place.

index.py connects and makes it, reading.py reads documents, encoding.py features, writing.py ingests; this
file searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import FIRST_STAGES, Engine
from rerank.engines.opensearch.connection import Settings, check
from rerank.engines.opensearch.layout import Adopted, feature_key
from rerank.engines.opensearch.reading import usable
from rerank.engines.opensearch.searching import Found, pieces
from rerank.engines.opensearch.writing import Writing
from rerank.errors import EngineError, UsageError
from rerank.order import rank
from rerank.records import Candidates

_TOGETHER = 2000  # hits that one _msearch returns, about


class OpenSearchEngine(Writing, Engine):
    """Documents, text index and features in a cluster.

    folder: where an ingest that was interrupted waits to be finished.

    Sharding decides what idf counts: each shard uses its own statistics, unless ``search_type`` is
    ``dfs_query_then_fetch``.
    """

    @classmethod
    def create(cls, settings: Settings, folder: Path, lang: str | None = None) -> OpenSearchEngine:
        """Make an empty index behind the alias ``settings.index``.

        Raises EngineError when there is an index of that name already.
        """
        engine = cls(settings, folder, lang=lang)
        check(engine._client, settings)
        if engine.indices():
            raise EngineError(
                f"{settings.where} has an index {settings.index!r} already; choose another name,"
                " `rerank attach` it as it is, or open the workspace that made it"
            )
        with engine._asking("making the index"):
            engine._new_index(f"{settings.index}-000001", alias=True)
        return engine

    @classmethod
    def open(
        cls,
        settings: Settings,
        folder: Path,
        lang: str | None = None,
        fields: Mapping[str, Sequence[str]] | None = None,
    ) -> OpenSearchEngine:
        """Use an index; ``fields`` are those of one that rerank has not made (see ``rerank attach``).

        Nothing is asked of the cluster before it is needed.
        """
        return cls(settings, folder, Adopted(fields) if fields else None, lang)

    def search(
        self, text: str, *, first_stage: str, depth: int, features: Mapping[str, str] | None = None
    ) -> Candidates:
        """Retrieve the ``depth`` best documents; see :meth:`Engine.search`."""
        return next(self.search_many([text], first_stage=first_stage, depth=depth, features=features))

    def search_many(
        self, texts: Sequence[str], *, first_stage: str, depth: int, features: Mapping[str, str] | None = None
    ) -> Iterator[Candidates]:
        """Search for many texts with few requests; see :meth:`Engine.search_many`."""
        self._check(first_stage, depth)
        wanted = self._wanted(features)
        together = max(1, _TOGETHER // depth)
        for i in range(0, len(texts), together):
            some = [_encodable(text) for text in texts[i : i + together]]
            for text, found in zip(some, self._searcher.top(some, first_stage, depth, list(wanted.values()))):
                if found is None:
                    yield self._search_long(text, first_stage, depth, features)
                else:
                    yield self._candidates(found, depth, features or {}, wanted)

    def select(
        self, text: str, ids: Sequence[str], *, first_stage: str, features: Mapping[str, str] | None = None
    ) -> Candidates:
        """Score and order the given documents; see :meth:`Engine.select`."""
        self._check(first_stage, 1)
        wanted = self._wanted(features)
        keys = list(wanted.values())
        known = [id for id in dict.fromkeys(ids) if usable(id)]
        everything = Found([], [], {key: [] for key in keys}, 0.0)
        for found in self._searcher.among(known, _encodable(text), first_stage, keys, matching=False):
            if found is None:
                raise self._too_long(text)
            everything.ids.extend(found.ids)
            everything.scores.extend(found.scores)
            for key in keys:
                everything.features[key].extend(found.features[key])
        there = set(everything.ids)
        for id in ids:
            if id not in there:
                raise KeyError(id)
        return self._candidates(everything, len(there), features or {}, wanted)

    def lexical(self, text: str, candidates: Candidates, signal: str) -> NDArray[np.float64]:
        """Score candidates of a search; see :meth:`Engine.lexical`."""
        self._check(signal, 1)
        text = _encodable(text)
        scores = self._lexical(text, candidates.ids, signal)
        if scores is None:
            scores = self._lexical_long(text, candidates.ids, signal)
        return scores

    def _lexical(self, text: str, ids: Sequence[str], signal: str) -> NDArray[np.float64] | None:
        """Scores of the documents; None for a text of too many terms."""
        scores: dict[str, float] = {}
        for found in self._searcher.among(ids, text, signal, (), matching=True):
            if found is None:
                return None
            scores.update(zip(found.ids, found.scores))
        return np.array([scores.get(id, 0.0) for id in ids], np.float64)

    def _lexical_long(self, text: str, ids: Sequence[str], signal: str) -> NDArray[np.float64]:
        total = np.zeros(len(ids))
        for piece in pieces(text):
            scores = self._lexical(piece, ids, signal)
            if scores is None:
                raise self._too_long(text)
            total += scores
        return total

    def _search_long(
        self, text: str, stage: str, depth: int, features: Mapping[str, str] | None
    ) -> Candidates:
        """Search with more terms than OpenSearch takes at once: piece by piece, and the scores added up."""
        tops = list(self._searcher.top(pieces(text), stage, depth, ()))
        if None in tops:
            raise self._too_long(text)
        ids = sorted({id for found in tops if found is not None for id in found.ids})
        scores = self._lexical_long(text, ids, stage)
        best = rank(ids, scores)[:depth].tolist()
        chosen = self.select("", [ids[i] for i in best], first_stage=stage, features=features)
        place = {id: i for i, id in enumerate(chosen.ids)}
        order = np.array([place[ids[i]] for i in best], np.int64)
        return Candidates(
            [ids[i] for i in best],
            scores[best],
            chosen.rows,
            {name: values[order] for name, values in chosen.features.items()},
            {name: values[order] for name, values in chosen.missing.items()},
        )

    def _candidates(
        self, found: Found, depth: int, features: Mapping[str, str], wanted: Mapping[str, str]
    ) -> Candidates:
        """Settle ties by id, cut, and decode the features."""
        ids, scores = found.ids, np.array(found.scores, np.float64)
        order: list[int] | None = rank(ids, scores).tolist()
        if order == list(range(len(ids))) and len(ids) <= depth:
            order = None
        else:
            order = order[:depth] if order is not None else None
            ids, scores = [ids[i] for i in order or ()], scores[order]
        values, missing = {}, {}
        for name in features:
            if name in wanted:
                texts = found.features[wanted[name]]
                texts = texts if order is None else [texts[i] for i in order]
                values[name], missing[name] = self._columns[wanted[name]].decode(texts)
            else:
                values[name] = np.empty((len(ids), 0), np.float32)
                missing[name] = np.ones(len(ids), np.bool_)
        return Candidates(ids, scores, np.arange(len(ids), dtype=np.int64), values, missing, took=found.took)

    def _wanted(self, features: Mapping[str, str] | None) -> dict[str, str]:
        """Ranker -> key of the features that are stored in the version asked for."""
        keys = {name: feature_key(name, version) for name, version in (features or {}).items()}
        if any(key not in self._columns for key in keys.values()):
            self._stored()
        return {name: key for name, key in keys.items() if key in self._columns}

    def _too_long(self, text: str) -> EngineError:
        return EngineError(
            f"a query of {len(text):,} characters has more terms than OpenSearch takes"
            " (indices.query.bool.max_clause_count); shorten it"
        )

    def _check(self, signal: str, depth: int) -> None:
        if signal not in FIRST_STAGES:
            raise UsageError(f"{signal!r} is no first stage; choose one of {', '.join(self.first_stages)}")
        if signal not in self.first_stages:
            raise UsageError(
                f"index {self.settings.index!r} has no {signal} (only indices that rerank makes do); use"
                f" {', '.join(self.first_stages)}"
            )
        if depth < 1:
            raise UsageError(f"a depth of {depth} retrieves nothing; choose at least 1")


def _encodable(text: str) -> str:
    """Replace lone surrogates, which only a query can hold."""
    return text if text.isascii() else text.encode(errors="replace").decode()
