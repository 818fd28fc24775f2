"""Losses of ``concept`` (Ma et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rerank.rankers.concept.graph import centroids
from rerank.rankers.concept.head import PARTS, Head
from rerank.rankers.encoder.batching import BatchEncoder, Encode, Loss

if TYPE_CHECKING:
    from rerank.rankers.concept.config import ConceptConfig

SMOOTHING = 10.0
"""alpha in the concentration of a component (Ma et al. 2023, table 4)."""
CONCENTRATION = 0.1
"""Mean concentration of the components."""
DISTANCE = 4.0
"""Initial bias of the head, and minus the sum of its weights of |u - v|."""


@dataclass(frozen=True)
class PairVectors:
    """T texts and P pairs.

    anchor: (T, E) vectors.
    documents: (T,) positions.
    tokens: T sequences.
    component: (T,); -1: unrelated.
    first, second: (P,) places.
    related: (P,) 1.0 or 0.0.
    weight: (P,).
    """

    anchor: Tensor
    documents: Tensor
    component: Tensor
    tokens: list[NDArray[np.int32]]
    first: Tensor
    second: Tensor
    related: Tensor
    weight: Tensor


class Classifier(Loss):
    """Weighted cross-entropy of sigma(w [u; v; |u - v|] + b) (Ma et al. 2023, equation 6).

    u, v: scaled to length sqrt(E).
    """

    rate_factor = 10.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.first, self.second = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.apart = nn.Parameter(torch.full((width,), -DISTANCE / width))
        self.bias = nn.Parameter(torch.full((1,), DISTANCE))

    def logits(self, first: Tensor, second: Tensor) -> Tensor:
        """Return logits, (P,), of (P, E) pairs."""
        u, v = (functional.normalize(one, dim=-1) * sqrt(self.width) for one in (first, second))
        logits: Tensor = u @ self.first + v @ self.second + self.bias + (u - v).abs() @ self.apart
        return logits

    def forward(self, pairs: PairVectors) -> Tensor:
        """Return the weighted mean, or 0."""
        logits = self.logits(pairs.anchor[pairs.first], pairs.anchor[pairs.second])
        losses = functional.binary_cross_entropy_with_logits(logits, pairs.related, reduction="none")
        return (losses * pairs.weight).sum() / pairs.weight.sum().clamp_min(1e-6)

    def count(self, pairs: PairVectors) -> dict[str, int]:
        """Count pairs, related pairs, and batches without any."""
        related = int(pairs.related.sum())
        return {"pairs": len(pairs.related), "related": related, "without_related": int(not related)}

    def head(self) -> Head:
        """Return the head."""
        arrays = {name: getattr(self, name).detach().float().cpu().numpy() for name in (*PARTS, "bias")}
        factor = np.float32(sqrt(self.width))
        return Head.from_arrays({**{name: arrays[name] * factor for name in PARTS}, "bias": arrays["bias"]})


class GraphComponentLoss(Loss):
    """GC-NCE: -log(exp(z_i c_s / phi_s) / sum_j exp(z_i c_j / phi_j)) (Ma et al. 2023, equation 2).

    z: unit vectors.
    c, phi: centroids and concentrations of the epoch.
    component: (N,); -1: none.
    """

    centroids: Tensor
    phi: Tensor

    def __init__(self, component: NDArray[np.int64], width: int) -> None:
        super().__init__()
        self.component = component
        count = int(component.max(initial=-1)) + 1
        self.register_buffer("centroids", torch.zeros((count, width)))
        self.register_buffer("phi", torch.full((count,), CONCENTRATION))

    def on_epoch_start(self, epoch: int, encode: Encode) -> None:
        """Compute centroids."""
        members = np.flatnonzero(self.component >= 0)
        means, phi = centroids(encode(members), self.component[members], SMOOTHING, CONCENTRATION)
        self.centroids.copy_(torch.from_numpy(means))
        self.phi.copy_(torch.from_numpy(phi))

    def forward(self, pairs: PairVectors) -> Tensor:
        """Return the mean over texts with components, or 0."""
        anchors = pairs.component >= 0
        if not bool(anchors.any()):
            return pairs.anchor.sum() * 0
        return self.each(functional.normalize(pairs.anchor[anchors], dim=-1), pairs.component[anchors]).mean()

    def each(self, vectors: Tensor, component: Tensor) -> Tensor:
        """Return losses, (n,), of unit vectors, (n, E), and components, (n,)."""
        cosines = vectors @ self.centroids.to(vectors.dtype).T
        invalid = self.phi.isinf()  # no centroid in this epoch
        logits = (cosines / self.phi.to(vectors.dtype)).masked_fill(invalid, float("-inf"))
        logits = logits.where(~invalid[component, None], cosines)
        return functional.cross_entropy(logits, component, reduction="none") * ~invalid[component]


class MomentumLoss(Loss):
    """MoCo: -log(exp(z_i k_i / t) / sum_j exp(z_i k_j / t)) (Ma et al. 2023, equation 5).

    z: unit vectors.
    k: momentum encoder keys, from the batch and a queue of other texts.
    Update (equation 4): k <- m k + (1 - m) q.
    """

    keys: Tensor
    documents: Tensor

    def __init__(
        self, encoding: BatchEncoder, queue: int = 256, momentum: float = 0.99, temperature: float = 0.1
    ) -> None:
        super().__init__()
        self.encoding, self.momentum, self.temperature = encoding, momentum, temperature
        self.parameters_of_encoder = encoding.encoder.trainable()
        slow = (parameter.detach().clone() for parameter in self.parameters_of_encoder)
        self.slow = nn.ParameterList(nn.Parameter(one, requires_grad=False) for one in slow)
        # documents: of the keys, the newest last; -1: none yet.
        self.register_buffer("keys", torch.zeros((queue, encoding.encoder.width)))
        self.register_buffer("documents", torch.full((queue,), -1))
        self._batch: tuple[Tensor, Tensor] | None = None

    def encoded(self, tokens: list[NDArray[np.int32]]) -> Tensor:
        """Return unit keys, (n, E)."""
        model = self.encoding.encoder.model
        training = model.training
        model.eval()
        self._swap()
        try:
            with torch.no_grad():
                return functional.normalize(self.encoding.encode(tokens), dim=-1)
        finally:
            self._swap()
            model.train(training)

    def _swap(self) -> None:
        """Exchange momentum and encoder weights."""
        for slow, parameter in zip(self.slow, self.parameters_of_encoder):
            parameter.data, slow.data = slow.data, parameter.data

    def forward(self, pairs: PairVectors) -> Tensor:
        """Return the mean; 0 without negatives."""
        keys = self.encoded(pairs.tokens)
        self._batch = (keys, pairs.documents)
        return self.each(functional.normalize(pairs.anchor, dim=-1), keys, pairs.documents).mean()

    def each(self, vectors: Tensor, keys: Tensor, documents: Tensor) -> Tensor:
        """Return losses, (T,), of vectors and keys, (T, E), at positions, (T,)."""
        hidden = (self.documents < 0)[None, :] | (self.documents[None, :] == documents[:, None])
        negatives = vectors @ self.keys.to(vectors.dtype).T
        own = (vectors * keys).sum(dim=1, keepdim=True)
        logits = torch.cat((own, negatives.masked_fill(hidden, float("-inf"))), dim=1) / self.temperature
        return logits.logsumexp(dim=1) - logits[:, 0]

    def on_step_end(self, step: int) -> None:
        """Update momentum encoder and queue."""
        m = self.momentum
        with torch.no_grad():
            for slow, fast in zip(self.slow, self.parameters_of_encoder):
                slow.mul_(m).add_(fast.detach(), alpha=1 - m)
        if self._batch is not None:
            for queue, new in zip((self.keys, self.documents), self._batch):
                queue.copy_(torch.cat((queue, new.to(queue.dtype)))[-len(queue) :])
            self._batch = None


class ConceptLoss(Loss):
    """L_CRE + beta (L_GC-NCE + L_MoCo) (Ma et al. 2023, equation 7)."""

    rate_factor = Classifier.rate_factor

    def __init__(self, config: ConceptConfig, component: NDArray[np.int64], encoding: BatchEncoder) -> None:
        super().__init__()
        width, (with_components, with_momentum) = encoding.encoder.width, config.contrasts
        self.beta, self.classifier = config.beta, Classifier(width)
        self.components = GraphComponentLoss(component, width) if with_components else None
        self.momentum = None
        if with_momentum:
            self.momentum = MomentumLoss(encoding, config.queue, config.momentum, config.temperature)

    @property
    def contrasts(self) -> list[Loss]:
        """Contrastive losses in use."""
        return [one for one in (self.components, self.momentum) if one is not None]

    @property
    def memory(self) -> int:
        """Bytes of momentum encoder, queue and centroids."""
        tensors = (tensor for part in self.contrasts for tensor in part.state_dict().values())
        return sum(one.numel() * one.element_size() for one in tensors)

    def forward(self, pairs: Any) -> Tensor:
        """Return the weighted sum."""
        total: Tensor = self.classifier(pairs)
        for part in self.contrasts:
            total = total + self.beta * part(pairs)
        return total

    def count(self, pairs: Any) -> dict[str, int]:
        """Return the classifier's counts."""
        return self.classifier.count(pairs)

    def on_epoch_start(self, epoch: int, encode: Encode) -> None:
        """Notify the contrastive losses."""
        for part in self.contrasts:
            part.on_epoch_start(epoch, encode)

    def on_step_end(self, step: int) -> None:
        """Notify the contrastive losses."""
        for part in self.contrasts:
            part.on_step_end(step)
