"""Measure how much the ranker ``cocited`` improves a stack.

    python benchmarks/cocited_stack.py elife-jats.tar.xz WORKSPACE              # all steps
    python benchmarks/cocited_stack.py elife-jats.tar.xz WORKSPACE --untrained  # also with untrained MiniLM
    python benchmarks/cocited_stack.py elife-jats.tar.xz WORKSPACE --cv 5       # over dev and test queries
    python benchmarks/cocited_stack.py DATA/cf WORKSPACE --base tfidf --cv 5    # by its documents' links

With an archive, the script ingests the collection of the demo with the citations in the full texts. The
rankers text and meta train on the train queries, as in the demo. ``cocited`` trains on the citations.
``--settings`` changes its settings.

With a folder, ``cocited`` trains on pairs of documents that one document links to (``strategy=document``).

Stacks are tuned on dev queries and measured on test queries. p is the p value of ``rerank evaluate`` against
the base stack. ``--cv`` cross-validates the weights over all queries except train queries. p is then from a
paired randomization test on the out-of-fold values, corrected by Holm. ``--deals 3`` assigns the queries to
folds three times and uses the mean of each query, because the weights of the folds also change the result.

Every step is stored in WORKSPACE. After an interruption, the same command resumes. ``--small`` is a quick
check: two layers and 60 training steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from rerank import Stack, Workspace, evaluate, ingest, train, tune
from rerank.combiners.folds import cross_validate
from rerank.combiners.linear import Linear
from rerank.combiners.normalize import TRIED
from rerank.combiners.tune import tune as tune_table
from rerank.demo import COLLECTION
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.significance import holm, randomization_test
from rerank.formats import read_qrels, read_queries
from rerank.formats.jats import read_jats
from rerank.formats.lines import read_lines
from rerank.progress import Progress
from rerank.records import Qrels, Query
from rerank.workflows.experiment import Experiment, JudgedQueries

DEPTH = 1000
COCITED = {
    "objective": "contrastive",
    "strategy": "sentence",
    "passage_tokens": 64,
    "passages": 4,
    "train_layers": 1,
    "rate": 1e-4,
    "steps": 300,
    "every": 50,
}


class Say(Progress):
    def say(self, line: str) -> None:
        print(f"    {line}", flush=True)


def collection(source: Path, folder: Path) -> Workspace:
    """Ingest the documents of a folder, or the demo with the citations of its articles."""
    if (folder / "rerank.toml").exists():
        return Workspace.open(folder)
    if source.is_dir():
        tree = source / "categories.tsv"
        return ingest(folder, [source / "corpus.jsonl.gz"], categories=tree, lang="en").workspace
    cited: dict[str, dict[str, Any]] = {}
    for article in read_jats(source):
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


def cross_validated(
    workspace: Workspace, stacks: list[str], queries: list[Query], qrels: Qrels, args: argparse.Namespace
) -> None:
    """Print the out-of-fold nDCG of each stack and its gains over the stacks before it."""
    values = {}
    judged = JudgedQueries(queries=queries, qrels=qrels)
    for stack in stacks:
        names = stack.split(",")
        equal = Stack(Linear(tuple(names), (1.0,) * len(names)), names[0])
        experiment = Experiment.of_stacks(workspace, [equal], judged)
        reads = any(one.uses_categories for one in experiment.pipeline.scorer(names, names[0]).signals)
        protocol = Protocol(DEPTH)
        table, _ = experiment.table(protocol=protocol, signals=names, first_stage=names[0], every_case=reads)
        table = table.of("given") if reads else table
        how = {"first_stage": names[0], "normalizations": args.normalizations}
        final = tune_table(table, qrels, **how)
        found = [cross_validate(table, qrels, final, folds=args.cv, seed=s, **how) for s in range(args.deals)]
        values[stack] = {q: sum(one.per_query[q] for one in found) / args.deals for q in found[0].per_query}
        reached = ", ".join(f"{one.value:.4f}" for one in found)
        print(f"{stack}: nDCG {reached} of {len(values[stack])} queries", end="; all: ")
        print(final.combiner, f"{final.value:.4f}", flush=True)
        print("    " + "; ".join(fold.stack for fold in found[0].folds), flush=True)
    pairs = [(one, other) for place, other in enumerate(stacks) for one in stacks[place + 1 :]]
    gains = [np.array([values[a][q] - values[b][q] for q in values[b]]) for a, b in pairs]
    ps = [randomization_test(gain) for gain in gains]
    for (one, other), gain, p, after in zip(pairs, gains, ps, holm(ps)):
        print(f"{one} - {other}: nDCG {gain.mean():+.4f}, p {p:.5f}, Holm {after:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path, metavar="ARCHIVE|FOLDER")
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--cv", type=int, metavar="FOLDS")
    parser.add_argument("--deals", type=int, default=1, help="Number of fold assignments. Default: 1.")
    parser.add_argument("--normalizations", nargs="+", default=TRIED, help="Normalizations for --cv.")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--base", default="tfidf,text,meta", help="Stack without cocited.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    workspace = collection(args.source, args.workspace)
    data = args.source if args.source.is_dir() else COLLECTION
    queries = read_queries(data / "queries.jsonl.gz")
    files = {path.stem: path for path in sorted((data / "qrels").glob("*.tsv"))}
    split = {name: read_qrels(path) for name, path in files.items()}
    config: dict[str, Any] = {**COCITED, "seed": args.seed}
    if args.source.is_dir():
        config["strategy"] = "document"
    config |= dict(one.split("=") for one in args.settings)
    if args.small:
        config |= {"layers": 2, "steps": 60, "every": 30, "passages": 1}
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
            start = {**config, "steps": 1, "rate": 1e-12, "held_out": 0.0, "train_layers": 0}
            start.pop("every")
            train(workspace, ("dense",), config=start, as_name="untrained", progress=Say())
        stacks.insert(1, f"{args.base},untrained")
    if args.cv:
        rows = [
            (query, document, grade)
            for name, judged in split.items()
            if name != "train"
            for query, found in judged.items()
            for document, grade in found.items()
        ]
        return cross_validated(workspace, stacks, queries, Qrels(rows), args)
    for stack in stacks:
        tuned = tune(workspace, stack, queries=queries, qrels=split["dev"], seed=args.seed)
        print(f"{stack}: {tuned.stack}", flush=True)
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
