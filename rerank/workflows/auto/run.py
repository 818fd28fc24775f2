"""Auto: from a folder of files to a tuned and measured stack."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, util
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.errors import EngineError, UsageError, WorkspaceError
from rerank.evaluation.measures import MEASURES
from rerank.evaluation.ranks import RankMeasure
from rerank.files import write_text
from rerank.formats import read_corpus
from rerank.formats.beir import write_queries
from rerank.judging.clicks import REPORT, ClickReport, judge_clicks
from rerank.judging.log import ClickOptions
from rerank.judging.pool import PoolOptions, make_pool
from rerank.progress import Progress
from rerank.records import Qrels
from rerank.reports.evaluation import EvaluationReport
from rerank.reports.page import evaluation_page
from rerank.results import Report
from rerank.stack.stack import Stack
from rerank.text import count_of, guess_language, join_names
from rerank.workflows.auto.files import read_folder
from rerank.workflows.auto.halves import Halves, tune_on_halves
from rerank.workflows.auto.judgments import CLICKS, JudgedPool, by_hand, with_clicks
from rerank.workflows.auto.plan import RankerChoice
from rerank.workflows.auto.training import Record, Run, Trainings
from rerank.workflows.encode import encode
from rerank.workflows.evaluate import evaluate
from rerank.workflows.ingest import ingest
from rerank.workflows.tune import TuneReport, tune
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

MINUTES = 10.0
"""Default time in minutes."""
FOUND = 200
"""Documents that a vector ranker retrieves."""
SOME = 500
"""Documents that are read to guess their language."""
KEPT = 10
"""Hits per ranking on the page."""
PAGE = "report.html"
MOST_QUERIES = 500
"""Largest number of queries to compare first stages."""
FEW_JUDGED = 100
"""With fewer judged queries, one split misleads, so random halves are also measured."""
SLOWER = 3
"""Time to score a query with all rankers, in times with two first stages."""
LEAST_RESERVE, MOST_RESERVE = 0.1, 0.4
"""Shares of the time that are kept to tune and evaluate."""
POOL = "pool.json"
"""File of the queries to judge by hand, in the workspace."""
POOL_QUERIES = 50
"""Queries to judge by hand: 30 to tune, 20 to test."""
CAREFUL = 0.3
"""Smallest share of the weight for the first stage, if only clicks are known."""
RETRIEVAL = 2.5
"""Time to tune with more retrievers and to evaluate, in times of the first tuning."""


@dataclass
class AutoReport(Report):
    """Choices and measurements.

    choices: trained and skipped rankers. stack: active, unless only clicks are known. splits: name -> file.
    queries: file. messages: remarks of the steps. evaluated, page: the measurement on test queries and its
    report; None if only clicks are known. without_categories: the test queries without their categories, if
    they have any. halves: tuning on random halves, if few queries are judged. clicks: the judgments from
    clicks, if there are any. pool: file of queries to judge by hand.
    """

    workspace: Workspace
    documents: int
    choices: list[RankerChoice]
    stack: Stack
    tuned: TuneReport
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
        """Return the table of the evaluation."""
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
    progress: Progress | None = None,
) -> AutoReport:
    """Make a tuned and measured stack from documents, queries and judgments.

    folder: ``corpus.jsonl``, ``queries.jsonl``, ``qrels.tsv`` or one or more of ``qrels/train.tsv``,
        ``dev.tsv`` and ``test.tsv``, optionally ``categories.tsv``. Missing splits are drawn. A click log,
        ``ubi_*.ndjson`` or ``clicks.csv``, can replace the judgments: then clicks train, the judged queries
        tune and test, and without judged queries no stack is activated.
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
    >>> print(report.choices[1])
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
    run = _Auto(files, measure, minutes, seed, model, progress or Progress(), end, ubi)
    try:
        return run.all_steps(Path(workspace), opensearch, lang)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{str(stop) or 'interrupted'}; run it again to continue") from None


