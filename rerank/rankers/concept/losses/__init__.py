"""The objectives of ``concept``: each loss is a file with its settings, and a line in OBJECTIVES."""

from __future__ import annotations

from collections.abc import Iterator

from rerank.rankers.concept.head import Head
from rerank.rankers.concept.losses.batch import PairBatch, PairLoss, PairVectors
from rerank.rankers.concept.losses.classifier import Classifier, Classifying
from rerank.rankers.concept.losses.components import Components
from rerank.rankers.concept.losses.graph_component import GraphComponent
from rerank.rankers.concept.losses.momentum import Momentum
from rerank.rankers.dense.losses import Loss, Sum

__all__ = ["OBJECTIVES", "PairBatch", "PairLoss", "PairVectors", "head_of", "parts_of"]

OBJECTIVES: dict[str, type[Loss]] = {
    "graph-component": GraphComponent,
    "classifier": Classifier,
    "components": Components,
    "momentum": Momentum,
}
"""graph-component: the paper's. classifier: its first part, which learns from the pairs alone. The others:
its other parts alone, without a head."""


def parts_of(loss: Loss) -> Iterator[Loss]:
    """Yield the losses that a loss that has begun adds up, itself where it is no sum."""
    if isinstance(loss, Sum):
        for weight, part in loss.parts.values():
            if weight:
                yield from parts_of(part)
    else:
        yield loss


def head_of(loss: Loss) -> Head | None:
    """The head that a loss that has begun trains, as it is now; None where it has none."""
    return next((one.head() for one in parts_of(loss) if isinstance(one, Classifying)), None)
