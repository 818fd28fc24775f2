"""Losses of ``concept`` (Ma et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rerank.rankers.concept.ranker import Head
from rerank.rankers.encoder.batching import BatchEncoder, Encode, Loss

SMOOTHING = 10.0
"""alpha in the concentration of a component (Ma et al. 2023, table 4)."""
CONCENTRATION = 0.1
"""Mean concentration of the components."""
BETA, TEMPERATURE = 0.1, 0.1
"""Weight of the two contrasts; temperature of the softmax over the queue (Ma et al. 2023, table 4)."""
DISTANCE = 4.0
"""Initial bias of the head, and minus the sum of its weights of |u - v|."""


class ConceptLoss(Loss):
    """L_CRE + beta (L_GC-NCE + L_MoCo) (Ma et al. 2023, equation 7).

    L_CRE: weighted cross-entropy of sigma(w [u; v; |u - v|] + b) (equation 6); u, v have length sqrt(E).
    contrasts: of components and of texts, or none.
    """

    rate_factor = 10.0

    def __init__(self, width: int, contrasts: Sequence[Loss] = ()) -> None:
        super().__init__()
        self.width, self.contrasts = width, nn.ModuleList(contrasts)
        self.first, self.second = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.apart = nn.Parameter(torch.full((width,), -DISTANCE / width))
        self.bias = nn.Parameter(torch.full((1,), DISTANCE))

    def logits(self, first: Tensor, second: Tensor) -> Tensor:
        """Return logits, (P,), of (P, E) pairs."""
        u, v = (functional.normalize(one, dim=-1) * sqrt(self.width) for one in (first, second))
        logits: Tensor = u @ self.first + v @ self.second + self.bias + (u - v).abs() @ self.apart
        return logits

    def forward(self, pairs: Any) -> Tensor:
        """Return the weighted mean over a ``PairBatch``, or 0, and the contrasts."""
        logits = self.logits(*(pairs.anchor[end] for end in pairs.ends.T))
        losses = functional.binary_cross_entropy_with_logits(logits, pairs.related, reduction="none")
        total: Tensor = (losses * pairs.weight).sum() / pairs.weight.sum().clamp_min(1e-6)
        for part in self.contrasts:
            total = total + BETA * part(pairs)
        return total

    def head(self) -> Head:
        """Return the head."""
        weights = (self.first, self.second, self.apart, self.bias)
        first, second, apart, bias = (one.detach().float().cpu().numpy() for one in weights)
        factor = np.float32(sqrt(self.width))
        return Head(first * factor, second * factor, apart * factor, bias)


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

    def on_epoch_start(self, encode: Encode) -> None:
        """Compute centroids."""
        members = np.flatnonzero(self.component >= 0)
        means, phi = centroids(encode(members), self.component[members])
        self.centroids.copy_(torch.from_numpy(means))
        self.phi.copy_(torch.from_numpy(phi))

    def forward(self, pairs: Any) -> Tensor:
        """Return the mean over texts with components, or 0."""
        vectors: Tensor = pairs.anchor
        anchors = pairs.component >= 0
        if not bool(anchors.any()):
            return vectors.sum() * 0
        vectors, component = functional.normalize(vectors[anchors], dim=-1), pairs.component[anchors]
        cosines = vectors @ self.centroids.to(vectors.dtype).T
        invalid = self.phi.isinf()  # no centroid in this epoch
        logits = (cosines / self.phi.to(vectors.dtype)).masked_fill(invalid, float("-inf"))
        logits = logits.where(~invalid[component, None], cosines)
        losses = functional.cross_entropy(logits, component, reduction="none") * ~invalid[component]
        return losses.mean()


def centroids(
    vectors: NDArray[np.floating], component: NDArray[np.integer]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return unit centroids, (C, E), and concentrations, (C,).

    vectors: (n, E), unit length.
    component: (n,) from 0; negative: none.

    Concentration of p members: sum_k |z_k - c| / (p ln(p + SMOOTHING)) (Ma et al. 2023, equation 3).
    It is infinite for a zero mean, maximal for one member, clipped to the 10th and 90th percentile,
    and scaled to the mean CONCENTRATION (Li et al. 2021).
    """
    there = component >= 0
    vectors, component = vectors[there].astype(np.float64), component[there]
    size = np.bincount(component) if len(component) else np.zeros(0, dtype=np.int64)
    sums = np.zeros((len(size), vectors.shape[1]))
    np.add.at(sums, component, vectors)
    means = sums / np.maximum(size, 1)[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    invalid = lengths < 1e-8
    centers = np.where(invalid[:, None], 0.0, means / np.maximum(lengths, 1e-8)[:, None])
    apart = np.sqrt(np.square(vectors - centers[component]).sum(axis=1))
    weights = np.maximum(size * np.log(size + SMOOTHING), 1e-12)
    phi = np.bincount(component, apart, minlength=len(size)) / weights
    if not invalid.all():
        phi[size == 1] = phi[~invalid].max()
        phi = np.clip(phi, *np.percentile(phi[~invalid], (10, 90)))
        average = phi[~invalid].mean()
        phi = phi * (CONCENTRATION / average) if average > 0 else np.full(len(size), CONCENTRATION)
        phi = np.maximum(phi, 1e-3 * CONCENTRATION)
    phi[invalid] = np.inf
    return centers, phi


class MomentumLoss(Loss):
    """MoCo: -log(exp(z_i k_i / t) / sum_j exp(z_i k_j / t)) (Ma et al. 2023, equation 5).

    z: unit vectors.
    k: momentum encoder keys, from the batch and a queue of other texts.
    Update (equation 4): k <- m k + (1 - m) q.
    """

    keys: Tensor
    documents: Tensor

    def __init__(self, encoding: BatchEncoder, queue: int = 256, momentum: float = 0.99) -> None:
        super().__init__()
        self.encoding, self.momentum = encoding, momentum
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

    def forward(self, pairs: Any) -> Tensor:
        """Return the mean; 0 without negatives."""
        keys = self.encoded(pairs.tokens)
        self._batch = (keys, pairs.documents)
        return self.each(functional.normalize(pairs.anchor, dim=-1), keys, pairs.documents).mean()

    def each(self, vectors: Tensor, keys: Tensor, documents: Tensor) -> Tensor:
        """Return losses, (T,), of vectors and keys, (T, E), at positions, (T,)."""
        hidden = (self.documents < 0)[None, :] | (self.documents[None, :] == documents[:, None])
        negatives = vectors @ self.keys.to(vectors.dtype).T
        own = (vectors * keys).sum(dim=1, keepdim=True)
        logits = torch.cat((own, negatives.masked_fill(hidden, float("-inf"))), dim=1) / TEMPERATURE
        return logits.logsumexp(dim=1) - logits[:, 0]

    def on_step_end(self) -> None:
        """Update momentum encoder and queue."""
        m = self.momentum
        with torch.no_grad():
            for slow, fast in zip(self.slow, self.parameters_of_encoder):
                slow.mul_(m).add_(fast.detach(), alpha=1 - m)
        if self._batch is not None:
            for queue, new in zip((self.keys, self.documents), self._batch):
                queue.copy_(torch.cat((queue, new.to(queue.dtype)))[-len(queue) :])
            self._batch = None