class _Auto(Run):
    """The steps, one after the other."""

    def all_steps(self, folder: Path, opensearch: Settings | None, lang: str | None) -> AutoReport:
        self.say("files", str(self.files))
        record = Record(folder, self)
        self.workspace = self._ingest(folder, record, opensearch, lang or self._language())
        clicks = self._read_judgments()
        splits = self.splits
        paths = splits.save(self.workspace.folder / "splits")
        parts = f"train {len(splits.train):,}, dev {len(splits.dev):,}, test {len(splits.test):,}"
        self.say("queries", parts, *splits.notes)
        begin = time.monotonic()
        first, others = self._first_stage()
        choices = Trainings(self, record, first, self._training_end(begin)).run_all()
        # Without a gain on dev, the encoder trained on links equals the untrained one.
        trained = [one.ranker for one in reversed(choices) if one.trained]
        different = {self.workspace.ranker(name).version: name for name in trained}
        signals = [first, *others, *reversed(different.values())]
        tested = self.judgments.tested
        tuned = self._tune(signals) if tested else self._tune_on_clicks(signals)
        report = AutoReport(
            workspace=self.workspace,
            documents=len(self.workspace.engine),
            choices=choices,
            stack=tuned.stack,
            tuned=tuned,
            splits=paths,
            queries=self._queries_file(),
            messages=self.messages,
            clicks=clicks,
        )
        if tested:
            self._measure(report)
        else:
            report.pool = self._write_pool(signals)
        return report

    def _read_judgments(self) -> ClickReport | None:
        """Read the judgments of people and of clicks, and return the report of the clicks."""
        documents = {*self.workspace.engine.ids()}
        if not self.files.clicks and self.ubi is None:
            self.judgments = by_hand(self.files, documents, self.seed)
            return None
        out = self.workspace.folder / CLICKS
        report = judge_clicks(
            self.files.clicks, out, ClickOptions(ubi=self.ubi), self.workspace, self.progress
        )
        part = count_of(report.train.queries + (report.dev.queries if report.dev else 0), "query")
        views = count_of(report.page_views, "page view")
        self.say("clicks", f"{views}, {report.clicks:,} clicks, {part}; {out / REPORT}", *report.warnings)
        pool = JudgedPool.read(self.workspace.folder / POOL, partial(self.say, "pool"))
        self.judgments = with_clicks(self.files, report, pool, documents, self.seed)
        return report

    def _write_pool(self, signals: Sequence[str]) -> Path:
        """Write queries for people to judge. They did not train.

        Their hits are the best of the first stage, and of equal weights of all signals.
        """
        path = self.workspace.folder / POOL
        equal = "+".join(f"{name}*1" for name in signals)
        queries = [query for query in self.queries if query.id in self.splits.dev]
        report = make_pool(
            self.workspace,
            [signals[0], equal],
            queries,
            PoolOptions(count=POOL_QUERIES, seed=self.seed),
            self.progress,
        )
        report.pool.save(path)
        size = f"{count_of(len(report.pool.queries), 'query')}, {count_of(report.pool.hits, 'hit')}"
        self.say("pool", f"{size} to judge by hand: {path}")
        return path

    def _queries_file(self) -> Path:
        """Return a file with all queries."""
        if not self.judgments.from_clicks and self.files.queries is not None:
            return self.files.queries
        path = self.workspace.folder / "splits" / "queries.jsonl"
        write_queries(path, self.queries)
        return path

    def _measure(self, report: AutoReport) -> None:
        """Measure the stack on the test queries."""
        common = {"qrels": self.splits.test, "baseline": report.stack.first_stage, **self._common()}
        common["measures"] = list(dict.fromkeys([self.measure, *MEASURES]))
        stacks = [",".join(report.stack.tuned_for)]
        report.evaluated = evaluate(self.workspace, stacks, keep=KEPT, **common)
        if any(query.categories for query in self.queries if query.id in self.splits.test):
            report.without_categories = evaluate(self.workspace, stacks, ignore_categories=True, **common)
        report.page = self.workspace.folder / PAGE
        write_text(report.page, evaluation_page(self.workspace, report.evaluated, self.queries))
        self.say("report", str(report.page))
        report.halves = self._halves(report.tuned)

    def _training_end(self, begin: float) -> float:
        """Return the moment that leaves time to tune and evaluate. begin: of comparing first stages."""
        queries = min(MOST_QUERIES, len(self.splits.dev) + len(self.splits.train))
        scorings = 2 * 3 * len(self.splits.dev) + 2 * len(self.splits.test)  # with and without retrieval
        seconds = SLOWER * (time.monotonic() - begin) / max(queries, 1) * scorings
        left = self.end - time.monotonic()
        return time.monotonic() + left - min(max(seconds, LEAST_RESERVE * left), MOST_RESERVE * left)

    def _halves(self, tuned: TuneReport) -> Halves | None:
        """Tune on random halves of dev and test, if few queries are judged."""
        splits = self.splits
        judged_train = 0 if self.judgments.from_clicks else len(splits.train)
        if len(splits.dev) + len(splits.test) + judged_train >= FEW_JUDGED or self._is_late(1.0):
            return None
        judged = Qrels({**splits.dev, **splits.test})
        halves = tune_on_halves(self.workspace, tuned.stack, self.measure, judged, **self._common())
        self.say("halves", str(halves))
        return halves

    def _is_late(self, seconds: float) -> bool:
        """Whether work of so many seconds would not end in time."""
        return time.monotonic() + seconds > self.end

    def _common(self) -> dict[str, Any]:
        return {"queries": self.queries, "seed": self.seed, "progress": self.progress}

    def _language(self) -> str | None:
        """Return the language of documents without ``lang``, by their words."""
        some = list(islice(read_corpus(self.files.corpus), SOME))
        lang = None if any(one.lang for one in some) else guess_language(one.content for one in some)
        if lang is not None:
            self.say("ingest", f"the documents have no `lang`; by their words it is {lang} (else --lang)")
        return lang

    def _ingest(
        self, folder: Path, record: Record, opensearch: Settings | None, lang: str | None
    ) -> Workspace:
        files = self.files
        existing = Workspace.open(folder) if Workspace.exists(folder) else None
        if existing is not None and not record.trained:
            what = ""
            if not record.known and (trained := existing.trained()):
                what = f"rankers of another training ({', '.join(trained)})"
            elif others := {*existing.engine.ids()} - {document.id for document in read_corpus(files.corpus)}:
                what = f"{count_of(len(others), 'document')} not in {files.path} ({min(others)!r} first)"
            if what:
                raise WorkspaceError(f"{folder}: has {what}; choose another folder with -w")
        done = ingest(
            existing or folder,
            [str(files.corpus)],
            categories=str(files.categories) if files.categories else None,
            lang=lang,
            opensearch=opensearch,
            encode_features=False,
            progress=self.progress,
        )
        if record.other:  # interrupted trainings are of other files
            shutil.rmtree(done.workspace.folder / "training", ignore_errors=True)
        record.save()
        self.say(
            "ingest",
            f"{count_of(done.documents, 'document')} ({done.lang or 'mixed languages'}):"
            f" {done.added:,} added, {done.updated:,} updated, {done.unchanged:,} unchanged",
        )
        if not done.workspace.lang and not {*done.languages} - {""}:
            self.say("ingest", "no document has a language, so words are not stemmed; --lang en sets it")
        return done.workspace

    def _first_stage(self) -> tuple[str, list[str]]:
        names, measure = self.workspace.engine.first_stages, self.measure
        if len(names) < 2:
            return names[0], []
        if not self.judgments.tested:
            self.say(
                "first stage", f"{names[0]}; clicks follow the search that was shown, so they cannot compare"
            )
            return names[0], list(names[1:])
        pool = {**self.splits.dev}
        if not self.judgments.from_clicks:
            pool |= self.splits.train
        some = Qrels({query: pool[query] for query in sorted(pool)[:MOST_QUERIES]})
        compared = evaluate(
            self.workspace, names[1:], baseline=names[0], qrels=some, measures=[measure], **self._common()
        )
        reached = {row.stack: row.measures[measure] for row in compared.results}
        best = max(names, key=lambda name: reached[name])
        each = ", ".join(f"{name} {reached[name]:.4f}" for name in names)
        of = count_of(compared.queries, "query")
        self.say("first stage", f"{best}; {measure} on {of} of train and dev: {each}")
        return best, [name for name in names if name != best]

    def _tune(self, signals: Sequence[str]) -> TuneReport:
        """Tune, and activate the stack."""
        asked: dict[str, Any] = {
            **self._common(),
            "qrels": self.splits.dev,
            "first_stage": signals[0],
            "measure": self.measure,
            "out": self.workspace.stack_path(signals),
        }
        begin = time.monotonic()
        plain = tune(self.workspace, ",".join(signals), **asked)
        tuned = plain
        if self._is_late(RETRIEVAL * (time.monotonic() - begin)):
            self.say("retrieval", "no time is left to measure if vector rankers should also retrieve")
        else:
            tuned = self._retrieving(",".join(signals), asked, plain)
        stack, of = self.workspace.use_stack(tuned.stack), tuned.tuned
        self.say(
            "tune",
            f"{stack} ({stack.combiner.normalization}): {of.measure} {of.value:.4f} on"
            f" {count_of(of.queries, 'query')}, {of.first_stage_value:.4f} {signals[0]} alone",
        )
        if tuned.dropped:
            self.say("tune", f"{', '.join(tuned.dropped)} got no weight and left the stack")
        return tuned

    def _tune_on_clicks(self, signals: Sequence[str]) -> TuneReport:
        """Tune a careful stack on clicks. It is not activated, because clicks cannot test it."""
        tuned = tune(
            self.workspace,
            ",".join(signals),
            **self._common(),
            qrels=self.splits.dev,
            first_stage=signals[0],
            measure=self.measure,
            protocol="judged",
            least=CAREFUL,
            out=self.workspace.stack_path(signals),
        )
        stack = tuned.stack
        self.say("tune", f"{stack} ({stack.combiner.normalization}), tuned on clicks and not tested")
        return tuned

    def _retrieving(self, signals: str, asked: dict[str, Any], plain: TuneReport) -> TuneReport:
        """Let vector rankers also retrieve, if dev gains."""
        workspace, first = self.workspace, asked["first_stage"]
        found = [name for name in plain.stack.rankers if workspace.ranker(name).retrieves]
        if not found:
            return plain
        try:
            encode(workspace, found, retrieve=found, progress=self.progress)
        except EngineError as error:  # no k-NN plugin
            self.say("retrieval", str(error))
            return plain
        union = tune(workspace, signals, retrieve=[first, *(f"{name}:{FOUND}" for name in found)], **asked)
        self.say(
            "retrieval",
            f"dev {union.tuned.measure} {union.tuned.value:.4f} if {join_names(found)} also"
            f" {'retrieve' if len(found) > 1 else 'retrieves'}, {plain.tuned.value:.4f} if not",
        )
        if union.tuned.value > plain.tuned.value:
            return union
        plain.stack.save(asked["out"])
        return plain
