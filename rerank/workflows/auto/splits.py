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
LEAST = 5
"""Smallest number of dev queries, and of test queries."""
DRAWN = 0.2
"""Share of the queries that is drawn for a missing split."""


@dataclass(frozen=True)
class Splits:
    """Judgments of disjoint queries. train: may be empty. notes: drawn and removed queries."""

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
    given: Mapping[str, Qrels], queries: Sequence[Query], documents: Collection[str], *, seed: int = 0
) -> Splits:
    """Complete ``train``, ``dev`` and ``test``, or draw them from ``all``.

    documents: existing ids. A given test set is unchanged. Queries with equal texts stay together.

    Raises InputError if too few queries have a text and a relevant document.
    """
    texts = {query.id: query_key(query.text) for query in queries}
    notes: list[str] = []
    pools = _usable(given, texts, documents, notes)
    measured = given.get("test") if len(given) > 1 else None
    # Train and dev must not contain any given test query, also without a relevant document.
    _part(pools, texts, {texts[q] for q in measured or () if texts.get(q)}, notes)
    total = sum(map(len, pools.values()))
    if total < 2 * LEAST:
        raise InputError(
            f"{total} judged {'query has' if total == 1 else 'queries have'} a text and a relevant document:"
            f" too few for {LEAST} dev and {LEAST} test queries; judge more queries"
        )
    _complete(pools, texts, np.random.default_rng(seed), notes)
    if min(len(pools["dev"]), len(pools["test"])) < LEAST:
        raise InputError(
            f"{count_of(len(pools['dev']), 'query')} for dev and {len(pools['test'])} for test"
            f" are too few ({LEAST} at least); judge more queries"
        )
    source = {query: qrels[query] for qrels in given.values() for query in qrels}
    if measured is not None:  # unchanged, so that results are comparable
        source |= measured
        pools["test"] = list(measured)
    parts = {name: Qrels({q: source[q] for q in pools[name]}) for name in SPLITS}
    return Splits(**parts, notes=tuple(notes))


Pools = dict[str, list[str]]
"""``train``, ``dev``, ``test`` or ``all`` -> ids of queries."""


def _usable(
    given: Mapping[str, Qrels], texts: Mapping[str, str], documents: Collection[str], notes: list[str]
) -> Pools:
    pools = {
        name: [q for q in sorted(qrels) if texts.get(q) and any(d in documents for d in qrels.relevant(q))]
        for name, qrels in given.items()
    }
    total = sum(map(len, given.values()))
    lost = total - sum(map(len, pools.values()))
    if lost:
        of = count_of(total, "judged query")
        notes.append(f"{lost:,} of {of} {'has' if lost == 1 else 'have'} no text or no relevant document")
    return pools


def _part(pools: Pools, texts: Mapping[str, str], asked: set[str], notes: list[str]) -> None:
    """Make the splits disjoint, by id and text."""
    later: set[str] = set()
    for name in ("test", "dev", "train"):
        if name not in pools:
            continue
        kept = [query for query in pools[name] if texts[query] not in later]
        if len(kept) < len(pools[name]):
            gone = count_of(len(pools[name]) - len(kept), f"{name} query")
            others = "test or dev" if name == "train" else "test"
            notes.append(f"{gone} also in {others}: not used for {name}")
        later |= asked | {texts[query] for query in kept}
        pools[name] = kept


def _complete(pools: Pools, texts: Mapping[str, str], rng: np.random.Generator, notes: list[str]) -> None:
    """Draw missing splits. Too few train queries become dev queries."""
    share = DRAWN
    if len(pools) == 1:  # the only file is divided, also one of test queries
        pools[WHOLE] = pools.popitem()[1]
        share = DRAWN / (1 - DRAWN)
    missing = [name for name in SPLITS if name not in pools]
    if missing:
        source = "one file of judgments" if WHOLE in pools else "the other judgments"
        notes.append(f"{', '.join(missing)} queries are drawn from {source}")
    if "test" in missing:
        largest = max(pools, key=lambda name: len(pools[name]))
        few = largest == WHOLE and len(pools[WHOLE]) * (1 - 2 * DRAWN) < LEAST_TRAIN
        pools["test"], pools[largest] = _draw(pools[largest], texts, 0.5 if few else DRAWN, rng)
    if "dev" in missing or "train" in missing:
        (rest,) = (pools.pop(name) for name in [*pools] if name != "test")
        pools["dev"], pools["train"] = rest, []
        if len(rest) * (1 - share) >= LEAST_TRAIN:
            pools["dev"], pools["train"] = _draw(rest, texts, share, rng)
    elif 0 < len(pools["train"]) < LEAST_TRAIN:
        notes.append(f"{count_of(len(pools['train']), 'train query')}: too few, used for dev")
        pools["dev"], pools["train"] = sorted([*pools["dev"], *pools["train"]]), []


def _draw(
    pool: Iterable[str], texts: Mapping[str, str], share: float, rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Draw a share of queries, and return it and the rest; equal texts stay together."""
    groups: dict[str, list[str]] = {}
    for query in sorted(pool):
        groups.setdefault(texts[query], []).append(query)
    each = list(groups.values())
    wanted = round(share * sum(map(len, each)))
    taken: list[str] = []
    rest: list[str] = []
    for i in rng.permutation(len(each)).tolist():
        (taken if len(taken) < wanted else rest).extend(each[i])
    return sorted(taken), sorted(rest)
