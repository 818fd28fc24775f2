"""The demo: ingest, train, tune and evaluate a bundled collection."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rerank.common.errors import WorkspaceError
from rerank.common.files import write_text
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.documents.records import Qrels, Query
from rerank.formats import read_qrels, read_queries
from rerank.rankers.encoder.folder import PACKAGED
from rerank.reports.evaluation import EvaluationReport
from rerank.reports.page import evaluation_page
from rerank.scoring.pipeline import SearchResult
from rerank.stack.stack import Stack
from rerank.workflows.evaluate import evaluate
from rerank.workflows.ingest import ingest
from rerank.workflows.train import train
from rerank.workflows.tune import TuneReport, tune
from rerank.workspace.workspace import Workspace

COLLECTION = Path(__file__).parent / "collection"
RANKERS = ("text", "meta")
FIRST_STAGE = "bm25"
STACK = "bm25,text,meta"
ENCODER = "dense"
"""Pretrained encoder, if MiniLM is installed."""
PAGE = "demo.html"
"""Name of the evaluation page in the demo's folder."""
SHORT = "Short queries: a heading of 3 to 8 words from the article, which is not indexed"
"""Heading of the table of short queries."""
WITH_HEADINGS = "With the subject headings of the relevant article: an upper bound"
"""Heading of the last table of the page."""
EXAMPLES = 3
HITS_ON_PAGE = 10
_MARK = "demo"


Example = tuple[Query, SearchResult, list[dict[str, Any]]]
"""A query, the answer of a stack, and its first hits."""


