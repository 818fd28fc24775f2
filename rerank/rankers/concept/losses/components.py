"""GC-NCE: each text is nearer to the centroid of its own component than to all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rerank.rankers.concept.graph import Concentration, centroids
from rerank.rankers.concept.losses.batch import PairLoss, PairVectors
from rerank.rankers.dense.losses.base import Encode
from rerank.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from rerank.rankers.encoder.batching import BatchEncoder


@dataclass(frozen=True)
class Components(PairLoss):
    """-log(exp(z_i c_s / phi_s) / sum_j exp(z_i c_j / phi_j)) (Ma et al. 2023, equation 2), the mean over the
    texts that are related to another one.

    z: vectors of length 1. c, phi: centroids of the r components and their concentration (equation 3), of
    the vectors at the start of the epoch, without dropout.
    """

    name: ClassVar[str] = "component"
    hinged: ClassVar[bool] = False

    smoothing: float = setting(10.0, "alpha in the concentration of a component", low=1)
    concentration: Concentration = setting(
        "rescaled", "of components: cut at the 10th and 90th percentile and scaled, raw, or constant"
    )
    spread: float = setting(0.1, "mean concentration, unless it is raw", above=0)
    exact_offset: bool = setting(False, "(z c - 1) / phi as in equation 1, which equation 2 shortens")

    def begin(self, batches: BatchEncoder) -> PairLoss:
        """Make room for the centroids."""
        assert batches.groups is not None
        return Contrasting(self, batches.groups, batches.encoder.width, str(batches.encoder.device))


class Contrasting(PairLoss):
    """The same with the centroids of an epoch."""

    name = "component"
    hinged = False

    def __init__(
        self,
        settings: Components,
        component: np.ndarray[tuple[int], np.dtype[np.int64]],
        width: int,
        device: str,
    ) -> None:
        import torch

        self.settings, self.component = settings, component
        count = int(component.max(initial=-1)) + 1
        self.centroids = torch.zeros((count, width), device=device)
        self.concentration = torch.full((count,), settings.spread, device=device)

    def begin_epoch(self, epoch: int, encode: Encode) -> None:
        """Compute the centroids."""
        import torch

        members = np.flatnonzero(self.component >= 0)
        settings = self.settings
        found, phi = centroids(
            encode(members),
            self.component[members],
            smoothing=settings.smoothing,
            concentration=settings.concentration,
            temperature=settings.spread,
        )
        self.centroids.copy_(torch.from_numpy(found))
        self.concentration.copy_(torch.from_numpy(phi))

    def of(self, pairs: PairVectors) -> Tensor:
        """Mean over the texts of a component; 0 where there are none."""
        from torch.nn import functional

        anchors = pairs.component >= 0
        if not bool(anchors.any()):
            return pairs.anchor.sum() * 0
        vectors = functional.normalize(pairs.anchor[anchors], dim=-1)
        return self.each(vectors, pairs.component[anchors]).mean()

    def each(self, vectors: Tensor, component: Tensor) -> Tensor:
        """(n, E) vectors of length 1 and (n,) their components -> (n,) losses."""
        from torch.nn import functional

        cosines = vectors @ self.centroids.to(vectors.dtype).T
        if self.settings.exact_offset:
            cosines = cosines - 1
        logits = cosines / self.concentration.to(vectors.dtype)
        lost = self.concentration.isinf()  # no centroid this epoch
        logits = logits.masked_fill(lost, float("-inf"))
        losses = functional.cross_entropy(
            logits.where(~lost[component, None], cosines), component, reduction="none"
        )
        return losses * ~lost[component]

    def counts(self, pairs: PairVectors) -> dict[str, int]:
        """Texts that have a component."""
        return {self.name: int((pairs.component >= 0).sum())}

    def state_dict(self) -> dict[str, Tensor]:
        """The centroids of this epoch."""
        return {"centroids": self.centroids, "concentration": self.concentration}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put them back."""
        self.centroids.copy_(state["centroids"])
        self.concentration.copy_(state["concentration"])
