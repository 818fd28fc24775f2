"""The judgments of an auto run: from people, from clicks, or from both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from rerank.common.errors import InputError
from rerank.common.values import items_at, only, with_keys
from rerank.documents.records import Qrels, Query
from rerank.documents.text import count_of, query_key
from rerank.formats import read_qrels, read_queries
from rerank.formats.inputs import as_qrels
from rerank.judging.clicks import DEV, QUERIES, TRAIN, ClickReport, JudgedPart, is_for_tuning
from rerank.judging.judgments import read_judgments, summarize_judgments
from rerank.judging.log import ClickLog
from rerank.judging.pool import DIFFERENCE, Pool, judged_file
from rerank.workflows.auto.files import WHOLE, Folder
from rerank.workflows.auto.splits import (
    LEAST_QUERIES,
    Splits,
    group_equal_texts,
    split,
    too_few_queries,
    usable_queries,
)

CLICKS = "clicks"
"""Folder of the judgments from clicks, in the workspace."""
TUNING_SHARE = 0.6
"""Share of the queries judged by hand that tune; the others test."""


@dataclass(frozen=True)
class Judgments:
    """Queries and their judgments.

    splits: the test queries are empty if only clicks are known; all are empty without any judgment.
    stopping: dev queries of the trainings. from_clicks: whether clicks train. tested: whether people judged
    queries, so that a stack can be tested.
    """

    queries: Sequence[Query]
    splits: Splits
    stopping: Qrels
    from_clicks: bool = False
    tested: bool = True


@dataclass(frozen=True)
class JudgedPool:
    """The queries of a pool, and the grades of all people together.

    differing: ids of the queries that were chosen because the pooled stacks differ on them.
    """

    queries: list[Query] = field(default_factory=list)
    qrels: Qrels = field(default_factory=Qrels)
    differing: Set[str] = frozenset()

    @classmethod
    def read(cls, path: Path, say: Callable[[str], object]) -> JudgedPool:
        """Read the judgments of a pool; empty if nothing is judged yet. say: receives disagreements."""
        judgments_path = judged_file(path)
        is_judged = path.exists() and judgments_path.exists()
        if not is_judged:
            return cls()
        summary = summarize_judgments(read_judgments(judgments_path))
        if summary.shared:
            say(summary.describe())

        queries: list[Query] = []
        differing: set[str] = set()
        for query in Pool.load(path).queries:
            queries.append(Query(query.id, query.text))
            if query.reason == DIFFERENCE:
                differing.add(query.id)
        return cls(queries, summary.qrels, differing)


@dataclass(frozen=True)
class HandJudgments:
    """The queries of a folder, and the judgments that people made: split -> judgments."""

    queries: Sequence[Query]
    by_split: Mapping[str, Qrels]

    @classmethod
    def read(cls, files: Folder) -> HandJudgments:
        """Read the files. Judgments of texts are used for the queries with these texts.

        Raises InputError for a file that cannot be read.
        """
        queries = [] if files.queries is None else read_queries(files.queries)
        return cls(queries, {name: as_qrels(path, queries) for name, path in files.qrels.items()})


def check_judged_by_hand(
    by_hand: HandJudgments, pool: JudgedPool, documents: Set[str], seed: int, *, has_clicks: bool
) -> None:
    """Raise InputError if people judged too few queries, before the documents are ingested.

    pool: of an earlier run. documents: ids. has_clicks: whether there is a click log.
    """
    if not has_clicks:
        without_clicks(by_hand, pool, documents, seed)
        return
    judged = _add_pool(by_hand.by_split, pool)
    # The log can have the texts of the other queries, so they count here.
    queries = {id: Query(id, id) for id in chain.from_iterable(judged.values())}
    queries |= {query.id: query for query in (*pool.queries, *by_hand.queries)}
    _divide(judged, pool.differing, queries, documents, seed)


def check_clicked_queries(log: ClickLog) -> None:
    """Raise InputError if a log has too few queries to tune, also if each is clicked.

    log: the only judgments; no query is judged by hand.
    """
    _check_tuning_queries(sum(map(is_for_tuning, log.texts.values())))


def without_clicks(by_hand: HandJudgments, pool: JudgedPool, documents: Set[str], seed: int) -> Judgments:
    """Return the judgments of a folder without clicks, and draw missing splits.

    pool: of an earlier run, whose grades are used if the folder has no judgments.

    Raises InputError if too few queries are judged.
    """
    queries = by_hand.queries
    judged = by_hand.by_split
    if not judged and not pool.qrels:
        none = Qrels()
        return Judgments(queries, Splits(none, none, none, ("no query is judged",)), none, tested=False)
    judged = judged or {WHOLE: pool.qrels}
    splits = split(judged, queries, documents, seed=seed)
    return Judgments(queries, splits, splits.dev)


def with_clicks(
    by_hand: HandJudgments, report: ClickReport, pool: JudgedPool, documents: Set[str], seed: int
) -> Judgments:
    """Join the judgments from clicks with judgments by people.

    Clicks train. The queries that people judged tune and test, and leave the training. Without them, clicks
    also tune, and no query tests.

    report: of the judgments from clicks. pool: of an earlier run.

    Raises InputError if too few queries are judged.
    """
    judged_by_hand = _add_pool(by_hand.by_split, pool)
    queries = _queries_by_id(by_hand, report, pool)
    all_queries = list(queries.values())
    clicked_train = _read(report.folder / TRAIN, report.train)
    stopping = _read(report.folder / DEV, report.dev)
    if not judged_by_hand:
        splits = _only_clicks(clicked_train, stopping)
        return Judgments(all_queries, splits, stopping, from_clicks=True, tested=False)
    dev, test = _divide(judged_by_hand, pool.differing, queries, documents, seed)
    held_out_queries = with_keys(queries, (*dev, *test))
    held_out = {query_key(query.text) for query in held_out_queries.values()}
    hand_train = judged_by_hand.get("train", Qrels())
    with_text = Qrels(only(hand_train, queries))
    all_train = _merge([with_text, clicked_train])
    train = _without_texts(all_train, queries, held_out)
    judged = count_of(len(dev) + len(test), "query")
    notes = [f"clicks train; {judged} judged by people: for tuning and the test"]
    without_text = len(hand_train) - len(with_text)
    if without_text:
        notes.append(f"{count_of(without_text, 'train query')} without text")
    removed = len(all_train) - len(train)
    if removed:
        notes.append(f"{count_of(removed, 'judged query')} of the clicks left the training")
    splits = Splits(train, dev, test, tuple(notes))
    stopping = _without_texts(stopping, queries, held_out) or dev
    return Judgments(all_queries, splits, stopping, from_clicks=True)


def _add_pool(by_split: Mapping[str, Qrels], pool: JudgedPool) -> dict[str, Qrels]:
    """Return split -> judgments by people. ``all`` also has the judgments of the pool."""
    judged = dict(by_split)
    if pool.qrels:
        judged[WHOLE] = _merge([judged.get(WHOLE, Qrels()), pool.qrels])
    return judged


def _queries_by_id(by_hand: HandJudgments, report: ClickReport, pool: JudgedPool) -> dict[str, Query]:
    """Return all queries. With equal ids, the file of the user comes before the clicks and the pool."""
    sources: list[Sequence[Query]] = [pool.queries, read_queries(report.folder / QUERIES)]
    if by_hand.by_split:
        sources.append(by_hand.queries)
    queries: dict[str, Query] = {}
    for source in sources:
        queries |= {query.id: query for query in source}
    return queries


def _without_texts(qrels: Qrels, queries: Mapping[str, Query], texts: Set[str]) -> Qrels:
    """Return the judgments of queries with other texts than these."""
    return _select(qrels, [query for query in qrels if query_key(queries[query].text) not in texts])


def _read(path: Path, counts: JudgedPart | None) -> Qrels:
    """Read a file of judgments. counts: of the file, which may be missing or have no judgments."""
    if counts is None or not counts.judgments:
        return Qrels()
    return read_qrels(path)


def _only_clicks(train: Qrels, dev: Qrels) -> Splits:
    """Return splits without test queries. Raises InputError for too few dev queries."""
    queries_with_relevant = list(filter(dev.relevant, dev))
    _check_tuning_queries(len(queries_with_relevant))
    return Splits(train, dev, Qrels(), ("clicks train and tune; no query tests",))


def _check_tuning_queries(count: int) -> None:
    """Raise InputError if clicks judge too few queries to tune."""
    if count < LEAST_QUERIES:
        raise InputError(
            f"the clicks judge {count_of(count, 'query')} to tune, {LEAST_QUERIES} at least are needed; give"
            " a longer log, or qrels.tsv with queries judged by hand"
        )


def _divide(
    by_hand: Mapping[str, Qrels],
    differing: Set[str],
    queries: Mapping[str, Query],
    documents: Set[str],
    seed: int,
) -> tuple[Qrels, Qrels]:
    """Return the dev and the test judgments: both given ones, or a random division of all judgments.

    Queries that were chosen because the pooled stacks differ go to dev first. Queries on which the stacks
    agree hardly change the weights. They are better for the test, because it then shows the gain of users.

    Raises InputError for too few queries.
    """
    dev_qrels = by_hand.get("dev")
    test_qrels = by_hand.get("test")
    if dev_qrels and test_qrels and WHOLE not in by_hand:
        return dev_qrels, test_qrels
    judged = _merge(list(with_keys(by_hand, (WHOLE, "dev", "test")).values()))
    texts = {id: query_key(query.text) for id, query in queries.items()}
    groups = group_equal_texts(usable_queries(judged, texts, documents), texts)
    order = np.random.default_rng(seed).permutation(len(groups)).tolist()
    drawn_groups = items_at(groups, order)
    drawn_groups.sort(key=differing.isdisjoint)  # stable: each part stays in random order
    dev_groups = min(round(TUNING_SHARE * len(groups)), len(groups) - LEAST_QUERIES)
    dev_groups = max(dev_groups, 0)
    dev = sorted(chain.from_iterable(drawn_groups[:dev_groups]))
    test = sorted(chain.from_iterable(drawn_groups[dev_groups:]))
    if min(len(dev), len(test)) < LEAST_QUERIES:
        raise too_few_queries(
            f"people judged {count_of(len(dev) + len(test), 'query')} with a relevant document", len(judged)
        )
    return _select(judged, dev), _select(judged, test)


def _select(qrels: Qrels, queries: Iterable[str]) -> Qrels:
    return Qrels(with_keys(qrels, queries))


def _merge(parts: Sequence[Qrels]) -> Qrels:
    """Join judgments. For each query, the first part with this query counts."""
    grades: dict[str, Mapping[str, int]] = {}
    for qrels in reversed(parts):
        grades |= qrels
    return Qrels(grades)
