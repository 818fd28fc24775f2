"""The losses of ``concept`` (Ma et al. 2023): a classifier of pairs, and two contrasts."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rerank.rankers.concept.graph import Concentration, centroids
from rerank.rankers.concept.head import PARTS, Head
from rerank.rankers.encoder.batching import BatchEncoder, Encode, Loss

if TYPE_CHECKING:
    from rerank.rankers.concept.config import ConceptConfig, Start

SMOOTHING = 10.0
"""alpha in the concentration of a component (Ma et al. 2023, table 4)."""
SPREAD = 0.1
"""Mean concentration, unless it is raw."""
HEAD_RATES: dict[Start, float] = {"distance": 10.0, "random": 1.0}
"""Learning rate of the head, times that of the encoder; random: as in the paper."""


@dataclass(frozen=True)
class PairVectors:
    """T texts of a batch, each once, and P labeled pairs of them.

    anchor: (T, E) their vectors. documents: (T,) which they are. tokens: T sequences.
    component: (T,) of each; -1: it is related to none.
    first, second: (P,) places among the texts. related: (P,) 1.0 or 0.0. weight: (P,) of each pair.
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
    """L_CE(sigma(w [f_i; f_j; |f_i - f_j|] + b), y) (Ma et al. 2023, equation 6), weighted mean of pairs.

    The head reads vectors of length sqrt(E), whose numbers are about 1. So its weights learn equally fast
    for every length of the encoder's vectors, and unit vectors are all that has to be stored.
    """

    def __init__(self, width: int, start: Start = "distance") -> None:
        super().__init__()
        self.width, self.faster = width, HEAD_RATES[start]
        generator = torch.Generator().manual_seed(0)
        first, second, apart = (torch.randn(width, generator=generator) / sqrt(3 * width) for _ in range(3))
        if start == "distance":
            first, second, apart = torch.zeros(width), torch.zeros(width), torch.full((width,), -4.0 / width)
        # With random vectors of length sqrt(E), |f_i - f_j| is about 1 on average: the bias is in between.
        bias = torch.full((1,), 4.0 if start == "distance" else 0.0)
        self.first, self.second, self.apart, self.bias = map(nn.Parameter, (first, second, apart, bias))

    def logits(self, first: Tensor, second: Tensor) -> Tensor:
        """(P, E) and (P, E) vectors of any length -> (P,)."""
        u, v = (functional.normalize(one, dim=-1) * sqrt(self.width) for one in (first, second))
        found: Tensor = u @ self.first + v @ self.second + self.bias + (u - v).abs() @ self.apart
        return found

    def forward(self, pairs: PairVectors) -> Tensor:
        """Weighted mean over the pairs; 0 without pairs."""
        logits = self.logits(pairs.anchor[pairs.first], pairs.anchor[pairs.second])
        losses = functional.binary_cross_entropy_with_logits(logits, pairs.related, reduction="none")
        return (losses * pairs.weight).sum() / pairs.weight.sum().clamp_min(1e-6)

    def count(self, pairs: PairVectors) -> dict[str, int]:
        """Pairs, related ones among them, and batches that had none of these."""
        related = int(pairs.related.sum())
        return {"pairs": len(pairs.related), "related": related, "without_related": int(not related)}

    def head(self) -> Head:
        """The head as it is now, for vectors of length 1."""
        zero = np.zeros(self.width, dtype=np.float32)
        factor = np.float32(sqrt(self.width))
        parts = dict.fromkeys(PARTS, zero)
        for name in ("first", "second", "apart"):
            parts[name] = getattr(self, name).detach().float().cpu().numpy() * factor
        return Head.from_arrays({**parts, "bias": self.bias.detach().float().cpu().numpy()})


