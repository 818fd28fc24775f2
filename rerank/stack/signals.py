"""Signals of a stack, by name.

The name of a signal decides who computes its scores: a first stage of the engine (``bm25``), the user's
search (``search``, ``leg:NAME``), a field of the documents (``field:NAME``), or else a trained ranker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.documents.filters import KINDS, TRUTH, Filter
from rerank.engines.base import FIRST_STAGES, Engine
from rerank.engines.search_request import SearchRequest, cannot_retrieve, check_signal
from rerank.rankers.base import Ranker

DEFAULT_FIRST_STAGE = FIRST_STAGES[0]

SEARCH = "search"
"""The signal for the score of the user's search."""

_FIELD = "field:"
_LEG = "leg:"


def lexical_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of first stages of engines, in their order.

    >>> lexical_names(["text", "tfidf", "meta"]), ranker_names(["text", "tfidf", "meta"])
    (('tfidf',), ('text', 'meta'))
    """
    return tuple(filter(FIRST_STAGES.__contains__, names))


def ranker_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of rankers, in their order: all names that no other kind of signal has."""
    return tuple(filter(_is_ranker, names))


def _is_ranker(name: str) -> bool:
    return name not in (*FIRST_STAGES, SEARCH) and not name.startswith((_FIELD, _LEG))


def is_field(name: str) -> bool:
    """Return whether the name is of a signal that is a number or a date of documents: ``field:NAME``."""
    return name.startswith(_FIELD)


def is_leg(name: str) -> bool:
    """Return whether the name is of a signal that is the score of a clause of a search: ``leg:NAME``."""
    return name.startswith(_LEG)


def leg_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the signals among the names that are clauses of the user's search.

    >>> leg_names(["search", "leg:0", "leg:lexical", "text"])
    ('leg:0', 'leg:lexical')
    """
    return tuple(filter(is_leg, names))


def first_stages(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that can order candidates, ``search`` first.

    >>> first_stages(["text", "bm25", "search"])
    ('search', 'bm25')
    """
    names = tuple(names)
    lexical = lexical_names(names)
    return (SEARCH, *lexical) if SEARCH in names else lexical


@dataclass(frozen=True, slots=True)
class LexicalSignal:
    """The score of a first stage of the engine, or of the user's search (``search``)."""

    name: str
    uses_categories: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class LegSignal:
    """The score of a named clause of the user's search, such as a leg of a ``hybrid`` query.

    ``leg:lexical`` is the clause with the ``_name`` ``lexical``; ``leg:0`` also the first leg of a ``hybrid``
    query, if it has no name. A document that the clause does not match has the score 0.
    """

    name: str
    uses_categories: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class FieldSignal:
    """A numeric field of documents: its number, or its date in seconds since 1970; 0 without a value.

    >>> FieldSignal("field:popularity").values(np.array([3.0, np.nan])).tolist()
    [3.0, 0.0]
    """

    name: str
    uses_categories: ClassVar[bool] = False

    @property
    def field(self) -> str:
        """The field name."""
        return self.name.removeprefix(_FIELD)

    def check(self, engine: Engine) -> None:
        """Raise UsageError if no document of the engine has a number, a date or a truth value there."""
        condition = Filter(self.field, ">=", "1970")
        stage = engine.first_stages[0]
        try:
            # Engines refuse this filter if no document has such a value.
            engine.find(SearchRequest("a", first_stage=stage, depth=1, filters=[condition]))
        except UsageError as error:
            if KINDS[TRUTH] not in str(error):  # truth values are the numbers 0 and 1
                raise UsageError(
                    f"{self.name}: no document has a number or a date in the field {self.field!r}"
                ) from None

    def values(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n,) scores from (n,) numbers of the engine. NaN, which stands for no value, gives 0."""
        return np.nan_to_num(numbers, nan=0.0)


Signal = LexicalSignal | LegSignal | FieldSignal | Ranker
"""A signal has a name, and depends on query categories or not."""


def resolve(names: Iterable[str], rankers: Mapping[str, Ranker]) -> tuple[Signal, ...]:
    """Return the signals with these names, in their order.

    rankers: name -> trained ranker.

    Raises UsageError for a name that no kind of signal and no ranker has.
    """
    signals: list[Signal] = []
    for name in names:
        if is_field(name):
            signals.append(FieldSignal(name))
        elif is_leg(name):
            signals.append(LegSignal(name))
        elif name in (*FIRST_STAGES, SEARCH):
            signals.append(LexicalSignal(name))
        elif name in rankers:
            signals.append(rankers[name])
        else:
            existing = ", ".join((*FIRST_STAGES, *rankers))
            raise UsageError(f"signal {name!r} is not trained in this workspace; there are {existing}")
    return tuple(signals)


def check_retriever(signal: Signal, engine: Engine) -> None:
    """Raise UsageError if the signal cannot be a retriever, or the engine cannot retrieve by it."""
    if signal.name == SEARCH:
        return
    if not isinstance(signal, Ranker):
        check_signal(signal.name, engine.first_stages)
        return
    check_retrieves(signal)
    if engine.count_missing_vectors(signal.name, signal.version) is None:
        raise cannot_retrieve(signal.name)


def check_retrieves(ranker: Ranker) -> None:
    """Raise UsageError for a ranker that cannot retrieve: its score is not an inner product."""
    if not ranker.retrieves:
        raise UsageError(
            f"ranker {ranker.name} cannot retrieve: its score is not an inner product; leave it out of"
            " --retrieve"
        )
