"""Does what full texts cite together help the demo's stack?

    python benchmarks/cocited_stack.py elife-jats.tar.xz WORKSPACE              # all steps
    python benchmarks/cocited_stack.py elife-jats.tar.xz WORKSPACE --untrained  # and MiniLM as it is, beside

The demo's collection is ingested with the citations of its articles' full texts; text and meta learn from the
train queries, as in the demo, and ``cocited`` from the citations (``--settings`` adds to its own). Stacks are
tuned on dev queries and measured on test queries; p is that of ``rerank evaluate``, against the stack
without. Every step is kept in WORKSPACE: interrupted, the same command goes on. ``--small`` takes 60 steps of
training, of two layers, to see that it works.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rerank import Workspace, evaluate, ingest, train, tune
from rerank.demo import COLLECTION
from rerank.formats import read_qrels, read_queries
from rerank.formats.jats import read_jats
from rerank.formats.lines import read_lines
from rerank.progress import Progress

COCITED = {
    "objective": "contrastive",
    "positives": "triplets",
    "strategy": "sentence",
    "fragment_tokens": 64,
    "fragments": 4,
    "train_layers": 1,
    "steps": 300,
    "every": 50,
}


class Say(Progress):
    def say(self, line: str) -> None:
        print(f"    {line}", flush=True)


def collection(archive: Path, folder: Path) -> Workspace:
    """The demo's documents, with their articles' citations."""
    if (folder / "rerank.toml").exists():
        return Workspace.open(folder)
    cited: dict[str, dict[str, Any]] = {}
    for article in read_jats(archive):
        extra = article.document().extra
        rows = [{n: v for n, v in row.items() if n != "text"} for row in extra["citations"]]
        cited[article.key] = {"citations": rows, "references": extra.get("references", {})}
    corpus, count = folder.with_suffix(".jsonl"), 0
    with corpus.open("w", encoding="utf-8") as file:
        for line in read_lines(COLLECTION / "corpus.jsonl.gz"):
            row = json.loads(line[1])
            more = cited.get(str(row.get("doi", "")).lower(), {})
            count += bool(more.get("citations"))
            file.write(json.dumps({**row, **more}, ensure_ascii=False) + "\n")
    print(f"{count} documents with citations", flush=True)
    return ingest(folder, [corpus], categories=COLLECTION / "categories.tsv", lang="en").workspace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--base", default="tfidf,text,meta", help="the stack without")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    workspace = collection(args.archive, args.workspace)
    queries = read_queries(COLLECTION / "queries.jsonl.gz")
    split = {name: read_qrels(COLLECTION / "qrels" / f"{name}.tsv") for name in ("train", "dev", "test")}
    config = {**COCITED, "seed": args.seed, **dict(one.split("=") for one in args.settings)}
    if args.small:
        config |= {"layers": 2, "steps": 60, "every": 30, "fragments": 1}
    there = workspace.trained()
    words = [name for name in args.base.split(",") if name in ("text", "meta") and name not in there]
    if words:
        judged = {"queries": queries, "qrels": split["train"], "dev_qrels": split["dev"]}
        train(workspace, words, **judged, config={"seed": args.seed}, progress=Say())
    if "cocited" not in there:
        train(workspace, ("dense",), config=config, as_name="cocited", progress=Say())
    stacks = [args.base, f"{args.base},cocited"]
    if args.untrained:
        if "untrained" not in there:
            start = {**config, "steps": 1, "rate": 1e-12, "held_out": 0.0}
            start.pop("every")
            train(workspace, ("dense",), config=start, as_name="untrained", progress=Say())
        stacks.append(f"{args.base},untrained")
    for stack in stacks:
        tuned = tune(workspace, stack, queries=queries, qrels=split["dev"], seed=args.seed)
        print(f"{stack}: {tuned.tuned.stack}", flush=True)
    found = evaluate(
        workspace, stacks[1:], queries=queries, qrels=split["test"], seed=args.seed, baseline=stacks[0]
    )
    for one in found.comparisons:
        if one.measure == "nDCG":
            print(
                f"{one.stack} - {one.baseline}: nDCG {one.delta:+.4f}, p {one.p:.5f}, Holm {one.p_holm:.5f}"
            )


if __name__ == "__main__":
    main()