class ComponentContrast(Loss):
    """GC-NCE: each text is nearer to the centroid of its own component than to all others.

    -log(exp(z_i c_s / phi_s) / sum_j exp(z_i c_j / phi_j)) (Ma et al. 2023, equation 2), the mean over the
    texts that are related to another one. z: vectors of length 1. c, phi: centroids of the r components and
    their concentration (equation 3), of the vectors at the start of the epoch, without dropout.

    component: (N,) of all documents; -1: none.
    """

    centroids: Tensor
    phi: Tensor

    def __init__(
        self, component: NDArray[np.int64], width: int, concentration: Concentration = "rescaled"
    ) -> None:
        super().__init__()
        self.component, self.concentration = component, concentration
        count = int(component.max(initial=-1)) + 1
        self.register_buffer("centroids", torch.zeros((count, width)))
        self.register_buffer("phi", torch.full((count,), SPREAD))

    def on_epoch_start(self, epoch: int, encode: Encode) -> None:
        """Compute the centroids."""
        members = np.flatnonzero(self.component >= 0)
        found, phi = centroids(
            encode(members),
            self.component[members],
            smoothing=SMOOTHING,
            concentration=self.concentration,
            temperature=SPREAD,
        )
        self.centroids.copy_(torch.from_numpy(found))
        self.phi.copy_(torch.from_numpy(phi))

    def forward(self, pairs: PairVectors) -> Tensor:
        """Mean over the texts of a component; 0 without such texts."""
        anchors = pairs.component >= 0
        if not bool(anchors.any()):
            return pairs.anchor.sum() * 0
        vectors = functional.normalize(pairs.anchor[anchors], dim=-1)
        return self.each(vectors, pairs.component[anchors]).mean()

    def each(self, vectors: Tensor, component: Tensor) -> Tensor:
        """(n, E) vectors of length 1 and (n,) their components -> (n,) losses."""
        cosines = vectors @ self.centroids.to(vectors.dtype).T
        lost = self.phi.isinf()  # no centroid this epoch
        logits = (cosines / self.phi.to(vectors.dtype)).masked_fill(lost, float("-inf"))
        own = logits.where(~lost[component, None], cosines)
        return functional.cross_entropy(own, component, reduction="none") * ~lost[component]

    def count(self, pairs: PairVectors) -> dict[str, int]:
        """Texts that have a component."""
        return {"component": int((pairs.component >= 0).sum())}


