"""Triplets of a co-citation network: a reference, one cited near it, one that is not (CCHT, Ding et al.).

A target's draws depend on the seed, the epoch and its own key alone: leaving others out changes none of
them, and parts of the targets can be drawn side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from rerank.errors import UsageError, setting_hint
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Ids, Level, Weight
from rerank.settings import setting

LISTED = 2_000
"""Mentions around a target up to which they are listed; of more, each reference drawn is looked at."""
REJECTIONS = 100
"""Draws of a negative, for each that is wanted, before a target is dropped."""

Cited = Literal["random", "sentence", "paragraph", "section", "document", "direct"]


@dataclass(frozen=True)
class Strategy:
    """What is near and what is far. ``random``: any pair that shares a section, by ``weight``. ``direct``: a
    document and what it cites, as SPECTER has it, in a network of these pairs.
    """

    strategy: Cited = setting(
        "sentence", "what cites two references together; direct: one cites the other", common=True
    )
    each: int = setting(5, "triplets of a target (K)", low=1)
    hard: int = setting(0, "of these, with a negative that shares a section but no such group", low=0)
    exclusive: bool = setting(False, "positives share no group of a finer level")
    weight: Weight = setting("node", "draw neighbours alike, by the levels they share, or by the groups")
    short: Literal["fill", "fewer", "skip"] = setting("fill", "targets with fewer neighbours than triplets")
    coarser: bool = setting(False, "targets without a neighbour take those of the next level")
    popular: bool = setting(False, "draw negatives as often as references are cited, to the power 0.75")
    exclude_direct: bool = setting(True, "what a target cites, or is cited by, is no negative of it")

    def __post_init__(self) -> None:
        if self.hard > self.each:
            raise UsageError(
                f"{self.hard} hard negatives are more than the {self.each} triplets of a target; lower"
                f" {setting_hint('hard')} or raise {setting_hint('each')}"
            )

    def unread(self) -> dict[str, str]:
        """Settings that have no effect."""
        why = setting_hint("strategy", self.strategy)
        if self.strategy == "direct":
            return dict.fromkeys(("hard", "exclusive", "weight", "coarser", "exclude_direct"), why)
        found = {"coarser": why} if self.level == LEVELS[-1] else {}
        if self.level == self.widest:
            found["hard"] = why
        return found

    @property
    def level(self) -> Level:
        """Where the positives come from."""
        if self.strategy == "direct":
            return "sentence"
        return "section" if self.strategy == "random" else self.strategy

    @property
    def widest(self) -> Level:
        """Whoever shares a group of this level is no easy negative."""
        return "document" if self.strategy == "document" else "section"


@dataclass(frozen=True)
class Triplets:
    """T triplets, as positions in the network's keys.

    target, positive, negative: (T,) int32. level: (T,) int8, of the positive, 1 (sentence) to 4 (document).
    hard: (T,) bool, of the negative.
    without, crowded: targets that were left out: without a neighbour, and near to nearly everything.
    easier: hard negatives that were wanted and not there.
    """

    target: Ids
    positive: Ids
    negative: Ids
    level: NDArray[np.int8]
    hard: NDArray[np.bool_]
    without: int = 0
    crowded: int = 0
    easier: int = 0

    def __len__(self) -> int:
        return len(self.target)


@dataclass
class TripletSampler:
    """Draws triplets from a network.

    usable: (V,) bool, references with a text; the others are neither targets, positives nor negatives.
    direct: reference -> those that it cites or is cited by, where that is known: they are no negatives.
    untold: reference -> those that are neither positives nor negatives of it.
    only: (V,) bool, references that may be targets; None: all.

    >>> from rerank.rankers.graphs.cocitation import Mention
    >>> papers = [("x", [Mention(ref, 0, 0, at) for ref, at in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]),
    ...           ("y", [Mention("e", 0, 0, 0), Mention("f", 0, 0, 0)])]
    >>> network = CoCitations.of(papers)
    >>> drawn = TripletSampler(network, Strategy(each=1)).draw([network.at("a")])
    >>> network.names(drawn.positive), network.names(drawn.negative)[0] in "ef"
    (['b'], True)
    """

    network: CoCitations
    strategy: Strategy = field(default_factory=Strategy)
    usable: NDArray[np.bool_] | None = None
    direct: Mapping[int, Sequence[int]] = field(default_factory=dict)
    untold: Mapping[int, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    only: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        usable = np.ones(len(self.network), np.bool_) if self.usable is None else self.usable
        self._usable, self._nodes = usable, np.flatnonzero(usable).astype(np.int32)
        cited = np.diff(self.network.levels["document"].ref_indptr)[self._nodes].astype(np.float64)
        self._ends = np.cumsum(np.maximum(cited, 1) ** 0.75) if self.strategy.popular else None

    def targets(self) -> Ids:
        """References with text and a positive."""
        ends = self.network.levels[self.strategy.level].ref_indptr
        found: Ids = self._nodes[np.diff(ends)[self._nodes] > 0]
        return found if self.only is None else found[self.only[found]]

    def draw(self, targets: Sequence[int] | Ids | None = None, epoch: int = 0) -> Triplets:
        """Draw the triplets of some targets, or of all, in the targets' order."""
        rows: list[tuple[int, Ids, Ids, NDArray[np.int8], int]] = []
        counts = {"without": 0, "crowded": 0, "easier": 0}
        for target in self.targets() if targets is None else targets:
            one = self._of(int(target), self._rng(int(target), epoch), counts)
            if one is not None:
                rows.append(one)
        if not rows:
            nothing = np.zeros(0, np.int32)
            return Triplets(nothing, nothing, nothing, nothing.astype(np.int8), nothing > 0, **counts)
        sizes = [len(row[1]) for row in rows]
        hard = [np.arange(len(row[1])) < row[4] for row in rows]
        return Triplets(
            np.repeat(np.array([row[0] for row in rows], np.int32), sizes),
            np.concatenate([row[1] for row in rows]),
            np.concatenate([row[2] for row in rows]),
            np.concatenate([row[3] for row in rows]),
            np.concatenate(hard),
            **counts,
        )

    def _rng(self, target: int, epoch: int) -> np.random.Generator:
        key = f"{self.seed} {epoch} {self.network.keys[target]}".encode("utf-8", "surrogatepass")
        return np.random.Generator(np.random.PCG64(_Hashed(key)))  # type: ignore[arg-type]  # not in the stubs

    def of(self, target: int, rng: np.random.Generator) -> list[tuple[int, int, int]]:
        """Draw a target's triplets from ``rng``: positive, negative, and the positive's level."""
        one = self._of(target, rng, {"without": 0, "crowded": 0, "easier": 0})
        if one is None:
            return []
        return list(zip(one[1].tolist(), one[2].tolist(), one[3].tolist()))

    def counts(self) -> NDArray[np.int64]:
        """(V,) triplets of each reference as a target; of the crowded ones there may be none all the same."""
        strategy, found = self.strategy, np.zeros(len(self.network), np.int64)
        targets = self.targets()
        found[targets] = strategy.each
        if strategy.short == "fill":
            return found
        for target in targets.tolist():
            near = self.network.neighbours(target, strategy.level, exclusive=strategy.exclusive)
            many = min(int(self._usable[near].sum()), strategy.each)
            found[target] = many if strategy.short == "fewer" or many == strategy.each else 0
        return found

    def _of(
        self, target: int, rng: np.random.Generator, counts: dict[str, int]
    ) -> tuple[int, Ids, Ids, NDArray[np.int8], int] | None:
        strategy, untold = self.strategy, np.array(self.untold.get(target, ()), np.int32)
        allowed = self._usable
        if len(untold):
            allowed = allowed.copy()
            allowed[untold] = False
        positives, level = np.zeros(0, np.int32), strategy.level
        for level in LEVELS[LEVELS.index(strategy.level) :][: None if strategy.coarser else 1]:
            positives = self.network.draw(
                target,
                level,
                strategy.each,
                rng,
                weight=strategy.weight,
                exclusive=strategy.exclusive,
                allowed=allowed,
            )
            if len(positives):
                break
        if not len(positives) or (strategy.short == "skip" and len(positives) < strategy.each):
            counts["without"] += 1
            return None
        wanted = strategy.each if strategy.short == "fill" else len(positives)
        if len(positives) < wanted:
            more = rng.choice(positives, wanted - len(positives))
            positives = np.concatenate((positives, more))
        hard = np.zeros(0, np.int32)
        most = min(strategy.hard, wanted)
        near = None
        if most or self.network.levels[strategy.widest].totals[target] <= LISTED:
            near = self.network.neighbours(target, strategy.widest)
        if most and near is not None:
            mates = self.network.neighbours(target, level)
            place = np.minimum(mates.searchsorted(near), len(mates) - 1)
            others = near[allowed[near] & (mates[place] != near)]
            hard = rng.permutation(others)[:most]
            counts["easier"] += most - len(hard)
        easy = self._easy(target, near, wanted - len(hard), rng)
        if easy is None:
            counts["crowded"] += 1
            return None
        levels = self.finest(target, positives, level)
        return target, positives, np.concatenate((hard, easy)), levels, len(hard)

    def _easy(self, target: int, near: Ids | None, count: int, rng: np.random.Generator) -> Ids | None:
        """Draw distinct references with text that are not near; None where there are hardly any.

        near: None where there are many: each that is drawn is looked at then.
        """
        widest = self.strategy.widest
        others = {target, *self.direct.get(target, ()), *self.untold.get(target, ())}
        found: list[int] = []
        for _ in range(REJECTIONS):
            drawn = self._drawn(max(2 * count, 8), rng)
            if near is not None and len(near):
                place = np.minimum(near.searchsorted(drawn), len(near) - 1)
                drawn = drawn[near[place] != drawn]
            for one in drawn.tolist():
                if len(found) == count:
                    break
                if one in others or one in found:
                    continue
                if near is not None or not self.network.related(target, one, widest):
                    found.append(one)
            if len(found) == count:
                return np.array(found, np.int32)
        near = self.network.neighbours(target, widest) if near is None else near
        left = np.setdiff1d(self._nodes, np.append(near, np.array(list(others), np.int32)))
        if not len(left):
            return None
        return np.array(np.resize(rng.permutation(left), count), np.int32)

    def _drawn(self, size: int, rng: np.random.Generator) -> Ids:
        if self._ends is None:
            places = rng.integers(len(self._nodes), size=size)
        else:
            places = np.searchsorted(self._ends, rng.random(size) * self._ends[-1], side="right")
        drawn: Ids = self._nodes[places]
        return drawn

    def finest(self, target: int, others: Ids, level: Level) -> NDArray[np.int8]:
        """The finest level that each shares with the target, ``level`` at the most."""
        found = np.full(len(others), LEVELS.index(level) + 1, np.int8)
        for place in range(LEVELS.index(level), 0, -1):
            groups = self.network.levels[LEVELS[place - 1]]
            if groups.totals[target] <= LISTED:
                mates = set(groups.mates(target).tolist())
                found[[other in mates for other in others.tolist()]] = place
            else:
                found[[groups.shared(target, other) > 0 for other in others.tolist()]] = place
        return found

    def shuffled(
        self, targets: Sequence[int] | Ids | None = None, epoch: int = 0
    ) -> Iterator[NDArray[np.int32]]:
        """(3,) target, positive, negative, one by one in a random order."""
        drawn = self.draw(targets, epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(drawn))
        yield from np.stack((drawn.target, drawn.positive, drawn.negative), axis=1)[order]


class _Hashed(ISeedSequence):
    """The state of a PCG64 from a hash: numpy's own way to it takes as long as the draws."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """As many words of the hash."""
        size = n_words * np.dtype(dtype).itemsize
        return np.frombuffer(hashlib.blake2b(self.key, digest_size=size).digest(), dtype)
