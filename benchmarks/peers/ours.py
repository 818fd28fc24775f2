"""rerank: its BM25, and the stack of `rerank auto`, with queries as users type them.

    python benchmarks/peers/ours.py OUT/cf [--minutes 10] [--stack bm25,s2net,text --retrieve bm25,s2net]
    python benchmarks/peers/ours.py OUT/cf --answer

``--stack`` tunes and adds a stack made by hand from its rankers.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from collection import DEPTH, Collection, Costs, Run, write

from rerank import auto, tune
from rerank.records import Query
from rerank.stack.stack import Stack
from rerank.workflows import auto_training
from rerank.workflows.ranker_choice import CORES
from rerank.workspace import Workspace

LANGUAGES = {"italian": "it", "german": "de", "english": "en"}
TOP = 100


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


def by_hand(workspace: Workspace, signals: str, retrieve: str, collection: Collection) -> None:
    """Tune a stack of these signals, and write its run."""
    folder = collection.folder
    tuned = tune(
        workspace, signals, queries=folder / "queries.jsonl", qrels=folder / "qrels/dev.tsv",
        retrieve=retrieve.split(",") if retrieve else (), measure="nDCG@10", out=folder / "by-hand.json",
    )  # fmt: skip
    costs = Costs()
    run = answer(workspace, tuned.stack, collection, costs)
    write(collection, "rerank-hand", run, costs, stack=str(tuned.stack), retrieve=retrieve)


def main() -> None:
    """Write the runs ``rerank-bm25``, ``rerank-auto`` and, with ``--stack``, ``rerank-hand``."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder")
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--answer", action="store_true", help="measure the queries of an earlier run again")
    options.add_argument("--stack")
    options.add_argument("--retrieve", default="")
    args = options.parse_args()
    collection, folder = Collection.load(args.folder), Path(args.folder) / "workspace"
    costs = Costs()
    if args.answer:
        workspace = Workspace.open(folder)
        stack = workspace.stack(workspace.default_stack)
        earlier = json.loads((collection.folder / "runs/rerank-auto.json").read_text())
        costs.training = earlier["training_s"]
    else:
        count_work()
        begin = time.monotonic()
        with costs.time("training"):
            # user:
            report = auto(args.folder, folder, minutes=args.minutes)
            # end
        elapsed = time.monotonic() - begin
        print(*report.messages, sep="\n")
        print(report, f"\nauto took {elapsed:.0f} s, {costs.training:.0f} s of processor time")
        workspace, stack = Workspace.open(folder), report.stack
        export(workspace, stack, collection)
    costs.bytes = sum(path.stat().st_size for path in (folder / "engine").rglob("*") if path.is_file())
    write(collection, "rerank-bm25", answer(workspace, workspace.stack("bm25"), collection, Costs()), Costs())
    run = answer(workspace, stack, collection, costs)
    write(collection, "rerank-auto", run, costs, stack=str(stack))
    if args.stack:
        by_hand(workspace, args.stack, args.retrieve, collection)


if __name__ == "__main__":
    main()
