"""Variants of ``dense`` for the experiments of paper 000: other losses, and neighbors by hops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.losses import Quintuplet, TripletLoss, make_loss
from rerank.rankers.dense.neighbors import Neighbors
from rerank.rankers.dense.structure import Structure
from rerank.rankers.dense.task import DenseTask
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.links import LinkGraph

RELATED, FARTHEST = 64, 3
"""Maximum number of related documents per document, and maximum number of hops to them."""


def config_of(how: str, **settings: Any) -> tuple[DenseConfig, str]:
    """Return the settings of ``objective+name=value+...``, and the name of the variant.

    Objectives: the objectives of ``DenseConfig``, ``structure`` (gamma 0), ``semantics`` (gamma 1),
    ``fixed-margin`` and ``triplet``. Values: settings of ``DenseConfig``, ``positives=row`` (linked
    documents, without levels) and ``neighbors=hops``.
    """
    objective, *changes = how.split("+")
    given = dict(change.split("=", 1) for change in changes)
    variant = "hops" if given.pop("neighbors", None) == "hops" else objective
    values: dict[str, Any] = {**settings, **given}
    if objective == "triplet" or values.get("positives") == "row":
        values["positives"] = "linked"
    if objective in ("structure", "semantics"):
        values["gamma"] = 0.0 if objective == "structure" else 1.0
    products = ("contrastive", "quintuplet", "cocitation")
    values["objective"] = objective if objective in products else "quintuplet"
    return DenseConfig.of(**values), variant


def task_of(
    texts: Texts, encoder: TextEncoder, config: DenseConfig, variant: str, progress: Progress
) -> DenseTask:
    """Return the training task of a variant."""
    loss: Loss = make_loss(config)
    if variant == "triplet":
        loss = TripletLoss(config.margin)
    elif variant == "fixed-margin":
        one_margin = TripletLoss(config.margin)
        loss = Quintuplet(config.gamma, semantic=config.semantic_margin, structure=one_margin)
    structure = Structure.find(texts, config, progress)
    if variant == "hops":
        found = by_hops(structure.graph, texts.usable, seed=config.seed)
        structure = Structure(structure.graph, structure.held_out, found)
    return DenseTask(texts, encoder, config, progress, structure=structure, loss=loss)


def by_hops(
    graph: LinkGraph,
    usable: NDArray[np.bool_],
    related: int = RELATED,
    farthest: int = FARTHEST,
    seed: int = 0,
) -> Neighbors:
    """Return the documents with the fewest hops. Documents at equal distance are sampled at random."""
    links = graph.matrix()
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
    return Neighbors.of(rows, ids, scores, usable)
