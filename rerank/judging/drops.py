"""Count the parts of a click log that are not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass
class Dropped:
    """Number of records, events or page views of one kind, and the first of them."""

    reason: str
    count: int
    example: str


class Drops:
    """Counts by reason.

    >>> drops = Drops()
    >>> drops.add("no text", "log.ndjson:3")
    >>> drops.add("no text", "log.ndjson:7")
    >>> drops.table()
    [Dropped(reason='no text', count=2, example='log.ndjson:3')]
    """

    def __init__(self) -> None:
        self._by_reason: dict[str, Dropped] = {}

    def add(self, reason: str, example: str, count: int = 1) -> None:
        """Count something. The first example of a reason stays."""
        dropped = self._by_reason.get(reason)
        if dropped is None:
            self._by_reason[reason] = Dropped(reason, count, example)
        else:
            dropped.count += count

    def count(self, reason: str) -> int:
        """Return how many records were dropped for a reason; 0 for an unknown one."""
        dropped = self._by_reason.get(reason)
        return 0 if dropped is None else dropped.count

    def example(self, reason: str) -> str:
        """Return the first example of a reason, "" without one."""
        dropped = self._by_reason.get(reason)
        return "" if dropped is None else dropped.example

    def table(self) -> list[Dropped]:
        """Return a record for each reason, the most frequent first, then by name."""
        return sorted(self._by_reason.values(), key=lambda dropped: (-dropped.count, dropped.reason))


def count_rows(counts: Mapping[str, int], dropped: Iterable[Dropped]) -> list[dict[str, str]]:
    """Return the table of a report: the counts of used records, then the counts of dropped ones.

    >>> count_rows({"events": 1200}, [Dropped("no text", 2, "log.ndjson:3")])[1]
    {'part': 'no text', 'count': '2', 'first': 'log.ndjson:3'}
    """
    rows = [{"part": name, "count": f"{count:,}", "first": ""} for name, count in counts.items()]
    for drop in dropped:
        rows.append({"part": drop.reason, "count": f"{drop.count:,}", "first": drop.example})
    return rows