@dataclass
class Demo(Report):
    """The reports of the demo.

    stack:         the signals of the complete stack.
    tuned:         the tuning of this stack.
    evaluated:     the measurement on summaries without subject headings.
    with_headings: the same queries with the headings of the relevant article.
    short:         the measurement on short queries.
    examples:      some test queries with the answers of the tuned stack.
    """

    stack: str
    tuned: TuneReport
    evaluated: EvaluationReport
    with_headings: EvaluationReport
    short: EvaluationReport
    examples: list[Example]

    @property
    def better(self) -> bool:
        """Whether the stack beats BM25 without headings, nDCG@10, p < 0.05."""
        return self.evaluated.better(self.stack)

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation without headings, and other reports by name."""
        return {
            **self.evaluated.to_json(),
            "with_headings": self.with_headings.to_json(),
            "short": self.short.to_json(),
            "tuned": self.tuned.to_json(),
            "better": self.better,
            "examples": [
                {"query": query.text, "categories": list(query.categories), "hits": hits}
                for query, _, hits in self.examples
            ],
        }


def fresh_folder(folder: str | Path) -> Path:
    """Empty the folder of a complete demo; an interrupted one continues. Raises WorkspaceError for others."""
    path = Path(folder)
    is_empty = path.is_dir() and not any(path.iterdir())
    if is_empty or not path.exists():
        return path
    if not (path / _MARK).exists():
        raise WorkspaceError(f"{path}: not empty, and not an earlier demo; choose another folder with -w")
    if (path / PAGE).exists():  # the last step of the demo writes it
        shutil.rmtree(path)
    return path


def _is_trained(workspace: Workspace, name: str) -> bool:
    """Whether a ranker is trained, and no checkpoint of an interrupted training is left."""
    return name in workspace.trained() and not (workspace.folder / "training" / name).exists()


def run_demo(folder: str | Path, *, seed: int = 0, progress: Progress = SILENT) -> Demo:
    """Run the demo in ``folder``.

    Queries are the first two sentences of lay summaries. Grade 2 is the article of the summary, grade 1 a
    related article or one connected by a citation. Headings are from the relevant article: an upper bound.
    """
    path = fresh_folder(folder)
    queries = read_queries(COLLECTION / "queries.jsonl.gz")
    qrels = {name: read_qrels(COLLECTION / "qrels" / f"{name}.tsv") for name in ("train", "dev", "test")}
    workspace = _ingest(path, progress)
    _train(workspace, queries, qrels, seed, progress)
    tune_stack = partial(
        tune,
        workspace,
        queries=queries,
        qrels=qrels["dev"],
        measure="nDCG@10",
        seed=seed,
        progress=progress,
    )
    stacks_of_two = [f"{FIRST_STAGE},{ranker}" for ranker in RANKERS]
    stacks = [*RANKERS, *stacks_of_two, STACK]
    for stack in stacks_of_two:
        tune_stack(stack)
    tuned = tune_stack(STACK)
    if find_spec(PACKAGED["minilm"]) is not None:
        train(workspace, ENCODER, config={"untrained": True, "passages": 1}, progress=progress)
        stacks += [f"{FIRST_STAGE},{ENCODER}", f"{STACK},{ENCODER}"]
        tune_stack(stacks[-2])
        tuned = tune_stack(stacks[-1])
    workspace.use_stack(tuned.stack)
    evaluate_stacks = partial(
        evaluate,
        workspace,
        stacks,
        qrels=qrels["test"],
        first_stage=FIRST_STAGE,
        baseline=FIRST_STAGE,
        seed=seed,
        progress=progress,
    )
    with_headings = evaluate_stacks(queries=queries, keep=HITS_ON_PAGE)
    evaluated = evaluate_stacks(queries=queries, keep=HITS_ON_PAGE, ignore_categories=True)
    short = evaluate_stacks(queries=read_queries(COLLECTION / "short-queries.jsonl.gz"))
    evaluated.correct(short, with_headings)  # all tables are on the page
    without_headings = [replace(query, categories=()) for query in queries]
    tables = {SHORT: short, WITH_HEADINGS: with_headings}
    page = evaluation_page(workspace, evaluated, without_headings, "test.tsv", others=tables)
    write_text(path / PAGE, page)
    examples = _examples(workspace, tuned.stack, without_headings, sorted(qrels["test"]))
    return Demo(stacks[-1], tuned, evaluated, with_headings, short, examples)


def _ingest(folder: Path, progress: Progress) -> Workspace:
    """Ingest the articles, and mark the folder as one that the demo may empty."""
    corpus = COLLECTION / "corpus.jsonl.gz"
    report = ingest(folder, [corpus], categories=COLLECTION / "categories.tsv", progress=progress)
    (folder / _MARK).write_text("The demo made this folder and empties it when it runs again.\n", "utf-8")
    return report.workspace


def _train(
    workspace: Workspace,
    queries: Sequence[Query],
    qrels: Mapping[str, Qrels],
    seed: int,
    progress: Progress,
) -> None:
    """Train the rankers that an interrupted run has not trained. Raises KeyboardInterrupt after Ctrl-C."""
    untrained = [name for name in RANKERS if not _is_trained(workspace, name)]
    if not untrained:
        return
    report = train(
        workspace,
        untrained,
        queries=queries,
        qrels=qrels["train"],
        dev_qrels=qrels["dev"],
        first_stage=FIRST_STAGE,
        config={"seed": seed},
        progress=progress,
    )
    if report.rankers[-1].interrupted:
        raise KeyboardInterrupt("interrupted; run it again to continue")


def _examples(
    workspace: Workspace, stack: Stack, queries: Sequence[Query], test_ids: Sequence[str]
) -> list[Example]:
    """Return the answers to some test queries, which are spread over all of them."""
    pipeline = workspace.pipeline(stack.signals)
    query_by_id = {query.id: query for query in queries}
    step = max(1, len(test_ids) // EXAMPLES)
    examples: list[Example] = []
    for id in test_ids[step // 2 :: step][:EXAMPLES]:
        answer = pipeline.answer(query_by_id[id], stack)
        examples.append((query_by_id[id], answer, pipeline.hits(answer, 3)))
    return examples
