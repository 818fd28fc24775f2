"""Judgments from a click log."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rerank.common.batches import batched
from rerank.common.errors import InputError, UsageError
from rerank.common.files import check_new_file, parse_json, write_text
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report, to_json_value
from rerank.common.values import items_at
from rerank.documents.records import Query
from rerank.documents.text import count_of, join_names
from rerank.formats.beir import write_queries
from rerank.formats.click_log import Event, LogRecord, read_click_log
from rerank.formats.inputs import as_list
from rerank.formats.opening import Source
from rerank.formats.qrels import write_judgments
from rerank.formats.query_ids import query_ids, text_digest
from rerank.judging.drops import Dropped, Drops, count_rows
from rerank.judging.grades import (
    ClickCounts,
    click_rates,
    count_clicks,
    grades_without_impressions,
    training_grades,
    tuning_grades,
)
from rerank.judging.log import ClickLog, ClickOptions
from rerank.judging.page_views import Bools, Documents, Ints, PageViews, Shown, page_views, resolve_documents
from rerank.judging.srw import RATINGS_MARK, SrwCounts
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

DEV_EVERY = 5
"""One of so many queries is for tuning."""
FEW_PAGE_VIEWS = 5000
"""With fewer page views, more clicks improve the training much."""
TRUST = 0.6
"""A click rate of the first rank above this shows that users trust the first hit."""
MANY_BOTS = 0.5
"""A larger share of page views of bots is a warning."""
QUERIES = "queries.jsonl"
TRAIN = "train.tsv"
DEV = "dev.tsv"
REPORT = "report.json"
_STEP = 1000  # records between two signs of progress


@dataclass
class JudgedPart:
    """Size of a file of judgments. relevant: judgments with a grade above 0."""

    queries: int
    judgments: int
    relevant: int


@dataclass
class ApplicationReport:
    """Used events of one application. first_rank: None without impressions. click_rates: from rank 1."""

    name: str
    first_rank: int | None
    page_views: int
    impressions: int
    clicks: int
    click_rates: list[float]


@dataclass
class ClickReport(Report):
    """Judgments from a click log.

    folder: has the files. events, searches: records of the log. impressions, clicks: of a document in a page
    view. source: ``impressions``; without them ``hits`` (of the queries) or ``clicks``. click_rates: from
    rank 1. dev: None in a log without impressions. warnings: what limits the use of the judgments.
    """

    folder: Path
    events: int
    searches: int
    page_views: int
    impressions: int
    clicks: int
    source: str
    click_rates: list[float]
    train: JudgedPart
    dev: JudgedPart | None
    several_ranks: int
    applications: list[ApplicationReport] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts of used and of dropped records."""
        counts = {
            "events": self.events,
            "queries": self.searches,
            "page views": self.page_views,
            "impressions": self.impressions,
            "clicks": self.clicks,
            "documents of a query at several ranks": self.several_ranks,
        }
        return count_rows(counts, self.dropped)


def judge_clicks(
    logs: Source | Sequence[Source],
    out: str | os.PathLike[str],
    options: ClickOptions | None = None,
    workspace: WorkspaceOrPath | None = None,
    progress: Progress = SILENT,
) -> ClickReport:
    """Make judgments from the impressions and clicks of a search log, and write them to a folder.

    The files are ``queries.jsonl``, ``train.tsv`` to train rankers, ``dev.tsv`` with other queries to tune
    weights, and ``report.json``. Grades are 0 to 3. A query has the same id in every run. The order of the
    events and of the files has no effect.

    logs: one file or several, with records of User Behavior Insights (UBI), or tables of impressions; see
        :func:`rerank.formats.read_click_log`.
    workspace: only its documents are judged.

    Raises InputError for a damaged log, or a log without clicks; EngineError for a cluster that refuses.

    >>> log = folder / "log.csv"
    >>> lines = ["session,query,document,rank,clicked", "s1,wolf,d7,1,0", "s1,wolf,d2,2,1"]
    >>> _ = log.write_text("\\n".join(lines))
    >>> report = judge_clicks([log], folder / "judged")
    >>> report.impressions, report.clicks, report.click_rates
    (2, 1, [0.0, 1.0])
    """
    options = options or ClickOptions()
    _check_folder(Path(out))
    if options.srw:
        check_new_file(options.srw, RATINGS_MARK)
    opened = None if workspace is None else Workspace.open(workspace)
    srw = SrwCounts(options.max_rank)
    log = read_log(logs, options, progress, srw if options.srw else None)
    report = judge_log(log, out, opened)
    if options.srw:
        write_text(options.srw, json.dumps(srw.to_json(), ensure_ascii=False, indent=1) + "\n", follow=True)
    return report