class MomentumContrast(Loss):
    """A text is nearer to itself, as a slow copy of the encoder sees it, than to a queue of others.

    -log(exp(z_i k_i / t) / sum_j exp(z_i k_j / t)) (Ma et al. 2023, equation 5), the mean over the texts.
    z: vectors of length 1; k_i: that of the same text by the momentum encoder, without dropout or gradient;
    the other k_j: keys of earlier batches, in a queue, except those of the text itself. The queue is empty at
    the start, and a batch joins it after its step. Momentum encoder (equation 4): k <- m k + (1 - m) q, after
    every step; q: the weights that learn.
    """

    keys: Tensor
    documents: Tensor

    def __init__(
        self, encoding: BatchEncoder, queue: int = 256, momentum: float = 0.99, temperature: float = 0.1
    ) -> None:
        super().__init__()
        self.encoding, self.momentum, self.temperature = encoding, momentum, temperature
        self.followed = encoding.encoder.learning()
        slow = (parameter.detach().clone() for parameter in self.followed)
        self.slow = nn.ParameterList(nn.Parameter(one, requires_grad=False) for one in slow)
        # documents: whose keys they are; -1: none yet. Newest last.
        self.register_buffer("keys", torch.zeros((queue, encoding.encoder.width)))
        self.register_buffer("documents", torch.full((queue,), -1))
        self._next: tuple[Tensor, Tensor] | None = None

    def encoded(self, tokens: list[NDArray[np.int32]]) -> Tensor:
        """(n, E) keys of texts, of length 1.

        Without dropout, which takes half the time of a forward pass on a CPU: a text and its key differ by
        that of the text.
        """
        model = self.encoding.encoder.model
        learning = model.training
        model.eval()
        self._swap()
        try:
            with torch.no_grad():
                return functional.normalize(self.encoding.encode(tokens), dim=-1)
        finally:
            self._swap()
            model.train(learning)

    def _swap(self) -> None:
        """Exchange the slow weights with those of the encoder."""
        for slow, parameter in zip(self.slow, self.followed):
            parameter.data, slow.data = slow.data, parameter.data

    def forward(self, pairs: PairVectors) -> Tensor:
        """Mean over the texts; 0 for those without a negative."""
        keys = self.encoded(pairs.tokens)
        self._next = (keys, pairs.documents)
        return self.each(functional.normalize(pairs.anchor, dim=-1), keys, pairs.documents).mean()

    def each(self, vectors: Tensor, keys: Tensor, documents: Tensor) -> Tensor:
        """(T, E) vectors and (T, E) keys of the same texts, and (T,) which they are -> (T,) losses."""
        hidden = (self.documents < 0)[None, :] | (self.documents[None, :] == documents[:, None])
        negatives = vectors @ self.keys.to(vectors.dtype).T
        own = (vectors * keys).sum(dim=1, keepdim=True)
        logits = torch.cat((own, negatives.masked_fill(hidden, float("-inf"))), dim=1) / self.temperature
        return logits.logsumexp(dim=1) - logits[:, 0]

    def on_step_end(self, step: int) -> None:
        """Follow the encoder, and let the batch join the queue."""
        m = self.momentum
        with torch.no_grad():
            for slow, fast in zip(self.slow, self.followed):
                slow.mul_(m).add_(fast.detach(), alpha=1 - m)
        if self._next is not None:
            size = len(self.keys)
            for queue, new in zip((self.keys, self.documents), self._next):
                queue.copy_(torch.cat((queue, new.to(queue.dtype)))[-size:])
            self._next = None

    def count(self, pairs: PairVectors) -> dict[str, int]:
        """Texts."""
        return {"contrasted": len(pairs.anchor)}


class ConceptLoss(Loss):
    """L = L_CRE + beta (L_GC-NCE + L_MoCo) (Ma et al. 2023, equation 7).

    Each is a mean, where the paper adds up, so that beta does not depend on the batch.
    """

    def __init__(self, config: ConceptConfig, component: NDArray[np.int64], encoding: BatchEncoder) -> None:
        super().__init__()
        width, (with_components, with_momentum) = encoding.encoder.width, config.contrasts
        self.beta, self.classifier = config.beta, Classifier(width, config.head_start)
        self.faster = self.classifier.faster
        self.components = self.momentum = None
        if with_components:
            self.components = ComponentContrast(component, width, config.concentration)
        if with_momentum:
            queue = (config.queue, config.momentum, config.temperature)
            self.momentum = MomentumContrast(encoding, *queue)

    @property
    def parts(self) -> list[Loss]:
        """The classifier and the contrasts."""
        found = (self.classifier, self.components, self.momentum)
        return [one for one in found if one is not None]

    @property
    def memory(self) -> int:
        """Bytes of the momentum encoder, the queue and the centroids."""
        contrasts = (tensor for part in self.parts[1:] for tensor in part.state_dict().values())
        return sum(one.numel() * one.element_size() for one in contrasts)

    def forward(self, pairs: Any) -> Tensor:
        """Weighted sum."""
        total: Tensor = self.classifier(pairs)
        for part in self.parts[1:]:
            total = total + self.beta * part(pairs)
        return total

    def count(self, pairs: Any) -> dict[str, int]:
        """Counts of all parts."""
        return {name: value for part in self.parts for name, value in part.count(pairs).items()}

    def on_epoch_start(self, epoch: int, encode: Encode) -> None:
        """Call all parts."""
        for part in self.parts:
            part.on_epoch_start(epoch, encode)

    def on_step_end(self, step: int) -> None:
        """Call all parts."""
        for part in self.parts:
            part.on_step_end(step)
