"""Train, dev and test queries, given or drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rerank.common.errors import InputError
from rerank.common.values import items_at, items_not_in, with_keys, without_empty
from rerank.documents.records import Qrels, Query
from rerank.documents.text import count_of, query_key
from rerank.formats import write_qrels
from rerank.workflows.auto.files import SPLITS

LEAST_TRAIN = 50
"""Smallest number of train queries for rankers; fewer become dev queries."""
LEAST_QUERIES = 5
"""Smallest number of dev queries, and of test queries."""
DRAWN_SHARE = 0.2
"""Share of the queries that is drawn for a missing split."""


@dataclass(frozen=True)
class Splits:
    """Judgments of disjoint queries. ``train`` may be empty. notes: which queries were drawn or removed."""

    train: Qrels
    dev: Qrels
    test: Qrels
    notes: tuple[str, ...]

    def save(self, folder: Path) -> dict[str, Path]:
        """Write a file for each split with judgments into the folder, and return split -> file."""
        folder.mkdir(exist_ok=True)
        paths = {}
        judged = without_empty({"train": self.train, "dev": self.dev, "test": self.test})
        for name, qrels in judged.items():
            paths[name] = folder / f"{name}.tsv"
            write_qrels(paths[name], qrels)
        return paths


def split(
    judged: Mapping[str, Qrels], queries: Sequence[Query], documents: Set[str], *, seed: int = 0
) -> Splits:
    """Complete ``train``, ``dev`` and ``test``, or draw them from ``all``.

    An existing test set is unchanged. Queries with equal texts stay together.

    judged: the name of a split, or ``all`` -> its judgments.
    documents: existing ids.

    Raises InputError if too few queries have a text and a relevant document.
    """
    texts = {query.id: query_key(query.text) for query in queries}
    notes: list[str] = []
    pools = _usable_pools(judged, texts, documents, notes)
    existing_test = judged.get("test") if len(judged) > 1 else None
    # Train and dev must not contain any query of this test set, also without a relevant document.
    test_texts = {texts.get(query, "") for query in existing_test or ()} - {""}
    _make_disjoint(pools, texts, test_texts, notes)
    total = sum(map(len, pools.values()))
    if total < 2 * LEAST_QUERIES:
        judged_queries = sum(map(len, judged.values()))
        raise too_few_queries(
            f"{count_of(total, 'judged query')} with a text and a relevant document", judged_queries
        )
    _complete(pools, texts, np.random.default_rng(seed), notes)
    if min(len(pools["dev"]), len(pools["test"])) < LEAST_QUERIES:
        raise InputError(
            f"{count_of(len(pools['dev']), 'query')} for dev and {len(pools['test'])} for test"
            f" are too few ({LEAST_QUERIES} at least); judge more queries"
        )
    grades: dict[str, Mapping[str, int]] = {}
    for qrels in judged.values():
        grades |= qrels
    if existing_test is not None:  # unchanged, so that results are comparable
        grades |= existing_test
        pools["test"] = list(existing_test)
    splits = {name: Qrels(with_keys(grades, pools[name])) for name in SPLITS}
    return Splits(**splits, notes=tuple(notes))


def too_few_queries(usable: str, judged: int) -> InputError:
    """Return the error for fewer queries than a dev and a test set need.

    usable: describes the number of queries that can be used. judged: number of all judged queries.

    >>> print(too_few_queries("5 judged queries with a text", 5))
    5 judged queries with a text: 10 are needed, 5 for dev and 5 for test; judge more queries
    """
    advice = "judge more queries"
    if judged >= 2 * LEAST_QUERIES:
        advice += f", or correct the ids: most of {count_of(judged, 'query')} lack a text or such a document"
    needed = f"{2 * LEAST_QUERIES} are needed, {LEAST_QUERIES} for dev and {LEAST_QUERIES} for test"
    return InputError(f"{usable}: {needed}; {advice}")


Pools = dict[str, list[str]]
"""``train``, ``dev``, ``test`` or ``all`` -> ids of queries."""


def usable_queries(qrels: Qrels, texts: Mapping[str, str], documents: Set[str]) -> list[str]:
    """Return the queries that have a text and a relevant document, by id.

    texts: query id -> its text. documents: existing ids.
    """
    usable: list[str] = []
    for query in sorted(qrels):
        if texts.get(query) and not documents.isdisjoint(qrels.relevant(query)):
            usable.append(query)
    return usable


def group_equal_texts(queries: Iterable[str], texts: Mapping[str, str]) -> list[list[str]]:
    """Return the queries in groups with the same text, in the order of their first queries."""
    groups: dict[str, list[str]] = {}
    for query in queries:
        groups.setdefault(texts[query], []).append(query)
    return list(groups.values())


def _usable_pools(
    judged: Mapping[str, Qrels], texts: Mapping[str, str], documents: Set[str], notes: list[str]
) -> Pools:
    """Return the usable queries of each split."""
    pools = {name: usable_queries(qrels, texts, documents) for name, qrels in judged.items()}
    total = sum(map(len, judged.values()))
    unusable = total - sum(map(len, pools.values()))
    if unusable:
        queries = count_of(total, "judged query")
        notes.append(f"{unusable:,} of {queries} not used: no text or no relevant document")
    return pools


_EARLIER_SPLITS = {"test": "", "dev": "test", "train": "test or dev"}
"""Split -> the splits that keep the queries which are also in this one."""


def _make_disjoint(pools: Pools, texts: Mapping[str, str], test_texts: Set[str], notes: list[str]) -> None:
    """Make the splits disjoint, by id and text. A query that is in several stays in test, else in dev.

    test_texts: texts of an existing test set, also of queries that are not usable.
    """
    used_texts: set[str] = set()
    for name, earlier_splits in _EARLIER_SPLITS.items():
        if name not in pools:
            continue
        new_queries = [query for query in pools[name] if texts[query] not in used_texts]
        removed = len(pools[name]) - len(new_queries)
        if removed:
            queries = count_of(removed, f"{name} query")
            notes.append(f"{queries} also in {earlier_splits}: not used for {name}")
        pools[name] = new_queries
        used_texts.update(test_texts)
        used_texts.update(items_at(texts, new_queries))


def _complete(pools: Pools, texts: Mapping[str, str], rng: np.random.Generator, notes: list[str]) -> None:
    """Draw missing splits. Too few train queries become dev queries."""
    if len(pools) == 1:
        _divide_one_file(pools, texts, rng, notes)
        return
    missing = next(iter(items_not_in(SPLITS, pools)), None)
    if missing is not None:
        notes.append(f"{missing} queries are drawn from the other judgments")
    if missing in ("train", "dev"):
        existing = "dev" if missing == "train" else "train"
        pools["dev"], pools["train"] = _divide_into_dev_and_train(pools[existing], texts, DRAWN_SHARE, rng)
        return
    if missing == "test":
        largest = max(pools, key=lambda name: len(pools[name]))
        pools["test"], pools[largest] = _draw(pools[largest], texts, DRAWN_SHARE, rng)
    _move_few_train_queries(pools, notes)


def _move_few_train_queries(pools: Pools, notes: list[str]) -> None:
    """Use the train queries for dev if they are too few to train."""
    train = pools["train"]
    if 0 < len(train) < LEAST_TRAIN:
        notes.append(f"{count_of(len(train), 'train query')}: too few, used for dev")
        pools["dev"] = sorted([*pools["dev"], *train])
        pools["train"] = []


def _divide_one_file(
    pools: Pools, texts: Mapping[str, str], rng: np.random.Generator, notes: list[str]
) -> None:
    """Draw all splits from the only one, also if it is named test."""
    _, queries = pools.popitem()
    can_train = len(queries) * (1 - 2 * DRAWN_SHARE) >= LEAST_TRAIN
    pools["test"], remaining = _draw(queries, texts, DRAWN_SHARE if can_train else 0.5, rng)
    share_of_remaining = DRAWN_SHARE / (1 - DRAWN_SHARE)  # as large as the test set
    pools["dev"], pools["train"] = _divide_into_dev_and_train(remaining, texts, share_of_remaining, rng)
    drawn = list(without_empty(with_keys(pools, SPLITS)))
    notes.append(f"{', '.join(drawn)} queries are drawn from one file of judgments")


def _divide_into_dev_and_train(
    queries: list[str], texts: Mapping[str, str], share: float, rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Draw a share for dev, and return it and the train queries. Too few train queries are all for dev."""
    if len(queries) * (1 - share) < LEAST_TRAIN:
        return queries, []
    return _draw(queries, texts, share, rng)


def _draw(
    queries: Iterable[str], texts: Mapping[str, str], share: float, rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Draw a share of queries, and return it and the other queries; equal texts stay together."""
    groups = group_equal_texts(sorted(queries), texts)
    count = round(share * sum(map(len, groups)))
    drawn: list[str] = []
    remaining: list[str] = []
    for position in rng.permutation(len(groups)).tolist():
        pool_to_fill = drawn if len(drawn) < count else remaining
        pool_to_fill.extend(groups[position])
    return sorted(drawn), sorted(remaining)
