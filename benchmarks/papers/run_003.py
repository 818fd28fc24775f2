"""Kuwa, Schamoni, Riezler (2020): combine text, categories and tf-idf.

    python benchmarks/papers/run_003.py DATA --collections wikispeedia --settings cosine
    python benchmarks/papers/run_003.py DATA --collections debian.it --settings mlp --seeds 3
    python benchmarks/papers/run_003.py DATA --list

Measures tables 2 to 4 and figure 3 of the paper. Completed steps are skipped.

--collections: folders of DATA, ``FOLDER.LANG`` for one language.
--settings: ``cosine`` (the default head), ``mlp``, ``paper`` (``--preset paper``).

The weights of a stack are tuned on dev, separately for each protocol and number of documents. The stack is
measured on test. Single rankers have no weights. The pool of 1,000 documents is scored once; smaller pools
are subsets of it. p: paired randomization test.

``--categories`` measures the rankers text and meta with different categories of the query:

given:    the categories of the query.
inferred: no categories; they are inferred from the first candidates.
degraded: each category is dropped with probability 0.5, and replaced by a sibling, if it has one, with 0.25.

Weights are tuned on dev queries of the same case. These steps also measure NDCG of grade 1, without the
documents of a higher grade.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from running import Result, Say, Step, arguments, carry_out, comma_separated

from benchmarks.common.collection import Collection
from rerank.documents.records import Qrels, Query
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.significance import randomization_tests
from rerank.rankers.cnn.config import CnnConfig
from rerank.scoring.build_table import TableRequest, score_table
from rerank.stack.stack import Stack
from rerank.tuning.score_table import ScoreTable
from rerank.tuning.tune import tune
from rerank.workflows.train import train

RANKERS = ("text", "meta", "joint")
FIRST = "tfidf"
Counts = tuple[int, ...]
COUNTS: Counts = (40, 200, 400, 1000)
AGAINST = (
    ("joint", "text"),
    ("meta", "text"),
    ("text,meta", "text"),
    ("text,meta", "joint"),
    ("text,meta", FIRST),
    *((f"{FIRST},{signals}", FIRST) for signals in (*RANKERS, "text,meta")),
    (f"{FIRST},text,meta", f"{FIRST},text"),
    (f"{FIRST},text,meta", f"{FIRST},meta"),
    (f"{FIRST},joint", f"{FIRST},text"),
    (f"{FIRST},text,meta", f"{FIRST},joint"),
)
"""Pairs of stacks to compare. A pair is skipped if one of its stacks is missing."""
DEEPEST = {
    "pool-random": Protocol(pool="random", size=COUNTS[-1]),
    "pool-first": Protocol(pool="tfidf", size=COUNTS[-1]),
    "retrieved": Protocol(COUNTS[-1]),
}
"""Kind of candidates -> its deepest pool. Tables 2 and 3 of the paper have the first kind, 4 the second."""
SETTINGS = {"cosine": "cosine head", "mlp": "MLP head", "paper": "`--preset paper`"}


def judged(collection: Collection, split: str, most: int | None, case: str) -> tuple[list[Query], Qrels]:
    """Return the judged queries of a split, or an evenly spaced sample of at most ``most``.

    case: ``given``, ``inferred`` or ``degraded`` categories.
    """
    qrels = collection.judgments(split)
    queries = [query for query in collection.queries() if query.id in qrels]
    queries = queries[:: max(1, -(-len(queries) // most))] if most else queries
    if case == "inferred":
        queries = [replace(query, categories=()) for query in queries]
    if case == "degraded":
        siblings = siblings_of(collection)
        queries = [replace(query, categories=degraded(query, siblings)) for query in queries]
    return queries, Qrels((q.id, d, grade) for q in queries for d, grade in qrels[q.id].items())


def siblings_of(collection: Collection) -> dict[str, list[str]]:
    """Return category -> the other children of its parents, sorted by name."""
    assert collection.categories is not None
    lines = collection.categories.read_text("utf-8").splitlines()[1:]
    parents, children = dict[str, set[str]](), dict[str, set[str]]()
    for line in lines:
        child, parent = line.split("\t")
        parents.setdefault(child, set()).add(parent)
        children.setdefault(parent, set()).add(child)
    siblings = {child: set().union(*(children[parent] for parent in parents[child])) for child in parents}
    return {child: sorted(names - {child}) for child, names in siblings.items()}


def degraded(query: Query, siblings: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the categories of a query with simulated errors. The result is the same in each run.

    On average, two of four categories are dropped and one is replaced by a sibling.
    """
    rng = np.random.default_rng(list(hashlib.md5(query.id.encode()).digest()))
    kept: dict[str, None] = {}
    for category in query.categories:
        drawn, others = rng.random(), siblings.get(category, ())
        if drawn >= 0.75:
            kept[category] = None
        elif drawn >= 0.5:
            kept[others[int(rng.integers(len(others)))] if others else category] = None
    return tuple(kept)


