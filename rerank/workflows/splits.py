"""Train, dev and test queries, given or drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rerank.errors import InputError
from rerank.formats import write_qrels
from rerank.records import Qrels, Query
from rerank.text import plural
from rerank.workflows.collection_folder import WHOLE

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
        for name, qrels in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            if qrels:
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
    texts = {query.id: " ".join(query.text.lower().split()) for query in queries}
    notes: list[str] = []
    pools = _usable(given, texts, documents, notes)
    # Train and dev must not contain any given test query, also without a relevant document.
    asked = {texts[q] for q in given.get("test", ()) if texts.get(q)} if len(given) > 1 else set()
    _part(pools, texts, asked, notes)
    total = sum(map(len, pools.values()))
    if total < 2 * LEAST:
        raise InputError(
            f"{total} judged {'query has' if total == 1 else 'queries have'} a text and a relevant document:"
            f" too few for {LEAST} dev and {LEAST} test queries; judge more queries"
        )
    draw = _drawing(texts, seed)
    if len(pools) == 1:
        pools = _from_one(*pools.popitem(), draw, notes)
    if "test" not in pools:
        name = max(("train", "dev"), key=lambda one: len(pools[one]))
        pools["test"], pools[name] = draw(pools[name], DRAWN)
        kept = plural(len(pools["test"]), f"quer[y|ies] of {name} [is|are] used for test")
        notes.append(f"no test judgments: {kept}")
    _complete(pools, draw, notes)
    if min(len(pools["dev"]), len(pools["test"])) < LEAST:
        raise InputError(
            f"{plural(len(pools['dev']), 'quer[y|ies]')} for dev and {len(pools['test'])} for test"
            f" are too few ({LEAST} at least); judge more queries"
        )
    source = {query: qrels[query] for qrels in given.values() for query in qrels}
    if "test" in given and len(given) > 1:  # unchanged, so that results are comparable
        source |= given["test"]
        pools["test"] = list(given["test"])
    parts = {name: Qrels({q: source[q] for q in pools[name]}) for name in ("train", "dev", "test")}
    return Splits(**parts, notes=tuple(notes))


Pools = dict[str, list[str]]
"""``train``, ``dev``, ``test`` or ``all`` -> ids of queries."""
Draw = Callable[[Iterable[str], float], tuple[list[str], list[str]]]
"""Draws a share of queries, and returns it and the rest; equal texts stay together."""


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
        of = plural(total, "judged quer[y|ies]")
        notes.append(f"{lost:,} of {of} {'has' if lost == 1 else 'have'} no text or no relevant document")
    return pools


def _from_one(name: str, queries: list[str], draw: Draw, notes: list[str]) -> Pools:
    learns = len(queries) * (1 - 2 * DRAWN) >= LEAST_TRAIN
    test, rest = draw(queries, DRAWN if learns else 0.5)
    dev, train = draw(rest, DRAWN / (1 - DRAWN)) if learns else (rest, [])
    train_part = f"train {len(train):,}, " if train else ""
    only = "one file of judgments" if name == WHOLE else f"only {name} judgments"
    notes.append(f"{only}: the queries are split into {train_part}dev {len(dev):,} and test {len(test):,}")
    return {"train": train, "dev": dev, "test": test}


def _complete(pools: Pools, draw: Draw, notes: list[str]) -> None:
    missing = next((name for name in ("dev", "train") if name not in pools), None)
    if missing is not None:
        queries = pools["train" if missing == "dev" else "dev"]
        pools["dev"], pools["train"] = queries, []
        how = "the others are too few to train: they become dev queries"
        if len(queries) * (1 - DRAWN) >= LEAST_TRAIN:
            pools["dev"], pools["train"] = dev, train = draw(queries, DRAWN)
            how = f"the others are split into train {len(train):,} and dev {len(dev):,}"
        notes.append(f"no {missing} judgments: {how}")
    elif 0 < len(pools["train"]) < LEAST_TRAIN:
        few = "train quer[y is|ies are] too few: [it becomes a dev query|they become dev queries]"
        notes.append(plural(len(pools["train"]), few))
        pools["dev"], pools["train"] = sorted([*pools["dev"], *pools["train"]]), []


def _part(pools: Pools, texts: Mapping[str, str], asked: set[str], notes: list[str]) -> None:
    """Make the splits disjoint, by id and text."""
    later: set[str] = set()
    for name in ("test", "dev", "train"):
        if name not in pools:
            continue
        kept = [query for query in pools[name] if texts[query] not in later]
        if len(kept) < len(pools[name]):
            gone = plural(len(pools[name]) - len(kept), f"{name} quer[y is|ies are] also in")
            others = "test or dev" if name == "train" else "test"
            notes.append(f"{gone} {others}: not used for {name}")
        later |= asked | {texts[query] for query in kept}
        pools[name] = kept


def _drawing(texts: Mapping[str, str], seed: int) -> Draw:
    rng = np.random.default_rng(seed)

    def draw(pool: Iterable[str], share: float) -> tuple[list[str], list[str]]:
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

    return draw