def read_log(
    logs: Source | Sequence[Source],
    options: ClickOptions,
    progress: Progress = SILENT,
    srw: SrwCounts | None = None,
) -> ClickLog:
    """Read a click log, which needs no workspace. The arguments are those of :func:`judge_clicks`.

    srw: also counts the events as Search Relevance Workbench does.

    Raises InputError for a damaged log, or a log without clicks; EngineError for a cluster that refuses.
    """
    log = ClickLog(options, Drops())
    with progress.step("click log", unit="record") as advance:
        for records in batched(_records(as_list(logs), options), _STEP):
            for record in records:
                log.add(record)
                if srw is not None and isinstance(record, Event):
                    srw.add(record)
            advance(len(records))
    _check_log(log)
    return log


def judge_log(log: ClickLog, out: str | os.PathLike[str], workspace: Workspace | None = None) -> ClickReport:
    """Make judgments from a log of :func:`read_log`, and write them to a folder; see :func:`judge_clicks`.

    Raises InputError if no click can be used.
    """
    folder = Path(out)
    _check_folder(folder)
    documents = resolve_documents(log, None if workspace is None else workspace.engine)
    views = page_views(log, documents, log.drops)
    if not views.shown.clicked.any():
        raise InputError(f"no click can be used; {_most_frequent(log.drops)}")
    return _write(folder, log, documents, views)


def _records(logs: Sequence[Source], options: ClickOptions) -> Iterator[LogRecord]:
    for source in logs:
        yield from read_click_log(source)
    if options.ubi is not None:
        from rerank.engines.opensearch.ubi import read_ubi

        yield from read_ubi(options.ubi, options.id_fields)


def _check_folder(folder: Path) -> None:
    """Raise UsageError if the folder has such files that are not of this command."""
    existing = [name for name in (QUERIES, TRAIN, DEV, REPORT) if (folder / name).exists()]
    if existing and not _has_click_report(folder):
        raise UsageError(
            f"{folder}: {join_names(existing)} would be replaced; choose another folder with --out"
        )


