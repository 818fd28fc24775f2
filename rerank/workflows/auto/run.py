"""Auto: from a folder of files to a tuned and measured stack."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.common.errors import UsageError
from rerank.common.files import write_text
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.documents.records import Qrels, Query
from rerank.documents.text import count_of, join_names
from rerank.evaluation.measures import MEASURES
from rerank.evaluation.ranks import RankMeasure
from rerank.formats import read_corpus
from rerank.formats.beir import write_queries
from rerank.judging.clicks import REPORT, ClickReport, judge_log, read_log
from rerank.judging.log import ClickLog, ClickOptions
from rerank.judging.pool import PoolOptions, equal_weights, make_pool, separate_first_stage
from rerank.reports.evaluation import EvaluationReport
from rerank.reports.page import evaluation_page
from rerank.stack.stack import Stack
from rerank.workflows.auto.collection import ingest_files
from rerank.workflows.auto.context import AutoContext
from rerank.workflows.auto.files import Folder, read_folder
from rerank.workflows.auto.halves import Halves, tune_on_halves
from rerank.workflows.auto.judgments import (
    CLICKS,
    HandJudgments,
    JudgedPool,
    Judgments,
    check_clicked_queries,
    check_judged_by_hand,
    with_clicks,
    without_clicks,
)
from rerank.workflows.auto.plan import RankerChoice
from rerank.workflows.auto.state import AutoState
from rerank.workflows.auto.training import Trainings
from rerank.workflows.auto.tuning import choose_first_stage, training_end, tune_and_activate, tune_on_clicks
from rerank.workflows.evaluate import evaluate
from rerank.workflows.experiment import JudgedQueries
from rerank.workflows.tune import TuneReport
from rerank.workspace.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

MINUTES = 10.0
"""Default time in minutes."""
HITS_ON_PAGE = 10
"""Number of hits per ranking on the page."""
PAGE = "report.html"
FEW_JUDGED = 100
"""With fewer judged queries, one split misleads, so random halves are also measured."""
POOL = "pool.json"
"""File of the queries to judge by hand, in the workspace."""
POOL_QUERIES = 50
"""Queries to judge by hand: 30 to tune, 20 to test."""


@dataclass
class AutoReport(Report):
    """Choices and measurements.

    choices: trained and skipped rankers. stack: active, unless only clicks are known; without any judgment,
    the first stage. tuned: None without any judgment. splits: name -> file. queries: file. messages: remarks
    of the steps. evaluated, page: the measurement on test queries and its report; None if people judged none.
    without_categories: the test queries without their categories, if they have any. halves: tuning on random
    halves, if few queries are judged. clicks: the judgments from clicks, if there are any. pool: file of
    queries to judge by hand.
    """

    workspace: Workspace
    documents: int
    choices: list[RankerChoice]
    stack: Stack
    tuned: TuneReport | None
    splits: dict[str, Path]
    queries: Path
    messages: list[str]
    evaluated: EvaluationReport | None = None
    page: Path | None = None
    without_categories: EvaluationReport | None = None
    halves: Halves | None = None
    clicks: ClickReport | None = None
    pool: Path | None = None

    @property
    def better(self) -> bool:
        """Whether the stack beats its first stage by the first measure, p < 0.05."""
        return self.evaluated is not None and self.evaluated.better(self.evaluated.results[-1].stack)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, with ``better``."""
        return {**super().to_json(), "better": self.better}

    def rows(self) -> list[dict[str, object]]:
        """Return the table of the evaluation on test queries; empty if only clicks are known."""
        return [] if self.evaluated is None else self.evaluated.rows()

    def __repr__(self) -> str:
        lines = [*map(str, self.choices), str(self.stack)]
        if self.evaluated is not None:
            lines += [super().__repr__(), str(self.page)]
        return "\n".join(lines)


