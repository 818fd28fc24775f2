"""Check fields of signals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from rerank.engines.base import Engine, SearchRequest
from rerank.errors import UsageError
from rerank.filters import Filter
from rerank.stack.signals import FieldSignal

_SOME = 1000
"""Number of documents to list fields from."""

_READS: dict[str | None, tuple[str, tuple[tuple[str, str], ...]]] = {
    # name in messages, and filters that engines refuse for missing fields
    "number": ("a number", ((">=", "0"),)),
    "date": ("a date", ((">=", "1970-01-01"),)),
    None: ("a number or a date", ((">=", "1970"), ("=", "true"))),
}


def check_fields(engine: Engine, signals: Iterable[FieldSignal], ids: Sequence[str] = ()) -> None:
    """Raise UsageError if no document has a signal's field with the right type.

    ids: documents to list fields from; empty: the first ones.
    """
    for signal in signals:
        what, filters = _READS[signal.reads]
        if not any(_finds(engine, Filter(signal.field, op, value)) for op, value in filters):
            some = ids[:_SOME] or [document.id for document in islice(engine.documents(), _SOME)]
            typed = engine.number_fields(some)
            there = ", ".join(f"{name} ({kind})" for name, kind in sorted(typed.items())) or "none"
            raise UsageError(
                f"{signal.name}: no document has {what} in the field {signal.field!r}; fields with numbers or"
                f" dates are: {there}"
            )


def _finds(engine: Engine, one: Filter) -> bool:
    with suppress(UsageError):
        engine.find(SearchRequest("a", first_stage=engine.first_stages[0], depth=1, filters=[one]))
        return True
    return False
