"""The limits of one request, the measured costs of encoding, and the notes for log and counters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rerank.common.errors import UsageError
from rerank.documents.text import count_of
from rerank.scoring.timer import StageTimer
from rerank.service.ubi_log import SearchRecord

_MEMORY = 0.8  # weight of earlier documents in the mean cost
_RELIEF = 0.9  # factor of a cost that refused work, so that one slow moment does not refuse work forever
_FIRST_GUESS = 2.5e-6  # seconds to encode a character, before the first measurement
_TYPICAL_SIZE = 2000  # characters of a document that was not read yet
_SHARE = 0.5  # of the remaining time, for documents without features or a second phase


class DeadlineError(Exception):
    """A request has no time left, or its client is gone."""


class EncodingCosts:
    """Mean seconds that each ranker needs per character of a document, measured in this process."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._loaded: set[str] = set()

    def add(self, ranker: str, characters: int, seconds: float) -> None:
        """Note a measurement. The first one of a ranker is ignored, because it also loads the model.

        ranker: its name. characters: number of encoded characters. seconds: the time for all of them.
        """
        if ranker not in self._loaded:
            self._loaded.add(ranker)
            return
        current = seconds / characters
        earlier = self._seconds.get(ranker, current)
        self._seconds[ranker] = current + _MEMORY * (earlier - current)

    def estimate(self, rankers: Iterable[str], characters: int) -> float:
        """Return the seconds that these rankers need together to encode so many characters.

        It is 0 before the first measurement.
        """
        return characters * sum(self._seconds.get(ranker, 0.0) for ranker in rankers)

    def relax(self, rankers: Iterable[str]) -> None:
        """Lower the costs of these rankers, because they refused work."""
        for ranker in rankers:
            if ranker in self._seconds:
                self._seconds[ranker] *= _RELIEF


@dataclass
class RequestContext(StageTimer):
    """The limits of one request, and notes for the log.

    deadline, begun: ``time.monotonic`` seconds.
    max_candidates, max_encoded: see :class:`Settings`.
    costs:         shared by all requests of the process.
    cancelled:     the client is gone, so the work stops.
    seconds:       stage -> seconds.
    missing:       ranker -> features fetched or computed.
    unscored:      reason -> hits.
    without_features: hits ``encoded`` or ``unscored``.
    passed:        why hits keep their order.
    late:          whether the second phase took too long.
    timeout:       seconds that the client waits.
    logs_searches: whether searches are written to a file, so that ids of hits are needed.
    record:        the search, for this file.
    """

    deadline: float
    max_candidates: int
    max_encoded: int = 0
    costs: EncodingCosts = field(default_factory=EncodingCosts)
    cancelled: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    candidates: int | None = None
    begun: float = field(default_factory=time.monotonic)
    missing: dict[str, int] = field(default_factory=dict)
    unscored: dict[str, int] = field(default_factory=dict)
    without_features: dict[str, int] = field(default_factory=dict)
    passed: str | None = None
    late: bool = False
    timeout: float = math.inf
    query: str | None = None
    logs_searches: bool = False
    record: SearchRecord | None = None

    def check(self) -> None:
        """Raise DeadlineError if the time for the request is over, or if its client is gone."""
        if self.cancelled or time.monotonic() > self.deadline:
            raise DeadlineError

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of the block as a stage. Raises DeadlineError before it; see :meth:`check`."""
        self.check()
        with super().stage(name):
            yield

    def check_count(self, count: int, noun: str) -> None:
        """Note the number of candidates of the request. noun: their name, for messages.

        Raises UsageError for more candidates than the service takes.
        """
        if count > self.max_candidates:
            raise UsageError(f"{count:,} {noun}, but this service takes {self.max_candidates:,}; send fewer")
        self.candidates = count

    def check_encoding(self, rankers: Iterable[str], documents: int, characters: int) -> None:
        """Raise UsageError if these documents of the request cannot be encoded before the deadline."""
        names = tuple(rankers)
        needed = self.costs.estimate(names, characters)
        remaining = self.deadline - time.monotonic()
        if needed > remaining:
            self.costs.relax(names)
            raise UsageError(
                f"to encode {count_of(documents, 'document')} takes about {needed:.0f} s, but"
                f" {max(remaining, 0):.0f} s are left; send fewer or shorter documents"
            )

    def remaining_seconds(self) -> float:
        """Return a share of the seconds until the deadline or the client's timeout."""
        return _SHARE * (min(self.deadline, self.begun + self.timeout) - time.monotonic())

    def encoding_limit(self, rankers: Iterable[str]) -> int:
        """Return how many documents of the engine these rankers may encode in time."""
        names = tuple(rankers)
        seconds = self.costs.estimate(names, _TYPICAL_SIZE) or _FIRST_GUESS * _TYPICAL_SIZE
        affordable = max(self.remaining_seconds() / seconds, 0.0)
        if affordable < self.max_encoded:
            self.costs.relax(names)
        return int(min(self.max_encoded, affordable))

    def on_documents_encoded(self, ranker: str, characters: int, seconds: float) -> None:
        self.costs.add(ranker, characters, seconds)

    def to_log(self, with_query: bool) -> dict[str, object]:
        """Return the notes that the log shows, as field -> value; notes without a value are left out.

        with_query: include the words of the query.
        """
        notes: dict[str, object] = {
            "candidates": self.candidates,
            "missing": self.missing,
            "without_features": self.without_features,
            "unscored": self.unscored,
            "passed": self.passed,
            "late": self.late,
            "query": self.query if with_query else None,
        }
        return {name: value for name, value in notes.items() if value not in (None, {}, False)}
