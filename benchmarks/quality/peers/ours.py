"""Run rerank: its BM25, and the stack of `rerank auto`. Queries are as users type them.

    python benchmarks/quality/peers/ours.py OUT/cf [--model MODEL_FOLDER] [--minutes 10]
    python benchmarks/quality/peers/ours.py OUT/cf --stack bm25,s2net,text --retrieve bm25,s2net

``--stack`` measures a manually selected stack in a separate workspace. It trains the missing rankers and
tunes the weights.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from collection import DEPTH, Collection, Costs, Run, arguments, time_queries, write

from rerank import auto, ingest, train, tune
from rerank.common.progress import Progress
from rerank.documents.records import Query
from rerank.scoring.pipeline import SearchResult
from rerank.stack.stack import Stack
from rerank.workflows.auto import context as auto_context
from rerank.workflows.auto import run as auto_run
from rerank.workflows.auto import training as auto_training
from rerank.workflows.auto import tuning as auto_tuning
from rerank.workspace.workspace import Workspace

LANGUAGES = {"italian": "it", "german": "de", "english": "en"}
TOP = 100
LEXICAL = ("bm25", "tfidf")
BUSY_CORES = 1.5  # processor seconds that auto takes in a second of an idle machine with two cores
AUTO, HAND = "workspace", "workspace-hand"


class ProcessorClock:
    """Replaces the module ``time`` of auto, so that a busy machine does not change its plan."""

    @staticmethod
    def monotonic() -> float:
        """Return the seconds that the processor time takes on an idle machine."""
        return time.process_time() / BUSY_CORES


class RankerTimes(Progress):
    """Processor seconds of auto for each ranker, with the measurement on dev.

    The time of a ranker begins with the last line about another one and ends when it is trained.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begun = time.process_time()

    def say(self, line: str) -> None:
        """End the time of a ranker that is trained or skipped."""
        ended = re.match(r"rankers: (\w+) is (trained|skipped)", line)
        if ended is None:
            return
        now = time.process_time()
        if ended[2] == "trained":
            self.seconds[ended[1]] = round(now - self.begun, 1)
        self.begun = now


def names(stack: Stack) -> list[str]:
    """Return the names of signals and retrievers, without depths."""
    return sorted({*stack.signals, *(retriever.partition(":")[0] for retriever in stack.retrievers)})


def searcher(workspace: Workspace, stack: Stack, collection: Collection) -> Callable[[str], SearchResult]:
    """Return a function that answers a query of the collection by a stack."""
    pipeline = workspace.pipeline(names(stack))
    lang = LANGUAGES[collection.languages[1]]
    return lambda text: pipeline.answer(Query("q", text, lang=lang), stack)


def answer(workspace: Workspace, stack: Stack, collection: Collection, costs: Costs) -> Run:
    """Return the run of the test queries."""
    search = searcher(workspace, stack, collection)

    def scores(text: str) -> dict[str, float]:
        return {hit.id: hit.score for hit in search(text).ranking.top(DEPTH)}

    return costs.answer(collection.of("test"), scores)


def export(workspace: Workspace, stack: Stack, collection: Collection) -> None:
    """Write features.json: split -> query -> the best ids, and one row of signals per id."""
    search = searcher(workspace, stack, collection)
    features: dict[str, dict[str, tuple[list[str], list[list[float]]]]] = {"dev": {}, "test": {}}
    for split, answers in features.items():
        for query, text in collection.of(split).items():
            ranking = search(text).ranking
            rows = ranking.order[:TOP]
            columns = (ranking.raw[rows], ranking.normalized[rows], ranking.scores[:TOP, None], rows[:, None])
            answers[query] = list(ranking.ids[:TOP]), np.hstack(columns).tolist()
    (collection.folder / "features.json").write_text(json.dumps(features))


def by_hand(workspace: Workspace, signals: str, retrieve: Sequence[str], collection: Collection) -> None:
    """Train the missing rankers, tune a stack of these signals, and write its run."""
    folder, costs = collection.folder, Costs()
    learn, dev = (folder / f"qrels/{split}.tsv" for split in ("train", "dev"))
    judged = {"queries": folder / "queries.jsonl", "qrels": learn, "dev_qrels": dev} if learn.exists() else {}
    with costs.time("training"):
        # user: rerank-hand
        for name in dict.fromkeys(one.partition(":")[0] for one in (*signals.split(","), *retrieve)):
            if name not in workspace.trained() and name not in LEXICAL:
                settings = {"untrained": True} if name == "dense" else {}
                train(workspace, name, config=settings, **({} if name == "dense" else judged))
        tuned = tune(
            workspace,
            signals,
            queries=folder / "queries.jsonl",
            qrels=dev,
            retrieve=retrieve,
            out=folder / "by-hand.json",
        )
        # end
    costs.bytes = engine_bytes(workspace.folder)
    print(tuned)
    run = answer(workspace, tuned.stack, collection, costs)
    write(collection, "rerank-hand", run, costs, stack=str(tuned.stack), retrieve=",".join(retrieve))


def engine_bytes(folder: Path) -> int:
    """Return the size of documents, index and features of a workspace, in bytes."""
    return sum(path.stat().st_size for path in (folder / "engine").rglob("*") if path.is_file())


def latencies(collection: Collection) -> None:
    """Measure the latency of each stack that has a run."""
    for peer, name in (("rerank-bm25", AUTO), ("rerank-auto", AUTO), ("rerank-hand", HAND)):
        if not (collection.folder / f"runs/{peer}.json").exists():
            continue
        workspace = Workspace.open(collection.folder / name)
        names_of = {"rerank-bm25": "bm25", "rerank-auto": workspace.default_stack}
        stack = workspace.stack(names_of.get(peer, str(collection.folder / "by-hand.json")))
        time_queries(collection, peer, searcher(workspace, stack, collection))


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--minutes", type=float, default=10.0, help="time of auto. Default: %(default)s")
    options.add_argument("--model", help="encoder for auto. Default: the installed one")
    options.add_argument("--stack", help="signals of a manually selected stack, separated by commas")
    options.add_argument("--retrieve", default="", help="retrievers for --stack, separated by commas")
    args = options.parse_args()
    collection = Collection.load(args.folder)
    if args.answer:
        latencies(collection)
        return
    if args.stack:
        folder, graph = collection.folder / HAND, collection.folder / "categories.tsv"
        if not folder.exists():
            source = collection.folder / "corpus.jsonl"
            ingest(folder, source, categories=graph if graph.exists() else None)
        retrieve = args.retrieve.split(",") if args.retrieve else []
        by_hand(Workspace.open(folder), args.stack, retrieve, collection)
        return
    folder, costs = collection.folder / AUTO, Costs()
    for module in (auto_run, auto_context, auto_training, auto_tuning):
        vars(module)["time"] = ProcessorClock
    begin, rankers = time.monotonic(), RankerTimes()
    with costs.time("training"):
        # user: rerank-auto
        report = auto(args.folder, folder, model=args.model, minutes=args.minutes, progress=rankers)
        # end
    elapsed = time.monotonic() - begin
    print(*report.messages, sep="\n")
    print(report, f"\nauto took {elapsed:.0f} s, {costs.training:.0f} s of processor time")
    workspace, stack = Workspace.open(folder), report.stack
    export(workspace, stack, collection)
    costs.bytes = engine_bytes(folder)
    write(collection, "rerank-bm25", answer(workspace, workspace.stack("bm25"), collection, Costs()), Costs())
    run = answer(workspace, stack, collection, costs)
    write(collection, "rerank-auto", run, costs, stack=str(stack), seconds=rankers.seconds)


if __name__ == "__main__":
    main()