def trained(collection: Collection, work: Path, label: str, setting: str, seed: int, name: str) -> None:
    workspace = collection.ingest(work / label)
    preset, head = ("paper", None) if setting == "paper" else ("default", setting)
    config = CnnConfig.of(preset, head=head, seed=seed)
    train(workspace, [name], **collection.training_data(), config=config, progress=Say())


def ranked(table: ScoreTable, stack: Stack) -> Run:
    columns = [table.signals.index(name) for name in stack.signals]
    return {row.query: stack.rank(row.ids, row.scores[:, columns]).ids for row in table.rows}


Run = dict[str, list[str]]
"""Query -> document ids, best first."""
Judged = tuple[ScoreTable, Qrels]
Figures = tuple[dict[str, float], list[tuple[str, str, float]]]
"""NDCG of each stack, and (stack, other stack, p) of each pair of ``AGAINST``."""


def measured(dev: Judged, test: Judged, weighted: bool) -> tuple[Figures, Figures]:
    """Tune each stack on dev and measure it on test, for all grades and for grade 1 only."""
    plain = [name for name in dev[0].signals if name != FIRST]
    plain += ["text,meta"] if {"text", "meta"} <= {*plain} else []
    names = [FIRST, *plain, *(f"{FIRST},{one}" for one in plain)] if weighted else plain
    runs = {}
    for name in names:
        signals = name.split(",")
        tuned = tune(*dev, first_stage=FIRST, signals=signals) if len(signals) > 1 else None
        stack = Stack(tuned.combiner, FIRST) if tuned else Stack.parse(name, first_stage=FIRST)
        runs[name] = ranked(test[0], stack)
    return compared(runs, test[1]), compared(*without_best(runs, test[1]))


def compared(runs: Mapping[str, Run], qrels: Qrels) -> Figures:
    """Return NDCG of the stacks and the tests of ``AGAINST``."""
    evaluation = evaluate_runs(runs, qrels, ["nDCG"])
    pairs = [pair for pair in AGAINST if {*pair} <= {*runs}]
    values = {name: found["nDCG"] for name, found in evaluation.values.items()}
    p = randomization_tests([values[a] - values[b] for a, b in pairs])
    means = {name: round(evaluation.mean(name, "nDCG"), 6) for name in runs}
    return means, [(a, b, one) for (a, b), one in zip(pairs, p)]


def without_best(runs: Mapping[str, Run], qrels: Qrels) -> tuple[dict[str, Run], Qrels]:
    """Return runs and judgments without documents of grade 2 or more.

    Queries without a document of grade 1 are dropped.
    """
    best = {query: {d for d, grade in judged.items() if grade > 1} for query, judged in qrels.items()}
    rest = Qrels((q, d, grade) for q, judged in qrels.items() for d, grade in judged.items() if grade <= 1)
    kept = {query for query in rest if rest.relevant(query)}
    return {
        name: {query: [d for d in ids if d not in best[query]] for query, ids in run.items() if query in kept}
        for name, run in runs.items()
    }, Qrels((q, d, grade) for q in kept for d, grade in rest[q].items())


def cut(table: ScoreTable, qrels: Qrels, kind: str, count: int, seed: int) -> ScoreTable:
    """Return the candidates of a protocol, selected from its deepest pool.

    retrieved:   the best ``count`` documents by tf-idf.
    pool-random: all relevant documents and ``count`` random irrelevant documents.
    pool-first:  all relevant documents and the best ``count`` irrelevant documents by tf-idf.
    """
    column = table.signals.index(FIRST)

    def rows() -> Iterator[tuple[str, list[str], Any, str]]:
        for i, row in enumerate(table.rows):
            query, ids, scores = row.query, row.ids, row.scores
            # Documents are in id order, so a stable sort breaks ties by id.
            order = np.argsort(-scores[:, column], kind="stable")
            if kind == "retrieved":
                kept = order[scores[order, column] > 0][:count]
            else:
                if kind == "pool-random":
                    order = np.random.default_rng([seed, i]).permutation(len(ids))
                relevant = np.array([id in qrels.relevant(query) for id in ids], np.bool_)
                kept = np.concatenate((np.flatnonzero(relevant), order[~relevant[order]][:count]))
            kept = np.sort(kept)
            yield query, [ids[d] for d in kept.tolist()], scores[kept], row.case

    return ScoreTable.build(table.signals, rows())


