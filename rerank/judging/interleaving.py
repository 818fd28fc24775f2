"""The winner of an experiment with interleaved results, by the clicks of users."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rerank.common.errors import InputError, UsageError
from rerank.common.results import Report
from rerank.common.values import first_in
from rerank.documents.text import join_names, query_key
from rerank.evaluation.interleaving import TEAMS, anytime_p, sessions_needed, wilson_interval
from rerank.formats.click_log import Event, LogRecord, Search, read_click_log, records_of_line
from rerank.formats.inputs import as_list
from rerank.formats.lines import first_line, read_lines, read_numbered_lines
from rerank.formats.opening import Source, name_of
from rerank.judging.drops import Dropped, Drops, count_rows
from rerank.judging.log import CLICKS, ID_FIELDS, id_text

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

SIGNIFICANT = 0.05

DAMAGED = "damaged lines of the log"
NOT_INTERLEAVED = "searches without an experiment"
NO_QUERY_ID = "interleaved searches without a query id"
REPEATED = "repeated searches of a client with the same words"
UNKNOWN_SEARCH = "clicks of other searches"
OTHER_TEXT = "clicks whose query has other words"
OTHER_DOCUMENT = "clicks on documents that are not among the logged hits"
NO_TEAM = "clicks on documents without a team"


@dataclass
class InterleavingReport(Report):
    """The clicks of an experiment with interleaved results.

    searches:  counted page views: the first of each client and query.
    wins:      page views in which more documents of B were clicked.
    losses:    page views in which more documents of A were clicked.
    ties:      page views with equal numbers of clicked documents. unclicked: without clicks.
    share:     wins / (wins + losses), with its interval of 95 % (Wilson). None without wins and losses.
    p:         valid at any number of looks (:func:`rerank.evaluation.interleaving.anytime_p`).
    needed:    searches that are still needed to show the difference with a power of 80 %, if the shares stay
        as they are. None if they are unknown.
    dropped:   records that do not count.
    """

    experiment: str
    searches: int
    wins: int
    losses: int
    ties: int
    unclicked: int
    share: float | None
    interval: tuple[float, float]
    p: float
    needed: int | None
    dropped: list[Dropped] = field(default_factory=list)

    @property
    def winner(self) -> str | None:
        """``A`` or ``B`` if p is below 5 %, else None."""
        if self.p >= SIGNIFICANT or self.share is None:
            return None
        return TEAMS[self.share > 0.5]

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts of page views, and of records that do not count."""
        counts = {
            "page views": self.searches,
            "B wins": self.wins,
            "A wins": self.losses,
            "ties": self.ties,
            "without clicks": self.unclicked,
        }
        return count_rows(counts, self.dropped)


@dataclass(slots=True)
class _PageView:
    """An interleaved search, and the teams of the documents that were clicked."""

    text: str
    team_of: dict[str, str]
    clicked: dict[str, str] = field(default_factory=dict)

    @property
    def balance(self) -> int:
        """Clicked documents of B minus clicked documents of A."""
        counts = Counter(self.clicked.values())
        return counts["B"] - counts["A"]


def judge_interleaving(
    logs: Source | Sequence[Source],
    events: Source | Sequence[Source] = (),
    *,
    ubi: Settings | None = None,
    experiment: str | None = None,
    clicks: str | Sequence[str] = CLICKS,
) -> InterleavingReport:
    """Count in which page views of an experiment each stack won.

    A page view is won by the stack with more clicked documents; each document counts once. The first page
    view of a client with the same words counts.

    logs:       one file or several of ``rerank serve --ubi-log``, or records of ``ubi_queries`` with the
        same attributes.
    events:     files with records of ``ubi_events``.
    ubi:        the cluster with these indices.
    experiment: its name. Default: the only one of the logs.
    clicks:     names of actions that are clicks, in any case.

    Raises InputError for damaged files and for logs without interleaved searches; UsageError if the logs have
    several experiments; EngineError for a cluster that refuses.

    >>> import json
    >>> log = folder / "searches.ndjson"
    >>> search = {"query_id": "s1", "client_id": "c1", "user_query": "wolf"}
    >>> search["query_response_hit_ids"] = ["d7", "d2"]
    >>> search["query_attributes"] = {"experiment": "new", "teams": "AB"}
    >>> _ = log.write_text(json.dumps(search))
    >>> click = {"action_name": "click", "query_id": "s1"}
    >>> click["event_attributes"] = {"object": {"object_id": "d2"}}
    >>> _ = (folder / "events.ndjson").write_text(json.dumps(click))
    >>> report = judge_interleaving([log], [folder / "events.ndjson"])
    >>> report.searches, report.wins, report.losses, report.winner
    (1, 1, 0, None)
    """
    drops = Drops()
    searches = _searches_by_experiment(as_list(logs), drops)
    name = _choose_experiment(list(searches), experiment, drops)
    page_views = _page_views(searches[name], drops)
    for click in _clicks(as_list(events), ubi, as_list(clicks)):
        _add_click(page_views, click, drops)
    return _report(name, page_views.values(), drops)


def _searches_by_experiment(logs: Sequence[Source], drops: Drops) -> dict[str, list[Search]]:
    """Return name -> interleaved searches, in the order of the logs."""
    searches: dict[str, list[Search]] = {}
    for search in _searches(logs, drops):
        if _is_interleaved(search, drops):
            searches.setdefault(search.attributes["experiment"], []).append(search)
    return searches


