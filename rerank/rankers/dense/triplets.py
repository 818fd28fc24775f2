"""Triplets of a co-citation network: a reference, one cited near it, one that is not (CCHT, Ding et al.).

A target's draws depend on the seed, the epoch and its own key only: other targets do not change them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Ids, Level

LISTED = 2_000
"""Mentions around a target up to which they are listed; of more, each reference drawn is looked at."""
REJECTIONS = 100
"""Draws of a negative, for each that is wanted, before a target is dropped."""
EACH = 5
"""Triplets of a target (K)."""

Strategy = Literal["sentence", "paragraph", "section", "document", "direct"]
"""Place that cites two texts together; direct: a document and what it cites, as in SPECTER."""


@dataclass(frozen=True)
class Triplets:
    """T triplets, as positions in the network's keys.

    target, positive, negative: (T,) int32. level: (T,) int8, of the positive, 1 (sentence) to 4 (document).
    hard: (T,) bool, of the negative.
    without, crowded: targets that were left out: without a neighbor, and near to nearly everything.
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

    strategy: what is near. Positives are cited at this level; for ``direct`` the network has the direct
        citations.
    hard: of a target's EACH triplets, those with a negative that shares a section, but no such group.
    usable: (V,) bool, references with a text; the others are neither targets, positives nor negatives.
    direct: reference -> those that it cites or is cited by, if that is known: they are no negatives.
    untold: reference -> those that are neither positives nor negatives of it.
    only: (V,) bool, references that may be targets; None: all.

    >>> from rerank.rankers.graphs.cocitation import Mention
    >>> papers = [("x", [Mention(ref, 0, 0, at) for ref, at in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]),
    ...           ("y", [Mention("e", 0, 0, 0), Mention("f", 0, 0, 0)])]
    >>> network = CoCitations.of(papers)
    >>> drawn = TripletSampler(network).draw([network.at("a")])
    >>> set(network.names(drawn.positive)), set(network.names(drawn.negative)) <= {"e", "f"}
    ({'b'}, True)
    """

    network: CoCitations
    strategy: Strategy = "sentence"
    hard: int = 0
    usable: NDArray[np.bool_] | None = None
    direct: Mapping[int, Sequence[int]] = field(default_factory=dict)
    untold: Mapping[int, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    only: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        usable = np.ones(len(self.network), np.bool_) if self.usable is None else self.usable
        self._usable, self._nodes = usable, np.flatnonzero(usable).astype(np.int32)

    @property
    def level(self) -> Level:
        """Level of the positives."""
        return "sentence" if self.strategy == "direct" else self.strategy

    @property
    def widest(self) -> Level:
        """Texts that share a group of this level are no easy negatives."""
        return "document" if self.strategy == "document" else "section"

    def targets(self) -> Ids:
        """References with text and a positive."""
        ends = self.network.levels[self.level].ref_indptr
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
        """(V,) triplets of each reference as a target; a crowded target can have none nevertheless."""
        found = np.zeros(len(self.network), np.int64)
        found[self.targets()] = EACH
        return found

    def _of(
        self, target: int, rng: np.random.Generator, counts: dict[str, int]
    ) -> tuple[int, Ids, Ids, NDArray[np.int8], int] | None:
        allowed, untold = self._usable, np.array(self.untold.get(target, ()), np.int32)
        if len(untold):
            allowed = allowed.copy()
            allowed[untold] = False
        positives = self.network.draw(target, self.level, EACH, rng, allowed=allowed)
        if not len(positives):
            counts["without"] += 1
            return None
        if len(positives) < EACH:
            positives = np.concatenate((positives, rng.choice(positives, EACH - len(positives))))
        near = None
        if self.hard or self.network.levels[self.widest].totals[target] <= LISTED:
            near = self.network.neighbors(target, self.widest)
        hard = np.zeros(0, np.int32)
        if self.hard and near is not None:
            mates = self.network.neighbors(target, self.level)
            place = np.minimum(mates.searchsorted(near), len(mates) - 1)
            others = near[allowed[near] & (mates[place] != near)]
            hard = rng.permutation(others)[: self.hard]
            counts["easier"] += self.hard - len(hard)
        easy = self._easy(target, near, EACH - len(hard), rng)
        if easy is None:
            counts["crowded"] += 1
            return None
        levels = self.finest(target, positives, self.level)
        return target, positives, np.concatenate((hard, easy)), levels, len(hard)

    def _easy(self, target: int, near: Ids | None, count: int, rng: np.random.Generator) -> Ids | None:
        """Draw distinct references with text that are not near; None if there are hardly any.

        near: None if there are many: each that is drawn is looked at then.
        """
        others = {target, *self.direct.get(target, ()), *self.untold.get(target, ())}
        found: list[int] = []
        for _ in range(REJECTIONS):
            drawn = self._nodes[rng.integers(len(self._nodes), size=max(2 * count, 8))]
            if near is not None and len(near):
                place = np.minimum(near.searchsorted(drawn), len(near) - 1)
                drawn = drawn[near[place] != drawn]
            for one in drawn.tolist():
                if len(found) == count:
                    break
                if one in others or one in found:
                    continue
                if near is not None or not self.network.related(target, one, self.widest):
                    found.append(one)
            if len(found) == count:
                return np.array(found, np.int32)
        near = self.network.neighbors(target, self.widest) if near is None else near
        left = np.setdiff1d(self._nodes, np.append(near, np.array(list(others), np.int32)))
        if not len(left):
            return None
        return np.array(np.resize(rng.permutation(left), count), np.int32)

    def finest(self, target: int, others: Ids, level: Level) -> NDArray[np.int8]:
        """The finest level that each shares with the target, ``level`` at most."""
        found = np.full(len(others), LEVELS.index(level) + 1, np.int8)
        for place in range(LEVELS.index(level), 0, -1):
            groups = self.network.levels[LEVELS[place - 1]]
            if groups.totals[target] <= LISTED:
                mates = set(groups.mates(target).tolist())
                found[[other in mates for other in others.tolist()]] = place
            else:
                found[[groups.shared(target, other) > 0 for other in others.tolist()]] = place
        return found


class _Hashed(ISeedSequence):
    """The state of a PCG64 from a hash: numpy's own way to it takes as long as the draws."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """As many words of the hash."""
        size = n_words * np.dtype(dtype).itemsize
        return np.frombuffer(hashlib.blake2b(self.key, digest_size=size).digest(), dtype)
