"""The concept graph, worked by hand and against a plain walk."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.rankers.concept.graph import ConceptGraph, Expansion, centroids
from rerank.records import LabeledPair


def pairs(related="", unrelated=""):
    found = [LabeledPair(*pair, True) for pair in related.split()]
    return found + [LabeledPair(*pair, False) for pair in unrelated.split()]


HAND = pairs("AB BC CD EF", "AE FG")


def named(graph, found):
    return " ".join(graph.ids[a] + graph.ids[b] for a, b in found.tolist())


def test_components_and_hops_by_hand():
    graph = ConceptGraph.of(HAND)
    assert (graph.component.tolist(), graph.groups) == ([0, 0, 0, 0, 1, 1, 2], 2)
    assert named(graph, graph.within(1)) == "AB BC CD EF"
    assert named(graph, graph.within(2)) == "AB AC BC BD CD EF"
    assert named(graph, graph.within(3)) == named(graph, graph.within(9)) == "AB AC AD BC BD CD EF"


def test_neither_order_nor_orientation_says_anything():
    turned = [LabeledPair(b, a, related) for a, b, related in HAND]
    random.Random(1).shuffle(turned)
    one, other = ConceptGraph.of(HAND), ConceptGraph.of(turned)
    assert one.ids == other.ids
    for field in ("related", "unrelated", "component"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    np.testing.assert_array_equal(one.expand(2, 4, seed=3).related, other.expand(2, 4, seed=3).related)


def test_a_negative_within_a_component_keeps_its_label():
    graph = ConceptGraph.of([*HAND, LabeledPair("D", "A", False)])
    assert (graph.counts.contradictions, graph.component.tolist()) == (1, [0, 0, 0, 0, 1, 1, 2])
    found = graph.expand(3, 100.0)
    assert named(graph, found.related) == "AB AC BC BD CD EF"
    assert "AD" in named(graph, found.unrelated)


def test_what_is_labeled_both_ways_is_left_out():
    graph = ConceptGraph.of([*HAND, *pairs("DE BA AA", "ED")])
    counts = graph.counts
    assert (counts.disagreeing, counts.repeated, counts.reflexive) == (1, 1, 1)
    assert graph.component.tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert "DE" not in named(graph, graph.expand(9, 100.0).unrelated)


def test_what_is_kept_to_measure_by_is_never_drawn():
    kept = pairs("CB AD", "BF XY")
    graph = ConceptGraph.of(HAND, kept)
    assert (graph.counts.withheld, graph.counts.implied) == (1, 0)  # without BC, A and D are apart
    assert named(graph, graph.related) == "AB CD EF"
    graph = ConceptGraph.of(HAND, pairs("AD", "BF"))
    assert graph.counts.implied == 1
    found = graph.expand(9, 100.0)
    assert "AD" not in named(graph, found.related)
    assert "BF" not in named(graph, found.unrelated)
    assert len(found.related) == 6


def test_the_papers_ratio():
    """Table 4: of 12,875 annotated pairs, three times as many are 19,312 related ones."""
    star = [LabeledPair("center", f"n{i:05d}", True) for i in range(6_842)]
    rest = [LabeledPair(f"u{i:05d}", f"v{i:05d}", False) for i in range(12_875 - 6_842)]
    found = ConceptGraph.of([*star, *rest]).expand(2, 3.0)
    assert len(found.related) == len(found.unrelated) == 19_312
    short = ConceptGraph.of(HAND).expand(2, 100.0)
    assert (len(short.related), short.ratio) == (6, 2.0)


def test_drawn_unrelated_pairs_are_of_different_components():
    graph = ConceptGraph.of(HAND)
    found = graph.expand(9, 100.0)
    assert len(found.related) == len(found.unrelated) == 7
    assert not set(named(graph, found.unrelated).split()) & set(named(graph, found.related).split())


def test_one_hop_draws_nothing_and_keeps_every_label():
    graph = ConceptGraph.of(HAND)
    found = graph.expand(1, 2.0)
    assert named(graph, found.related) == "AB BC CD EF"
    assert {"AE", "FG"} <= set(named(graph, found.unrelated).split())


@pytest.mark.parametrize("labels", [("", "AB"), ("AB", ""), ("", "")])
def test_graphs_without_edges_or_labels(labels):
    graph = ConceptGraph.of(pairs(*labels))
    found = graph.expand(9, 2.0)
    assert isinstance(found, Expansion)
    assert graph.groups == (labels[0] == "AB")


EDGES = st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=16)


@settings(max_examples=40, deadline=None)
@given(EDGES, EDGES, st.integers(1, 4))
def test_hops_and_components_as_a_plain_walk_finds_them(related, unrelated, hops):
    labeled = [LabeledPair(f"{a:02d}", f"{b:02d}", True) for a, b in related]
    labeled += [LabeledPair(f"{a:02d}", f"{b:02d}", False) for a, b in unrelated]
    graph = ConceptGraph.of(labeled)
    near = {one: set() for one in range(len(graph.ids))}
    for a, b in graph.related.tolist():
        near[a].add(b), near[b].add(a)
    distance = {}
    for start in near:
        seen, frontier, step = {start: 0}, [start], 0
        while frontier:
            step += 1
            frontier = sorted({n for one in frontier for n in near[one]} - set(seen))
            seen.update(dict.fromkeys(frontier, step))
        distance[start] = seen
    both = list(combinations(near, 2))
    assert [tuple(p) for p in graph.within(hops).tolist()] == [
        (a, b) for a, b in both if distance[a].get(b, 99) <= hops
    ]
    assert all((graph.component[a] == graph.component[b]) == (b in distance[a]) for a, b in both)
    found = graph.expand(hops, 3.0, seed=1)
    drawn = {*map(tuple, found.related.tolist())} & {*map(tuple, found.unrelated.tolist())}
    assert not drawn
    assert {*map(tuple, graph.related.tolist())} <= {*map(tuple, found.related.tolist())}
    assert len(found.unrelated) <= max(len(found.related), len(graph.unrelated))


Z = np.array([[1, 0], [0.6, 0.8], [-1, 0], [-0.8, 0.6]])
TWO = np.array([0, 0, 1, 1])


def test_concentration():
    """Equation 3 gives 0.184919 and 0.128924; they are clipped and scaled to the mean."""
    centers, phi = centroids(Z, TWO, mean=0.2)
    np.testing.assert_allclose(centers, [[0.894427, 0.447214], [-0.948683, 0.316228]], atol=1e-6)
    low, high = np.percentile([0.128924, 0.184919], (10, 90))
    np.testing.assert_allclose(phi, np.array([high, low]) * 0.4 / (high + low), atol=1e-6)


def test_components_of_one_or_of_equal_texts():
    assert centroids(Z[:3], np.array([0, 0, 1]))[1] == pytest.approx([0.1, 0.1])  # as wide as the widest
    equal = np.repeat(Z[:1], 4, axis=0)
    assert np.isfinite(centroids(equal, TWO)[1]).all()
    assert (centroids(equal, TWO)[1] > 0).all()


def test_documents_of_no_component_and_centroids_without_a_direction():
    centers, phi = centroids(Z, np.array([0, -1, 0, -1]))
    assert (centers.tolist(), phi.tolist()) == ([[0, 0]], [np.inf])