def _report(name: str, page_views: Collection[_PageView], drops: Drops) -> InterleavingReport:
    balances = [view.balance for view in page_views]
    wins = sum(balance > 0 for balance in balances)
    losses = sum(balance < 0 for balance in balances)
    unclicked = sum(not view.clicked for view in page_views)
    undecided = len(balances) - wins - losses
    needed = sessions_needed(wins, losses, undecided)
    return InterleavingReport(
        experiment=name,
        searches=len(balances),
        wins=wins,
        losses=losses,
        ties=undecided - unclicked,
        unclicked=unclicked,
        share=wins / (wins + losses) if wins + losses else None,
        interval=wilson_interval(wins, losses),
        p=anytime_p(wins, losses),
        needed=None if needed is None else max(needed - len(balances), 0),
        dropped=drops.table(),
    )


def _searches(logs: Sequence[Source], drops: Drops) -> Iterator[Search]:
    """Yield the searches of logs."""
    for log in logs:
        records = read_click_log(log) if _is_array(log) else _records_of_lines(log, drops)
        for record in records:
            if isinstance(record, Search):
                yield record


def _records_of_lines(log: Source, drops: Drops) -> Iterator[LogRecord]:
    """Yield the records of a file of JSON lines. A damaged line is counted: a full disk can leave a part."""
    for location, line in read_lines(log):
        try:
            yield from records_of_line(location, line)
        except InputError:
            drops.add(DAMAGED, location)


def _is_array(source: Source) -> bool:
    """Return whether a file is a JSON array. Standard input can be read only once, so it is not one."""
    return os.fspath(source) != "-" and first_line(read_numbered_lines(source))[0].startswith(b"[")


def _clicks(events: Sequence[Source], ubi: Settings | None, actions: Iterable[str]) -> Iterator[Event]:
    """Yield the events that are clicks. actions: their names, in any case."""
    names = {action.lower() for action in actions}
    for record in _events(events, ubi):
        if isinstance(record, Event) and record.action.lower() in names:
            yield record


def _events(events: Sequence[Source], ubi: Settings | None) -> Iterator[LogRecord]:
    for source in events:
        has_event = False
        for record in read_click_log(source):
            has_event |= isinstance(record, Event)
            yield record
        if not has_event:
            raise InputError(f"{name_of(source)}: no event; give records of ubi_events with --ubi")
    if ubi is not None:
        from rerank.engines.opensearch.ubi import read_ubi

        yield from read_ubi(ubi, ID_FIELDS)


def _is_interleaved(search: Search, drops: Drops) -> bool:
    attributes = search.attributes
    if not isinstance(attributes.get("experiment"), str) or not isinstance(attributes.get("teams"), str):
        drops.add(NOT_INTERLEAVED, search.location)
        return False
    if not search.query_id:
        drops.add(NO_QUERY_ID, search.location)
        return False
    return True


def _choose_experiment(names: Sequence[str], experiment: str | None, drops: Drops) -> str:
    """Return the experiment that a user names, or the only one.

    Raises InputError without experiments, UsageError for another name and for several experiments.
    """
    if not names:
        reasons = [f"{drop.reason}: {drop.count:,}, first {drop.example}" for drop in drops.table()]
        reason = "; ".join(reasons) or "no search"
        raise InputError(
            f"the logs have no interleaved search with a query_id ({reason}); set [experiment] in"
            " rerank.toml, start `rerank serve --ubi-log FILE`, and send ext.ubi with searches"
        )
    if experiment is None:
        if len(names) > 1:
            raise UsageError(
                f"the logs have the experiments {join_names(names)}; choose one with --experiment"
            )
        return names[0]
    if experiment not in names:
        raise UsageError(f"--experiment {experiment}: the logs have {join_names(names)}")
    return experiment


def _page_views(searches: list[Search], drops: Drops) -> dict[str, _PageView]:
    """Return query id -> the counted page views: the first of each client and query."""
    searches.sort(key=lambda search: search.time or 0)
    page_views: dict[str, _PageView] = {}
    keys: set[tuple[str, str]] = set()
    for search in searches:
        text = query_key(search.text)
        key = (search.client, text)
        if search.query_id in page_views:
            continue  # another page of the same search
        if search.client and key in keys:
            drops.add(REPEATED, search.location)
            continue
        keys.add(key)
        team_of = dict(zip(search.hits, search.attributes["teams"]))
        page_views[search.query_id] = _PageView(text, team_of)
    return page_views


def _add_click(page_views: Mapping[str, _PageView], event: Event, drops: Drops) -> None:
    """Add the clicked document to its page view, or count why the click is not used."""
    view = page_views.get(event.query_id)
    if view is None:
        drops.add(UNKNOWN_SEARCH, event.location)
        return
    if event.user_query and query_key(event.user_query) != view.text:
        drops.add(OTHER_TEXT, event.location)
        return
    document = _clicked_hit(event, view)
    if document is None:
        drops.add(OTHER_DOCUMENT, event.location)
        return
    team = view.team_of[document]
    if team not in TEAMS:  # the click counts for no team, but the page view has a click
        drops.add(NO_TEAM, event.location)
    view.clicked[document] = team


def _clicked_hit(event: Event, view: _PageView) -> str | None:
    """Return the id of the clicked document if it is among the logged hits, else None."""
    ids = map(id_text, map(event.object.get, ID_FIELDS))
    return first_in(filter(None, ids), view.team_of)
