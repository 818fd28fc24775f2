"""Auto: from a folder of files to a tuned and measured stack."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module, util
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.errors import TrainingError, UsageError, WorkspaceError
from rerank.files import write_text
from rerank.formats import read_corpus, read_qrels, read_queries
from rerank.progress import Progress
from rerank.records import Document, Qrels, Query
from rerank.references import CitationCounts
from rerank.report_page.tables import EvaluationReport
from rerank.results import Report, html_table
from rerank.stack.stack import Stack
from rerank.text import language_or_none, plural
from rerank.workflows.auto_record import Record
from rerank.workflows.collection_folder import Folder, read_folder
from rerank.workflows.evaluate import evaluate
from rerank.workflows.ingest import ingest
from rerank.workflows.ranker_choice import CollectionFacts, RankerChoice, choose
from rerank.workflows.splits import Splits, split
from rerank.workflows.train import train
from rerank.workflows.tune import TuneReport, tune
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

MINUTES = 10.0
"""Default time limit in minutes."""
TRAINING = 0.7
"""Share of the time limit after which trainings stop."""
KEPT = 10
"""Hits per ranking on the page."""
PAGE = "report.html"
MODEL, READS = "minilm", "en"
"""Default encoder of ``dense``, and its language."""
MOST_QUERIES = 500
"""Largest number of queries to compare first stages."""


@dataclass
class AutoReport(Report):
    """Choices and measurements.

    choices: trained and skipped rankers. stack: active. page: the report. splits: name -> file.
    queries: file. messages: remarks of the steps.
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

    @property
    def better(self) -> bool:
        """Whether the stack beats its first stage by the first measure, p < 0.05."""
        return any(
            found.stack == self.evaluated.results[-1].stack and found.delta > 0 and found.p_holm < 0.05
            for found in self.evaluated.comparisons[: len(self.evaluated.results)]
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, with ``better``."""
        return {**super().to_json(), "better": self.better}

    def rows(self) -> list[dict[str, object]]:
        """Return the table of the evaluation."""
        return self.evaluated.rows()

    def __repr__(self) -> str:
        return "\n".join((*map(str, self.choices), str(self.stack), super().__repr__(), str(self.page)))

    def _repr_html_(self) -> str:
        chosen = html_table(
            [{"ranker": c.ranker, "trained": c.trained, "why": c.reason} for c in self.choices]
        )
        return f"{chosen}<p>{self.stack}</p>{html_table(self.rows())}<p>{self.page}</p>"


def auto(
    folder: str | os.PathLike[str],
    workspace: str | os.PathLike[str] = ".rerank",
    *,
    opensearch: Settings | None = None,
    lang: str | None = None,
    model: str | None = None,
    minutes: float = MINUTES,
    conflicts: str = "refuse",
    seed: int = 0,
    progress: Progress | None = None,
) -> AutoReport:
    """Make a tuned and measured stack from documents, queries and judgments.

    folder: ``corpus.jsonl`` (or JATS articles), ``queries.jsonl``, one or more of ``qrels/train.tsv``,
        ``dev.tsv`` and ``test.tsv``, optionally ``categories.tsv``. Missing splits are drawn.
    workspace: result folder. Call again to continue.
    opensearch: cluster of a new workspace. Default: store documents in the folder.
    model: encoder of ``dense``. Default: MiniLM, English only.
    minutes: time limit; slower rankers are skipped or stopped.
    conflicts: see :func:`rerank.read_qrels`.

    Raises InputError for missing files or too few judged queries, WorkspaceError for a workspace with other
    documents.

    >>> import json, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> words = ["wolf", "fox", "owl", "bear", "elk", "lynx", "crow", "hare", "seal", "mole"]
    >>> for name, texts in (("corpus", [f"the {word} at night" for word in words]), ("queries", words)):
    ...     lines = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts)]
    ...     _ = (folder / f"{name}.jsonl").write_text("\\n".join(lines))
    >>> _ = (folder / "qrels.tsv").write_text("".join(f"{i}\\t{i}\\t1\\n" for i in range(10)))
    >>> report = auto(folder, folder / "workspace")
    >>> print(report.choices[0])
    text is skipped: fewer than 50 train queries
    >>> report.evaluated.queries
    5
    """
    for package in ("ir_measures", "torch"):  # a missing package raises before the long work
        if util.find_spec(package) is None:
            import_module(package)
    if not minutes > 0:
        raise UsageError(f"--minutes {minutes:g} is not a time; give a positive number")
    if model is not None:
        from rerank.rankers.encoder.transformer import model_folder

        model_folder(model)
    files, progress = read_folder(Path(folder)), progress or Progress()
    return _Auto(files, minutes, conflicts, seed, model, progress).run(Path(workspace), opensearch, lang)


class _Auto:
    queries: list[Query]
    workspace: Workspace

    def __init__(
        self, files: Folder, minutes: float, conflicts: str, seed: int, model: str | None, progress: Progress
    ) -> None:
        self.files, self.minutes, self.seed, self.progress = files, minutes, seed, progress
        self.model = model
        self.conflicts = conflicts
        self.begun = time.monotonic()
        self.messages: list[str] = []

    def say(self, step: str, *lines: str) -> None:
        for line in lines:
            self.messages.append(f"{step}: {line}")
            self.progress.say(f"{step}: {line}")

    def run(self, folder: Path, opensearch: Settings | None, lang: str | None) -> AutoReport:
        files = self.files
        judged = {name: read_qrels(path, conflicts=self.conflicts) for name, path in files.qrels.items()}
        self.queries = read_queries(files.queries)
        self.say("files", self._files_line())
        record = Record.of(folder, files, self.seed, self.conflicts, self.model or MODEL)
        self.workspace = workspace = self._ingest(folder, record, opensearch, lang)
        facts, ids = self._facts()
        splits = split(judged, self.queries, ids, seed=self.seed)
        facts = replace(facts, train_queries=len(splits.train))
        paths = self._keep(splits)
        self.say(
            "queries",
            f"train {len(splits.train):,}, dev {len(splits.dev):,}, test {len(splits.test):,}",
            *splits.notes,
        )
        first, others = self._first_stage(splits)
        choices = [self._train(choice, first, splits, record) for choice in choose(facts)]
        tuned = self._tune([first, *others, *(c.ranker for c in choices if c.trained)], splits.dev)
        stack = workspace.use_stack(tuned.path.stem)
        self.say("in use", str(stack))
        evaluated = evaluate(
            workspace,
            [",".join(stack.tuned_for)],
            queries=self.queries,
            qrels=splits.test,
            baseline=first,
            keep=KEPT,
            seed=self.seed,
            progress=self.progress,
        )
        page = workspace.folder / PAGE
        self._write(page, evaluated)
        return AutoReport(
            workspace,
            facts.documents,
            choices,
            stack,
            tuned,
            evaluated,
            page,
            paths,
            files.queries,
            self.messages,
        )

    def _files_line(self) -> str:
        files = self.files
        corpus = ", ".join(one.name for one in files.corpus)
        graph = f", the category graph {files.categories.name}" if files.categories else ""
        aside = f"; {', '.join(one.name for one in files.aside)} is not read" if files.aside else ""
        articles = " (articles in JATS)" if files.format == "jats" else ""
        qrels = ", ".join(one.name for one in files.qrels.values())
        return f"{corpus}{articles}, {files.queries.name}, judgments {qrels}{graph}{aside}"

    def _ingest(
        self, folder: Path, record: Record, opensearch: Settings | None, lang: str | None
    ) -> Workspace:
        files = self.files
        existing = Workspace.open(folder) if Workspace.exists(folder) else None
        if existing is not None and not record.known and existing.trained():
            raise WorkspaceError(
                f"{folder}: has rankers of another training ({', '.join(existing.trained())}); choose another"
                f" folder with -w"
            )
        if existing is not None and not record.rankers:
            ids = {document.id for document in self._documents()}
            others = sorted({*existing.engine.ids()} - ids)
            if others:
                raise WorkspaceError(
                    f"{folder}: has {plural(len(others), 'document[|s]')} not in {files.path} ({others[0]!r}"
                    f" first); choose another folder with -w"
                )
        done = ingest(
            existing or folder,
            [str(one) for one in files.corpus],
            format=files.format,
            categories=str(files.categories) if files.categories else None,
            lang=lang,
            opensearch=opensearch,
            encode_features=False,
            progress=self.progress,
        )
        workspace = done.workspace
        if record.other:  # interrupted trainings are of other files
            shutil.rmtree(workspace.folder / "training", ignore_errors=True)
        record.save()
        news = f"{done.added:,} added" + (f", {done.updated:,} updated" if done.updated else "")
        same = f", {done.unchanged:,} unchanged" if done.unchanged else ""
        self.say(
            "ingest",
            f"{plural(done.documents, 'document[|s]')} ({done.lang or 'mixed languages'}): {news}{same}",
        )
        if not workspace.lang and not {*done.languages} - {""}:
            self.say(
                "ingest",
                "no document has a language, so words are not stemmed; for English, use a new workspace"
                " with --lang en finds more",
            )
        return workspace

    def _documents(self) -> Iterator[Document]:
        if self.files.format == "jsonl":
            return chain.from_iterable(read_corpus(one) for one in self.files.corpus)
        from rerank.formats.jats import read_jats

        read = (read_jats(one, CitationCounts()) for one in self.files.corpus)
        return (article.document() for article in chain.from_iterable(read))

    def _facts(self) -> tuple[CollectionFacts, set[str]]:
        engine, langs, ids = self.workspace.engine, Counter[str](), set[str]()
        targets: Counter[str] = Counter()
        categories = 0
        for document in self.progress.over(engine.documents(), "look at documents", len(engine), "doc"):
            ids.add(document.id)
            categories += bool(document.categories)
            targets.update(set(document.links) - {document.id})
            if code := language_or_none(document.lang):
                langs[code] += 1
        asked = Counter(code for query in self.queries if (code := language_or_none(query.lang)))
        both = [next((code for code, _ in one.most_common(1)), None) for one in (langs, asked)]
        from rerank.rankers.encoder.transformer import PACKAGED

        facts = CollectionFacts(
            documents=len(ids),
            train_queries=0,
            with_categories=categories / max(len(ids), 1),
            links=sum(n for id, n in targets.items() if id in ids) / max(len(ids), 1),
            languages=(both[0] or self.workspace.lang, both[1]),
            model=self.model is not None or util.find_spec(PACKAGED[MODEL]) is not None,
            reads=READS if self.model in (None, MODEL) else None,
            minutes=self.minutes,
        )
        return facts, ids

    def _keep(self, splits: Splits) -> dict[str, Path]:
        folder = self.workspace.folder / "splits"
        folder.mkdir(exist_ok=True)
        paths = {}
        for name in ("train", "dev", "test"):
            qrels: Qrels = getattr(splits, name)
            if qrels:
                paths[name] = folder / f"{name}.tsv"
                rows = (f"{q}\t{d}\t{grade}\n" for q in qrels for d, grade in qrels[q].items())
                write_text(paths[name], "query-id\tcorpus-id\tscore\n" + "".join(rows))
        return paths

    def _first_stage(self, splits: Splits) -> tuple[str, list[str]]:
        names = self.workspace.engine.first_stages
        if len(names) < 2:
            return names[0], []
        pool = {**splits.dev, **splits.train}
        asked = sorted(pool)[:MOST_QUERIES]
        found = evaluate(
            self.workspace,
            names[1:],
            baseline=names[0],
            queries=self.queries,
            qrels=Qrels((q, d, grade) for q in asked for d, grade in pool[q].items()),
            measures=["nDCG"],
            progress=self.progress,
        )
        reached = {row.stack: row.measures["nDCG"] for row in found.results}
        best = max(names, key=lambda name: reached[name])
        each = ", ".join(f"{name} {reached[name]:.4f}" for name in names)
        self.say(
            "first stage", f"{best}; nDCG on {plural(found.queries, 'quer[y|ies]')} of train and dev: {each}"
        )
        return best, [name for name in names if name != best]

    def _train(self, choice: RankerChoice, first: str, splits: Splits, record: Record) -> RankerChoice:
        name = choice.ranker
        if not choice.trained:
            self.say("rankers", str(choice))
            return choice
        if record.done(self.workspace, name, self.minutes):
            self.say("rankers", f"{choice!s} (done before)")
            return choice
        clock = _Clock(self.progress, self.begun + TRAINING * 60 * self.minutes)
        if clock.late():
            return self._left_out(name, f"{TRAINING:.0%} of the time is up; raise --minutes")
        self.say("rankers", str(choice))
        judged: dict[str, Any] = {"queries": self.queries, "qrels": splits.train, "dev_qrels": splits.dev}
        learned_from = {} if name == "dense" else {**judged, "first_stage": first}
        config = {"seed": self.seed} | ({"model": self.model or MODEL} if name == "dense" else {})
        try:
            done = train(self.workspace, [name], **learned_from, config=config, progress=clock)
        except TrainingError as error:
            return self._left_out(name, str(error))
        except KeyboardInterrupt:
            if not clock.ended:
                raise
            return self._left_out(name, "time was up before its first step; raise --minutes")
        ((fitted),) = done.rankers
        if fitted.interrupted and not clock.ended:
            raise KeyboardInterrupt(
                f"interrupted: {name} is kept at its best step; call again to finish its training"
            )
        record.add(self.workspace, name, self.minutes if fitted.interrupted else None)
        how = f"; time was up after {fitted.unit} {fitted.epochs}" if fitted.interrupted else ""
        if fitted.dev is not None and fitted.baseline is not None:
            self.say(
                "rankers",
                f"{name}: {fitted.measure} {fitted.dev:.4f}, {fitted.baseline:.4f} {fitted.without}{how}",
            )
        return choice

    def _left_out(self, name: str, reason: str) -> RankerChoice:
        choice = RankerChoice(name, False, reason)
        self.say("rankers", str(choice))
        return choice

    def _tune(self, signals: Sequence[str], dev: Qrels) -> TuneReport:
        tuned = tune(
            self.workspace,
            ",".join(signals),
            queries=self.queries,
            qrels=dev,
            first_stage=signals[0],
            seed=self.seed,
            progress=self.progress,
        )
        stack, of = tuned.stack, tuned.tuned
        self.say(
            "tune",
            f"{stack} ({stack.combiner.normalization}): {of.measure} {of.value:.4f} on"
            f" {plural(of.queries, 'quer[y|ies]')}, {of.first_stage_value:.4f} {signals[0]} alone",
        )
        if tuned.dropped:
            self.say("tune", f"{', '.join(tuned.dropped)} got no weight and left the stack")
        return tuned

    def _write(self, page: Path, evaluated: EvaluationReport) -> None:
        from rerank.report_page.page import evaluation_page

        write_text(page, evaluation_page(self.workspace, evaluated, self.queries))
        self.say("report", str(page))


class _Clock(Progress):
    """Ends a training at the deadline. The best epoch is kept."""

    def __init__(self, progress: Progress, deadline: float) -> None:
        self.progress, self.deadline = progress, deadline
        self.ended = self._training = False

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        self._training = unit in ("batch", "step", "iteration")
        self.progress.start(title, total, unit)

    def advance(self, count: int = 1) -> None:
        self.progress.advance(count)
        if self._training and self.late():
            self.ended, self._training = True, False
            raise KeyboardInterrupt

    def show(self, **values: str) -> None:
        self.progress.show(**values)

    def finish(self) -> None:
        self._training = False
        self.progress.finish()

    def say(self, line: str) -> None:
        self.progress.say(line)
