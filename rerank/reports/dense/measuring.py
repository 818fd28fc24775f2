"""One encoder's side of the report: its vectors of the sampled documents -> the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.reports.dense.figures import Group, Margin, Ring, Separation, Side
from rerank.reports.dense.hops import FARTHER, HOPS, MOST, UNREACHABLE
from rerank.reports.dense.nearest import SHOWN
from rerank.reports.dense.neighbours import share_near
from rerank.reports.dense.numbers import histogram, nearer, order_kept, quantiles
from rerank.reports.dense.sample import Pairs, Sample
from rerank.reports.dense.vectors import cosine_distance, euclidean

DOTS = 60
"""Documents of a ring that are drawn."""
CONSTANT = ("fixed-margin", "triplet")
"""Objectives whose margin is the same at all levels, whatever ``margin`` says."""


def margin_asked(level: int, settings: dict[str, Any]) -> float:
    """What the loss asks for at a level (Raman et al. 2021, equation 5): m / level unless set otherwise.

    >>> margin_asked(4, {"structural_margin": 2.0, "objective": "quintuplet"})
    0.5
    """
    margin = float(settings["structural_margin"])
    shape = "constant" if settings["objective"] in CONSTANT else settings.get("margin", "harmonic")
    if shape == "constant":
        return margin
    return margin / (level if shape == "harmonic" else 2 ** (level - 1))


@dataclass(frozen=True)
class Measured:
    """An encoder's (n, E) vectors of the sampled documents, and of other fragments of some anchors.

    own: (F, E); own_anchors: (F,) whose they are.
    """

    sample: Sample
    vectors: NDArray[np.float32]
    own: NDArray[np.float32]
    own_anchors: NDArray[np.int64]

    def cosine(self, pairs: Pairs) -> NDArray[np.float64]:
        """(P,) cosine distances."""
        return cosine_distance(self.vectors, self.sample.rows(pairs.anchors), self.sample.rows(pairs.others))

    def euclidean(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        """(P,) distances as the losses with a margin see them."""
        return euclidean(self.vectors, self.sample.rows(a), self.sample.rows(b))

    def own_distance(self) -> NDArray[np.float64]:
        """(F,) cosine distance of an anchor's first fragment and the other one."""
        both = np.concatenate((self.vectors, self.own))
        rows = self.sample.rows(self.own_anchors)
        return cosine_distance(both, rows, len(self.vectors) + np.arange(len(rows)))

    def farthest(self) -> float:
        """The cosine distance below which nearly all pairs of the histograms lie."""
        found = [self.cosine(pairs) for pairs in (self.sample.linked, self.sample.held)]
        every = np.concatenate(found)
        return float(np.quantile(every, 0.999)) if len(every) else 1.0

    def unit(self, documents: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """(K, E) unit vectors of the documents of the map, or of others."""
        mapped = self.vectors[self.sample.rows(self.sample.mapped if documents is None else documents)]
        unit: NDArray[np.float32] = mapped / np.maximum(np.linalg.norm(mapped, axis=1, keepdims=True), 1e-12)
        return unit

    def side(
        self,
        edges: NDArray[np.float64],
        settings: dict[str, Any],
        points: NDArray[np.float64] | None,
        subgraphs: NDArray[np.float64] | None,
        common: tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]],
    ) -> Side:
        """All numbers. common: (K, K) of the map: a category in common, linked, held out.

        points, subgraphs: where the documents of the map, and those of the subgraphs, lie.
        """
        levels, by_hops = self.sample.levels, self.sample.hops
        level_distance, hop_distance = self.cosine(levels), self.cosine(by_hops)
        deepest = int(levels.groups.max(initial=0))
        names = {level: str(level) if level else "unrelated" for level in range(deepest, -1, -1)}
        hops = [_group(HOPS[0], self.own_distance())]
        hops += [
            _group(HOPS[hop], hop_distance[by_hops.groups == hop])
            for hop in (*range(1, MOST + 1), FARTHER, UNREACHABLE)
        ]
        categories, links, held_out = (share_near(self.unit(), such) for such in common)
        return Side(
            linked=self._separation(self.sample.linked, edges),
            held_out=self._separation(self.sample.held, edges),
            levels=[_group(name, level_distance[levels.groups == level]) for level, name in names.items()],
            level_order=order_kept(levels.anchors, -levels.groups, level_distance),
            hops=[group for group in hops if group.pairs],
            hop_order=order_kept(by_hops.anchors, by_hops.groups, hop_distance),
            rings=self._rings(levels, names),
            hop_rings=self._rings(
                by_hops, {hop: HOPS[hop] for hop in (*range(1, MOST + 1), FARTHER, UNREACHABLE)}
            ),
            margins=self._margins(settings),
            length=float(np.linalg.norm(self.vectors, axis=1).mean()) if len(self.vectors) else 0.0,
            map=[] if points is None else points.round(4).tolist(),
            common_category=categories,
            common_link=links,
            common_held_out=held_out,
            subgraphs=[] if subgraphs is None else subgraphs.round(4).tolist(),
            same_subgraph=None
            if subgraphs is None
            else share_near(
                self.unit(self.sample.subgraphs[:, 0]), _same(self.sample.subgraphs[:, 1]), nearest=SHOWN
            ),
        )

    def _separation(self, pairs: Pairs, edges: NDArray[np.float64]) -> Separation:
        distances = self.cosine(pairs)
        related, unrelated = distances[pairs.groups == 1], distances[pairs.groups == 0]
        won = (related < unrelated).mean() + (related == unrelated).mean() / 2 if len(related) else None
        return Separation(
            pairs=len(related),
            nearer=nearer(related, unrelated),
            same_anchor=None if won is None else float(won),
            related=quantiles(related),
            unrelated=quantiles(unrelated),
            related_histogram=histogram(related, edges),
            unrelated_histogram=histogram(unrelated, edges),
        )

    def _rings(self, pairs: Pairs, names: Mapping[int, str]) -> list[Ring]:
        distance = self.euclidean(pairs.anchors, pairs.others)
        rings = []
        for group, name in names.items():
            mine = distance[pairs.groups == group]
            if len(mine):
                some = mine[:: max(1, len(mine) // DOTS)][:DOTS]
                mean = float(mine.mean())
                rings.append(Ring(group=name, pairs=len(mine), mean=mean, some=some.round(4).tolist()))
        return rings

    def _margins(self, settings: dict[str, Any]) -> list[Margin]:
        drawn = self.sample.margins
        near = self.euclidean(drawn[:, 0], drawn[:, 1])
        far = self.euclidean(drawn[:, 0], drawn[:, 2])
        rows = []
        for level in range(1, int(drawn[:, 3].max(initial=0)) + 1):
            mine = drawn[:, 3] == level
            if not mine.any():
                continue
            asked = margin_asked(level, settings)
            gap = far[mine] - near[mine]
            rows.append(
                Margin(
                    level=level,
                    draws=int(mine.sum()),
                    asked=asked,
                    nearer=float(near[mine].mean()),
                    farther=float(far[mine].mean()),
                    in_order=float((gap > 0).mean()),
                    kept=float((gap >= asked).mean()),
                )
            )
        return rows


def _same(groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(K, K) which are of one group; itself: no."""
    same: NDArray[np.bool_] = groups[:, None] == groups
    np.fill_diagonal(same, False)
    return same


def _group(name: str, distances: NDArray[np.float64]) -> Group:
    return Group(group=name, pairs=len(distances), quantiles=quantiles(distances))
