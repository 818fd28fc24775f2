"""Properties of triplets of co-citation networks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from rerank.rankers.dense.triplets import TRIPLETS_PER_TARGET, TripletSampler
from rerank.rankers.graphs.cocitation import CoCitations, Mention


@pytest.fixture(scope="module")
def large():
    """60 papers of 3 sections of 2 paragraphs of 2 sentences. A sentence cites 1 to 4 of 150 references."""
    rng = np.random.default_rng(0)
    papers = []
    for paper in range(60):
        found = []
        for sentence in range(12):
            for ref in rng.zipf(1.6, size=rng.integers(1, 5)) % 150:
                found.append(Mention(f"r{ref}", sentence // 4, sentence // 2, sentence))
        papers.append((f"p{paper}", found))
    return CoCitations.from_papers(papers)


def sampler(network, level="sentence", usable=None, **options):
    usable = np.ones(len(network), bool) if usable is None else usable
    return TripletSampler(network, usable, level, **options)


def draw_triplets(of, target, times=20):
    return [one for seed in range(times) for one in of.draw(target, np.random.default_rng(seed))]


@pytest.mark.parametrize("name", ["sentence", "paragraph", "section", "document"])
def test_properties_of_every_triplet(large, name):
    of, count = sampler(large, name), 0
    level, widest = large.levels[of.level], large.levels[of.widest]
    for target in of.targets().tolist():
        for positive, negative in draw_triplets(of, target, 1):
            assert len({target, positive, negative}) == 3
            assert level.shared(target, positive)
            assert not widest.shared(target, negative)
            count += 1
    assert count > 100


def test_all_neighbors_are_drawn_equally_often():
    """q is in the groups {q, a, b}, {q, a} and {q, c, d, e}. It shares two of them with a."""
    mentions = [Mention(ref, 0, 0, group) for group, refs in enumerate(("qab", "qa", "qcde")) for ref in refs]
    network = CoCitations.from_papers([("X", mentions), ("Y", [Mention(ref, 0, 0, 0) for ref in "mn"])])
    of = sampler(network)
    draws = [of.draw(network.keys.index("q"), np.random.default_rng(seed)) for seed in range(200)]
    first = [positive for found in draws for positive, _ in found[:1]]
    assert chisquare([first.count(network.keys.index(key)) for key in "abcde"]).pvalue > 0.001


def test_references_without_text_and_direct_citations_are_not_drawn(large):
    usable = np.arange(len(large)) % 3 > 0
    target = int(sampler(large, usable=usable).targets()[0])
    near = large.neighbors(target, "section")
    far = [n for n in range(len(large)) if usable[n] and n not in near and n != target]
    of = sampler(large, usable=usable, direct={target: far[:-2]})
    actual = draw_triplets(of, target)
    assert len(actual) == 20 * TRIPLETS_PER_TARGET
    assert {negative for _, negative in actual} == set(far[-2:])
    assert usable[[positive for positive, _ in actual]].all()
    assert usable[of.targets()].all()
