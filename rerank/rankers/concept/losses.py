"""Losses of ``concept`` (Ma et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rerank.rankers.concept.ranker import Head
from rerank.rankers.encoder.batching import BatchEncoder, Encode, Loss

SMOOTHING = 10.0
"""alpha in the concentration of a component (Ma et al. 2023, table 4)."""
LEAST_CONCENTRATION = 0.01
"""Smallest concentration of a component. Equation 3 gives 0 for equal texts, and the loss divides by it."""
BETA = 0.1
"""Weight of the two contrasts (Ma et al. 2023, table 4)."""
TEMPERATURE = 0.1
"""Temperature of the softmax over the queue (Ma et al. 2023, table 4)."""
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
        self.width = width
        self.contrasts = nn.ModuleList(contrasts)
        self.first = nn.Parameter(torch.zeros(width))
        self.second = nn.Parameter(torch.zeros(width))
        self.apart = nn.Parameter(torch.full((width,), -DISTANCE / width))
        self.bias = nn.Parameter(torch.full((1,), DISTANCE))

    def logits(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the logits, (P,), of pairs of vectors, (P, E) and (P, E)."""
        u = functional.normalize(first, dim=-1) * sqrt(self.width)
        v = functional.normalize(second, dim=-1) * sqrt(self.width)
        logits: Tensor = u @ self.first + v @ self.second + self.bias + (u - v).abs() @ self.apart
        return logits

    def forward(self, pairs: SimpleNamespace) -> Tensor:
        """Return the weighted mean over the pairs of a ``PairBatch``, or 0, plus the contrasts."""
        first, second = pairs.ends.T
        logits = self.logits(pairs.anchor[first], pairs.anchor[second])
        losses = functional.binary_cross_entropy_with_logits(logits, pairs.related, reduction="none")
        total: Tensor = (losses * pairs.weight).sum() / pairs.weight.sum().clamp_min(1e-6)
        for contrast in self.contrasts:
            total = total + BETA * contrast(pairs)
        return total

    def head(self) -> Head:
        """Return the classifier in NumPy.

        It reads vectors of length 1, so the factor sqrt(E) is in its weights.
        """
        factor = np.float32(sqrt(self.width))
        return Head(
            first=_numpy(self.first) * factor,
            second=_numpy(self.second) * factor,
            apart=_numpy(self.apart) * factor,
            bias=_numpy(self.bias),
        )


def _numpy(weights: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = weights.detach().float().cpu().numpy()
    return array


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
        self.register_buffer("phi", torch.ones(count))

    def on_epoch_start(self, encode: Encode) -> None:
        """Compute the centroids and the concentrations with the present encoder; the epoch keeps them."""
        members = np.flatnonzero(self.component >= 0)
        means, phi = centroids(encode(members), self.component[members])
        self.centroids.copy_(torch.from_numpy(means))
        self.phi.copy_(torch.from_numpy(phi))

    def forward(self, pairs: SimpleNamespace) -> Tensor:
        """Return the mean over the texts of a ``PairBatch`` with a component, or 0 if there are none."""
        vectors: Tensor = pairs.anchor
        anchors = pairs.component >= 0
        if not bool(anchors.any()):
            return vectors.sum() * 0
        vectors = functional.normalize(vectors[anchors], dim=-1)
        component = pairs.component[anchors]
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

    Concentration of p members: sum_k |z_k - c| / (p ln(p + SMOOTHING)) (Ma et al. 2023, equation 3), at least
    LEAST_CONCENTRATION. It is infinite for a zero mean, which has no direction.
    """
    has_component = component >= 0
    vectors = vectors[has_component].astype(np.float64)
    component = component[has_component]
    size = np.bincount(component) if len(component) else np.zeros(0, dtype=np.int64)
    sums = np.zeros((len(size), vectors.shape[1]))
    np.add.at(sums, component, vectors)
    means = sums / np.maximum(size, 1)[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    invalid = lengths < 1e-8
    centers = np.where(invalid[:, None], 0.0, means / np.maximum(lengths, 1e-8)[:, None])
    apart = np.sqrt(np.square(vectors - centers[component]).sum(axis=1))
    weights = np.maximum(size * np.log(size + SMOOTHING), 1e-12)
    phi = np.maximum(np.bincount(component, apart, minlength=len(size)) / weights, LEAST_CONCENTRATION)
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
        self.encoding = encoding
        self.momentum = momentum
        self.encoder_weights = encoding.encoder.trainable()
        self.slow = nn.ParameterList()
        for weights in self.encoder_weights:
            self.slow.append(nn.Parameter(weights.detach().clone(), requires_grad=False))
        # documents: of the keys, the newest last; -1: none yet.
        self.register_buffer("keys", torch.zeros((queue, encoding.encoder.width)))
        self.register_buffer("documents", torch.full((queue,), -1))
        self._batch: tuple[Tensor, Tensor] | None = None

    def encoded(self, tokens: list[NDArray[np.int32]]) -> Tensor:
        """Return the vectors of texts by the momentum encoder, (n, E), of length 1."""
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
        """Exchange the weights of the momentum encoder and of the encoder."""
        for slow, weights in zip(self.slow, self.encoder_weights):
            weights.data, slow.data = slow.data, weights.data

    def forward(self, pairs: SimpleNamespace) -> Tensor:
        """Return the mean over the texts of a ``PairBatch``. A text without negatives in the queue has 0."""
        keys = self.encoded(pairs.tokens)
        self._batch = (keys, pairs.documents)
        return self.each(functional.normalize(pairs.anchor, dim=-1), keys, pairs.documents).mean()

    def each(self, vectors: Tensor, keys: Tensor, documents: Tensor) -> Tensor:
        """Return the losses of T texts, (T,).

        vectors:   (T, E) by the encoder.
        keys:      (T, E) by the momentum encoder.
        documents: (T,) positions of the texts. Their keys in the queue are not negatives.
        """
        masked = (self.documents < 0)[None, :] | (self.documents[None, :] == documents[:, None])
        negatives = vectors @ self.keys.to(vectors.dtype).T
        positives = (vectors * keys).sum(dim=1, keepdim=True)
        logits = torch.cat((positives, negatives.masked_fill(masked, float("-inf"))), dim=1) / TEMPERATURE
        return logits.logsumexp(dim=1) - logits[:, 0]

    def on_step_end(self) -> None:
        """Move the momentum encoder towards the encoder, and append the keys of the batch to the queue."""
        m = self.momentum
        with torch.no_grad():
            for slow, fast in zip(self.slow, self.encoder_weights):
                slow.mul_(m).add_(fast.detach(), alpha=1 - m)
        if self._batch is not None:
            for queue, new in zip((self.keys, self.documents), self._batch):
                queue.copy_(torch.cat((queue, new.to(queue.dtype)))[-len(queue) :])
            self._batch = None
