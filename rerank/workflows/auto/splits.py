"""Train, dev and test queries, given or drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rerank.errors import InputError
from rerank.formats import write_qrels
from rerank.records import Qrels, Query
from rerank.text import count_of, query_key
from rerank.workflows.auto.files import SPLITS, WHOLE

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
        """Write the judgments: split -> file."""
        folder.mkdir(exist_ok=True)
        paths = {}
        for name in SPLITS:
            if qrels := getattr(self, name):
                paths[name] = folder / f"{name}.tsv"
                write_qrels(paths[name], qrels)
        return paths


def split(
    judged: Mapping[str, Qrels], queries: Sequence[Query], documents: Collection[str], *, seed: int = 0
) -> Splits:
    """Complete ``train``, ``dev`` and ``test``, or draw them from ``all``.

    An existing test set is unchanged. Queries with equal texts stay together.

    judged: the name of a split, or ``all`` -> its judgments.
    documents: existing ids.

    Raises InputError if too few queries have a text and a relevant document.
    """
    texts = {query.id: query_key(query.text) for query in queries}
    notes: list[str] = []
    pools = _usable_queries(judged, texts, documents, notes)
    existing_test = judged.get("test") if len(judged) > 1 else None
    # Train and dev must not contain any query of this test set, also without a relevant document.
    test_texts = {texts[query] for query in existing_test or () if texts.get(query)}
    _make_disjoint(pools, texts, test_texts, notes)
    total = sum(map(len, pools.values()))
    if total < 2 * LEAST_QUERIES:
        raise InputError(
            f"{total} judged {'query has' if total == 1 else 'queries have'} a text and a relevant document:"
            f" too few for {LEAST_QUERIES} dev and {LEAST_QUERIES} test queries; judge more queries"
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
    splits = {name: Qrels({query: grades[query] for query in pools[name]}) for name in SPLITS}
    return Splits(**splits, notes=tuple(notes))


Pools = dict[str, list[str]]
"""``train``, ``dev``, ``test`` or ``all`` -> ids of queries."""


def _usable_queries(
    judged: Mapping[str, Qrels], texts: Mapping[str, str], documents: Collection[str], notes: list[str]
) -> Pools:
    """Return the queries of each split that have a text and a relevant document."""
    pools: Pools = {}
    for name, qrels in judged.items():
        with_text = [query for query in sorted(qrels) if texts.get(query)]
        pools[name] = [query for query in with_text if any(id in documents for id in qrels.relevant(query))]
    total = sum(map(len, judged.values()))
    unusable = total - sum(map(len, pools.values()))
    if unusable:
        verb = "has" if unusable == 1 else "have"
        queries = count_of(total, "judged query")
        notes.append(f"{unusable:,} of {queries} {verb} no text or no relevant document")
    return pools


def _make_disjoint(pools: Pools, texts: Mapping[str, str], test_texts: set[str], notes: list[str]) -> None:
    """Make the splits disjoint, by id and text. A query that is in several stays in test, else in dev.

    test_texts: texts of an existing test set, also of queries that are not usable.
    """
    used_texts: set[str] = set()
    for name in ("test", "dev", "train"):
        if name not in pools:
            continue
        queries = [query for query in pools[name] if texts[query] not in used_texts]
        if len(queries) < len(pools[name]):
            removed = count_of(len(pools[name]) - len(queries), f"{name} query")
            earlier_splits = "test or dev" if name == "train" else "test"
            notes.append(f"{removed} also in {earlier_splits}: not used for {name}")
        used_texts |= test_texts | {texts[query] for query in queries}
        pools[name] = queries


def _complete(pools: Pools, texts: Mapping[str, str], rng: np.random.Generator, notes: list[str]) -> None:
    """Draw missing splits. Too few train queries become dev queries."""
    share = DRAWN_SHARE
    if len(pools) == 1:  # the only file is divided, also one of test queries
        pools[WHOLE] = pools.popitem()[1]
        share = DRAWN_SHARE / (1 - DRAWN_SHARE)
    missing = [name for name in SPLITS if name not in pools]
    if missing:
        source = "one file of judgments" if WHOLE in pools else "the other judgments"
        notes.append(f"{', '.join(missing)} queries are drawn from {source}")
    if "test" in missing:
        largest = max(pools, key=lambda name: len(pools[name]))
        few = largest == WHOLE and len(pools[WHOLE]) * (1 - 2 * DRAWN_SHARE) < LEAST_TRAIN
        pools["test"], pools[largest] = _draw(pools[largest], texts, 0.5 if few else DRAWN_SHARE, rng)
    if "dev" in missing or "train" in missing:
        (rest,) = (pools.pop(name) for name in [*pools] if name != "test")
        pools["dev"], pools["train"] = rest, []
        if len(rest) * (1 - share) >= LEAST_TRAIN:
            pools["dev"], pools["train"] = _draw(rest, texts, share, rng)
    elif 0 < len(pools["train"]) < LEAST_TRAIN:
        notes.append(f"{count_of(len(pools['train']), 'train query')}: too few, used for dev")
        pools["dev"], pools["train"] = sorted([*pools["dev"], *pools["train"]]), []


def _draw(
    queries: Iterable[str], texts: Mapping[str, str], share: float, rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Draw a share of queries, and return it and the rest; equal texts stay together."""
    groups: dict[str, list[str]] = {}
    for query in sorted(queries):
        groups.setdefault(texts[query], []).append(query)
    equal_queries = list(groups.values())
    count = round(share * sum(map(len, equal_queries)))
    drawn: list[str] = []
    rest: list[str] = []
    for position in rng.permutation(len(equal_queries)).tolist():
        pool_to_fill = drawn if len(drawn) < count else rest
        pool_to_fill.extend(equal_queries[position])
    return sorted(drawn), sorted(rest)
