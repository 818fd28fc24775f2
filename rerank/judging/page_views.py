"""Page views of a click log: which documents were shown at which rank, and which were clicked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError
from rerank.common.values import items_at, items_not_in
from rerank.documents.text import count_of, join_names
from rerank.judging.drops import Drops
from rerank.judging.log import ClickLog, is_missing

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_TEXT = "events without a text, and with an unknown query id"
SEVERAL_TEXTS = "events without a text, and with a query id of several texts"
NO_RANK = "impressions without a rank"
OTHER_RANK = "impressions below the first or above the maximum rank"
REPEATED_IMPRESSION = "repeated impressions in a page view"
REPEATED_CLICK = "repeated clicks in a page view"
CLICK_ONLY = "clicks without an impression and without a rank"
CLICK_AS_IMPRESSION = "clicks without an impression, used with the rank of the click"
UNKNOWN_DOCUMENT = "impressions of documents that the workspace does not have"
NO_IMPRESSIONS = "clicks of applications without impressions"
BOT_NAME = "page views of clients named bot, crawler or spider"
BOT_DAY = "page views of clients with more than 200 page views a day"
BOT_CLICKS = "page views with 3 or more clicks, on more than half of the hits"

MOST_PER_DAY = 200
"""Largest number of page views of a person on one day."""
SHOWN_HITS = 10
"""Hits that a page shows at least, if the log has hits and no impressions."""
_DAY = 86_400_000
_BOT = re.compile("bot|crawler|spider", re.IGNORECASE)
_NONE = np.iinfo(np.int64).max
"""Larger than all ranks, times and clients."""
_STRAY_ZEROS = 0.1
"""With fewer events at rank 0 than this share of the events at rank 1, ranks start from 1."""


class HasIds(Protocol):
    """Documents by id, such as an engine."""

    def contains(self, ids: Iterable[str]) -> Collection[str]:
        """Return only the ids that a document has."""


@dataclass(frozen=True)
class Documents:
    """The documents of a log.

    ids:     ids of the different documents.
    numbers: number of a document in the log -> its position in ``ids``.
    exists:  (len(ids),), whether the workspace has the document.
    """

    ids: list[str]
    numbers: Ints
    exists: Bools


@dataclass(frozen=True)
class Rows:
    """Impressions and clicks as columns of length E, one row per event.

    id, application, text, document, client: numbers. rank: from 1; 0 if it is missing, -1 if it is not valid.
    client, time: -1 if unknown. time: milliseconds since 1970.
    """

    id: Ints
    application: Ints
    text: Ints
    document: Ints
    client: Ints
    time: Ints
    rank: Ints
    is_click: Bools

    def select(self, mask: Bools | Ints) -> Rows:
        """Return the rows of a mask, (E,), or of positions."""
        return Rows(**{name: column[mask] for name, column in vars(self).items()})

    def append(self, rows: Rows) -> Rows:
        """Return one table with these rows, followed by the others."""
        columns = {name: np.concatenate([column, vars(rows)[name]]) for name, column in vars(self).items()}
        return Rows(**columns)


@dataclass(frozen=True)
class Shown:
    """One row per page view and document.

    view: number of the page view. text, document: numbers. rank: from 1; 0 in a log without impressions.
    """

    view: Ints
    application: Ints
    text: Ints
    document: Ints
    rank: Ints
    clicked: Bools

    @property
    def page_views(self) -> int:
        """The number of different page views in the rows."""
        return len(np.unique(self.view))

    def select(self, mask: Bools | Ints) -> Shown:
        """Return the rows of a mask, (D,), or of positions."""
        return Shown(**{name: column[mask] for name, column in vars(self).items()})


@dataclass(frozen=True)
class PageViews:
    """The used part of a log. first_ranks: application -> 0 or 1; None without impressions.

    source: ``impressions``, ``hits`` or ``clicks``. reason: why it is not ``impressions``.
    """

    shown: Shown
    first_ranks: dict[str, int | None]
    source: str
    reason: str = ""


def resolve_documents(log: ClickLog, workspace: HasIds | None) -> Documents:
    """Choose the field with the ids of the documents: the one with most documents of the workspace.

    Without a workspace, it is the first field, and all documents exist.

    Raises InputError if the workspace does not have more than half of the documents of the events.
    """
    ids_by_field = _ids_by_field(log)
    if workspace is None:
        ids = next(iter(ids_by_field.values()))
        return _documents(ids, existing=ids)
    existing = workspace.contains(sorted({*chain.from_iterable(ids_by_field.values())}))
    in_events = np.unique(np.asarray(log.columns["document"], np.int64)).tolist()
    unknown_by_field: dict[str, list[str]] = {}
    for field, ids in ids_by_field.items():
        unknown_by_field[field] = items_not_in(items_at(ids, in_events), existing)
    best_field = min(unknown_by_field, key=lambda field: len(unknown_by_field[field]))
    unknown = unknown_by_field[best_field]
    if 2 * len(unknown) > len(in_events):
        fields = " and ".join(ids_by_field)
        raise InputError(
            f"{len(unknown):,} of {count_of(len(in_events), 'document')} of the log are not in the workspace,"
            f" for example {unknown[0]!r} (field {fields} of the log, _id of the workspace);"
            " name the field with the _id in --id-field, or the workspace with -w"
        )
    return _documents(ids_by_field[best_field], existing)


def _ids_by_field(log: ClickLog) -> dict[str, list[str]]:
    """Return field -> ids of the documents of a log, by their numbers.

    If the fields have the same id in each document, only the first one is returned.
    """
    values = log.documents.values()
    fields = log.options.id_fields
    are_different = any(isinstance(value, tuple) for value in values)
    ids_by_field: dict[str, list[str]] = {}
    for position, field in enumerate(fields if are_different else fields[:1]):
        ids_by_field[field] = [_id_of(value, position) for value in values]
    return ids_by_field


def _documents(ids_by_number: Sequence[str], existing: Collection[str]) -> Documents:
    """Return the documents of a log. ids_by_number: the ids by the numbers of the log."""
    ids = sorted({*ids_by_number})
    positions = {id: position for position, id in enumerate(ids)}
    existing = {*existing}
    return Documents(
        ids=ids,
        numbers=np.array(items_at(positions, ids_by_number), np.int64),
        exists=np.array([id in existing for id in ids], bool),
    )


def _id_of(value: str | tuple[str, ...], position: int) -> str:
    if isinstance(value, str):
        return value
    return value[position] or next(filter(None, value))


def page_views(log: ClickLog, documents: Documents, drops: Drops) -> PageViews:
    """Join the impressions and clicks of each page view.

    A page view is a query id, its application and a text. It counts each document once, at the lowest rank of
    its impressions.

    Raises InputError if an application has ranks that start from neither 0 nor 1.
    """
    rows = _rows(log, documents)
    first_ranks = _first_ranks(log, rows)
    text_of_id = _texts_of_ids(log)
    text = np.where(rows.text >= 0, rows.text, text_of_id[rows.id])
    _count_events(drops, NO_TEXT, log, rows, text == -1)
    _count_events(drops, SEVERAL_TEXTS, log, rows, text == -2)
    rows = replace(rows, text=text).select(text >= 0)
    source = "impressions"
    reason = ""
    if rows.is_click.all():
        hits = _hits(log, documents)
        reason = _problem_of_hits(rows, hits, documents, log)
        if reason:
            source = "clicks"
            first_ranks = dict.fromkeys(first_ranks)
        else:
            source = "hits"
            rows = _with_hits(rows, hits)
            reason = "the log has no impressions; the hits of the queries are used instead"
    else:
        with_impressions = np.unique(rows.application[~rows.is_click])
        is_dropped = np.isin(rows.application, with_impressions, invert=True)
        _count_events(drops, NO_IMPRESSIONS, log, rows, is_dropped)
        rows = rows.select(~is_dropped)
    shown = _join(log, rows, drops, source)
    return PageViews(_existing(shown, documents, drops), first_ranks, source, reason)


def _rows(log: ClickLog, documents: Documents) -> Rows:
    columns = {name: np.asarray(column, np.int64) for name, column in log.columns.items()}
    columns["document"] = documents.numbers[columns["document"]]
    # Numbers of clients in the order of their names do not depend on the order of the events.
    names = log.clients.values()
    order = np.empty(len(names), np.int64)
    order[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    nameless = [number for number, name in enumerate(names) if not name]
    order[nameless] = -1
    columns["client"] = order[columns["client"]]
    return Rows(
        **columns,
        time=np.asarray(log.times, np.int64),
        rank=np.asarray(log.ordinals, np.int64),
        is_click=np.asarray(log.is_click, np.int64).astype(bool),
    )


def _first_ranks(log: ClickLog, rows: Rows) -> dict[str, int | None]:
    """Find the first rank of each application, and turn the ordinals of the rows into ranks from 1."""
    ordinals = rows.rank.copy()
    rows.rank[:] = 0
    missing = is_missing(ordinals)
    first_ranks: dict[str, int | None] = {}
    for number, application in enumerate(log.applications.values()):
        is_own = rows.application == number
        ranked = ordinals[is_own & ~rows.is_click & ~missing & (ordinals >= 0)]
        if not len(ranked):
            first_ranks[application] = None
            continue
        first = log.options.first_rank
        if first is None:
            first = _first_rank(application, ranked)
        first_ranks[application] = first
        ranks = ordinals[is_own] - first + 1
        valid = ~missing[is_own] & (ranks >= 1) & (ranks <= log.options.max_rank)
        # Ranks outside the limits are negative, missing ones 0.
        rows.rank[is_own] = np.where(valid, ranks, np.where(missing[is_own], 0, -1))
    return first_ranks


def _first_rank(application: str, ordinals: Ints) -> int:
    zero_ranks = np.count_nonzero(ordinals == 0)
    one_ranks = np.count_nonzero(ordinals == 1)
    if not zero_ranks and not one_ranks:
        name = f"application {application!r}" if application else "the log"
        raise InputError(
            f"{name}: the lowest rank of an impression is {ordinals.min()}, neither 0 nor 1; name the rank"
            " of the first hit with --first-rank"
        )
    return 0 if zero_ranks and zero_ranks >= _STRAY_ZEROS * one_ranks else 1


def _texts_of_ids(log: ClickLog) -> Ints:
    """Return the text of each query id; -1 without one, -2 if it has several."""
    texts = np.full(len(log.ids), -1, np.int64)
    pairs = np.stack([np.asarray(log.searched_ids, np.int64), np.asarray(log.searched_texts, np.int64)], 1)
    distinct = np.unique(pairs, axis=0) if len(pairs) else pairs
    texts[distinct[:, 0]] = distinct[:, 1]
    several = np.bincount(distinct[:, 0], minlength=len(texts)) > 1
    texts[several] = -2
    return texts


def _count_events(drops: Drops, reason: str, log: ClickLog, rows: Rows, mask: Bools) -> None:
    """Count events that are dropped."""
    positions = np.flatnonzero(mask)
    if len(positions):
        # Only the ids that are needed for the example are looked up.
        query_id = log.ids.values()[rows.id[positions[0]]]
        drops.add(reason, f"query id {query_id!r}", len(positions))


def _hits(log: ClickLog, documents: Documents) -> Rows:
    """Return the documents of the answers in ``ubi_queries`` as impressions."""
    searches = np.asarray(log.hit_searches, np.int64)
    count = len(searches)
    raw = np.asarray(log.hit_documents, np.int64)
    return Rows(
        id=np.asarray(log.searched_ids, np.int64)[searches],
        application=np.asarray(log.searched_applications, np.int64)[searches],
        text=np.asarray(log.searched_texts, np.int64)[searches],
        document=documents.numbers[raw],
        client=np.full(count, -1, np.int64),
        time=np.full(count, -1, np.int64),
        rank=np.asarray(log.hit_positions, np.int64),
        is_click=np.zeros(count, bool),
    )


def _problem_of_hits(clicks: Rows, hits: Rows, documents: Documents, log: ClickLog) -> str:
    """Return why the documents of the answers cannot be used as impressions, or an empty text."""
    if not len(hits.id):
        return "the log has neither impressions nor hits of the queries"
    example = documents.ids[hits.document[0]]
    if 2 * np.count_nonzero(documents.exists[hits.document]) < len(hits.document):
        return (
            "the log has no impressions, and most hits of the queries are not ids of the workspace, for"
            f" example {example!r}: UBI stores Lucene numbers unless object_id_field is set"
        )
    searched = np.isin(clicks.id, hits.id)
    in_hits = np.isin(_pairs(clicks), _pairs(hits))
    if 2 * np.count_nonzero(in_hits) < np.count_nonzero(searched) or not searched.any():
        return (
            "the log has no impressions, and most clicked documents are not among the hits of their queries,"
            f" for example {example!r}"
        )
    return ""


def _pairs(rows: Rows) -> Ints:
    """Return a number for each query id and document. Both are below 2^31."""
    return rows.id << 32 | rows.document


def _with_hits(clicks: Rows, hits: Rows) -> Rows:
    """Use hits as impressions, down to the lowest click or SHOWN_HITS, whichever is lower."""
    clicked = np.isin(_pairs(hits), _pairs(clicks))
    deepest = np.full(int(max(hits.id.max(), clicks.id.max())) + 1, SHOWN_HITS)
    np.maximum.at(deepest, hits.id[clicked], hits.rank[clicked])
    shown = hits.select(hits.rank <= deepest[hits.id])
    return shown.append(replace(clicks, rank=np.zeros_like(clicks.rank)))


def _join(log: ClickLog, rows: Rows, drops: Drops, source: str) -> Shown:
    """Return one row per page view and document, without page views of bots."""
    is_impression = ~rows.is_click
    _count_events(drops, NO_RANK, log, rows, is_impression & (rows.rank == 0))
    _count_events(drops, OTHER_RANK, log, rows, is_impression & (rows.rank < 0))
    rows = rows.select(rows.is_click | (rows.rank > 0))
    view = _group(rows.id, rows.application, rows.text)
    pair = _group(view, rows.document)
    pairs = int(pair.max(initial=-1)) + 1
    impressions = np.bincount(pair[~rows.is_click], minlength=pairs)
    clicks = np.bincount(pair[rows.is_click], minlength=pairs)
    impression_rank = _smallest(pair, rows.rank, ~rows.is_click, pairs)
    click_rank = _smallest(pair, rows.rank, rows.is_click & (rows.rank > 0), pairs)
    first_row = _smallest(pair, np.arange(len(pair)), np.ones(len(pair), bool), pairs)

    def count(reason: str, number: Ints) -> None:
        positions = np.flatnonzero(number)
        if len(positions):
            query_id = log.ids.values()[rows.id[first_row[positions[0]]]]
            drops.add(reason, f"query id {query_id!r}", int(number.sum()))

    count(REPEATED_IMPRESSION, np.maximum(impressions - 1, 0))
    count(REPEATED_CLICK, np.maximum(clicks - 1, 0))
    rank = np.where(impressions > 0, impression_rank, click_rank)
    only_clicked = (impressions == 0) & (clicks > 0)
    if source == "clicks":
        rank = np.zeros(pairs, np.int64)
    else:
        count(CLICK_ONLY, (only_clicked & (rank == _NONE)).astype(np.int64))
        count(CLICK_AS_IMPRESSION, (only_clicked & (rank != _NONE)).astype(np.int64))
    shown = Shown(
        view=view[first_row],
        application=rows.application[first_row],
        text=rows.text[first_row],
        document=rows.document[first_row],
        rank=rank,
        clicked=clicks > 0,
    )
    shown = shown.select(rank != _NONE)
    return shown.select(~_of_bots(log, rows, view, shown, drops)[shown.view])


def _group(*columns: Ints) -> Ints:
    """Number the distinct combinations of columns."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        size = int(column.max()) + 1 if len(column) else 1
        _, key = np.unique(key * size + column, return_inverse=True)
    return key.reshape(-1).astype(np.int64)