def _has_click_report(folder: Path) -> bool:
    """Return whether an earlier run of this command wrote the report in the folder."""
    try:
        report = parse_json((folder / REPORT).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and "click_rates" in report


def _check_log(log: ClickLog) -> None:
    """Raise InputError for a log without a usable click."""
    if any(log.is_click):
        return
    if log.future_clicks:
        example = log.drops.example("events in the future")
        raise InputError(
            f"all {count_of(log.future_clicks, 'click')} are in the future, {example} first; correct the"
            " timestamps"
        )
    if not log.events:
        raise InputError("the log has no events; give the records of ubi_events")
    if log.unselected.events == log.events:
        raise InputError(log.unselected.describe(log.options))
    raise InputError(
        f"none of {count_of(log.events, 'event')} is a click that can be used; {_most_frequent(log.drops)};"
        f" the clicks are {', '.join(log.options.clicks)} (--clicks)"
    )


def _most_frequent(drops: Drops) -> str:
    table = drops.table()
    if not table:
        return "only impressions were found"
    return f"most frequent: {table[0].reason} ({table[0].count:,}), for example {table[0].example}"


def _write(folder: Path, log: ClickLog, documents: Documents, views: PageViews) -> ClickReport:
    """Write the files. After an interruption, each file is the old or the new one."""
    counts = count_clicks(views.shown)
    texts = log.texts.values()
    shown_texts = np.unique(counts.text).tolist()
    ids = query_ids(items_at(texts, shown_texts))
    names = {number: ids[texts[number]] for number in shown_texts}
    is_dev = np.array([is_for_tuning(text) for text in texts], bool)[counts.text]

    def rows(grades: Ints, mask: Bools) -> list[tuple[str, str, int]]:
        columns = (counts.text[mask].tolist(), counts.document[mask].tolist(), grades[mask].tolist())
        judgments = [(names[text], documents.ids[document], grade) for text, document, grade in zip(*columns)]
        return sorted(judgments)

    folder.mkdir(parents=True, exist_ok=True)
    if views.source == "clicks":
        grades = grades_without_impressions(counts)
        train = rows(grades, grades > 0)
        dev = None
    else:
        train = rows(training_grades(counts), ~is_dev)
        dev = rows(tuning_grades(counts), is_dev)
    judged = {query for query, _, _ in (*train, *(dev or ()))}
    text_of_view = views.shown.text[_first_rows(views.shown.view)]
    page_views_by_text = Counter(items_at(texts, text_of_view.tolist()))
    write_queries(folder / QUERIES, _queries(ids, judged, page_views_by_text))
    write_judgments(folder / TRAIN, train)
    if dev is None:
        (folder / DEV).unlink(missing_ok=True)
    else:
        write_judgments(folder / DEV, dev)
    files = (_part(train), None if dev is None else _part(dev))
    report = _report(folder, log, views, counts, files)
    write_text(folder / REPORT, json.dumps(to_json_value(report), ensure_ascii=False, indent=1) + "\n")
    return report


def _first_rows(view: Ints) -> Ints:
    """Return one row of each page view."""
    return np.unique(view, return_index=True)[1]


def _queries(ids: Mapping[str, str], judged: Collection[str], counts: Mapping[str, int]) -> Iterator[Query]:
    """Yield the judged queries with the number of their page views."""
    for text, query_id in sorted(ids.items()):
        if query_id in judged:
            yield Query(query_id, text, params={"count": counts[text]})


def is_for_tuning(text: str) -> bool:
    """Return whether a query is for tuning. It depends on other digits than the id."""
    return int(text_digest(text)[-8:], 16) % DEV_EVERY == 0


def _part(judgments: Sequence[tuple[str, str, int]]) -> JudgedPart:
    queries = {query for query, _, _ in judgments}
    return JudgedPart(len(queries), len(judgments), sum(grade > 0 for _, _, grade in judgments))


def _report(
    folder: Path,
    log: ClickLog,
    views: PageViews,
    counts: ClickCounts,
    files: tuple[JudgedPart, JudgedPart | None],
) -> ClickReport:
    shown = views.shown
    rates = _rates(shown)
    train, dev = files
    applications = []
    names = log.applications.values()
    for name in sorted(views.first_ranks):
        rows = shown.select(shown.application == names.index(name))
        applications.append(
            ApplicationReport(
                name=name,
                first_rank=views.first_ranks[name],
                page_views=rows.page_views,
                impressions=int(np.count_nonzero(rows.rank)),
                clicks=int(np.count_nonzero(rows.clicked)),
                click_rates=_rates(rows),
            )
        )
    return ClickReport(
        folder=folder,
        events=log.events,
        searches=log.searches,
        page_views=shown.page_views,
        impressions=int(np.count_nonzero(shown.rank)),
        clicks=int(np.count_nonzero(shown.clicked)),
        source=views.source,
        click_rates=rates,
        train=train,
        dev=dev,
        several_ranks=int(np.count_nonzero(counts.ranks > 1)),
        applications=applications,
        dropped=log.drops.table(),
        warnings=list(_warnings(log, views, rates, dev)),
    )


def _rates(shown: Shown) -> list[float]:
    """Return the click rate of each rank, from rank 1."""
    if not shown.rank.any():
        return []
    return [round(rate, 6) for rate in click_rates(shown)[1:].tolist()]


def _warnings(log: ClickLog, views: PageViews, rates: list[float], dev: JudgedPart | None) -> Iterator[str]:
    """Describe what limits the use of the judgments."""
    page_views = views.shown.page_views
    if dev is None:
        yield f"{views.reason}; grades count clicks, and dev.tsv is missing"
    elif views.reason:
        yield views.reason
    if page_views < FEW_PAGE_VIEWS:
        yield f"{count_of(page_views, 'page view')}: {FEW_PAGE_VIEWS:,} or more train better rankers"
    if rates and rates[0] > TRUST:
        yield (
            f"{100 * rates[0]:.0f} % of the first hits are clicked, so users may trust the first hit:"
            " tune on queries judged by hand"
        )
    bots = _count_page_views_of_bots(log)
    if bots > MANY_BOTS * (bots + page_views):
        yield f"{bots:,} of {bots + page_views:,} page views are not used because they look like bots"


def _count_page_views_of_bots(log: ClickLog) -> int:
    drops = [drop for drop in log.drops.table() if drop.reason.startswith("page views")]
    return sum(drop.count for drop in drops)
