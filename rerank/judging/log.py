"""The events of a click log as columns, about 40 bytes per event."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rerank.common.errors import UsageError
from rerank.documents.text import count_of, join_names, query_key
from rerank.formats.click_log import Event, LogRecord, Search
from rerank.formats.inputs import as_list
from rerank.judging.drops import Drops

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rerank.engines.opensearch import Settings

OTHER_ACTION = "other actions"
NO_QUERY_ID = "events without a query id"
NO_DOCUMENT = "events without a document"
FUTURE = "events in the future"
MALFORMED = "records that are not of UBI"

CLICKS = ("click", "click_through")
"""Actions that are clicks."""
ID_FIELDS = ("object_id", "internal_id")
"""Fields of the object of an event that may contain the id of the document."""
_TOLERANCE = 86_400_000
"""Largest error of the clock of a client in milliseconds: one day."""
_SHOWN_NAMES = 10
"""Names of applications in a message."""
_LATEST_SECOND = 253_402_300_799
"""The last second of the year 9999, since 1970. Wrong clocks log later times."""
_MISSING = -(2**31)
"""The ordinal of an event without a position."""


@dataclass(frozen=True)
class ClickOptions:
    """How a click log is read.

    ubi: the cluster with the indices ``ubi_queries`` and ``ubi_events``.
    first_rank: 0 or 1, the position of the first hit. Default: found for each application.
    impressions, clicks: names of actions, in any case.
    application: read only the records of this application.
    start, end: milliseconds since 1970; events before the start, or at the end or later, are not read.
    id_field: field of the event's object that has the document id. Default: ``object_id`` or
        ``internal_id``, depending on which of them the workspace has.
    max_rank: events at larger ranks are not used.
    srw: also write the ratings of Search Relevance Workbench to this file.

    >>> ClickOptions(application="shop", clicks=["click", "add_to_cart"]).max_rank
    20
    """

    ubi: Settings | None = None
    first_rank: int | None = None
    impressions: str | Sequence[str] = ("impression", "view")
    clicks: str | Sequence[str] = CLICKS
    application: str | None = None
    start: int | None = None
    end: int | None = None
    id_field: str | None = None
    max_rank: int = 20
    srw: str | None = None

    def __post_init__(self) -> None:
        for name in ("impressions", "clicks"):  # one name is also accepted
            object.__setattr__(self, name, tuple(as_list(getattr(self, name))))
        if self.first_rank not in (None, 0, 1):
            raise UsageError(f"--first-rank {self.first_rank}: give 0 or 1")
        if not 1 <= self.max_rank <= 1000:
            raise UsageError(f"--max-rank {self.max_rank}: give 1 to 1000")
        self._check_period()
        self._check_names()

    def _check_period(self) -> None:
        """Raise UsageError for a period that contains no moment."""
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise UsageError("--to is not after --from, so no event is between them; give a later --to")

    def _check_names(self) -> None:
        """Raise UsageError for events that would be both impressions and clicks."""
        impressions = {name.lower() for name in self.impressions}
        shared = impressions.intersection(map(str.lower, self.clicks))
        if shared:
            raise UsageError(f"--impressions and --clicks both name {min(shared)}; remove it from one")

    @property
    def id_fields(self) -> tuple[str, ...]:
        """The fields that may contain the id of a document."""
        return ID_FIELDS if self.id_field is None else (self.id_field,)


class Names:
    """Numbers values in the order of their first use.

    >>> names = Names()
    >>> names["a"], names["b"], names["a"], names.values()
    (0, 1, 0, ['a', 'b'])
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __getitem__(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def values(self) -> list[Any]:
        """Return the values in the order of their numbers: ``values()[names[value]] == value``."""
        return list(self._numbers)


class Unselected:
    """Events that the options ``application``, ``start`` and ``end`` leave out."""

    def __init__(self) -> None:
        self.events = 0
        self._applications: set[str] = set()
        self._earliest: float = math.inf
        self._latest: float = -math.inf

    def add(self, event: Event) -> None:
        """Count an event."""
        self.events += 1
        self._applications.add(event.application)
        if event.time is not None:
            self._earliest = min(event.time, self._earliest)
            self._latest = max(event.time, self._latest)

    def describe(self, options: ClickOptions) -> str:
        """Return why none of the events of a log was selected, and the content of the log."""
        total = count_of(self.events, "event")
        if options.application is not None and options.application not in self._applications:
            names = [name or "no name" for name in sorted(self._applications)]
            return (
                f"none of {total} is of the application {options.application!r}; the log has"
                f" {join_names(names, _SHOWN_NAMES)}"
            )
        if self._latest < self._earliest:
            return f"none of {total} has a time, so no event is between --from and --to"
        return (
            f"none of {total} is between --from and --to; the events are from {_minute(self._earliest)} to"
            f" {_minute(self._latest)} (UTC)"
        )


def _minute(moment: float) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC; the latest one is of the year 9999."""
    seconds = min(moment // 1000, _LATEST_SECOND)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M}"


class ClickLog:
    """Impressions and clicks as columns of numbers, and the texts of the queries.

    Each row is an event: query id, application, text (-1: the text of the query id), document, ordinal,
    client, time, and whether it is a click. The order of the events has no effect.
    """

    def __init__(self, options: ClickOptions, drops: Drops) -> None:
        self.options = options
        self.drops = drops
        self.events = 0
        self.unselected = Unselected()
        self.searches = 0
        self.future_clicks = 0
        self.ids = Names()
        self.applications = Names()
        self.texts = Names()
        self.documents = Names()
        """Document id, or several possible ids."""
        self.clients = Names()
        self.columns = {name: array("i") for name in ("id", "application", "text", "document", "client")}
        self.ordinals = array("i")
        self.times = array("q")
        self.is_click = array("b")
        self.searched_ids = array("i")
        self.searched_texts = array("i")
        self.searched_applications = array("i")
        self.hit_searches = array("i")
        self.hit_documents = array("i")
        self.hit_positions = array("i")
        self._has_period = (options.start, options.end) != (None, None)
        self._start = -math.inf if options.start is None else options.start
        self._end = math.inf if options.end is None else options.end
        self._now = round(time.time() * 1000) + _TOLERANCE
        self._kinds = dict.fromkeys((name.lower() for name in options.impressions), False)
        self._kinds |= dict.fromkeys((name.lower() for name in options.clicks), True)
        self._raw_texts: dict[str, int] = {"": -1}

    def add(self, record: LogRecord) -> None:
        """Add a record, or count why it is not used."""
        if isinstance(record, Event):
            self.events += 1
            if self._is_selected(record.application, record.time):
                self._add_event(record)
            else:
                self.unselected.add(record)
        elif isinstance(record, Search):
            self.searches += 1
            if self._is_selected(record.application, record.time):
                self._add_search(record)
        else:
            self.drops.add(MALFORMED, record.location)

    def _is_selected(self, application: str, moment: int | None) -> bool:
        is_of_application = self.options.application in (None, application)
        return is_of_application and self._is_in_period(moment)

    def _is_in_period(self, moment: int | None) -> bool:
        """Return whether a time is in the period of the options. Without a start and an end, any time is."""
        if moment is None:
            return not self._has_period
        return self._start <= moment < self._end

    def _add_event(self, event: Event) -> None:
        application = self.applications[event.application]
        is_click = self._kinds.get(event.action.lower())
        if is_click is None:
            self.drops.add(OTHER_ACTION, f"{event.location}: {event.action}")
            return
        document = self._document(event.object)
        if not event.query_id:
            self.drops.add(NO_QUERY_ID, event.location)
        elif document is None:
            self.drops.add(NO_DOCUMENT, event.location)
        elif event.time is not None and event.time > self._now:
            self.drops.add(FUTURE, event.location)
            self.future_clicks += is_click
        else:
            columns = self.columns
            columns["id"].append(self.ids[event.query_id])
            columns["application"].append(application)
            columns["text"].append(self._text(event.user_query or ""))
            columns["document"].append(self.documents[document])
            columns["client"].append(self.clients[event.client])
            ordinal = event.ordinal
            self.ordinals.append(_MISSING if ordinal is None else max(-1, min(ordinal, 2**30)))
            self.times.append(-1 if event.time is None else event.time)
            self.is_click.append(is_click)

    def _document(self, fields: Mapping[str, Any]) -> Hashable:
        """Return the id of a document, several possible ids, or None."""
        ids = [id_text(fields.get(field)) for field in self.options.id_fields]
        if len(ids) == 1 or not ids[1] or ids[0] == ids[1]:
            return ids[0] or None
        return tuple(ids)

    def _text(self, text: str) -> int:
        """Return the number of a text, -1 for an empty one."""
        number = self._raw_texts.get(text)
        if number is None:
            key = query_key(text)
            number = self._raw_texts[text] = self.texts[key] if key else -1
        return number

    def _add_search(self, search: Search) -> None:
        text = self._text(search.text)
        if not search.query_id or text < 0:
            return
        number = len(self.searched_ids)
        self.searched_ids.append(self.ids[search.query_id])
        self.searched_texts.append(text)
        self.searched_applications.append(self.applications[search.application])
        for position, hit in enumerate(search.hits[: self.options.max_rank], 1):
            if hit:
                self.hit_searches.append(number)
                self.hit_documents.append(self.documents[hit])
                self.hit_positions.append(position)


def is_missing(ordinals: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each ordinal of :class:`ClickLog` whether its event was logged without one."""
    missing: NDArray[np.bool_] = ordinals == _MISSING
    return missing


def id_text(value: object) -> str:
    """Return an id of a document as text; "" if it is neither a text nor an integer."""
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
