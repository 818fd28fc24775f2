"""What the service knows of a hook's hits beside what came with them: whose they are, and their sidecar."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Engine
from rerank.engines.opensearch.sidecar import Place
from rerank.errors import UsageError
from rerank.records import Document
from rerank.scoring.scorer import INFERENCE_DEPTH
from rerank.service.bodies import HookBody, Places
from rerank.service.work import Work

_SHARE = 0.5  # of the time that is left may go into documents whose features are missing
_GUESS = 0.005  # seconds to encode a document, before one was


class Known:
    """The hits of one call, and where they are.

    ours: (n,) whether a hit is a document of the workspace's index: features belong to an index and an id.
    beside: whether the index is attached, so that features are in a sidecar.
    """

    def __init__(self, engine: Engine, body: HookBody, work: Work) -> None:
        self._engine, self._ids, self._places = engine, body.ids, body.places or Places.model_validate({})
        n, places = len(body.ids), self._places
        lengths = {len(part) for part in (places.index, places.shards, places.seq_nos, places.terms)}
        if not lengths <= {0, n} or not all(0 <= i < len(places.uuids) for i in places.index):
            raise UsageError(f"{n} ids came with places of {sorted(lengths)} hits; send one for each")
        self._indices = np.array(places.index or [0] * n, np.int64)
        owns = getattr(engine, "owns", None)
        self.ours = np.ones(n, np.bool_)
        if places.uuids and owns is not None:
            self.ours = np.array(owns(places.uuids, work.leaves), np.bool_)[self._indices]
        beside = getattr(engine, "beside", None)
        self.beside = beside is not None
        self._beside = beside if places.seq_nos else None
        self._rows: NDArray[np.int64] | None = None

    @property
    def attached(self) -> bool:
        """Whether features are in a sidecar, and the hits' places came."""
        return self._beside is not None

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row of each hit in the sidecar, -1 where it has none."""
        if self._rows is None:
            assert self._beside is not None
            sidecar, places = self._beside.sidecar, self._places
            sidecar.refresh()
            try:
                shards, numbers, terms = (
                    np.array(part, np.int64) for part in (places.shards, places.seq_nos, places.terms)
                )
            except OverflowError as error:
                raise UsageError("places have numbers of more than 64 bits") from error
            if len(places.uuids) == 1:
                self._rows = sidecar.lookup(places.uuids[0], shards, numbers, terms)
                return self._rows
            self._rows = np.full(len(self._ids), -1, np.int64)
            for i, uuid in enumerate(places.uuids):
                where = np.flatnonzero(self._indices == i)
                self._rows[where] = sidecar.lookup(uuid, shards[where], numbers[where], terms[where])
        return self._rows

    def features(self, name: str, version: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Stored features of all hits, and where there are none."""
        assert self._beside is not None
        values, missing = self._beside.sidecar.gather(name, version, self.rows)
        if values.dtype == np.float16:
            values = values.astype(np.float32)  # which rankers would do
        return values, missing

    def categories(self, scores: NDArray[np.float64]) -> dict[str, tuple[str, ...]]:
        """Id -> categories of the hits that may vote, those that are in the sidecar."""
        if self._beside is None or not len(scores):
            return {}
        depth = min(INFERENCE_DEPTH, len(scores))
        last = np.partition(scores, -depth)[-depth]
        where = np.flatnonzero((scores >= last) & (self.rows >= 0))
        found = self._beside.sidecar.categories(self.rows[where])
        return {self._ids[i]: categories for i, categories in zip(where.tolist(), found)}

    def documents(self, positions: Sequence[int]) -> list[Document | None]:
        """The documents of these hits, as they are stored; None for one that is gone."""
        if self._beside is None:
            return list(self._engine.get([self._ids[i] for i in positions]))
        places = self._places
        found: list[Document | None] = self._beside.documents(
            [
                Place(
                    places.uuids[int(self._indices[i])], places.shards[i], places.seq_nos[i], places.terms[i]
                )
                for i in positions
            ]
        )
        return found


def affordable(work: Work, timeout: float | None) -> int:
    """How many documents can be encoded in time. timeout: seconds that the caller waits at most."""
    left = work.deadline - time.monotonic()
    if timeout is not None:
        left = min(left, timeout - (time.monotonic() - work.begun))
    return max(int(_SHARE * left / work.costs.get(ENCODED, _GUESS)), 0)


ENCODED = "*"
"""Among the costs: seconds to encode a document, of all rankers together."""
