"""Batches of texts with the labeled pairs among them, drawn component by component or pair by pair.

Every draw is keyed by (seed, epoch), so the same seed gives the same batches, whatever was drawn before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from rerank.rankers.concept.losses import PairVectors

TRIALS = 64
"""Passes that are drawn to see how often the texts of a pair come together."""
TIED = 0.5
"""How often a component is followed by one that an unrelated pair ties it to: so hard ones come together."""


@dataclass(frozen=True)
class PairBatch:
    """Texts of a step and the labeled pairs among them; for the fields see ``PairVectors``."""

    documents: NDArray[np.int64]
    component: NDArray[np.int64]
    tokens: list[NDArray[np.int32]]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    related: NDArray[np.bool_]
    weight: NDArray[np.float32]

    def texts(self, reads: tuple[str, ...]) -> list[NDArray[np.int32]]:
        """All texts to encode."""
        return self.tokens

    def placed(self, encoded: Tensor, reads: tuple[str, ...]) -> PairVectors:
        """Return the vectors of :meth:`texts` with their pairs."""
        import torch

        from rerank.rankers.concept.losses import PairVectors

        device = encoded.device
        return PairVectors(
            anchor=encoded,
            documents=torch.from_numpy(self.documents).to(device),
            component=torch.from_numpy(self.component).to(device),
            tokens=self.tokens,
            first=torch.from_numpy(self.first).to(device),
            second=torch.from_numpy(self.second).to(device),
            related=torch.from_numpy(self.related).to(device, encoded.dtype),
            weight=torch.from_numpy(self.weight).to(device, encoded.dtype),
        )


@dataclass(frozen=True)
class Labeled:
    """N texts and the P pairs to learn from.

    component: (N,) of each text, from 0; -1: it is related to none.
    first, second: (P,) texts. related: (P,) whether they are.
    """

    component: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    related: NDArray[np.bool_]


@dataclass(frozen=True)
class Drawing:
    """How the texts of batches are drawn.

    :meth:`begin` gives a function (epoch, seed) -> the batches of an epoch, and (P,) weights of the pairs.
    A batch is the texts in it, and the pairs that count; None: all among its texts.
    """

    def begin(self, labeled: Labeled, batch: int, seed: int) -> tuple[Epochs, NDArray[np.float32]]:
        """Prepare to draw batches of at most ``batch`` texts."""
        raise NotImplementedError


Drawn = list[tuple[NDArray[np.int64], NDArray[np.int64] | None]]
Epochs = Callable[[int], Drawn]


@dataclass(frozen=True)
class ByConcept(Drawing):
    """Each text once in a pass, components whole; of the texts of a batch, all labeled pairs. An epoch has
    so many passes.

    So a text is encoded once for many pairs. Pairs come together unequally often: each is weighted by the
    inverse of how often, so that in expectation all count alike.
    """

    passes: int = 4

    def begin(self, labeled: Labeled, batch: int, seed: int) -> tuple[Epochs, NDArray[np.float32]]:
        """Draw trials, for the weights."""
        orders = _Orders(labeled)
        size = len(labeled.component)
        steps = max(1, size // batch)
        together = np.zeros(len(labeled.first))
        place = np.full(size, -1)
        for trial in range(TRIALS):
            place[:] = -1
            order = orders.draw(np.random.default_rng((seed, 3, trial)))[: steps * batch]
            place[order] = np.arange(len(order)) // batch
            mine = place[labeled.first]
            together += (mine == place[labeled.second]) & (mine >= 0)
        weights = (TRIALS / np.maximum(together, 1)).astype(np.float32)

        def epoch(number: int) -> Drawn:
            found: Drawn = []
            for turn in range(self.passes):
                order = orders.draw(np.random.default_rng((seed, number, turn)))
                found += [(order[i * batch : (i + 1) * batch], None) for i in range(steps)]
            return found

        return epoch, weights / max(float(weights.mean()), 1e-6)


@dataclass(frozen=True)
class ByPair(Drawing):
    """Pairs one by one, as the paper has it: half as many as a batch has texts."""

    def begin(self, labeled: Labeled, batch: int, seed: int) -> tuple[Epochs, NDArray[np.float32]]:
        """Prepare nothing."""
        many = max(1, batch // 2)

        def epoch(number: int) -> Drawn:
            order = np.random.default_rng((seed, number)).permutation(len(labeled.first))
            steps = max(1, len(order) // many)
            found: Drawn = []
            for step in range(steps):
                pairs = order[step * many : (step + 1) * many]
                texts = np.unique(np.concatenate((labeled.first[pairs], labeled.second[pairs])))
                found.append((texts, pairs))
            return found

        return epoch, np.ones(len(labeled.first), dtype=np.float32)


DRAWINGS: dict[str, type[Drawing]] = {"concepts": ByConcept, "pairs": ByPair}


class _Orders:
    """Orders of all texts: component after component, each often followed by one it is tied to."""

    def __init__(self, labeled: Labeled) -> None:
        lone = labeled.component < 0
        group = labeled.component.copy()
        group[lone] = labeled.component.max(initial=-1) + 1 + np.arange(int(lone.sum()))
        self.count = int(group.max(initial=-1)) + 1
        self.members = np.argsort(group, kind="stable")
        self.starts = np.searchsorted(group[self.members], np.arange(self.count + 1))
        ends = np.stack((group[labeled.first], group[labeled.second]), axis=1)[~labeled.related]
        ends = ends[ends[:, 0] != ends[:, 1]]
        ends = np.concatenate((ends, ends[:, ::-1]))
        order = np.argsort(ends[:, 0], kind="stable")
        self.tied = ends[order, 1]  # as often as there are pairs
        self.ties = np.searchsorted(ends[order, 0], np.arange(self.count + 1))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw an order."""
        rest = rng.permutation(self.count).tolist()
        there = np.ones(self.count, dtype=bool)
        chances = rng.random((self.count, 2))
        found: list[NDArray[np.int64]] = []
        last = -1
        for follow, which in chances.tolist():
            chosen = -1
            if last >= 0 and follow < TIED:
                tied = self.tied[self.ties[last] : self.ties[last + 1]]
                tied = tied[there[tied]]
                if len(tied):
                    chosen = int(tied[int(which * len(tied))])
            while chosen < 0:
                candidate = rest.pop()
                if there[candidate]:
                    chosen = candidate
            there[chosen] = False
            last = chosen
            found.append(rng.permutation(self.members[self.starts[chosen] : self.starts[chosen + 1]]))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


