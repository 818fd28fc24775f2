"""Signals of a stack, by name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import FIRST_STAGES, Engine, SearchRequest, cannot_retrieve, check_signal
from rerank.errors import UsageError
from rerank.filters import KINDS, TRUTH, Filter, number, period
from rerank.rankers.base import Ranker

DEFAULT_FIRST_STAGE = FIRST_STAGES[0]

SEARCH = "search"
"""The signal for the score of the user's search."""

CLAUSE = "clause:"
"""Prefix of signals for scores of search clauses."""

_FIELD = "field:"


def lexical(names: Iterable[str]) -> tuple[str, ...]:
    """Return the lexical signals among the names.

    >>> lexical(["text", "tfidf", "meta"]), learned(["text", "tfidf", "meta"])
    (('tfidf',), ('text', 'meta'))
    """
    return tuple(name for name in names if name in FIRST_STAGES)


def learned(names: Iterable[str]) -> tuple[str, ...]:
    """Return the ranker names among the names."""
    return tuple(n for n in names if n not in FIRST_STAGES and not is_from_search(n) and not is_field(n))


def is_from_search(name: str) -> bool:
    """Return whether the user's search gives this signal.

    >>> is_from_search("search"), is_from_search("clause:recency"), is_from_search("bm25")
    (True, True, False)
    """
    return name == SEARCH or name.startswith(CLAUSE)


def is_clause(name: str) -> bool:
    """Return whether a signal is the score of a search clause."""
    return name.startswith(CLAUSE)


def is_field(name: str) -> bool:
    """Return whether a signal is a numeric field."""
    return name.startswith(_FIELD)


def first_stages(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that can order candidates, ``search`` first.

    >>> first_stages(["text", "bm25", "search"])
    ('search', 'bm25')
    """
    names = tuple(names)
    return (SEARCH,) * (SEARCH in names) + lexical(names)


@dataclass(frozen=True, slots=True)
class LexicalSignal:
    """A score from the engine, or from the user's search (:func:`is_from_search`)."""

    name: str
    uses_categories: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class FieldSignal:
    """A numeric field of documents.

    ``field:popularity`` is the number, ``field:popularity:log`` its logarithm. ``field:year:decay:2024:5``
    is 1 for 2024 and halves with every distance of 5. Dates are in seconds, their decay in days:
    ``field:published:decay:now:30d``.

    >>> FieldSignal("field:popularity:log").values(np.array([0.0, np.e - 1, np.nan])).tolist()
    [0.0, 1.0, 0.0]
    >>> FieldSignal("field:year:decay:2024:5").values(np.array([2024.0, 2019.0, 2034.0, np.nan])).tolist()
    [1.0, 0.5, 0.25, 0.0]
    >>> FieldSignal("field:seen:decay:1970-01-11:10d").values(np.array([0.0, 864000.0])).tolist()
    [0.5, 1.0]
    """

    name: str
    uses_categories: ClassVar[bool] = False

    @property
    def field(self) -> str:
        """The field name."""
        return self.name.split(":")[1]

    def check(self, engine: Engine) -> None:
        """Raise UsageError if no document has the field with the right type."""
        what = "a number or a date"
        value = "1970"
        if self.name.split(":")[2:3] == ["decay"]:
            is_date = self.name.endswith("d")
            what = "a date" if is_date else "a number"
            value = "1970-01-01" if is_date else "0"
        condition = Filter(self.field, ">=", value)
        stage = engine.first_stages[0]
        try:
            # Engines refuse this filter if no document has such a value.
            engine.find(SearchRequest("a", first_stage=stage, depth=1, filters=[condition]))
        except UsageError as error:
            if KINDS[TRUTH] not in str(error):  # truth values are the numbers 0 and 1
                raise UsageError(f"{self.name}: no document has {what} in the field {self.field!r}") from None

    def values(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n,) scores: unchanged, ln(1 + max(x, 0)), or decayed. NaN gives 0."""
        _, _, *how = self.name.split(":", 3)
        if how[:1] == ["decay"]:
            origin, half = _decay(how[1])
            return np.nan_to_num(np.exp2(-np.abs(numbers - origin) / half), nan=0.0)
        numbers = np.nan_to_num(numbers, nan=0.0)
        return np.log1p(np.maximum(numbers, 0.0)) if how else numbers


def _decay(text: str) -> tuple[float, float]:
    """Return origin and half-distance of ``ORIGIN:HALF``; dates in seconds."""
    origin, _, half = text.rpartition(":")
    days = half.endswith("d")
    where = time.time() if origin == "now" else number(origin) if not days else (period(origin) or (None,))[0]
    length = number(half.removesuffix("d"))
    if where is None or not length or length < 0 or (origin == "now" and not days):
        raise UsageError(
            f"decay:{text} is not a decay; write decay:2024:5, of dates decay:now:30d or decay:2024-06-30:30d"
        )
    return where, length * (86_400 if days else 1)


Signal = LexicalSignal | FieldSignal | Ranker
"""A signal has a name, and depends on query categories or not."""


def resolve(names: Iterable[str], rankers: Mapping[str, Ranker]) -> tuple[Signal, ...]:
    """Return the signals. Raises UsageError for an unknown name."""
    signals: list[Signal] = []
    for name in names:
        if is_field(name):
            field = FieldSignal(name)
            field.values(np.empty(0))  # raises for an invalid decay
            signals.append(field)
        elif name in FIRST_STAGES or is_from_search(name):
            signals.append(LexicalSignal(name))
        elif name in rankers:
            signals.append(rankers[name])
        else:
            there = ", ".join((*FIRST_STAGES, *rankers))
            raise UsageError(f"signal {name!r} is not trained in this workspace; there are {there}")
    return tuple(signals)


def check_retriever(signal: Signal, engine: Engine) -> None:
    """Raise UsageError if the engine cannot retrieve by the signal."""
    if signal.name == SEARCH:
        return
    if not isinstance(signal, Ranker):
        check_signal(signal.name, engine.first_stages)
        return
    check_retrieves(signal)
    if engine.prepared(signal.name, signal.version) is None:
        raise cannot_retrieve(signal.name)


def check_retrieves(ranker: Ranker) -> None:
    """Raise UsageError for a ranker that cannot retrieve."""
    if not ranker.retrieves:
        raise UsageError(
            f"ranker {ranker.name} cannot retrieve: its score is no inner product; leave it out of --retrieve"
        )
