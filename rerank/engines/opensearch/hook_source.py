"""Documents of hits that the cluster sends to the hook."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rerank.engines.base import HookSource
from rerank.engines.opensearch.attached_features import AttachedFeatures
from rerank.engines.opensearch.index import FRESH
from rerank.engines.opensearch.reading import Reader
from rerank.engines.opensearch.text_rows import TextRows
from rerank.errors import EngineError
from rerank.records import Document


class ClusterHits(HookSource):
    """Knows which indices belong to the alias, and reads documents by shard and sequence number."""

    def __init__(self, reader: Reader, attached: AttachedFeatures | None) -> None:
        self._reader = reader
        self._attached = attached
        self._own: frozenset[str] = frozenset()
        self._foreign: frozenset[str] = frozenset()
        self._read_at = -math.inf

    @property
    def files(self) -> TextRows | None:
        """Rows and features of an attached index; None if the hits contain the features."""
        return None if self._attached is None else self._attached.rows

    def owned(self, uuids: Sequence[str]) -> list[bool]:
        """Return (n,) whether each index belongs to the alias.

        The alias can move, so it is read again every two seconds, and at once for a new uuid. If the cluster
        does not answer, the last answer is valid.
        """
        now = time.monotonic()
        is_old = now > self._read_at + FRESH
        if is_old or not (self._own | self._foreign).issuperset(uuids):
            self._read_at = now  # other threads continue with the last answer
            self._read(frozenset(uuids), forget=is_old)
        return [uuid in self._own for uuid in uuids]

    def _read(self, uuids: frozenset[str], *, forget: bool) -> None:
        """Read the indices of the alias. forget: indices that were foreign may belong to it now."""
        try:
            own = frozenset(self._reader.index.shape(fresh=True).uuids.values())
        except EngineError:
            if not self._own.issuperset(uuids):
                raise
            return
        self._foreign = (uuids if forget else self._foreign | uuids) - own
        self._own = own

    def documents_at(self, locations: Sequence[tuple[str, int, int]]) -> list[Document | None]:
        """Return the documents at these locations; None if a document was changed or deleted."""
        return self._reader.at(locations)
