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
- ``all by hand``: true grades of all queries of the tuning part. What is missing is lost in the training.
- ``clicks, clicks``: the careful stack of `rerank auto`.
- ``free``: without a smallest weight of the first stage.
- ``unjudged as 0``: ranks all candidates.

``--seeds N`` trains each ranker N times. The share of each training is printed: one training cannot compare
grades, because trainings on the same clicks differ by tens of percent.

The script ends with code 1 if a share is below its target.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
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
from rerank.stack.normalize import FITTED
from rerank.stack.stack import Stack
from rerank.workflows.auto.plan import CLICK_NETWORKS

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


def share_interval(gains: Values, best_gains: Values) -> tuple[float, float]:
    """Return the interval of 95 % for the share of the best gains, by the bootstrap of test queries."""
    drawn = np.random.default_rng(0).integers(0, len(gains), (SAMPLES, len(gains)))
    best = best_gains[drawn].mean(axis=1)
    low, high = np.quantile(gains[drawn].mean(axis=1) / np.where(best > 0, best, np.nan), [0.025, 0.975])
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

    def judgments(self, queries: Iterable[Query]) -> Qrels:
        return Qrels({query.id: self.qrels[query.id] for query in queries})


def read_collection(folder: Path, lang: str, documents: int, words: int) -> Sample:
    """Read a random sample; the texts of documents are cut after some words."""
    source = Collection(folder, lang if (folder / f"corpus.{lang}.jsonl.gz").exists() else None)
    everything = sorted(source.documents(), key=lambda document: document.id)
    sample = random.Random(0).sample(everything, min(documents, len(everything)))
    short: list[Document] = []
    for document in sample:
        text = " ".join(document.text.split()[:words])
        short.append(Document(document.id, document.title, text, document.categories, lang=lang))
    ids = {document.id for document in short}
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
    return Sample(short, queries[cut_test:], queries[:cut_test], qrels)


def simulate(
    workspace: Workspace, collection: Sample, users: str, sessions: int, log: Path
) -> set[tuple[str, str]]:
    """Write the impressions and clicks of sessions. Return the clicked pairs of query key and document."""
    draw = random.Random(2)
    requests = [SearchRequest(query.text, "bm25", depth=HITS) for query in collection.logged]
    lists = [candidates.ids for candidates in workspace.engine.search(requests)]
    weights = list(accumulate(1 / (place + 1) for place in range(len(lists))))
    rows: list[tuple[object, ...]] = [("session", "query", "document", "rank", "clicked")]
    clicked_pairs: set[tuple[str, str]] = set()
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
            if clicked:
                clicked_pairs.add((query_key(query.text), document))
    log.write_text(format_rows(rows))
    return clicked_pairs


