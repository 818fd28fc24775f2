"""Compare one stack for queries with and without categories with simpler stacks.

    python benchmarks/cases.py DATA/debian de WORKSPACE [--dev 500] [--test 800] [--stack tfidf,text,meta]
        [--retrieve tfidf,s2net]

WORKSPACE contains the collection of that language and the trained rankers of the stack. Weights are tuned on
dev queries with categories. Each test query is searched twice: with and without its categories.

The stack with cases is compared with two stacks. The first uses the weights for queries with categories for
all queries. The second was tuned only on the same queries without their categories.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rerank import Qrels, Query, Workspace, evaluate, tune
from rerank.formats import read_qrels, read_queries


def some(queries: Sequence[Query], qrels: Qrels, count: int) -> list[Query]:
    """Return ``count`` random judged queries with categories."""
    found = sorted((q for q in queries if q.id in qrels and q.categories), key=lambda query: query.id)
    random.Random(0).shuffle(found)
    return found[:count]


def judged(queries: Sequence[Query], qrels: Qrels, mark: str = "") -> list[tuple[str, str, int]]:
    """Return the judgments of the queries. ``mark`` is added to each query id."""
    return [(f"{q.id}{mark}", d, grade) for q in queries for d, grade in qrels[q.id].items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("lang")
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--dev", type=int, default=500)
    parser.add_argument("--test", type=int, default=800)
    parser.add_argument("--stack", default="tfidf,text,meta")
    parser.add_argument("--retrieve", default="", help="Retrievers. Default: the first stage.")
    given = parser.parse_args()
    queries = read_queries(given.data / f"queries.{given.lang}.jsonl.gz")
    splits = {name: read_qrels(given.data / "qrels" / f"{given.lang}.{name}.tsv") for name in ("dev", "test")}
    workspace = Workspace.open(given.workspace)
    dev, test = (some(queries, splits[name], getattr(given, name)) for name in ("dev", "test"))
    one_case, bare_alone = given.workspace / "brought.json", given.workspace / "bare.json"
    asked = {
        "queries": dev,
        "qrels": Qrels(judged(dev, splits["dev"])),
        "retrieve": [name for name in given.retrieve.split(",") if name],
    }
    stack = tune(workspace, given.stack, **asked).stack  # type: ignore[arg-type]
    tune(workspace, given.stack, ignore_categories=True, out=bare_alone, **asked)  # type: ignore[arg-type]
    for case, one in {"given": stack.combiner, **stack.combiner.cases}.items():
        print(f"{case}: {one} ({one.normalization})")
    replace(stack, combiner=replace(stack.combiner, cases={})).save(one_case)
    bare = [replace(query, id=f"{query.id}|bare", categories=()) for query in test]
    with_categories, without = judged(test, splits["test"]), judged(test, splits["test"], "|bare")
    stacks = ["tfidf", given.stack, str(bare_alone)]
    for name, asked_for, qrels in (
        ("given", test, with_categories),
        ("inferred", bare, without),
        ("all", [*test, *bare], [*with_categories, *without]),
    ):
        report = evaluate(
            workspace,
            stacks,
            baseline=str(one_case),
            queries=asked_for,
            qrels=Qrels(qrels),
            measures=["nDCG", "nDCG@10"],
        )
        for result in report.results:
            print(f"{name}, {report.queries} queries, {result.stack}: {result.measures}")
    for found in report.comparisons:
        print(f"all, {found.stack} - {found.baseline}, {found.measure}: {found.delta:+.4f} (p {found.p:.4f})")


if __name__ == "__main__":
    main()
