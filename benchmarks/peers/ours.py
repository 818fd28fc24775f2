"""rerank: its BM25, and the stack of `rerank auto`, with queries as users type them.

    python benchmarks/peers/ours.py OUT/cf [--minutes 10] [--stack bm25,s2net,text --retrieve bm25,s2net]

A workspace of an earlier run is used again. ``--stack`` tunes and adds a stack made by hand from its rankers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from collection import DEPTH, Collection, Costs, Run, write

from rerank import auto, tune
from rerank.records import Query
from rerank.stack.stack import Stack
from rerank.workspace import Workspace


def answer(workspace: Workspace, stack: Stack, collection: Collection, costs: Costs) -> Run:
    """Answer each test query by the query path."""
    pipeline = workspace.pipeline(sorted({*stack.signals, *stack.retrievers}))
    lang = {"italian": "it", "german": "de", "english": "en"}[collection.languages[1]]

    def search(text: str) -> dict[str, float]:
        ranking = pipeline.answer(Query("", text, lang=lang), stack).ranking
        return {hit.id: hit.score for hit in ranking.top(DEPTH)}

    return costs.answer(collection.of("test"), search)


def main() -> None:
    """Write the runs ``rerank-bm25``, ``rerank-auto`` and, with ``--stack``, ``rerank-hand``."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder")
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--stack")
    options.add_argument("--retrieve", default="")
    args = options.parse_args()
    collection, folder = Collection.load(args.folder), Path(args.folder) / "workspace"
    costs = Costs()
    begin = time.monotonic()
    with costs.time("training"):
        # user:
        report = auto(args.folder, folder, minutes=args.minutes)
        # end
    print(report, f"\nauto took {time.monotonic() - begin:.0f} s")
    workspace = Workspace.open(folder)
    costs.bytes = sum(path.stat().st_size for path in (folder / "engine").rglob("*") if path.is_file())
    write(collection, "rerank-bm25", answer(workspace, workspace.stack("bm25"), collection, Costs()), Costs())
    run = answer(workspace, report.stack, collection, costs)
    write(collection, "rerank-auto", run, costs, stack=str(report.stack))
    if args.stack:
        retrieve = args.retrieve.split(",") if args.retrieve else ()
        tuned = tune(
            workspace, args.stack, queries=collection.folder / "queries.jsonl",
            qrels=collection.folder / "qrels/dev.tsv", retrieve=retrieve, measure="nDCG@10",
            out=folder / "by-hand.json",
        )  # fmt: skip
        by_hand = Costs()
        run = answer(workspace, tuned.stack, collection, by_hand)
        write(collection, "rerank-hand", run, by_hand, stack=str(tuned.stack), retrieve=args.retrieve)


if __name__ == "__main__":
    main()