class Experiment:
    """Trains, tunes and measures stacks in one workspace."""

    def __init__(self, collection: Sample, workspace: Workspace, epochs: int) -> None:
        self.collection, self.workspace, self.epochs = collection, workspace, epochs
        self.by_key = {query_key(query.text): query for query in collection.logged}
        self.bm25 = self.best = self.evaluate(["bm25"])[0]

    def evaluate(self, stacks: Sequence[str]) -> list[Values]:
        """Return the values of each stack on the test queries."""
        queries = self.collection.test
        qrels = self.collection.judgments(queries)
        test = {"queries": queries, "qrels": qrels, "measures": [MEASURE], "baseline": "bm25"}
        (evaluation,) = evaluate(self.workspace, stacks, **test).per_query.values()
        return [values[MEASURE] for values in evaluation.values.values()]

    def named(self, queries: Iterable[Query]) -> list[Query]:
        """Return queries of a log with the categories of the collection."""
        originals = ((query, self.by_key[query_key(query.text)]) for query in queries)
        return [replace(original, id=query.id, params=query.params) for query, original in originals]

    def train(self, queries: list[Query], qrels: Qrels, dev: Qrels, seed: int) -> None:
        judged = {"queries": queries, "qrels": qrels, "dev_qrels": dev}
        config = {"epochs": self.epochs, "seed": seed, "networks": CLICK_NETWORKS}
        train(self.workspace, ["text", "meta"], **judged, config=config, first_stage="bm25")

    def tune(self, queries: list[Query], qrels: Qrels, **options: object) -> Stack:
        options |= {"measure": MEASURE, "normalizations": FITTED}  # as `rerank auto` on clicks
        return tune(self.workspace, STACK, queries=queries, qrels=qrels, **options).stack

    def measure(self, stacks: Mapping[str, Sequence[Stack]]) -> dict[str, list[Values]]:
        """Return the values of stacks on the test queries. All stacks use the same trained rankers."""
        folder = self.workspace.folder / "measured"
        folder.mkdir(exist_ok=True)
        files = []
        for name, stacks_of_name in stacks.items():
            for stack in stacks_of_name:
                files.append(str(folder / f"{len(files)}.json"))
                stack.save(files[-1])
                print(f"    {name}: {stack} ({stack.combiner.normalization})", flush=True)
        _, *values = self.evaluate(files)
        return {name: [values.pop(0) for _ in stacks_of_name] for name, stacks_of_name in stacks.items()}

    def share(self, values: Values) -> float:
        """Return the share of the gain of true judgments."""
        return float((values - self.bm25).mean() / (self.best - self.bm25).mean())

    def true_grades(self, queries: list[Query], ids: Mapping[str, str]) -> Qrels:
        """Return the true judgments of queries of a log. ids: id in the log -> true id."""
        return Qrels({query.id: dict(self.collection.qrels[ids[query.id]]) for query in queries})

    def by_hand(self, dev: list[Query], ids: dict[str, str], draw: int) -> Qrels:
        """Judge the tuning queries of a pool by their true grades. ids: id in the log -> true id."""
        sample = random.Random(draw).sample(dev, round(SAMPLED * len(dev)))
        stacks = separate_first_stage(equal_weights(self.workspace, STACK.split(",")))
        pool = make_pool(self.workspace, stacks, sample, PoolOptions(count=POOLED, seed=draw)).pool
        tuning = sorted(pool.queries, key=lambda query: query.reason != DIFFERENCE)[:HAND]
        true = self.collection.qrels
        pairs = [(query.id, hit.id) for query in tuning for hit in query.hits]
        return Qrels((query, hit, true[ids[query]].get(hit, 0)) for query, hit in pairs)


@dataclass(frozen=True)
class Log:
    """The log of one kind of users: its queries, their true ids, and its judgments for training and tuning.

    naive_train, naive_dev: the same queries; every clicked document has grade 1.
    """

    queries: list[Query]
    ids: dict[str, str]
    train: Qrels
    dev: Qrels
    naive_train: Qrels
    naive_dev: Qrels

    @property
    def dev_queries(self) -> list[Query]:
        return [query for query in self.queries if query.id in self.dev]


def write_log(experiment: Experiment, users: str, sessions: int, folder: Path) -> Log:
    """Simulate the users, and make judgments from their clicks."""
    log = folder / f"{users}.tsv"
    clicked_pairs = simulate(experiment.workspace, experiment.collection, users, sessions, log)
    report = judge_clicks([log], folder / users, None, experiment.workspace)
    clicks = f"{report.clicks:,} clicks, CTR {report.click_rates[:3]}"
    print(f"  {report.page_views:,} page views, {clicks}", flush=True)
    queries = experiment.named(read_queries(folder / users / "queries.jsonl"))
    train_qrels = read_qrels(folder / users / "train.tsv")
    dev_qrels = read_qrels(folder / users / "dev.tsv")
    key_ids = {query_key(query.text): query.id for query in queries}
    # Queries that only dropped sessions clicked have no judgments.
    clicked = sorted((key_ids[key], document) for key, document in clicked_pairs if key in key_ids)
    return Log(
        queries=queries,
        ids={query.id: experiment.by_key[query_key(query.text)].id for query in queries},
        train=train_qrels,
        dev=dev_qrels,
        naive_train=Qrels((query, id, 1) for query, id in clicked if query in train_qrels),
        naive_dev=Qrels((query, id, 1) for query, id in clicked if query in dev_qrels),
    )


