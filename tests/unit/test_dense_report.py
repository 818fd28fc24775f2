"""The report on ``dense``: its numbers worked by hand, what is drawn for it, its runs, its drawings."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.errors import TrainingError
from rerank.graph.levels import level_size, levels
from rerank.graph.links import LinkGraph, hold_out
from rerank.progress import Progress
from rerank.rankers.dense.transformer import TextEncoder
from rerank.records import Document
from rerank.reports.dense.charts import boxes, gaps, histograms, lines, recalls
from rerank.reports.dense.discs import disc, span
from rerank.reports.dense.figures import Group, Margin, Ring, Separation
from rerank.reports.dense.hops import FARTHER, UNREACHABLE, hops
from rerank.reports.dense.measuring import Measured, margin_asked
from rerank.reports.dense.neighbours import NONE, OTHER, in_common, legend, share_near, tsne
from rerank.reports.dense.numbers import histogram, nearer, order_kept, quantiles
from rerank.reports.dense.sample import Drawer, Pairs, Sample, place_levels
from rerank.reports.dense.sensitivity import Run, Sweep
from rerank.reports.dense.subgraphs import choose, layout
from rerank.reports.dense.svg import Scale, ticks
from rerank.reports.dense.vectors import cosine_distance, raw_vectors
from rerank.reports.pages import render
from rerank.training.dense.config import changed, dense_config
from rerank.training.dense.losses.quintuplet import FixedMargin, Quintuplet
from rerank.training.dense.neighbours import Intimacy
from rerank.training.dense.texts import Texts

G2 = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
"""The hand-worked graph; documents 5 and 6 have no links."""


def graph_of(edges, size):
    return LinkGraph.from_edges([str(i) for i in range(size)], *np.array(edges).T.reshape(2, -1))


def drawer(graph, held=(), usable=None, **options):
    usable = np.ones(len(graph.ids), bool) if usable is None else np.array(usable)
    neighbours = Intimacy(**options).find(graph, usable)
    pairs = np.array(held, dtype=np.int32).reshape(-1, 2)
    return Drawer(graph, pairs, neighbours, np.random.default_rng(0))


# ----------------------------------------------------------------------------------------------- numbers


def test_how_probable_it_is_that_a_related_pair_is_nearer():
    assert nearer(np.array([1.0, 2.0]), np.array([3.0])) == 1
    assert nearer(np.array([3.0]), np.array([1.0, 2.0])) == 0
    assert nearer(np.array([2.0]), np.array([1.0, 2.0, 3.0, 3.0])) == pytest.approx((0 + 0.5 + 1 + 1) / 4)
    assert nearer(np.array([]), np.array([1.0])) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 5), min_size=1))
def test_it_is_the_area_under_the_roc_curve(near, far):
    from sklearn.metrics import roc_auc_score

    labels = [1] * len(near) + [0] * len(far)
    wanted = roc_auc_score(labels, [-v for v in near + far])
    assert nearer(np.array(near, float), np.array(far, float)) == pytest.approx(wanted)


def test_quantiles_and_histograms():
    assert quantiles(np.array([])) is None
    assert quantiles(np.array([3.0])) == [3.0] * 5
    assert quantiles(np.array([0.0, 1.0, 2.0, 3.0, 4.0])) == pytest.approx([0.2, 1, 2, 3, 3.8])
    assert histogram(np.array([0.1, 0.9, 1.9, 7.0]), np.array([0.0, 1.0, 2.0])) == [0.5, 0.5]


def test_how_well_an_order_is_kept():
    found = order_kept(np.zeros(4, int), np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    assert (found.correlation, found.exact, found.one_off, found.farther) == (1, 1, 0, 0)
    found = order_kept(np.zeros(4, int), np.arange(4), np.array([4.0, 3.0, 2.0, 1.0]))
    assert found.correlation == pytest.approx(-1)
    assert (found.exact, found.one_off, found.farther) == (0, 0.5, 0.5)
    # Two sets: one swap of neighbours (Spearman 0.5), and one in order; the third has one document.
    sets, groups = np.array([7, 7, 7, 2, 2, 5]), np.array([1, 2, 5, 0, 9, 1])
    found = order_kept(sets, groups, np.array([0.2, 0.1, 0.3, 0.4, 0.6, 0.1]))
    assert found.sets == 2
    assert found.correlation == pytest.approx((0.5 + 1) / 2)
    assert (found.exact, found.one_off) == pytest.approx((3 / 5, 2 / 5))
    assert order_kept(np.array([1]), np.array([1]), np.array([0.5])) is None


def test_equal_distances_are_no_order():
    found = order_kept(np.zeros(3, int), np.arange(3), np.ones(3))
    assert (found.correlation, found.exact) == (0, pytest.approx(1 / 3))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_what_chance_gives_is_the_mean_over_all_orders(size):
    every = list(itertools.permutations(range(size)))
    sets = np.repeat(np.arange(len(every)), size)
    found = order_kept(sets, np.tile(np.arange(size), len(every)), np.array(every, float).ravel())
    assert found.correlation == pytest.approx(0, abs=1e-12)
    assert (found.exact, found.one_off) == pytest.approx((found.chance_exact, found.chance_one_off))


@pytest.mark.parametrize(
    ("objective", "margin", "wanted"),
    [
        ("quintuplet", "harmonic", [2, 1, 0.5]),
        ("structure", "geometric", [2, 1, 0.25]),
        ("quintuplet", "constant", [2, 2, 2]),
        ("fixed-margin", "harmonic", [2, 2, 2]),
    ],
)
def test_margins_by_level(objective, margin, wanted):
    asked = {"structural_margin": 2.0, "objective": objective, "margin": margin}
    assert [margin_asked(level, asked) for level in (1, 2, 4)] == wanted


def test_distances_of_vectors():
    vectors = np.float32([[1, 0], [0, 2], [-3, 0]])
    assert cosine_distance(vectors, np.array([0, 0]), np.array([1, 2])).tolist() == [1, 2]


# -------------------------------------------------------------------------------------- levels and hops


@settings(deadline=None)
@given(st.integers(0, 200))
def test_a_documents_level_is_the_deepest_where_it_is_a_positive(related):
    at = place_levels(related)
    assert (np.diff(at) <= 0).all()
    for level in range(1, levels(related) + 1):
        assert (at >= level).sum() == level_size(related, level)
    assert (place_levels(related, 2) == np.minimum(at, 2)).all()


def test_levels_by_hand():
    assert place_levels(1).tolist() == [1]
    assert place_levels(2).tolist() == [2, 1]
    assert place_levels(7).tolist() == [4, 3, 2, 2, 1, 1, 1]


def test_hops_by_hand():
    links, components = graph_of(G2, 7).matrix(), np.array([0, 0, 0, 0, 0, 1, 2])
    assert hops(links, 4, components).tolist() == [3, 3, 2, 1, 0, UNREACHABLE, UNREACHABLE]
    assert hops(links, 5, components).tolist() == [5, 5, 5, 5, 5, 0, 5]
    line = graph_of([(i, i + 1) for i in range(6)], 7).matrix()
    assert hops(line, 0, np.zeros(7, int)).tolist() == [0, 1, 2, 3, FARTHER, FARTHER, FARTHER]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_hops_are_shortest_paths(seed):
    from scipy.sparse.csgraph import connected_components, shortest_path

    rng = np.random.default_rng(seed)
    graph = graph_of(rng.integers(30, size=(35, 2)), 30)
    links = graph.matrix()
    wanted = shortest_path(links, unweighted=True, indices=0)
    wanted = np.where(np.isinf(wanted), UNREACHABLE, np.minimum(wanted, FARTHER))
    assert hops(links, 0, connected_components(links)[1]).tolist() == wanted.tolist()


# ------------------------------------------------------------------------------------------ what is drawn


def of(pairs, anchor):
    mine = pairs.anchors == anchor
    return set(zip(pairs.groups[mine].tolist(), pairs.others[mine].tolist()))


def test_pairs_of_the_hand_worked_graph():
    """Anchor 3: 4, then 2, then 0 and 1 are related; 5 and 6 are not."""
    found = drawer(graph_of(G2, 7)).draw(100)
    assert found.anchors.tolist() == [0, 1, 2, 3, 4]
    by_level = of(found.levels, 3)
    assert {(3, 4), (2, 2)} <= by_level
    assert {level for level, _ in by_level} == {0, 1, 2, 3}
    assert {other for level, other in by_level if level == 1} <= {0, 1}
    assert {other for level, other in by_level if level == 0} <= {5, 6}
    by_hops = of(found.hops, 4)
    assert {(1, 3), (2, 2)} <= by_hops
    assert {other for hop, other in by_hops if hop == 3} <= {0, 1}
    assert {hop for hop, _ in by_hops} == {1, 2, 3, UNREACHABLE}
    assert of(found.linked, 4) <= {(1, 3), (0, 5), (0, 6)}
    assert {tuple(row) for row in found.margins[found.margins[:, 0] == 4][:, [3]].tolist()} <= {
        (1,),
        (2,),
        (3,),
    }
    assert set(found.documents.tolist()) >= set(found.anchors.tolist())
    assert not len(found.held.anchors)


def test_documents_without_text_are_in_no_pair():
    found = drawer(graph_of(G2, 7), usable=[True, True, True, False, True, True, False]).draw(100)
    assert not {3, 6} & set(found.documents.tolist())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_held_out_links_are_in_no_group_but_their_own(seed):
    rng = np.random.default_rng(seed)
    whole = graph_of(rng.integers(40, size=(120, 2)), 40)
    graph, held = hold_out(whole, 0.3, seed=1)
    found = drawer(graph, held, related=8).draw(40)
    apart = {frozenset(pair) for pair in held.tolist()}

    def pairs(of):
        return {frozenset(pair) for pair in zip(of.anchors.tolist(), of.others.tolist())}

    for group in (found.linked, found.levels, found.hops):
        assert not pairs(group) & apart
    mine = found.held.groups == 1
    assert mine.any()
    own = Pairs(found.held.anchors[mine], found.held.others[mine], found.held.groups[mine])
    assert pairs(own) <= apart
    for anchor, positive, negative, _ in found.margins.tolist():
        assert frozenset((anchor, positive)) not in apart
        assert frozenset((anchor, negative)) not in apart
    learned = {frozenset(pair) for pair in graph.pairs().tolist()}
    unrelated = found.linked.groups == 0
    far = Pairs(
        found.linked.anchors[unrelated], found.linked.others[unrelated], found.linked.groups[unrelated]
    )
    assert not pairs(far) & (learned | apart)


def test_the_digest_of_a_graph_says_whether_the_same_links_are_held_out():
    def digest(*documents):
        return LinkGraph.of(documents).digest()

    a, b, c = Document("a", links=("b", "c")), Document("b"), Document("c")
    assert digest(a, b, c) == digest(replace(a, links=("c", "b", "b", "a", "x")), b, c)
    assert len({digest(a, b, c), digest(b, a, c), digest(a, b), digest(replace(a, links=()), b, c)}) == 4


# -------------------------------------------------------------------------------------------- subgraphs


def test_subgraphs_are_middles_with_what_they_are_linked_with():
    """Three stars of four leaves; 4 and 15 have no text, and 16 too few links."""
    stars = [(middle, middle + leaf) for middle in (0, 5, 10) for leaf in range(1, 5)] + [(14, 15), (16, 17)]
    usable = np.ones(18, bool)
    usable[[4, 15]] = False
    found = choose(graph_of(stars, 18).matrix("sym"), usable, np.random.default_rng(0))
    groups = {frozenset(found[found[:, 1] == group, 0].tolist()) for group in range(3)}
    assert groups == {frozenset({0, 1, 2, 3}), frozenset(range(5, 10)), frozenset(range(10, 15))}
    assert len(choose(graph_of([(0, 1)], 2).matrix("sym"), np.ones(2, bool), np.random.default_rng(0))) == 0


def test_the_layout_keeps_the_number_of_links_between():
    path = np.diag(np.ones(5, bool), 1)
    places = layout(path | path.T, 0)
    apart = np.linalg.norm(places[:, None] - places, axis=2)
    hops_between = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    assert np.corrcoef(apart.ravel(), hops_between.ravel())[0, 1] > 0.99
    assert layout(np.zeros((4, 4), bool), 0) is None
    assert np.isfinite(layout(np.zeros((6, 6), bool), 0)).all()  # no link at all


# ------------------------------------------------------------------------------------------ one encoder


def test_one_side_by_hand():
    """Two anchors, 0 and 1: the linked document of 0 is nearer than its unrelated one, that of 1 is not."""
    linked = Pairs.of([(0, 2, 1), (0, 3, 0), (1, 3, 1), (1, 2, 0)])
    nothing = Pairs.of([])
    levels_drawn = Pairs.of([(0, 2, 2), (0, 1, 1), (0, 3, 0)])
    margins = np.array([[0, 2, 3, 1], [0, 2, 1, 2]])
    documents = np.arange(4)
    sample = Sample(linked, nothing, levels_drawn, nothing, margins, documents, documents, np.array([0, 1]))
    vectors = np.float32([[1, 0], [0.6, 0.8], [1, 0], [0, 1]])
    own = np.float32([[0, 2]])
    measured = Measured(sample, vectors, own, np.array([0]))
    such = np.zeros((4, 4), bool)
    such[0, 2] = such[2, 0] = True
    settings = {"structural_margin": 1.0, "objective": "quintuplet"}
    side = measured.side(np.linspace(0, 1, 3), settings, None, None, (such, such, np.zeros((4, 4), bool)))
    # Distances: 0-2 0, 0-3 1, 1-3 0.2, 1-2 0.4.
    assert side.linked.nearer == 1
    assert side.linked.same_anchor == 1
    assert side.linked.related[2] == pytest.approx(0.1)
    assert side.linked.unrelated_histogram == [0.5, 0.5]
    assert side.held_out.pairs == 0
    assert side.held_out.nearer is None
    assert [(g.group, g.pairs) for g in side.levels] == [("2", 1), ("1", 1), ("unrelated", 1)]
    assert side.level_order.correlation == pytest.approx(1)
    assert [g.group for g in side.hops] == ["same document"]
    assert side.hops[0].quantiles[2] == pytest.approx(1)
    first, second = side.margins
    # Euclidean: 0-3 sqrt 2, 0-1 sqrt 0.8.
    assert (first.asked, first.in_order, first.kept) == (1, 1, 1)
    assert first.farther - first.nearer == pytest.approx(2**0.5)
    assert (second.asked, second.kept) == (0.5, 1)
    assert side.rings[-1].group == "unrelated"
    assert side.rings[-1].mean == pytest.approx(2**0.5)
    assert (side.hop_rings, side.same_subgraph) == ([], None)
    assert side.common_link.documents == 2
    assert side.common_held_out is None


def test_neighbours_by_hand():
    unit = np.float32([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]])
    such = np.zeros((4, 4), bool)
    such[0, 3] = such[3, 0] = such[0, 1] = such[1, 0] = True
    found = share_near(unit, such, nearest=1)  # 0 -> 1 yes, 1 -> 0 yes, 3 -> 2 no
    assert (found.documents, found.nearest) == (3, pytest.approx(2 / 3))
    assert found.chance == pytest.approx((2 + 1 + 1) / 3 / 3)
    assert share_near(unit, np.zeros((4, 4), bool)) is None


def test_colours_of_categories():
    some = [("all", "big"), ("all", "big", "small"), ("all",), ("all", "tiny"), ("all", "big"), ()]
    found = legend(some)
    assert found.left_out == ["all"]
    assert found.names == ["big", "small", "tiny"]
    assert found.marks == [0, 1, OTHER, 2, 0, NONE]
    assert found.counts == [2, 1, 1]
    many = legend([(str(i),) for i in range(20)])
    assert len(many.names) == 7
    common = in_common(some, found.left_out)
    assert np.argwhere(np.triu(common)).tolist() == [[0, 1], [0, 4], [1, 4]]
    assert not in_common([(), ()], []).any()


def test_a_map_is_the_same_again_and_starts_from_another():
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(30, 8)).astype(np.float32)
    first = tsne(unit, 0)
    assert first.shape == (30, 2)
    assert (first.min() >= 0) & (first.max() <= 1)
    assert (tsne(unit, 0) == first).all()
    assert tsne(unit, 0, first).shape == (30, 2)
    assert tsne(unit[:4], 0) is None
    assert np.isfinite(tsne(np.ones((8, 3), np.float32), 0)).all()


def test_raw_vectors_are_those_of_the_ranker_before_they_get_length_one(tiny):
    encoder = TextEncoder.load(tiny, longest=16)
    texts = encoder.tokens(["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10"])
    raw = raw_vectors(encoder, texts)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.01
    np.testing.assert_allclose(raw / lengths, encoder.encode(texts), atol=1e-5)


# ------------------------------------------------------------------------------------------ sensitivity


@pytest.fixture
def sweep(tiny, tmp_path):
    encoder = TextEncoder.load(tiny, longest=16)
    rng = np.random.default_rng(0)
    documents = [
        Document(str(i), text=" ".join(f"w{j}" for j in rng.integers(40, size=5)), links=(str((i + 6) % 24),))
        for i in range(24)
    ]
    texts = Texts.read(documents, encoder.tokens)
    config = dense_config(model=tiny, fragment_tokens=16, batch=4, held_out=0.2)

    def build(**changes):
        of = {"objective": "quintuplet"} if "gamma" in changes else {}
        return Sweep(tmp_path, changed(config, **of, **changes), texts, encoder)

    return build


class Lines(Progress):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def test_what_is_tried(sweep):
    plan = sweep().plan()
    assert len(plan) == len(set(plan)) == 12  # 5 + 5 + 4, two of which are the ranker's own again
    assert {type(config.objective) for config in plan} == {Quintuplet}
    assert len(sweep(gamma=0.3).plan()) == 13
    assert len(sweep(objective="triplet", positives="row", leave_out=("qrels.tsv",)).plan()) == 12
    assert {type(config.objective) for config in sweep(objective="fixed-margin").plan()} == {FixedMargin}


def test_runs_are_kept_and_not_done_twice(sweep, tiny, monkeypatch):
    def start():
        while True:
            yield TextEncoder.load(tiny, longest=16)

    mine = sweep()
    monkeypatch.setattr(Sweep, "plan", lambda self: [self._with("gamma", v) for v in (0.0, 0.5, 1.0)])
    assert mine.found() is None
    said = Lines()
    mine.run(start(), 2, said)
    assert len(said.lines) == 3
    assert "minutes left" in said.lines[0]
    found = mine.found()
    assert [run.gamma for run in found.curves["gamma"]] == [0, 0.5, 1]
    assert [run.semantic_margin for run in found.curves["semantic_margin"]] == [0.5]
    assert (found.steps, found.missing, found.own["gamma"]) == (2, 0, 0.5)
    # A crash left half a line; one run is lost, the others are skipped.
    text = mine.path.read_text()
    mine.path.write_text(text[:-20])
    said = Lines()
    mine.run(start(), 2, said)
    assert said.lines[0] == "sensitivity: 2 of 3 runs are there"
    assert len(said.lines) == 2
    again = mine.found()
    assert [replace(r, seconds=0) for r in again.curves["gamma"]] == [
        replace(r, seconds=0) for r in found.curves["gamma"]
    ]
    # Of other settings, or of other steps: not these.
    assert sweep(rate=0.1).found() is None
    assert mine.found(3) is None
    assert sweep(gamma=0.25).found().own["gamma"] == 0.25


def test_a_ranker_without_held_out_links_has_nothing_to_measure_by(sweep, tiny):
    mine = sweep(held_out=0.0)
    with pytest.raises(TrainingError, match="train it with held_out"):
        mine.run([TextEncoder.load(tiny, longest=16)], 1, Progress())
    assert not mine.path.exists()


def test_ctrl_c_keeps_what_is_done(sweep, tiny, monkeypatch):
    from rerank.training.dense.trainer import DenseTrainer

    mine, plain, calls = sweep(), DenseTrainer._step, []

    def step(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(self, *args)

    monkeypatch.setattr(DenseTrainer, "_step", step)
    said = Lines()
    with pytest.raises(KeyboardInterrupt):
        mine.run(iter(lambda: TextEncoder.load(tiny, longest=16), None), 2, said)
    assert said.lines[-1] == "sensitivity: 1 of 12 runs are kept; the same command goes on"
    assert len(mine.path.read_text().split("\n")) == 2  # an empty line, and the run
    assert mine.found().missing == 11


# --------------------------------------------------------------------------------------------- drawings


class Balanced(HTMLParser):
    """Fails where a tag is closed that is not open."""

    EMPTY = ("meta", "link", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_scales_and_ticks():
    scale = Scale(2.0, 4.0, 10, 110)
    assert [scale(v) for v in (2, 3, 4, 9, -5)] == [10, 60, 110, 110, 10]
    assert Scale(1.0, 1.0, 0, 10)(1.0) == 5
    assert ticks(0, 0) == [0]
    assert ticks(0.12, 0.13, 5) == [0.12, 0.122, 0.124, 0.126, 0.128, 0.13]


RUNS = [Run(g, 0.5, 2.0, 0.1, 0.2, 0.1 + g / 10, 0.2 + g / 10, None, 1.0) for g in (0.0, 0.5, 1.0)]
PAIRS = Separation(2, 1.0, 1.0, [0, 0, 0.1, 1, 1], [0, 0, 0.4, 1, 1], [0.5, 0.5], [0.0, 1.0])


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: histograms(PAIRS, [0, 0.5, 1], 1.0, "t"),
        lambda: histograms(Separation(0, None, None, None, None, [0, 0], [0, 0]), [0, 0.5, 1], 0.0, "t"),
        lambda: boxes([Group("1", 2, [0, 1, 2, 3, 4])], [Group("1", 2, [0, 1, 2, 3, 4])], "t", "level"),
        lambda: boxes(None, [Group("1", 0, None)], "t", "level"),
        lambda: gaps(None, [Margin(1, 2, 2.0, 1.0, 1.5, 0.5, 0.0)], "", "t"),
        lambda: disc([Ring("1", 1, 1.0, [1.0]), Ring("unrelated", 1, 2.0, [2.0])], 0.5, 2.5, "t"),
        lambda: lines("gamma", RUNS, 0.5, recalls(RUNS), "t"),
    ],
)
def test_drawings_are_well_formed(drawn):
    seen = Balanced(drawn()).seen
    assert seen[0][0] == "svg"
    assert int(seen[0][1]["width"]) > 0
    assert seen[0][1]["aria-label"].startswith("t")
    assert "nan" not in drawn()


def test_rings_lie_where_their_distances_are():
    rings = [Ring("1", 1, 2.0, []), Ring("unrelated", 1, 3.0, [])]
    low, high = span(rings)
    radii = [float(r) for r in re.findall(r'r="([\d.]+)" class="ring ', disc(rings, low, high, "t"))]
    assert radii[0] < radii[1]
    assert span([]) == (0, 1)
    assert span([Ring("1", 1, 2.0, [])])[1] > 2


def contrast(one, other):
    """WCAG 2: (L1 + 0.05) / (L2 + 0.05) of relative luminances."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palettes():
    """The colours of the style sheet, in light and in dark."""
    blocks = re.findall(r":root \{(.*?)\}", render("style.css"), re.DOTALL)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in blocks]


LIGHT, DARK = palettes()


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_read(colours):
    assert LIGHT.keys() == DARK.keys()
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for name in ("ink", "soft"):
        assert contrast(colours[name], colours["paper"]) >= 4.5
        assert contrast(colours[name], colours["panel"]) >= 4.5
    for name in ("near", "far", "other", *(f"c{i}" for i in range(7))):
        assert contrast(colours[name], colours["paper"]) >= 3
