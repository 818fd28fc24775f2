"""The demo: ingest, train, tune and evaluate a bundled collection."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rerank.errors import WorkspaceError
from rerank.files import write_text
from rerank.formats import read_qrels, read_queries
from rerank.progress import Progress
from rerank.rankers.encoder.folder import PACKAGED
from rerank.records import Query
from rerank.reports.evaluation import EvaluationReport
from rerank.reports.page import evaluation_page
from rerank.results import Report
from rerank.scoring.pipeline import SearchResult
from rerank.workflows.evaluate import evaluate
from rerank.workflows.ingest import ingest
from rerank.workflows.train import train
from rerank.workflows.tune import TuneReport, tune
from rerank.workspace import Workspace

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
_MARK = "demo"


@dataclass
class Demo(Report):
    """Reports of the demo.

    stack: name of the complete stack. evaluated: summaries without subject headings. with_headings: with
    headings of the relevant article. short: short queries.
    examples: test queries, answers of the tuned stack and first hits.
    """

    stack: str
    tuned: TuneReport
    evaluated: EvaluationReport
    with_headings: EvaluationReport
    short: EvaluationReport
    examples: list[tuple[Query, SearchResult, list[dict[str, Any]]]]

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
                {"query": asked.text, "categories": list(asked.categories), "hits": hits}
                for asked, _, hits in self.examples
            ],
        }


def fresh_folder(folder: str | Path) -> Path:
    """Empty the folder of a complete demo; an interrupted one continues. Raises WorkspaceError for others."""
    path = Path(folder)
    if (path / _MARK).exists() and not (path / PAGE).exists():
        return path
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        if not (path / _MARK).exists():
            raise WorkspaceError(f"{path}: not empty, and not an earlier demo; choose another folder with -w")
        shutil.rmtree(path)
    return path


def _is_trained(workspace: Workspace, name: str) -> bool:
    """Whether a ranker is trained, and no checkpoint of an interrupted training is left."""
    return name in workspace.trained() and not (workspace.folder / "training" / name).exists()


def run_demo(folder: str | Path, *, seed: int = 0, progress: Progress | None = None) -> Demo:
    """Run the demo in ``folder``.

    Queries are the first two sentences of lay summaries. Grade 2 is the article of the summary, grade 1 a
    related article or one connected by a citation. Headings are from the relevant article: an upper bound.
    """
    path = fresh_folder(folder)
    progress = progress or Progress()
    queries = read_queries(COLLECTION / "queries.jsonl.gz")
    split = {name: read_qrels(COLLECTION / "qrels" / f"{name}.tsv") for name in ("train", "dev", "test")}
    corpus, graph = COLLECTION / "corpus.jsonl.gz", COLLECTION / "categories.tsv"
    workspace = ingest(path, [corpus], categories=graph, progress=progress).workspace
    (path / _MARK).write_text("The demo made this folder and empties it when it runs again.\n", "utf-8")
    untrained = [name for name in RANKERS if not _is_trained(workspace, name)]
    if untrained:
        trained = train(
            workspace,
            untrained,
            queries=queries,
            qrels=split["train"],
            dev_qrels=split["dev"],
            first_stage=FIRST_STAGE,
            config={"seed": seed},
            progress=progress,
        )
        if trained.rankers[-1].interrupted:
            raise KeyboardInterrupt("interrupted; run it again to continue")
    common: dict[str, Any] = {"queries": queries, "seed": seed, "progress": progress}
    dev = {**common, "qrels": split["dev"], "measure": "nDCG@10"}
    test = {**common, "qrels": split["test"], "first_stage": FIRST_STAGE, "baseline": FIRST_STAGE, "keep": 10}
    stacks = [*RANKERS, *(f"{FIRST_STAGE},{ranker}" for ranker in RANKERS), STACK]
    tuned = [tune(workspace, stack, **dev) for stack in stacks[len(RANKERS) :]][-1]
    if find_spec(PACKAGED["minilm"]) is not None:
        train(workspace, ENCODER, config={"untrained": True, "passages": 1}, progress=progress)
        stacks += [f"{FIRST_STAGE},{ENCODER}", f"{STACK},{ENCODER}"]
        tuned = [tune(workspace, stack, **dev) for stack in stacks[-2:]][-1]
    workspace.use_stack(tuned.stack)
    with_headings = evaluate(workspace, stacks, **test)
    evaluated = evaluate(workspace, stacks, ignore_categories=True, **test)
    short_queries = read_queries(COLLECTION / "short-queries.jsonl.gz")
    short = evaluate(workspace, stacks, **{**test, "queries": short_queries, "keep": 0})
    evaluated.correct(short, with_headings)  # all tables are on the page
    bare = [replace(query, categories=()) for query in queries]
    others = {SHORT: short, WITH_HEADINGS: with_headings}
    page = evaluation_page(workspace, evaluated, bare, "test.tsv", others=others)
    write_text(path / PAGE, page)
    pipeline = workspace.pipeline(tuned.stack.signals)
    by_id = {query.id: query for query in bare}
    step = max(1, len(split["test"]) // EXAMPLES)
    chosen = [by_id[id] for id in sorted(split["test"])[step // 2 :: step][:EXAMPLES]]
    answers = [(query, pipeline.answer(query, tuned.stack)) for query in chosen]
    examples = [(query, answer, pipeline.hits(answer, 3)) for query, answer in answers]
    return Demo(stacks[-1], tuned, evaluated, with_headings, short, examples)