def run_case(experiment: Experiment, log: Log, seed: int) -> dict[str, list[Values]]:
    """Return the values of each kind of stack: of clicks, and of naive clicks. Those by hand have several."""

    def tune_by_hand(name: str) -> dict[str, list[Stack]]:
        pools = [experiment.by_hand(log.dev_queries, log.ids, draw) for draw in range(DRAWS)]
        true = experiment.true_grades(log.dev_queries, log.ids)
        return {
            f"{name}, all by hand": [experiment.tune(log.queries, true)],
            f"{name}, 30 by hand": [experiment.tune(log.queries, grades) for grades in pools],
        }

    experiment.train(log.queries, log.train, log.dev, seed)
    stacks = {
        **tune_by_hand("clicks"),
        "clicks, clicks": [experiment.tune(log.queries, log.dev, protocol="judged", least_share=0.3)],
        "clicks, clicks free": [experiment.tune(log.queries, log.dev, protocol="judged")],
        "clicks, unjudged as 0": [experiment.tune(log.queries, log.dev)],
    }
    values = experiment.measure(stacks)
    experiment.train(log.queries, log.naive_train, log.naive_dev, seed)
    return {**values, **experiment.measure(tune_by_hand("any click"))}


def show(experiment: Experiment, users: str, stack: str, trainings: list[list[Values]]) -> bool:
    """Print the share of the gain, and return whether it reaches its target."""
    draws = list(chain.from_iterable(trainings))
    mean: Values = np.mean(draws, axis=0)
    share = experiment.share(mean)
    low, high = share_interval(mean - experiment.bm25, experiment.best - experiment.bm25)
    notes = [f"({low:.0%} to {high:.0%}) of the gain"]
    if len(trainings) > 1:
        shares = [experiment.share(np.mean(draws_of_training, axis=0)) for draws_of_training in trainings]
        notes.append(f"trainings {' '.join(f'{share_of_training:.0%}' for share_of_training in shares)}")
    if len(draws) > len(trainings):
        lowest = min(map(experiment.share, draws))
        notes.append(f"lowest of {len(draws)} draws {lowest:.0%}")
    target = None if users == "trust" and "hand" not in stack else TARGETS.get(stack)
    is_below = target is not None and share < target
    if is_below:
        notes.append(f"below the target of {target:.0%}")
    print(f"  {stack:24} {mean.mean():.4f}  {share:5.0%} {', '.join(notes)}", flush=True)
    return not is_below


def show_difference(experiment: Experiment, groups: Mapping[str, list[list[Values]]]) -> bool:
    """Print how much more clicks keep than naive clicks, and return whether it is more."""
    clicks, naive = (
        np.mean(list(chain.from_iterable(groups[f"{name}, 30 by hand"])), axis=0)
        for name in ("clicks", "any click")
    )
    gain = float((experiment.best - experiment.bm25).mean())
    low, high = share_interval(clicks - naive, np.full(len(clicks), gain))
    share = float((clicks - naive).mean()) / gain
    print(f"  clicks above any click: {share:+.0%} ({low:+.0%} to {high:+.0%}) of the gain", flush=True)
    return share > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA/COLLECTION")
    parser.add_argument("--lang", default="en")
    parser.add_argument("--users", default="pbm,cascade,trust")
    parser.add_argument("--documents", type=int, default=2400)
    parser.add_argument("--words", type=int, default=120)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1, help="number of trainings. Default: %(default)s")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collection = read_collection(options.data, options.lang, options.documents, options.words)
        workspace = Workspace.create(folder / "workspace", lang=options.lang)
        workspace.engine.write(collection.documents)
        experiment = Experiment(collection, workspace, options.epochs)
        begin = time.process_time()
        place = len(collection.logged) // 5
        dev = collection.judgments(collection.logged[:place])
        train_qrels = collection.judgments(collection.logged[place:])
        best: list[Values] = []
        for seed in range(options.seeds):
            experiment.train(collection.logged, train_qrels, dev, seed)
            best += experiment.measure({"true": [experiment.tune(collection.logged, dev)]})["true"]
        experiment.best = np.mean(best, axis=0)
        bm25 = float(experiment.bm25.mean())
        gain = float(experiment.best.mean()) - bm25
        sizes = f"{len(collection.documents):,} documents, {len(collection.logged):,} logged queries"
        print(f"{options.data.name}: {sizes}, {len(collection.test):,} test queries")
        print(f"  bm25 {bm25:.4f}; true judgments {bm25 + gain:.4f} ({gain:+.4f})", flush=True)
        for users in options.users.split(","):
            print(users, flush=True)
            log = write_log(experiment, users, options.sessions, folder)
            cases = [run_case(experiment, log, seed) for seed in range(options.seeds)]
            groups = {stack: [values[stack] for values in cases] for stack in cases[0]}
            for stack, trainings in groups.items():
                missed += not show(experiment, users, stack, trainings)
            missed += not show_difference(experiment, groups)
        print(f"{time.process_time() - begin:.0f} s of processor time")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
