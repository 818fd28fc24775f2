"""The judgments of an auto run: from people, from clicks, or from both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rerank.errors import InputError
from rerank.formats import read_qrels, read_queries
from rerank.judging.clicks import DEV, QUERIES, TRAIN, ClickReport, JudgedPart
from rerank.judging.judgments import read_judgments, summarize_judgments
from rerank.judging.pool import Pool, judged_file
from rerank.records import Qrels, Query
from rerank.text import count_of, query_key
from rerank.workflows.auto.files import WHOLE, Folder
from rerank.workflows.auto.splits import LEAST_QUERIES, Splits, split

CLICKS = "clicks"
"""Folder of the judgments from clicks, in the workspace."""
TUNING_SHARE = 0.6
"""Share of the queries judged by hand that tune; the others test."""


@dataclass(frozen=True)
class Judgments:
    """Queries and their judgments.

    splits: the test queries are empty if only clicks are known. stopping: dev queries of the trainings.
    from_clicks: whether clicks train. tested: whether people judged queries, so that a stack can be tested.
    """

    queries: list[Query]
    splits: Splits
    stopping: Qrels
    from_clicks: bool = False
    tested: bool = True


@dataclass(frozen=True)
class JudgedPool:
    """The queries of a pool, and the grades of all people together."""

    queries: list[Query] = field(default_factory=list)
    qrels: Qrels = field(default_factory=Qrels)

    @classmethod
    def read(cls, path: Path, say: Callable[[str], object]) -> JudgedPool:
        """Read the judgments of a pool; empty if nothing is judged yet. say: receives disagreements."""
        judged = judged_file(path)
        if not judged.exists() or not path.exists():
            return cls()
        summary = summarize_judgments(read_judgments(judged))
        if summary.shared:
            say(summary.describe())
        queries = [Query(query.id, query.text) for query in Pool.load(path).queries]
        return cls(queries, summary.qrels)


def read_by_hand(files: Folder, documents: Collection[str], seed: int) -> Judgments:
    """Read the judgments of a folder without clicks, and draw missing splits. Raises InputError."""
    assert files.queries is not None
    judged = {name: read_qrels(path) for name, path in files.qrels.items()}
    queries = read_queries(files.queries)
    splits = split(judged, queries, documents, seed=seed)
    return Judgments(queries, splits, splits.dev)


def read_with_clicks(
    files: Folder, report: ClickReport, pool: JudgedPool, documents: Collection[str], seed: int
) -> Judgments:
    """Join the judgments from clicks with judgments by people.

    Clicks train. The queries that people judged tune and test, and leave the training. Without them, clicks
    also tune, and no query tests.

    report: of the judgments from clicks. pool: of an earlier run.

    Raises InputError if too few queries are judged.
    """
    clicked = read_queries(report.folder / QUERIES)
    by_id = {query.id: query for query in (*pool.queries, *clicked)}
    hand = {name: read_qrels(path) for name, path in files.qrels.items()}
    if hand and files.queries is not None:
        by_id |= {query.id: query for query in read_queries(files.queries)}
    if pool.qrels:
        hand[WHOLE] = _merge([hand.get(WHOLE, Qrels()), pool.qrels])
    queries = list(by_id.values())
    train = _read(report.folder / TRAIN, report.train)
    stopping = _read(report.folder / DEV, report.dev)
    if not hand:
        return Judgments(queries, _only_clicks(train, stopping), stopping, from_clicks=True, tested=False)
    dev, test = _divide(hand, by_id, documents, seed)
    keys = {query_key(by_id[query].text) for query in (*dev, *test) if query in by_id}

    def without_judged(qrels: Qrels) -> Qrels:
        return _select(qrels, (query for query in qrels if query_key(by_id[query].text) not in keys))

    hand_train = hand.get("train", Qrels())
    with_text = _select(hand_train, (query for query in hand_train if query in by_id))
    all_train = _merge([with_text, train])
    train = without_judged(all_train)
    removed = len(all_train) - len(train)
    judged = count_of(len(dev) + len(test), "query")
    notes = [f"clicks train; {judged} judged by people: for tuning and the test"]
    without_text = len(hand_train) - len(with_text)
    if without_text:
        verb = "has" if without_text == 1 else "have"
        notes.append(f"{count_of(without_text, 'train query')} {verb} no text")
    if removed:
        notes.append(f"{count_of(removed, 'judged query')} of the clicks left the training")
    splits = Splits(train, dev, test, tuple(notes))
    return Judgments(queries, splits, without_judged(stopping) or dev, from_clicks=True)


def _read(path: Path, part: JudgedPart | None) -> Qrels:
    """Read a file of judgments, which may have none."""
    return read_qrels(path) if part is not None and part.judgments else Qrels()


def _only_clicks(train: Qrels, dev: Qrels) -> Splits:
    """Return splits without test queries. Raises InputError for too few dev queries."""
    judged = sum(1 for query in dev if dev.relevant(query))
    if judged < LEAST_QUERIES:
        raise InputError(
            f"the clicks judge {count_of(judged, 'query')} to tune, {LEAST_QUERIES} at least are needed; give"
            " a longer log, or qrels.tsv with queries judged by hand"
        )
    return Splits(train, dev, Qrels(), ("clicks train and tune; no query tests",))


def _divide(
    hand: Mapping[str, Qrels], queries: Mapping[str, Query], documents: Collection[str], seed: int
) -> tuple[Qrels, Qrels]:
    """Return dev and test queries. Both are drawn unless both are given."""
    dev_qrels = hand.get("dev")
    test_qrels = hand.get("test")
    if dev_qrels and test_qrels and WHOLE not in hand:
        return dev_qrels, test_qrels
    judged = _merge([hand[name] for name in (WHOLE, "dev", "test") if name in hand])
    usable: dict[str, list[str]] = {}
    for query in sorted(judged):
        if query in queries and not documents.isdisjoint(judged.relevant(query)):  # type: ignore[attr-defined]
            usable.setdefault(query_key(queries[query].text), []).append(query)
    groups = list(usable.values())
    order = np.random.default_rng(seed).permutation(len(groups)).tolist()
    dev_groups = min(round(TUNING_SHARE * len(groups)), len(groups) - LEAST_QUERIES)
    dev_groups = max(dev_groups, 0)
    dev = [query for number in order[:dev_groups] for query in groups[number]]
    test = [query for number in order[dev_groups:] for query in groups[number]]
    if min(len(dev), len(test)) < LEAST_QUERIES:
        raise InputError(
            f"people judged {count_of(len(dev) + len(test), 'query')} with a relevant document: too few"
            f" for {LEAST_QUERIES} dev and {LEAST_QUERIES} test queries; judge more queries"
        )
    return _select(judged, sorted(dev)), _select(judged, sorted(test))


def _select(qrels: Qrels, queries: Iterable[str]) -> Qrels:
    return Qrels({query: qrels[query] for query in queries})


def _merge(parts: Sequence[Qrels]) -> Qrels:
    """Join judgments. For each query, the first part with this query counts."""
    grades: dict[str, Mapping[str, int]] = {}
    for qrels in reversed(parts):
        grades |= qrels
    return Qrels(grades)
