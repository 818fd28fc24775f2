"""The demo: the whole path on a collection that comes with the package (see collection/README.md)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank.actions.evaluate import EvaluationReport, evaluate
from rerank.actions.ingest import IngestReport, ingest
from rerank.actions.train import TrainReport, train
from rerank.actions.tune import TuneReport, tune
from rerank.errors import WorkspaceError, setting_hint
from rerank.files import write_text
from rerank.formats import read_qrels, read_queries
from rerank.progress import Progress
from rerank.records import Query
from rerank.reports.evaluation.page import evaluation_page
from rerank.results import Report
from rerank.scoring.pipeline import Answer
from rerank.stack.stack import Stack

COLLECTION = Path(__file__).parent / "collection"
RANKERS = ("text", "meta")
STACK = "tfidf,text,meta"
PAGE = "demo.html"
"""The evaluation's page, in the demo's folder."""
EXAMPLES = 3
_MARK = "demo"


@dataclass
class Demo(Report):
    """What each step of the demo gave; ``examples`` are test queries, answered, and their first hits."""

    ingested: IngestReport
    trained: TrainReport
    tuned: TuneReport
    evaluated: EvaluationReport
    without_categories: EvaluationReport
    examples: list[tuple[Query, Answer, Stack, list[dict[str, Any]]]]

    @property
    def better(self) -> bool:
        """Whether the stack is above its first stage by nDCG, at p < 0.05."""
        found = next(c for c in self.evaluated.comparisons if c.stack == STACK and c.measure == "nDCG")
        return found.delta > 0 and found.p_holm < 0.05

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation, and beside it the other steps."""
        return {
            **self.evaluated.to_json(),
            "without_categories": self.without_categories.to_json(),
            "tuned": self.tuned.to_json(),
            "better": self.better,
            "examples": [
                {"query": asked.text, "categories": list(asked.categories), "hits": hits}
                for asked, _, _, hits in self.examples
            ],
        }


def fresh_folder(folder: str | Path) -> Path:
    """Empty the folder of an earlier demo; WorkspaceError for a folder that holds anything else."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        if not (path / _MARK).exists():
            raise WorkspaceError(
                f"{path}: not empty, and not of an earlier demo;"
                f" choose another folder with {setting_hint('workspace')}"
            )
        shutil.rmtree(path)
    return path


def run_demo(folder: str | Path, *, seed: int = 0, progress: Progress | None = None) -> Demo:
    """Ingest, train, tune and evaluate the demo collection in ``folder``, and answer example queries.

    Queries are the first two sentences of lay summaries, with the article's subjects as categories; 2 is
    the article itself, 1 an article it cites, that cites it, or that is named as related.
    """
    path = fresh_folder(folder)
    progress = progress or Progress()
    queries = read_queries(COLLECTION / "queries.jsonl.gz")
    split = {name: read_qrels(COLLECTION / "qrels" / f"{name}.tsv") for name in ("train", "dev", "test")}
    graph = COLLECTION / "categories.tsv"
    ingested = ingest(
        path,
        [str(COLLECTION / "corpus.jsonl.gz")],
        categories=str(graph) if graph.exists() else None,
        progress=progress,
    )
    workspace = ingested.workspace
    (path / _MARK).write_text("made by the demo, which empties this folder when it runs again\n", "utf-8")
    trained = train(
        workspace,
        RANKERS,
        queries=queries,
        qrels=split["train"],
        dev_qrels=split["dev"],
        config={"seed": seed},
        progress=progress,
    )
    common: dict[str, Any] = {"queries": queries, "seed": seed, "progress": progress}
    dev, test = {**common, "qrels": split["dev"]}, {**common, "qrels": split["test"]}
    tuned = tune(workspace, STACK, **dev)
    for part in ("tfidf,text", "tfidf,meta"):
        tune(workspace, part, **dev)
    # A stack is tuned for the queries it will get: those without categories want other weights.
    plain = path / "stacks" / "without-categories.json"
    tune(workspace, STACK, out=plain, ignore_categories=True, **dev)
    ignored = evaluate(workspace, [str(plain)], ignore_categories=True, **test)
    evaluated = evaluate(workspace, ("text", "meta", "tfidf,text", "tfidf,meta", STACK), keep=10, **test)
    write_text(path / PAGE, evaluation_page(workspace, evaluated, queries, "test.tsv"))
    stack = tuned.tuned.stack
    pipeline = workspace.pipeline(stack.signals)
    by_id = {query.id: query for query in queries}
    step = max(1, len(split["test"]) // EXAMPLES)
    chosen = [by_id[id] for id in sorted(split["test"])[step // 2 :: step][:EXAMPLES]]
    answers = [(query, pipeline.answer(query, stack)) for query in chosen]
    examples = [(query, answer, stack, pipeline.hits(answer, 3)) for query, answer in answers]
    return Demo(ingested, trained, tuned, evaluated, ignored, examples)
