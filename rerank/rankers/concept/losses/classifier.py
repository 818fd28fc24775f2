"""Cross-entropy of a linear head on two vectors: related or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from rerank.rankers.concept.head import PARTS, Head
from rerank.rankers.concept.losses.batch import PairLoss, PairVectors
from rerank.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rerank.rankers.encoder.batching import BatchEncoder

Features = Literal["paper", "product"]
Start = Literal["distance", "random"]


@dataclass(frozen=True)
class Classifier(PairLoss):
    """L_CE(sigma(w [f_i; f_j; |f_i - f_j|] + b), y) (Ma et al. 2023, equation 6), the weighted mean over the
    pairs.

    The head reads vectors of length sqrt(E), which numbers of about 1 make: so its weights learn as fast
    whatever length the encoder gives its vectors, and unit vectors are all that has to be stored.
    """

    name: ClassVar[str] = "pairs"
    hinged: ClassVar[bool] = False

    features: Features = setting("paper", "of the head: f_i, f_j, |f_i - f_j|; product: f_i f_j, too")
    head_start: Start = setting(
        "distance", "the head's first weights: the distance alone, or random ones (the paper's)"
    )
    head_rate: float = setting(10.0, "learning rate of the head, times that of the encoder", above=0)

    @property
    def faster(self) -> float:
        """As ``head_rate`` has it."""
        return self.head_rate

    def begin(self, batches: BatchEncoder) -> PairLoss:
        """Make the head."""
        return Classifying(self, batches.encoder.width, str(batches.encoder.device))


class Classifying(PairLoss):
    """The same with its head."""

    name = "pairs"
    hinged = False

    def __init__(self, settings: Classifier, width: int, device: str = "cpu") -> None:
        import torch

        self.settings, self.width = settings, width
        generator = torch.Generator().manual_seed(0)
        random = {name: torch.randn(width, generator=generator) / sqrt(3 * width) for name in PARTS}
        if settings.head_start == "distance":
            random = {name: torch.zeros(width) for name in PARTS} | {
                "apart": torch.full((width,), -4.0 / width)
            }
        if settings.features == "paper":
            del random["product"]
        # With random vectors of length sqrt(E), |f_i - f_j| is about 1 on average: the bias is in between.
        bias = torch.full((1,), 4.0 if settings.head_start == "distance" else 0.0)
        self.weights: dict[str, nn.Parameter] = {
            name: torch.nn.Parameter(tensor.to(device)) for name, tensor in {**random, "bias": bias}.items()
        }

    @property
    def faster(self) -> float:
        """As the settings have it."""
        return self.settings.faster

    def logits(self, first: Tensor, second: Tensor) -> Tensor:
        """(P, E) and (P, E) vectors of any length -> (P,)."""
        from torch.nn import functional

        u, v = (functional.normalize(one, dim=-1) * sqrt(self.width) for one in (first, second))
        weights = self.weights
        found: Tensor = u @ weights["first"] + v @ weights["second"] + weights["bias"]
        found = found + (u - v).abs() @ weights["apart"]
        return found + (u * v) @ weights["product"] if "product" in weights else found

    def of(self, pairs: PairVectors) -> Tensor:
        """Weighted mean over the pairs; 0 where there are none."""
        from torch.nn import functional

        logits = self.logits(pairs.anchor[pairs.first], pairs.anchor[pairs.second])
        losses = functional.binary_cross_entropy_with_logits(logits, pairs.related, reduction="none")
        return (losses * pairs.weight).sum() / pairs.weight.sum().clamp_min(1e-6)

    def counts(self, pairs: PairVectors) -> dict[str, int]:
        """Pairs, related ones among them, and batches that had none of these."""
        related = int(pairs.related.sum())
        return {"pairs": len(pairs.related), "related": related, "without_related": int(not related)}

    def head(self) -> Head:
        """The head as it is now, for vectors of length 1."""
        factors = {name: self.width if name == "product" else sqrt(self.width) for name in PARTS}
        zero = np.zeros(self.width, dtype=np.float32)
        found = {name: weight.detach().float().cpu().numpy() for name, weight in self.weights.items()}
        parts = {name: found[name] * np.float32(factors[name]) if name in found else zero for name in PARTS}
        return Head.from_arrays({**parts, "bias": found["bias"]})

    def parameters(self) -> Iterable[nn.Parameter]:
        """The head's."""
        return self.weights.values()

    def state_dict(self) -> dict[str, Tensor]:
        """The head's weights."""
        return dict(self.weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put them back."""
        for name, weight in self.weights.items():
            weight.data.copy_(state[name])
