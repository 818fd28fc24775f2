"""Variants of ``dense`` for the experiments of the papers: other losses, neighbors and triplets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask
from rerank.rankers.dense.losses import Contrastive, SemanticLoss, TripletLoss, make_loss
from rerank.rankers.dense.neighbors import CitedNeighbors, Neighbors, Structure, by_links, by_pagerank
from rerank.rankers.dense.texts import Texts
from rerank.rankers.dense.triplets import TripletSampler
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import CoCitations, Mention
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


@dataclass
class SomeTriplets(TripletSampler):
    """Triplets of some targets. kept: (V,) bool. Empty: all targets."""

    kept: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def targets(self) -> NDArray[np.int32]:
        """Return the kept targets."""
        found = super().targets()
        return found[self.kept[found]] if len(self.kept) else found


@dataclass
class HardTriplets(SomeTriplets):
    """Triplets of which ``hard`` have a negative of the same section (Ding et al., figure 3)."""

    hard: int = 0

    def draw(self, target: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Replace the first negatives by hard ones."""
        easy = super().draw(target, rng)
        near, positives = (self.network.neighbors(target, one) for one in (self.widest, self.level))
        others = np.setdiff1d(near[self.usable[near]], positives)
        found = rng.permutation(others)[: self.hard].tolist()
        return [(positive, hard) for (positive, _), hard in zip(easy, found)] + easy[len(found) :]


@dataclass
class CitingTriplets(SomeTriplets):
    """Triplets of citing documents: a text that they cite, and a text that they do not cite (SPECTER).

    cited: document -> texts that it cites.
    far:   document -> texts that a cited document cites, and the document does not.
    hard:  number of triplets with a negative of ``far``.
    """

    cited: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)
    far: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)
    hard: int = 0

    @classmethod
    def of(cls, graph: Citations, usable: NDArray[np.bool_], hard: int = 0) -> CitingTriplets:
        """Read the citations of a graph. usable: (N,) bool: with text."""
        pairs = {(paper, one.reference) for paper, found in graph.papers() for one in found}
        network = CoCitations.from_papers(
            (f"{number}", [Mention(paper, 0, 0, 0), Mention(ref, 0, 0, 0)])
            for number, (paper, ref) in enumerate(sorted(pairs))
            if paper != ref
        )
        texts, _ = graph.match_texts(network)
        with_text = texts >= 0
        with_text[with_text] = usable[texts[with_text]]
        place = {key: number for number, key in enumerate(network.keys)}
        cited: dict[int, set[int]] = {}
        for paper, ref in pairs:
            if paper != ref and with_text[place[ref]]:
                cited.setdefault(place[paper], set()).add(place[ref])
        far = {}
        for document, refs in cited.items():
            second = set().union(*(cited.get(ref, ()) for ref in refs)) - refs - {document}
            if second:
                far[document] = np.array(sorted(second), np.int32)
        kept = np.zeros(len(network), np.bool_)
        kept[list(cited)] = True
        lists = {document: np.array(sorted(refs), np.int32) for document, refs in cited.items()}
        return cls(network, with_text, kept=kept, cited=lists, far=far, hard=hard)

    def with_hard(self) -> NDArray[np.int32]:
        """Return the targets that have hard negatives."""
        found = self.targets()
        return found[np.isin(found, list(self.far))]

    def draw(self, target: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Draw cited texts as positives, and replace the first negatives by hard ones."""
        easy = super().draw(target, rng)
        cited = self.cited[target]
        positives = rng.choice(cited, len(easy), replace=len(cited) < len(easy)).tolist()
        hard = rng.permutation(self.far.get(target, ()))[: self.hard].astype(int).tolist()
        negatives = [*hard, *(negative for _, negative in easy[len(hard) :])]
        return list(zip(positives, negatives))


HARD_OF_SPECTER = 2
"""Hard negatives of SPECTER among five triplets (Cohan et al. 2020)."""


def changed(
    of: CitedNeighbors, graph: Citations, how: str, hard: int, equal: bool, seed: int
) -> CitedNeighbors:
    """Return the neighbors of a strategy.

    how:   ``direct`` and ``specter``: citing documents and their references. Others: texts cited together.
    hard:  number of hard negatives of texts cited together.
    equal: all strategies have as many targets as there are citing documents with hard negatives.
    """
    if not equal and not hard and how not in ("direct", "specter"):
        return of
    usable = of.usable
    citing = CitingTriplets.of(graph, usable, HARD_OF_SPECTER * (how == "specter"))
    some = citing.with_hard()
    if how in ("direct", "specter"):
        if equal or how == "specter":
            citing.kept = np.isin(np.arange(len(citing.kept)), some)
        texts, refs = graph.match_texts(citing.network)
        return replace(of, triplets=citing, texts=texts, refs=refs)
    options = {name: getattr(of.triplets, name) for name in ("network", "usable", "level", "direct")}
    triplets = HardTriplets(**options, hard=hard)
    if equal:
        drawn = np.random.default_rng((seed, 11)).choice(triplets.targets(), len(some), replace=False)
        triplets.kept = np.isin(np.arange(len(triplets.usable)), drawn)
    return replace(of, triplets=triplets)


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