def _smallest(group: Ints, values: Ints, mask: Bools, groups: int) -> Ints:
    """Return the smallest value of each group, among the rows of the mask; _NONE without one."""
    smallest = np.full(groups, _NONE, np.int64)
    np.minimum.at(smallest, group[mask], values[mask])
    return smallest


def _of_bots(log: ClickLog, rows: Rows, view: Ints, shown: Shown, drops: Drops) -> Bools:
    """Return which page views are of bots."""
    views = int(view.max(initial=-1)) + 1
    is_bot = np.zeros(views, bool)
    client = _smallest(view, rows.client, rows.client >= 0, views)
    moment = _smallest(view, rows.time, rows.time >= 0, views)
    is_shown = np.bincount(shown.view, minlength=views) > 0
    has_client = (client != _NONE) & is_shown
    names = sorted(filter(None, log.clients.values()))
    offset = len(log.clients) - len(names)

    def add(reason: str, mask: Bools) -> None:
        positions = np.flatnonzero(mask & ~is_bot)
        if len(positions):
            clients_of_views = np.unique(client[positions])
            clients = [names[number - offset] for number in clients_of_views if number != _NONE]
            drops.add(reason, f"client {join_names(clients, 1)}" if clients else "", len(positions))
        is_bot[positions] = True

    is_named = np.array([_BOT.search(name) is not None for name in names], bool)
    mask = np.zeros(views, bool)
    mask[has_client] = is_named[client[has_client] - offset]
    add(BOT_NAME, mask)
    dated = has_client & (moment != _NONE)
    if dated.any():
        day = _group(client[dated], moment[dated] // _DAY)
        mask = np.zeros(views, bool)
        mask[dated] = np.bincount(day)[day] > MOST_PER_DAY
        add(BOT_DAY, mask)
    hits = np.bincount(shown.view, minlength=views)
    clicks = np.bincount(shown.view[shown.clicked], minlength=views)
    if shown.rank.any():
        add(BOT_CLICKS, (clicks >= 3) & (2 * clicks > hits))
    return is_bot


def _existing(shown: Shown, documents: Documents, drops: Drops) -> Shown:
    """Remove documents that the workspace does not have."""
    exists = documents.exists[shown.document]
    unknown = np.flatnonzero(~exists)
    if len(unknown):
        drops.add(UNKNOWN_DOCUMENT, documents.ids[shown.document[unknown].min()], len(unknown))
    return shown.select(exists)
