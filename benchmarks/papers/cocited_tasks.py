"""Tasks of ``cocitation.py``: rank texts that are cited together, proximity, cited articles, subjects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from classify import classified, headings

from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations
from rerank.records import Document

NEARER = (
    ("sentence", "paragraph"),
    ("paragraph", "section"),
    ("section", "document"),
    ("sentence", "section"),
)


def tested(key: str) -> bool:
    return int(hashlib.md5(key.encode()).hexdigest(), 16) % 5 == 0


class Tasks:
    """Texts to encode, and the queries and relevant texts of each task."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        train: Citations,
        count: int,
        queries: int,
        others: int,
        test_negatives: bool = False,
    ) -> None:
        self.rows = rows
        rng = np.random.default_rng(2021)
        test = [row for row in rows if tested(row["key"])]
        some = [test[i] for i in np.sort(rng.permutation(len(test))[:count]).tolist()]
        documents = [Document(row["key"], extra={"citations": row["citations"]}) for row in some]
        papers = list(Citations.from_documents(documents).papers())
        network = CoCitations.from_papers(papers)
        known = {key: title for row in rows for key, title in row["references"].items() if title}
        self.keys = [key for key in network.keys if key in known]
        cited = {c["ref"] for row in test for c in row["citations"]} if test_negatives else known.keys()
        pool = sorted((known.keys() & cited) - {*self.keys})
        self.pool = [pool[i] for i in rng.permutation(len(pool))[:others].tolist()]
        self.keys += self.pool
        self.corpus = list(known.values())
        self.titles = [known[key] for key in self.keys]
        place = {key: i for i, key in enumerate(self.keys)}
        self.ranking = {
            level: list(self._ranking(network, train, place, level, queries, rng)) for level in LEVELS[:3]
        }
        self.proximity = [one for paper in papers for one in self._proximity(paper, place)]
        number = {row["key"]: i for i, row in enumerate(rows)}
        self.cited = []
        for row in test:
            cites = {number[c["ref"]] for c in row["citations"] if c["ref"] in number}
            cites -= {number[key] for key in row["related"] if key in number}
            if cites:
                self.cited.append((number[row["key"]], sorted(cites)))

    def _ranking(
        self,
        network: CoCitations,
        train: Citations,
        place: dict[str, int],
        level: Any,
        count: int,
        rng: np.random.Generator,
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield queries with 30 texts each. The first five texts are relevant."""
        at = {key: ref for ref, key in enumerate(train.network.keys)}
        whole = train.network.levels["document"]

        def seen(a: str, b: str) -> bool:
            return a in at and b in at and whole.shared(at[a], at[b]) > 0

        found = 0
        for ref in rng.permutation(len(network)).tolist():
            key = network.keys[ref]
            if key not in place:
                continue
            near = [network.keys[one] for one in network.neighbors(ref, level)]
            near = [one for one in near if one in place and not seen(key, one)]
            if len(near) < 5:
                continue
            right = [near[i] for i in rng.permutation(len(near))[:5].tolist()]
            mates = {key, *(network.keys[one] for one in network.neighbors(ref, "document"))}
            wrong: dict[str, None] = {}
            while len(wrong) < 25:
                one = self.pool[int(rng.integers(len(self.pool)))]
                if one not in mates and not seen(key, one):
                    wrong[one] = None
            yield place[key], [place[one] for one in (*right, *wrong)]
            found += 1
            if found == count:
                return

    def _proximity(self, paper: Any, place: dict[str, int]) -> Iterator[tuple[int, dict[str, list[int]]]]:
        own = CoCitations.from_papers([paper])
        for ref in range(len(own)):
            if own.keys[ref] in place:
                ids = own.neighbors(ref, "document")
                level = finest(own, ref, ids)
                mates: dict[str, list[int]] = {one: [] for one in LEVELS}
                for other, one in zip((own.keys[id] for id in ids), level):
                    if other in place:
                        mates[LEVELS[one - 1]].append(place[other])
                yield place[own.keys[ref]], mates

    def measure(self, titles: Any, documents: Any, svm: bool = True) -> dict[str, Any]:
        """Return the values of each measure.

        titles, documents: unit vectors of the references and the articles, dense or sparse rows.
        """
        found: dict[str, Any] = {}
        for level, queries in self.ranking.items():
            both = np.array([_ranked(_dots(titles, query, those), query) for query, those in queries])
            found[f"MAP {level}"], found[f"nDCG {level}"] = both[:, 0].tolist(), both[:, 1].tolist()
        for near, far in NEARER:
            values: list[float | None] = []
            for query, mates in self.proximity:
                if mates[near] and mates[far]:
                    a, b = _dots(titles, query, mates[near]), _dots(titles, query, mates[far])
                    values.append(float(np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b))))
            found[f"{near} > {far}"] = values
        everything = list(range(len(self.rows)))
        ranks = []
        for query, right in self.cited:
            scores = _dots(documents, query, everything)
            scores[query] = -np.inf
            ranks.append(1 / (1 + int((scores > scores[right].max()).sum())))
        found["cited"] = ranks
        if svm:
            found["subjects"] = self.subjects(documents)
        return {n: np.round(v, 4).tolist() if isinstance(v, list) else v for n, v in found.items()}

    def subjects(self, documents: Any) -> float:
        labels = [row["subjects"] for row in self.rows]
        return classified(documents, labels, headings(labels))[0]


def _dots(vectors: Any, query: int, those: list[int]) -> np.ndarray:
    found = vectors[those] @ vectors[query].T
    return np.asarray(found.todense()).ravel() if hasattr(found, "todense") else found


def _ranked(scores: np.ndarray, query: int) -> tuple[float, float]:
    """Return MAP and nDCG of 30 texts. The first five are relevant.

    Ties (no common word) are broken at random.
    """
    order = np.lexsort((np.random.default_rng(query).permutation(len(scores)), -scores))
    places = np.flatnonzero(order < 5)
    ideal = (1 / np.log2(np.arange(5) + 2)).sum()
    return float(np.mean((np.arange(5) + 1) / (places + 1))), float((1 / np.log2(places + 2)).sum() / ideal)


def finest(network: CoCitations, ref: int, others: np.ndarray) -> list[int]:
    """Return the finest common level with others: 1 sentence to 4 document."""
    found = np.full(len(others), len(LEVELS), np.int8)
    for place in range(len(LEVELS) - 1, 0, -1):
        found[np.isin(others, network.neighbors(ref, LEVELS[place - 1]))] = place
    return found.tolist()