@dataclass
class PairSampler:
    """Draws the batches of an epoch.

    text: position of a document -> its tokens. batch: texts of a step. weights: (P,) of the pairs.
    """

    labeled: Labeled
    drawing: Drawing
    text: Callable[[int], NDArray[np.int32]]
    batch: int
    seed: int = 0
    weights: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        self._epoch, self.weights = self.drawing.begin(self.labeled, self.batch, self.seed)
        self._steps = len(self._epoch(0))
        size = len(self.labeled.component)
        ends = np.concatenate((self.labeled.first, self.labeled.second))
        order = np.argsort(ends, kind="stable")
        self._pairs = order % max(1, len(self.labeled.first))  # those of each text, text after text
        self._of = np.searchsorted(ends[order], np.arange(size + 1))

    def steps(self) -> int:
        """Steps of an epoch; a last, smaller batch is left out unless it is the only one."""
        return self._steps

    def epoch(self, number: int, first: int = 0) -> Iterator[PairBatch]:
        """Draw the batches of an epoch, from batch ``first`` on."""
        for step, (texts, pairs) in enumerate(self._epoch(number)):
            if step >= first:
                rng = np.random.default_rng((self.seed, 4, number, step))
                yield self._filled(texts, self._among(texts) if pairs is None else pairs, rng)

    def _among(self, texts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labeled pairs whose texts are both there."""
        parts = [self._pairs[self._of[text] : self._of[text + 1]] for text in texts.tolist()]
        found, times = np.unique(np.concatenate(parts), return_counts=True)
        both: NDArray[np.int64] = found[times == 2]
        return both

    def _filled(
        self, texts: NDArray[np.int64], pairs: NDArray[np.int64], rng: np.random.Generator
    ) -> PairBatch:
        """Which of a pair is first is drawn: the head is not symmetric."""
        order = np.argsort(texts, kind="stable")
        labeled = self.labeled
        places = [
            order[np.searchsorted(texts[order], side[pairs])] for side in (labeled.first, labeled.second)
        ]
        turned = rng.random(len(pairs)) < 0.5
        return PairBatch(
            texts,
            labeled.component[texts],
            [self.text(one) for one in texts.tolist()],
            np.where(turned, places[1], places[0]),
            np.where(turned, places[0], places[1]),
            labeled.related[pairs],
            self.weights[pairs],
        )
