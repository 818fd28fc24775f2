"""Variants of ``dense`` for the experiments of the papers: other losses, neighbors and triplets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask
from rerank.rankers.dense.losses import Contrastive, SemanticLoss, TripletLoss, make_loss
from rerank.rankers.dense.neighbors import Neighbors, Structure, by_links, by_pagerank
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.links import LinkGraph

RELATED, FARTHEST = 64, 3
"""Maximum number of related documents per document, and maximum number of hops to them."""


class Halves(Loss):
    """L = (1 - gamma) L_phi + gamma L_psi (Raman et al. 2021, equation 5)."""

    def __init__(self, gamma: float, structure: Loss, semantics: Loss) -> None:
        super().__init__()
        self.halves = [(w, half) for w, half in ((1 - gamma, structure), (gamma, semantics)) if w]
        self.reads = tuple(dict.fromkeys(name for _, half in self.halves for name in half.reads))

    def forward(self, vectors: Any) -> Tensor:
        return sum(weight * half(vectors) for weight, half in self.halves)


@dataclass(frozen=True)
class Variant:
    """A loss and the neighbors: of ``levels``, ``linked`` or ``hops``."""

    loss: Loss
    neighbors: str


def config_of(how: str, **settings: Any) -> tuple[DenseConfig, Variant]:
    """Return the settings of ``objective+name=value+...``, and the variant.

    Objectives: the objectives of ``DenseConfig``, ``structure`` (gamma 0), ``semantics`` (gamma 1),
    ``fixed-margin`` and ``triplet``. Values: settings of ``DenseConfig``, ``gamma``, ``structural_margin``,
    ``semantic_margin``, ``temperature``, ``positives=row`` (linked documents) or ``levels``, and
    ``neighbors=hops``.
    """
    objective, *changes = how.split("+")
    given: dict[str, Any] = {**settings, **dict(change.split("=", 1) for change in changes)}
    positives = given.pop("positives", "levels" if objective not in ("triplet", "contrastive") else "row")
    linked = positives == "row"
    neighbors = given.pop("neighbors", "linked" if linked else "levels")
    gamma = float(given.pop("gamma", {"structure": 0, "semantics": 1}.get(objective, 0.5)))
    margin = float(given.pop("structural_margin", 2.0))
    semantics = SemanticLoss(float(given.pop("semantic_margin", 0.5)))
    structure = TripletLoss(margin, by_level=objective != "fixed-margin")
    temperature = float(given.pop("temperature", 0.05))
    losses = {
        "contrastive": Contrastive(temperature),
        "triplet": TripletLoss(margin),
        "cocitation": make_loss("cocitation"),
    }
    loss = losses.get(objective) or Halves(gamma, structure, semantics)
    known = objective if objective in ("contrastive", "quintuplet", "cocitation") else "quintuplet"
    return DenseConfig.of(**given, objective=known), Variant(loss, neighbors)


def task_of(
    texts: Texts, encoder: TextEncoder, config: DenseConfig, variant: Variant, progress: Progress
) -> DenseTask:
    """Return the training task of a variant."""
    graph, held = texts.graph.hold_out(config.held_out, config.seed)
    if variant.neighbors == "hops":
        found = by_hops(graph, texts.usable, seed=config.seed)
    elif variant.neighbors == "linked":
        found = by_links(graph, texts.usable)
    else:
        found = by_pagerank(graph, texts.usable, config.related, seed=config.seed)
    structure = Structure(graph, held, found)
    return DenseTask(texts, encoder, config, progress, structure=structure, loss=variant.loss)


def by_hops(
    graph: LinkGraph,
    usable: NDArray[np.bool_],
    related: int = RELATED,
    farthest: int = FARTHEST,
    seed: int = 0,
) -> Neighbors:
    """Return the documents with the fewest hops. Documents at equal distance are sampled at random."""
    links = graph.matrix
    rng = np.random.default_rng((seed, 7))
    rows: list[int] = []
    ids: list[int] = []
    scores: list[float] = []
    seen = np.zeros(len(usable), np.bool_)
    for document in np.flatnonzero(usable).tolist():
        near = [np.array([document])]
        seen[document] = True
        frontier, left = near[0], related or len(usable)
        for hop in range(1, farthest + 1):
            reached = np.unique(links[frontier].indices)
            frontier = reached[~seen[reached]]
            seen[frontier] = True
            near.append(frontier)
            found = rng.permutation(frontier[usable[frontier]])[:left]
            rows += [document] * len(found)
            ids += found.tolist()
            scores += [1 / hop] * len(found)
            left -= len(found)
            if not (left and len(frontier)):
                break
        seen[np.concatenate(near)] = False
    return Neighbors.from_pairs(rows, ids, scores, usable)
