"""Auto: from a folder of files to a tuned and measured stack."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module, util
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.errors import EngineError, UsageError, WorkspaceError
from rerank.evaluation.measures import MEASURES
from rerank.evaluation.ranks import RankMeasure
from rerank.files import write_text
from rerank.formats import read_corpus, read_qrels, read_queries
from rerank.progress import Progress
from rerank.records import Qrels
from rerank.report_page.page import evaluation_page
from rerank.report_page.tables import EvaluationReport
from rerank.results import Report
from rerank.stack.stack import Stack
from rerank.text import count_of, guess_language, join_names
from rerank.workflows.auto.files import read_folder
from rerank.workflows.auto.halves import Halves, tune_on_halves
from rerank.workflows.auto.plan import RankerChoice
from rerank.workflows.auto.splits import split
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
RETRIEVAL = 2.5
"""Time to tune with more retrievers and to evaluate, in times of the first tuning."""


@dataclass
class AutoReport(Report):
    """Choices and measurements.

    choices: trained and skipped rankers. stack: active. page: the report. splits: name -> file.
    queries: file. messages: remarks of the steps. without_categories: the test queries without their
    categories, if they have any. halves: tuning on random halves, if few queries are judged.
    """

    workspace: Workspace
    documents: int
    choices: list[RankerChoice]
    stack: Stack
    tuned: TuneReport
    evaluated: EvaluationReport
    page: Path
    splits: dict[str, Path]
    queries: Path
    messages: list[str]
    without_categories: EvaluationReport | None = None
    halves: Halves | None = None

    @property
    def better(self) -> bool:
        """Whether the stack beats its first stage by the first measure, p < 0.05."""
        return self.evaluated.better(self.evaluated.results[-1].stack)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, with ``better``."""
        return {**super().to_json(), "better": self.better}

    def rows(self) -> list[dict[str, object]]:
        """Return the table of the evaluation."""
        return self.evaluated.rows()

    def __repr__(self) -> str:
        return "\n".join((*map(str, self.choices), str(self.stack), super().__repr__(), str(self.page)))


def auto(
    folder: str | os.PathLike[str],
    workspace: str | os.PathLike[str] = ".rerank",
    *,
    opensearch: Settings | None = None,
    lang: str | None = None,
    model: str | None = None,
    measure: str = "nDCG@10",
    minutes: float = MINUTES,
    seed: int = 0,
    progress: Progress | None = None,
) -> AutoReport:
    """Make a tuned and measured stack from documents, queries and judgments.

    folder: ``corpus.jsonl``, ``queries.jsonl``, ``qrels.tsv`` or one or more of ``qrels/train.tsv``,
        ``dev.tsv`` and ``test.tsv``, optionally ``categories.tsv``. Missing splits are drawn.
    workspace: result folder. Call again to continue.
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
    run = _Auto(read_folder(Path(folder)), measure, minutes, seed, model, progress or Progress(), end)
    try:
        return run.all_steps(Path(workspace), opensearch, lang)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{str(stop) or 'interrupted'}; run it again to continue") from None


class _Auto(Run):
    """The steps, one after the other."""

    def all_steps(self, folder: Path, opensearch: Settings | None, lang: str | None) -> AutoReport:
        judged = {name: read_qrels(path) for name, path in self.files.qrels.items()}
        self.queries = read_queries(self.files.queries)
        self.say("files", str(self.files))
        record = Record(folder, self)
        self.workspace = self._ingest(folder, record, opensearch, lang or self._language())
        ids = {*self.workspace.engine.ids()}
        self.splits = splits = split(judged, self.queries, ids, seed=self.seed)
        paths = splits.save(self.workspace.folder / "splits")
        parts = f"train {len(splits.train):,}, dev {len(splits.dev):,}, test {len(splits.test):,}"
        self.say("queries", parts, *splits.notes)
        begin = time.monotonic()
        first, others = self._first_stage()
        choices = Trainings(self, record, first, self._training_end(begin)).run_all()
        # Without a gain on dev, the encoder trained on links equals the untrained one.
        trained = [one.ranker for one in reversed(choices) if one.trained]
        different = {self.workspace.ranker(name).version: name for name in trained}
        tuned = self._tune([first, *others, *reversed(different.values())])
        evaluated = evaluate(
            self.workspace,
            [",".join(tuned.stack.tuned_for)],
            qrels=splits.test,
            measures=list(dict.fromkeys([self.measure, *MEASURES])),
            baseline=first,
            keep=KEPT,
            **self._common(),
        )
        without_categories = None
        if any(query.categories for query in self.queries if query.id in splits.test):
            without_categories = evaluate(
                self.workspace,
                [",".join(tuned.stack.tuned_for)],
                qrels=splits.test,
                measures=list(dict.fromkeys([self.measure, *MEASURES])),
                baseline=first,
                ignore_categories=True,
                **self._common(),
            )
        page = self.workspace.folder / PAGE
        write_text(page, evaluation_page(self.workspace, evaluated, self.queries))
        self.say("report", str(page))
        return AutoReport(
            self.workspace,
            len(ids),
            choices,
            tuned.stack,
            tuned,
            evaluated,
            page,
            paths,
            self.files.queries,
            self.messages,
            without_categories,
            self._halves(tuned),
        )

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
        if len(splits.dev) + len(splits.test) + len(splits.train) >= FEW_JUDGED or self._is_late(1.0):
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
        pool = {**self.splits.dev, **self.splits.train}
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
