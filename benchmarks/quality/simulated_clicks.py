"""Train and tune stacks on the clicks of simulated users, and measure them on true judgments.

    python benchmarks/quality/simulated_clicks.py DATA/wikispeedia                 # all users, about 2 hours
    python benchmarks/quality/simulated_clicks.py DATA/debian --lang it --documents 3000 --words 60
    python benchmarks/quality/simulated_clicks.py DATA/wikispeedia --users pbm,trust --documents 1200 \\
        --sessions 10000 --epochs 3                                                # smaller

A sample of the documents; each one has a query. 83 % of the queries are logged, and the others test. The
users see the first ten hits of bm25. Queries follow Zipf's law, and 3 % of the visitors click at random.

- ``pbm``: look at rank r with probability 1/r.
- ``cascade``: look from the top, and may stop after a click.
- ``trust``: also click first hits because they are first (Vardasbi, Oosterhuis and de Rijke 2020).

Each line is one stack of bm25, text and meta: who trained it, who tuned it, its nDCG@10 on the test queries,
and its share of the gain of a stack that is trained and tuned on true judgments, with an interval of 95 % by
random samples of the test queries. The interval does not contain the chance of the log.

- ``30 by hand``: 30 queries of a pool of 50, as `rerank auto` divides them, with true grades of the pooled
  hits. The pool is made from a random sample of the tuning part. Mean and lowest value of several samples.
- ``clicks, clicks``: the careful stack of `rerank auto`.
- ``free``: without a smallest weight of the first stage.
- ``unjudged as 0``: ranks all candidates.

The script ends with code 1 if a share is below its target.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.collection import Collection
from rerank import Document, Qrels, Query, Workspace, evaluate, train, tune
from rerank.documents.text import query_key
from rerank.engines.search_request import SearchRequest
from rerank.formats import read_qrels, read_queries
from rerank.formats.tables import format_rows
from rerank.judging.clicks import judge_clicks
from rerank.judging.pool import DIFFERENCE, PoolOptions, equal_weights, make_pool, separate_first_stage
from rerank.reports.evaluation import EvaluationReport
from rerank.stack.stack import Stack

MEASURE = "nDCG@10"
STACK = "bm25,text,meta"
HITS = 10
TESTED = 6
"""One of so many queries is a test query."""
RANDOM_VISITORS, RANDOM_CLICK = 0.03, 0.3
SATISFIED = (0.1, 0.4, 0.9)
"""Probability by grade that a cascade user stops after a click."""
CONTINUES = 0.9
POOLED, HAND = 50, 30
"""Queries of a pool, and those of them that tune."""
DRAWS = 10
"""Random samples from which the queries of the pool are chosen."""
SAMPLED = 2 / 3
"""Share of the tuning part in a sample. Pools of the whole part would have nearly equal queries."""
TARGETS = {"clicks, 30 by hand": 0.65, "clicks, clicks": 0.7}
"""Smallest share of the gain. Clicks only: for pbm and cascade."""
SAMPLES = 2000
"""Random samples of the test queries."""

Values = NDArray[np.float64]
"""The nDCG@10 of each test query."""


def share_interval(values: Values, bm25: Values, best: Values) -> tuple[float, float]:
    """Return the interval of 95 % for the share of the gain, by the bootstrap of test queries."""
    drawn = np.random.default_rng(0).integers(0, len(values), (SAMPLES, len(values)))
    gains = (values - bm25)[drawn].mean(axis=1)
    best_gains = (best - bm25)[drawn].mean(axis=1)
    low, high = np.quantile(gains / np.where(best_gains > 0, best_gains, np.nan), [0.025, 0.975])
    return float(low), float(high)


def attractiveness(grade: int) -> float:
    """Return the probability of a click on a document that a user looks at."""
    return 0.1 + 0.9 * (2**grade - 1) / 3


def pbm(grades: list[int], draw: random.Random) -> Iterator[bool]:
    for rank, grade in enumerate(grades, 1):
        yield draw.random() < attractiveness(grade) / rank


def cascade(grades: list[int], draw: random.Random) -> Iterator[bool]:
    looks = True
    for grade in grades:
        clicked = looks and draw.random() < attractiveness(grade)
        looks &= draw.random() < CONTINUES and not (clicked and draw.random() < SATISFIED[grade])
        yield clicked


def trust(grades: list[int], draw: random.Random) -> Iterator[bool]:
    for rank, grade in enumerate(grades, 1):
        relevant = attractiveness(grade)
        click = (1 - (rank + 1) / 100) * relevant + 0.65 / rank * (1 - relevant)
        yield draw.random() < click * (1 + (rank - 1) / 5) ** -2


USERS = {"pbm": pbm, "cascade": cascade, "trust": trust}


@dataclass(frozen=True)
class Sample:
    """A sample of a collection. qrels: of all queries, only for documents of the sample."""

    documents: list[Document]
    logged: list[Query]
    test: list[Query]
    qrels: Qrels

    def part(self, queries: Iterable[Query]) -> Qrels:
        return Qrels({query.id: self.qrels[query.id] for query in queries})


def read_collection(folder: Path, lang: str, documents: int, words: int) -> Sample:
    """Read a random sample; the texts of documents are cut after some words."""
    source = Collection(folder, lang if (folder / f"corpus.{lang}.jsonl.gz").exists() else None)
    everything = sorted(source.documents(), key=lambda document: document.id)
    sample = random.Random(0).sample(everything, min(documents, len(everything)))
    cut = [
        Document(one.id, one.title, " ".join(one.text.split()[:words]), one.categories, lang=lang)
        for one in sample
    ]
    ids = {document.id for document in cut}
    judgments = []
    for split in ("train", "dev", "test"):
        qrels = source.judgments(split)
        judgments += [(q, d, grade) for q in qrels for d, grade in qrels[q].items() if d in ids]
    qrels = Qrels(judgments)
    keys = set()
    queries = []
    for query in source.queries():
        if query.id.removeprefix("q:") in ids and query_key(query.text) not in keys:
            keys.add(query_key(query.text))
            queries.append(query)
    random.Random(1).shuffle(queries)
    cut_test = len(queries) // TESTED
    return Sample(cut, queries[cut_test:], queries[:cut_test], qrels)


def simulate(workspace: Workspace, collection: Sample, users: str, sessions: int, log: Path) -> None:
    """Write the impressions and clicks of sessions."""
    draw = random.Random(2)
    requests = [SearchRequest(query.text, "bm25", depth=HITS) for query in collection.logged]
    lists = [candidates.ids for candidates in workspace.engine.search(requests)]
    weights = list(accumulate(1 / (place + 1) for place in range(len(lists))))
    rows: list[tuple[object, ...]] = [("session", "query", "document", "rank", "clicked")]
    for session in range(sessions):
        (place,) = draw.choices(range(len(lists)), cum_weights=weights)
        query, shown = collection.logged[place], lists[place]
        grades = [collection.qrels[query.id].get(document, 0) for document in shown]
        if draw.random() < RANDOM_VISITORS:
            clicks = [draw.random() < RANDOM_CLICK for _ in shown]
        else:
            clicks = list(USERS[users](grades, draw))
        for rank, (document, clicked) in enumerate(zip(shown, clicks), 1):
            rows.append((session, query.text, document, rank, int(clicked)))
    log.write_text(format_rows(rows))


class Experiment:
    """Trains, tunes and measures stacks in one workspace."""

    def __init__(self, collection: Sample, workspace: Workspace, epochs: int) -> None:
        self.collection, self.workspace, self.epochs = collection, workspace, epochs
        self.by_key = {query_key(query.text): query for query in collection.logged}
        test = collection.part(collection.test)
        report = evaluate(workspace, ["bm25"], queries=collection.test, qrels=test, measures=[MEASURE])
        self.test = test
        (self.bm25,) = values_of(report)
        self.best = self.bm25

    def named(self, queries: Iterable[Query]) -> list[Query]:
        """Return queries of a log with the categories of the collection."""
        logged = []
        for query in queries:
            original = self.by_key[query_key(query.text)]
            logged.append(replace(original, id=query.id, params=query.params))
        return logged

    def train(self, queries: list[Query], qrels: Qrels, dev: Qrels) -> None:
        train(
            self.workspace,
            ["text", "meta"],
            queries=queries,
            qrels=qrels,
            dev_qrels=dev,
            config={"epochs": self.epochs},
            first_stage="bm25",
        )

    def tune(self, queries: list[Query], qrels: Qrels, **options: object) -> Stack:
        return tune(self.workspace, STACK, queries=queries, qrels=qrels, measure=MEASURE, **options).stack

    def measure(self, stacks: Mapping[str, Stack]) -> dict[str, Values]:
        """Return the values of stacks on the test queries. All stacks use the same trained rankers."""
        folder = self.workspace.folder / "measured"
        folder.mkdir(exist_ok=True)
        files = []
        for number, stack in enumerate(stacks.values()):
            files.append(str(folder / f"{number}.json"))
            stack.save(files[-1])
        report = evaluate(
            self.workspace,
            files,
            queries=self.collection.test,
            qrels=self.test,
            measures=[MEASURE],
            baseline="bm25",
        )
        for name, stack in stacks.items():
            print(f"    {name}: {stack} ({stack.combiner.normalization})", flush=True)
        return dict(zip(stacks, values_of(report)[1:]))

    def by_hand(self, dev: list[Query], ids: dict[str, str], draw: int) -> Qrels:
        """Judge the tuning queries of a pool by their true grades. ids: id in the log -> true id."""
        sample = random.Random(draw).sample(dev, round(SAMPLED * len(dev)))
        stacks = separate_first_stage(equal_weights(self.workspace, STACK.split(",")))
        pool = make_pool(self.workspace, stacks, sample, PoolOptions(count=POOLED, seed=draw)).pool
        tuning = sorted(pool.queries, key=lambda query: query.reason != DIFFERENCE)[:HAND]
        grades = {}
        for query in tuning:
            true = self.collection.qrels[ids[query.id]]
            grades[query.id] = {hit.id: true.get(hit.id, 0) for hit in query.hits}
        return Qrels(grades)


def values_of(report: EvaluationReport) -> list[Values]:
    """Return the values of each stack of a report, the baseline first."""
    (evaluation,) = report.per_query.values()
    return [np.array(values[MEASURE]) for values in evaluation.values.values()]


def run_case(experiment: Experiment, users: str, sessions: int, folder: Path) -> Iterator[dict[str, Values]]:
    """Yield the stacks of one kind of users, and their values: first of clicks, then of naive clicks."""
    log = folder / f"{users}.tsv"
    simulate(experiment.workspace, experiment.collection, users, sessions, log)
    report = judge_clicks([log], folder / users, None, experiment.workspace)
    queries = experiment.named(read_queries(folder / users / "queries.jsonl"))
    ids = {query.id: experiment.by_key[query_key(query.text)].id for query in queries}
    train_qrels = read_qrels(folder / users / "train.tsv")
    dev_qrels = read_qrels(folder / users / "dev.tsv")
    dev = [query for query in queries if query.id in dev_qrels]
    print(
        f"  {report.page_views:,} page views, {report.clicks:,} clicks, CTR {report.click_rates[:3]}",
        flush=True,
    )
    experiment.train(queries, train_qrels, dev_qrels)

    def tune_by_hand(name: str) -> dict[str, Stack]:
        return {
            f"{name} {draw}": experiment.tune(queries, experiment.by_hand(dev, ids, draw))
            for draw in range(DRAWS)
        }

    stacks = {
        "clicks, clicks": experiment.tune(queries, dev_qrels, protocol="judged", least=0.3),
        "clicks, clicks free": experiment.tune(queries, dev_qrels, protocol="judged"),
        "clicks, unjudged as 0": experiment.tune(queries, dev_qrels),
    }
    yield experiment.measure({**tune_by_hand("clicks, 30 by hand"), **stacks})
    key_ids = {query_key(query.text): query.id for query in queries}
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    naive = {(key_ids[query_key(row["query"])], row["document"]) for row in rows if row["clicked"] == "1"}
    naive_train = Qrels((query, document, 1) for query, document in sorted(naive) if query in train_qrels)
    naive_dev = Qrels((query, document, 1) for query, document in sorted(naive) if query in dev_qrels)
    experiment.train(queries, naive_train, naive_dev)
    yield experiment.measure(tune_by_hand("any click, 30 by hand"))


def group_draws(values: Mapping[str, Values]) -> dict[str, list[Values]]:
    """Return the values of each kind of stack: one per random choice of queries."""
    groups: dict[str, list[Values]] = {}
    for name, stack_values in values.items():
        groups.setdefault(name.rstrip("0123456789 ") if "by hand" in name else name, []).append(stack_values)
    return groups


def show(experiment: Experiment, users: str, stack: str, draws: list[Values]) -> bool:
    """Print the share of the gain, and return whether it reaches its target."""
    gain = float((experiment.best - experiment.bm25).mean())
    mean: Values = np.mean(draws, axis=0)
    shares = [float((values - experiment.bm25).mean()) / gain for values in draws]
    share = sum(shares) / len(shares)
    low, high = share_interval(mean, experiment.bm25, experiment.best)
    notes = [f"({low:.0%} to {high:.0%}) of the gain"]
    if len(draws) > 1:
        notes.append(f"lowest of {len(draws)} draws {min(shares):.0%}")
    target = None if users == "trust" and "hand" not in stack else TARGETS.get(stack)
    is_below = target is not None and share < target
    if is_below:
        notes.append(f"below the target of {target:.0%}")
    print(f"  {stack:24} {mean.mean():.4f}  {share:5.0%} {', '.join(notes)}", flush=True)
    return not is_below


def main() -> int:
    """Run the cases, and print a line per stack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA/COLLECTION")
    parser.add_argument("--lang", default="en")
    parser.add_argument("--users", default="pbm,cascade,trust")
    parser.add_argument("--documents", type=int, default=2400)
    parser.add_argument("--words", type=int, default=120)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collection = read_collection(options.data, options.lang, options.documents, options.words)
        workspace = Workspace.create(folder / "workspace", lang=options.lang)
        workspace.engine.write(collection.documents)
        experiment = Experiment(collection, workspace, options.epochs)
        place = len(collection.logged) // 5
        dev, logged = collection.part(collection.logged[:place]), collection.part(collection.logged[place:])
        begin = time.process_time()
        experiment.train(collection.logged, logged, dev)
        experiment.best = experiment.measure({"true": experiment.tune(collection.logged, dev)})["true"]
        bm25 = float(experiment.bm25.mean())
        gain = float(experiment.best.mean()) - bm25
        sizes = f"{len(collection.documents):,} documents, {len(collection.logged):,} logged queries"
        print(f"{options.data.name}: {sizes}, {len(collection.test):,} test queries")
        print(f"  bm25 {bm25:.4f}; true judgments {bm25 + gain:.4f} ({gain:+.4f})", flush=True)
        for users in options.users.split(","):
            print(users, flush=True)
            for values in run_case(experiment, users, options.sessions, folder):
                for stack, draws in group_draws(values).items():
                    missed += not show(experiment, users, stack, draws)
        print(f"{time.process_time() - begin:.0f} s of processor time")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
