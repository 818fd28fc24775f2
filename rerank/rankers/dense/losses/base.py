"""What every loss has: a value for a batch, what it reads and counts, and hooks; and the sum of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.corruption import Corruption
from rerank.rankers.dense.losses.batch import BRANCHES, Vectors
from rerank.rankers.dense.losses.distance import mean_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rerank.rankers.encoder.batching import BatchEncoder

Encode = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""(n,) positions of documents -> (n, E) vectors of length 1 of their first fragments, without dropout."""


class Loss:
    """A loss; subclasses are dataclasses of its settings, which torch is not needed for.

    Most give a number for each anchor by :meth:`rows`; others define ``__call__`` and :meth:`count`. Those
    with parameters or a state of their own make these in :meth:`begin`, and give them by the hooks below.

    reads:  of BRANCHES. name: what its anchors are counted by. hinged: its rows are 0 where a margin is kept.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"anchor"})
    name: ClassVar[str]
    hinged: ClassVar[bool] = True

    @property
    def branches(self) -> tuple[str, ...]:
        """Texts that are encoded for each anchor, of BRANCHES and in their order."""
        return tuple(branch for branch in BRANCHES if branch in self.reads)

    @property
    def counted(self) -> tuple[str, ...]:
        """Names by which :meth:`count` has the anchors that had something to learn from."""
        return (self.name,)

    @property
    def faster(self) -> float:
        """What its own parameters learn at, times the learning rate."""
        return 1.0

    @property
    def keeps_isolated(self) -> bool:
        """Whether documents without neighbours are anchors."""
        return False

    @property
    def masks_related(self) -> bool:
        """Whether documents related to an anchor are no negatives of it in the batch."""
        return True

    @property
    def corruption(self) -> Corruption:
        """How corrupted texts are made."""
        return Corruption()

    def unread(self) -> dict[str, str]:
        """Settings that have no effect, with the reason."""
        return {}

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors that have one."""
        raise NotImplementedError

    def __call__(self, vectors: Vectors) -> Tensor:
        """The loss of a batch: the mean of :meth:`rows` over the anchors that have one."""
        return mean_of(*self.rows(vectors))

    def count(self, vectors: Vectors) -> dict[str, int]:
        """Anchors that have a loss, and those of them whose hinge is above 0."""
        losses, valid = self.rows(vectors)
        found = {self.name: int(valid.sum())}
        if self.hinged:
            found[f"active_{self.name}"] = int((losses[valid] > 0).sum())
        return found

    def widest_margin(self) -> float | None:
        """The margin between linked and unlinked documents that is to be kept; None: there is none."""
        return None

    def begin(self, batches: BatchEncoder) -> Loss:
        """The loss as one training uses it: one with a state returns a new object that has it.

        batches: the encoder, and how the texts of a batch are encoded.
        """
        return self

    def begin_epoch(self, epoch: int, encode: Encode) -> None:
        """Is called before the first step of every epoch; not again where a training goes on within one."""

    def after_step(self, step: int) -> None:
        """Is called after every step of the optimiser, with the number of steps that are done."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """What is learned beside the encoder."""
        return ()

    def state_dict(self) -> dict[str, Tensor]:
        """All that decides how it goes on, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""


class Sum(Loss):
    """A weighted sum: of its ``parts`` those with a weight are computed, and no others."""

    @property
    def parts(self) -> Mapping[str, tuple[float, Loss]]:
        """Name -> weight and loss, in the order in which they are added."""
        raise NotImplementedError

    def _losses(self) -> list[tuple[float, Loss]]:
        return [(weight, loss) for weight, loss in self.parts.values() if weight]

    @property
    def branches(self) -> tuple[str, ...]:
        """What any part reads."""
        found = {branch for _, loss in self._losses() for branch in loss.branches}
        return tuple(branch for branch in BRANCHES if branch in found)

    @property
    def counted(self) -> tuple[str, ...]:
        """What any part counts."""
        return tuple(name for _, loss in self._losses() for name in loss.counted)

    @property
    def faster(self) -> float:
        """The fastest part's."""
        return max((loss.faster for _, loss in self._losses()), default=1.0)

    @property
    def keeps_isolated(self) -> bool:
        """Whether any part learns from them."""
        return any(loss.keeps_isolated for _, loss in self._losses())

    @property
    def masks_related(self) -> bool:
        """Whether all parts have it so."""
        return all(loss.masks_related for _, loss in self.parts.values())

    @property
    def corruption(self) -> Corruption:
        """That of the part that reads corrupted texts."""
        found = (loss.corruption for _, loss in self.parts.values() if "corrupted" in loss.branches)
        return next(found, Corruption())

    def __call__(self, vectors: Vectors) -> Tensor:
        """Add the parts up."""
        total = vectors.anchor.new_zeros(())
        for weight, loss in self._losses():
            total = total + weight * loss(vectors)
        return total

    def count(self, vectors: Vectors) -> dict[str, int]:
        """What all parts count."""
        return {name: value for _, loss in self._losses() for name, value in loss.count(vectors).items()}

    def widest_margin(self) -> float | None:
        """The widest of the parts'."""
        margins = [loss.widest_margin() for _, loss in self._losses()]
        return max((margin for margin in margins if margin is not None), default=None)

    def begin(self, batches: BatchEncoder) -> Loss:
        """Begin all parts."""
        return Begun({name: (weight, loss.begin(batches)) for name, (weight, loss) in self.parts.items()})

    def begin_epoch(self, epoch: int, encode: Encode) -> None:
        """Tell all parts."""
        for _, loss in self._losses():
            loss.begin_epoch(epoch, encode)

    def after_step(self, step: int) -> None:
        """Tell all parts."""
        for _, loss in self._losses():
            loss.after_step(step)

    def parameters(self) -> Iterable[nn.Parameter]:
        """Those of all parts."""
        return [parameter for _, loss in self._losses() for parameter in loss.parameters()]

    def state_dict(self) -> dict[str, Tensor]:
        """Those of all parts, as ``part.name``."""
        return {
            f"{part}.{name}": value
            for part, (_, loss) in self.parts.items()
            for name, value in loss.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Give every part its own."""
        for part, (_, loss) in self.parts.items():
            mine = {n.removeprefix(f"{part}."): t for n, t in state.items() if n.startswith(f"{part}.")}
            loss.load_state_dict(mine)


@dataclass(frozen=True)
class Begun(Sum):
    """A sum whose parts have begun."""

    given: Mapping[str, tuple[float, Loss]]

    @property
    def parts(self) -> Mapping[str, tuple[float, Loss]]:
        """The parts."""
        return self.given
