"""rerank: its BM25, and the stack of `rerank auto`, with queries as users type them.

    python benchmarks/peers/ours.py OUT/cf [--minutes 10]
    python benchmarks/peers/ours.py OUT/cf --stack bm25,s2net,text --retrieve bm25,s2net

``--stack`` builds a stack by hand instead, in the same workspace: it trains the rankers that are missing, and
tunes the weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from collection import DEPTH, Collection, Costs, Run, arguments, time_queries, write

from rerank import auto, ingest, train, tune
from rerank.records import Query
from rerank.stack.stack import Stack
from rerank.workflows import auto_training
from rerank.workflows.ranker_choice import CORES
from rerank.workspace import Workspace

LANGUAGES = {"italian": "it", "german": "de", "english": "en"}
TOP = 100
LEXICAL = ("bm25", "tfidf")


def count_work() -> None:
    """Let the deadlines of auto count processor time, so that other work on the machine changes no plan."""
    begin = time.monotonic() - time.process_time() / CORES
    clock = SimpleNamespace(monotonic=lambda: begin + time.process_time() / CORES)
    auto_training.time = clock  # type: ignore[attr-defined]


def names(stack: Stack) -> list[str]:
    """Return signals and retrievers without their depths."""
    return sorted({*stack.signals, *(one.partition(":")[0] for one in stack.retrievers)})


def answer(workspace: Workspace, stack: Stack, collection: Collection, costs: Costs) -> Run:
    """Answer each test query by the query path."""
    pipeline = workspace.pipeline(names(stack))
    lang = LANGUAGES[collection.languages[1]]

    def search(text: str) -> dict[str, float]:
        ranking = pipeline.answer(Query("", text, lang=lang), stack).ranking
        return {hit.id: hit.score for hit in ranking.top(DEPTH)}

    return costs.answer(collection.of("test"), search)


def export(workspace: Workspace, stack: Stack, collection: Collection) -> None:
    """Write features.json: split -> query -> the best ids, and a row of signals for each."""
    pipeline = workspace.pipeline(names(stack))
    found: dict[str, dict[str, tuple[list[str], list[list[float]]]]] = {"dev": {}, "test": {}}
    for split, answers in found.items():
        for query, text in collection.of(split).items():
            ranking = pipeline.answer(Query("", text, lang=LANGUAGES[collection.languages[1]]), stack).ranking
            rows = ranking.order[:TOP]
            columns = (ranking.raw[rows], ranking.normalized[rows], ranking.scores[:TOP, None], rows[:, None])
            answers[query] = list(ranking.ids[:TOP]), np.hstack(columns).tolist()
    (collection.folder / "features.json").write_text(json.dumps(found))


def by_hand(workspace: Workspace, signals: str, retrieve: Sequence[str], collection: Collection) -> None:
    """Train missing rankers, tune a stack of these signals, and write its run."""
    folder, costs = collection.folder, Costs()
    learn, dev = (folder / f"qrels/{split}.tsv" for split in ("train", "dev"))
    judged = {"queries": folder / "queries.jsonl", "qrels": learn, "dev_qrels": dev} if learn.exists() else {}
    with costs.time("training"):
        # user: rerank-hand
        for name in names(Stack.parse(signals)):
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
    costs.bytes = engine_bytes(folder)
    print(tuned)
    run = answer(workspace, tuned.stack, collection, costs)
    write(collection, "rerank-hand", run, costs, stack=str(tuned.stack), retrieve=",".join(retrieve))


def engine_bytes(folder: Path) -> int:
    """Return the bytes of documents, index and features."""
    files = (folder / "workspace" / "engine").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


def latencies(workspace: Workspace, collection: Collection) -> None:
    """Measure each stack that has a run."""
    lang = LANGUAGES[collection.languages[1]]
    hand = collection.folder / "by-hand.json"
    stacks = {"rerank-bm25": workspace.stack("bm25")}
    if (collection.folder / "runs/rerank-auto.json").exists():
        stacks["rerank-auto"] = workspace.stack(workspace.default_stack)
    if hand.exists():
        stacks["rerank-hand"] = workspace.stack(str(hand))
    for peer, stack in stacks.items():
        pipeline = workspace.pipeline(names(stack))
        time_queries(
            collection,
            peer,
            lambda text, pipeline=pipeline, stack=stack: pipeline.answer(Query("", text, lang=lang), stack),
        )


def main() -> None:
    """Write the runs ``rerank-bm25`` and ``rerank-auto`` or, with ``--stack``, ``rerank-hand``."""
    options = arguments(__doc__)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--stack")
    options.add_argument("--retrieve", type=lambda text: text.split(","), default=())
    args = options.parse_args()
    collection, folder = Collection.load(args.folder), Path(args.folder) / "workspace"
    if args.answer:
        latencies(Workspace.open(folder), collection)
        return
    if args.stack:
        if not folder.exists():
            graph = Path(args.folder) / "categories.tsv"
            ingest(folder, Path(args.folder) / "corpus.jsonl", categories=graph if graph.exists() else None)
        by_hand(Workspace.open(folder), args.stack, args.retrieve, collection)
        return
    costs = Costs()
    count_work()
    begin = time.monotonic()
    with costs.time("training"):
        # user: rerank-auto
        report = auto(args.folder, folder, minutes=args.minutes)
        # end
    elapsed = time.monotonic() - begin
    print(*report.messages, sep="\n")
    print(report, f"\nauto took {elapsed:.0f} s, {costs.training:.0f} s of processor time")
    workspace, stack = Workspace.open(folder), report.stack
    export(workspace, stack, collection)
    costs.bytes = engine_bytes(collection.folder)
    write(collection, "rerank-bm25", answer(workspace, workspace.stack("bm25"), collection, Costs()), Costs())
    run = answer(workspace, stack, collection, costs)
    write(collection, "rerank-auto", run, costs, stack=str(stack))


if __name__ == "__main__":
    main()