def auto(
    folder: str | os.PathLike[str],
    workspace: str | os.PathLike[str] = ".rerank",
    *,
    opensearch: Settings | None = None,
    ubi: Settings | None = None,
    lang: str | None = None,
    model: str | None = None,
    measure: str = "nDCG@10",
    minutes: float = MINUTES,
    seed: int = 0,
    progress: Progress = SILENT,
) -> AutoReport:
    """Make a tuned and measured stack from documents, queries and judgments.

    folder: ``corpus.jsonl``, ``queries.jsonl``, ``qrels.tsv`` or one or more of ``qrels/train.tsv``,
        ``dev.tsv`` and ``test.tsv``, optionally ``categories.tsv``. Missing splits are drawn. A click log,
        ``ubi_*.ndjson`` or ``clicks.csv``, can replace the judgments: then clicks train, the judged queries
        tune and test, and without judged queries no stack is activated. Without judgments and clicks,
        nothing is trained: the result is a pool of queries to judge by hand.
    workspace: result folder. Call again to continue.
    ubi: cluster with a click log.
    opensearch: cluster of a new workspace. Default: store documents in the folder.
    model: encoder of ``dense`` and ``adapter``. Default: MiniLM, English only.
    measure: to maximize, as for :func:`rerank.tune`.
    minutes: time for all steps. A training ends when its time is over; the best step is kept. Rankers
        without time are skipped.

    Raises InputError for missing files or too few judged queries, WorkspaceError for a workspace with other
    documents.

    >>> import json
    >>> words = ["wolf", "fox", "owl", "bear", "elk", "lynx", "crow", "hare", "seal", "mole"]
    >>> for name, texts in (("corpus", [f"the {word} at night" for word in words]), ("queries", words)):
    ...     lines = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts)]
    ...     _ = (folder / f"{name}.jsonl").write_text("\\n".join(lines))
    >>> _ = (folder / "qrels.tsv").write_text("".join(f"{i}\\t{i}\\t1\\n" for i in range(10)))
    >>> report = auto(folder, folder / "workspace")
    >>> print(report.choices[2])
    meta is skipped: fewer than 50 train queries
    >>> report.evaluated.queries
    5
    """
    for package in ("ir_measures", "torch"):  # a missing package raises before the long work
        if util.find_spec(package) is None:
            import_module(package)
    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g} is not a time; give a positive number")
    RankMeasure.parse(measure)
    if model is not None:
        from rerank.rankers.encoder.folder import check_encoder

        check_encoder(model)
    end = time.monotonic() + 60 * minutes
    files = read_folder(Path(folder), has_clicks=ubi is not None)
    context = AutoContext(files, measure, minutes, seed, model, progress, end, ubi)
    try:
        return _run_steps(context, Path(workspace), opensearch, lang)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{str(stop) or 'interrupted'}; run it again to continue") from None


def _run_steps(
    context: AutoContext, folder: Path, opensearch: Settings | None, lang: str | None
) -> AutoReport:
    """Run the steps, one after the other. Ingesting and reading judgments complete the context."""
    context.say("files", str(context.files), *_unread_judgments(context.files))
    inputs = _read_inputs(context, folder)  # errors come before the documents are ingested
    state = AutoState(folder, context)
    context.workspace = ingest_files(context, folder, state, opensearch, lang)
    context.judgments, clicks = _read_judgments(context, inputs)
    splits = context.splits
    if not splits.dev:
        context.say("queries", count_of(len(context.queries), "query"), *splits.notes)
        return _report_pool(context)
    split_files = splits.save(context.workspace.folder / "splits")
    sizes = f"train {len(splits.train):,}, dev {len(splits.dev):,}, test {len(splits.test):,}"
    context.say("queries", sizes, *splits.notes)
    begin = time.monotonic()
    first_stage, other_first_stages = choose_first_stage(context)
    choices = Trainings(context, state, first_stage, training_end(context, begin)).run_all()
    rankers = _different_rankers(context.workspace, choices)
    signals = [first_stage, *other_first_stages, *rankers]
    tested = context.judgments.tested
    tuned = tune_and_activate(context, signals) if tested else tune_on_clicks(context, signals)
    report = AutoReport(
        workspace=context.workspace,
        documents=len(context.workspace.engine),
        choices=choices,
        stack=tuned.stack,
        tuned=tuned,
        splits=split_files,
        queries=_save_queries(context),
        messages=context.messages,
        clicks=clicks,
    )
    if tested:
        _measure(context, report, tuned)
    else:
        queries = context.judged_queries(splits.dev)  # they did not train
        stacks = separate_first_stage(equal_weights(context.workspace, signals))
        report.pool = _write_pool(context, stacks, queries)
    return report


def _report_pool(context: AutoContext) -> AutoReport:
    """Write queries for people to judge, with the best hits of the first stages: nothing else is known."""
    workspace = context.workspace
    names = workspace.engine.first_stages
    return AutoReport(
        workspace=workspace,
        documents=len(workspace.engine),
        choices=[],
        stack=workspace.stack(names[0]),
        tuned=None,
        splits={},
        queries=_save_queries(context),
        messages=context.messages,
        pool=_write_pool(context, names, context.queries),
    )


def _different_rankers(workspace: Workspace, choices: Sequence[RankerChoice]) -> list[str]:
    """Return the trained rankers. Equal ones have the name of the first, at the position of the last.

    Without a gain on dev, the encoder that was trained on links equals the untrained one.
    """
    name_by_version: dict[str, str] = {}
    for choice in reversed(choices):
        if choice.trained:
            name_by_version[workspace.ranker(choice.ranker).version] = choice.ranker
    return list(reversed(name_by_version.values()))


def _unread_judgments(files: Folder) -> list[str]:
    """Return a line about tables that look like judgments and are not read."""
    unread = files.unread_judgments()
    if not unread:
        return []
    return [
        f"not read: {join_names(unread)}; the splits are qrels/train.tsv, qrels/dev.tsv and qrels/test.tsv"
    ]