def protocols(
    options: argparse.Namespace, collection: Collection, label: str, kind: str, counts: Counts, case: str = ""
) -> Result:
    """Measure one protocol. Tune the weights at each number of documents.

    label: collection, setting and seed. case: see ``judged``; without it, the given categories.
    """
    *_, setting, number = label.split("-")
    seed = int(number)
    workspace = collection.ingest(options.work / label)
    signals = (*options.rankers, FIRST)
    pipeline = workspace.pipeline(signals)
    sizes = {"dev": options.dev, "test": options.test}
    splits = {split: judged(collection, split, most, case or "given") for split, most in sizes.items()}
    deepest = {}
    candidates = {"signals": signals, "first_stage": FIRST, "protocol": DEEPEST[kind]}
    for split, (queries, qrels) in splits.items():
        request = TableRequest(queries=queries, qrels=qrels, **candidates)
        deepest[split] = score_table(pipeline, request)[0]
    values: dict[str, dict[str, float]] = {}
    tests = []
    for count in sorted(counts):
        dev, test = (
            (cut(deepest[split], qrels, kind, count, seed), qrels) for split, (_, qrels) in splits.items()
        )
        both = measured(dev, test, weighted=kind != "pool-random")
        names = (f"NDCG, {count:,}", f"NDCG, {count:,}, grade 1")
        for measure, (means, found) in zip(names, both if case else both[:1]):
            for name, value in means.items():
                values.setdefault(name, {})[measure] = value
            tests += [[a, b, measure, p] for a, b, p in found]
        print(f"    {kind}:{count} done", flush=True)
    shown = SETTINGS[setting] + (f", categories {case}" if case else "")
    result = {"collection": collection.name, "setting": shown, "seed": seed}
    return {**result, "values": values, "tests": tests, "n": {"queries": len(splits["test"][0])}}


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the requested steps. Training steps come before the steps that need them."""
    for name, setting, seed in product(options.collections, options.settings, range(options.seeds)):
        collection = Collection.named(options.data, name)
        label = f"{name}-{setting}-{seed}"
        tables = list(_tables(options, collection, setting, seed))
        for ranker in options.rankers:
            run = partial(trained, collection, options.work, label, setting, seed, ranker)
            leaves = options.work / label / "rankers" / f"{ranker}.json"
            needed_by = tuple(step.name for step in tables)
            yield Step(f"{label}-train-{ranker}", "training", run, leaves, needed_by)
        yield from tables


def _tables(options: argparse.Namespace, collection: Collection, setting: str, seed: int) -> Iterator[Step]:
    """Yield the steps that measure the rankers of a seed."""
    label = f"{collection.name}-{setting}-{seed}"
    suffix = "" if options.rankers == list(RANKERS) else f"-{'-'.join(options.rankers)}"
    for kind in DEEPEST:
        run = partial(protocols, options, collection, label, kind)
        if options.categories:
            for case in options.categories:
                yield Step(f"{label}-{kind}-categories-{case}", kind, partial(run, COUNTS, case))
        elif setting == "cosine" or kind == "retrieved":
            yield Step(f"{label}-{kind}{suffix}", kind, partial(run, COUNTS))
        else:  # A step takes at most half an hour. Large heads need one step per number of documents.
            for count in COUNTS:
                yield Step(f"{label}-{kind}-{count}{suffix}", kind, partial(run, (count,)))


def main() -> None:
    parser = arguments(__doc__, collections=["wikispeedia", "debian.it"])
    add = partial(parser.add_argument, type=comma_separated)
    add("--settings", default=list(SETTINGS), help="settings to run. Default: all")
    add("--rankers", default=list(RANKERS), help="rankers to train and stack. Default: all")
    add("--categories", default=[], help="categories of the query: given, inferred, degraded")
    parser.add_argument("--dev", type=int, metavar="N", help="number of dev queries for tuning. Default: all")
    parser.add_argument("--test", type=int, metavar="N", help="number of test queries. Default: all")
    options = parser.parse_args()
    carry_out("003", steps(options), options)


if __name__ == "__main__":
    main()