@dataclass(frozen=True)
class _Inputs:
    """What people judged, in files and in the pool of an earlier run, and the click log, if there is one."""

    by_hand: HandJudgments
    pool: JudgedPool
    log: ClickLog | None


def _read_inputs(context: AutoContext, folder: Path) -> _Inputs:
    """Read the judgments and the click log.

    Raises InputError for files that cannot be read, and if too few queries are judged.
    """
    files = context.files
    has_clicks = bool(files.clicks) or context.ubi is not None
    by_hand = HandJudgments.read(files)
    pool = JudgedPool()
    if has_clicks or not files.qrels:
        pool = JudgedPool.read(folder / POOL, partial(context.say, "pool"))
    if by_hand.by_split or pool.qrels:
        documents = _document_ids(files, folder)
        check_judged_by_hand(by_hand, pool, documents, context.seed, has_clicks=has_clicks)
    log = None
    if has_clicks:
        log = read_log(files.clicks, ClickOptions(ubi=context.ubi), context.progress)
        if not by_hand.by_split and not pool.qrels:
            check_clicked_queries(log)
    return _Inputs(by_hand, pool, log)


def _document_ids(files: Folder, folder: Path) -> set[str]:
    """Return the ids of the documents that a workspace will have: its own, and the ones of the files."""
    ids = {document.id for document in read_corpus(files.corpus)}
    if Workspace.exists(folder):
        ids.update(Workspace.open(folder).engine.ids())
    return ids


def _read_judgments(context: AutoContext, inputs: _Inputs) -> tuple[Judgments, ClickReport | None]:
    """Join the judgments of people and of clicks. Returns them, and the report of the clicks."""
    documents = {*context.workspace.engine.ids()}
    by_hand = inputs.by_hand
    pool = inputs.pool
    if inputs.log is None:
        return without_clicks(by_hand, pool, documents, context.seed), None
    out = context.workspace.folder / CLICKS
    report = judge_log(inputs.log, out, context.workspace)
    queries = count_of(report.train.queries + (report.dev.queries if report.dev else 0), "query")
    views = count_of(report.page_views, "page view")
    context.say("clicks", f"{views}, {report.clicks:,} clicks, {queries}; {out / REPORT}", *report.warnings)
    if report.dropped:
        kinds = [f"{drop.reason} ({drop.count:,})" for drop in report.dropped]
        context.say("clicks", f"not used as logged: {'; '.join(kinds)}")
    return with_clicks(by_hand, report, pool, documents, context.seed), report


def _write_pool(context: AutoContext, stacks: Sequence[str | Stack], queries: Sequence[Query]) -> Path:
    """Write queries for people to judge, with the best hits of the stacks."""
    path = context.workspace.folder / POOL
    report = make_pool(
        context.workspace,
        stacks,
        queries,
        PoolOptions(count=POOL_QUERIES, seed=context.seed),
        context.progress,
    )
    report.pool.save(path)
    size = f"{count_of(len(report.pool.queries), 'query')}, {count_of(report.pool.hits, 'hit')}"
    context.say("pool", f"{size} to judge by hand: {path}")
    return path


def _save_queries(context: AutoContext) -> Path:
    """Return a file with all queries, and write it if no input file has all of them."""
    if not context.judgments.from_clicks and context.files.queries is not None:
        return context.files.queries
    path = context.workspace.folder / "splits" / "queries.jsonl"
    write_queries(path, context.queries)
    return path


def _measure(context: AutoContext, report: AutoReport, tuned: TuneReport) -> None:
    """Measure the stack on the test queries."""
    evaluate_stack = partial(
        evaluate,
        context.workspace,
        ",".join(report.stack.tuned_for),
        queries=context.queries,
        qrels=context.splits.test,
        baseline=report.stack.first_stage,
        measures=list(dict.fromkeys([context.measure, *MEASURES])),
        seed=context.seed,
        progress=context.progress,
    )
    report.evaluated = evaluate_stack(keep=HITS_ON_PAGE)
    test_queries = context.judged_queries(context.splits.test)
    if any(query.categories for query in test_queries):
        report.without_categories = evaluate_stack(ignore_categories=True)
    report.page = context.workspace.folder / PAGE
    write_text(report.page, evaluation_page(context.workspace, report.evaluated, context.queries))
    context.say("report", str(report.page))
    report.halves = _tune_on_halves(context, tuned)


def _tune_on_halves(context: AutoContext, tuned: TuneReport) -> Halves | None:
    """Tune on random halves of dev and test, if few queries are judged."""
    splits = context.splits
    judged_train = 0 if context.judgments.from_clicks else len(splits.train)
    if len(splits.dev) + len(splits.test) + judged_train >= FEW_JUDGED or context.is_late(1.0):
        return None
    judged = JudgedQueries(
        queries=context.queries,
        qrels=Qrels({**splits.dev, **splits.test}),
        seed=context.seed,
        progress=context.progress,
    )
    halves = tune_on_halves(context.workspace, tuned.stack, context.measure, judged, context.normalizations)
    context.say("halves", str(halves))
    return halves
