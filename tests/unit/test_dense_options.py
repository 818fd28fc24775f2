"""What each setting of ``dense`` changes: draws, losses, training, the score."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rerank.errors import TrainingError, UsageError
from rerank.rankers.dense.config import PRESETS, DenseConfig, changed, dense_config
from rerank.rankers.dense.corruption import Corruption, Vocabulary
from rerank.rankers.dense.draws import Draw, Draws, Hierarchical
from rerank.rankers.dense.losses import Vectors
from rerank.rankers.dense.losses.semantics import Semantics, hardest
from rerank.rankers.dense.neighbours import Hops, Intimacy, intimacy
from rerank.rankers.dense.quintuplets import Sampler
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.texts import Fragments, Texts, Words
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.graphs.pagerank import dense_intimacy, top_intimacy
from rerank.records import Document, Query
from rerank.settings import settings_of, values_of
from tests.dense import Said, collection, trainer

G2 = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
"""The hand-worked graph; documents 5 and 6 have no links."""
STAR = [(10, 12), (10, 15)]
"""Document 10 is linked to 12 and 15."""


def neighbours(edges=G2, size=7, **options):
    graph = LinkGraph.from_edges([str(i) for i in range(size)], *np.array(edges).T.reshape(2, -1))
    return Intimacy(**options).find(graph, np.ones(size, bool))


def draws(of, anchor, count=400, **options):
    rng, how = np.random.default_rng(0), Hierarchical(**options)
    return [how.draw(of, anchor, rng) for _ in range(count)]


def sampler(of, fragments=None, how=None, **options):
    corruption = Corruption(**{n: options.pop(n) for n in values_of(Corruption()) if n in options})
    words = Words()
    texts = [f"{'long ' * 30 if fragments else ''}w{i} x{i} y{i} z{i}" for i in range(len(of.usable))]
    read = Texts.read([Document(str(i), text=t) for i, t in enumerate(texts)], words.tokens)
    vocabulary = Vocabulary(np.arange(1, len(words.number), dtype=np.int32), mask=0)
    cut = Fragments(read.tokens, 8, fragments or 8)
    return Sampler(of, how or Hierarchical(), cut, vocabulary, 4, corruption, **options)


# ------------------------------------------------------------------------------------------------- draws


def test_a_fixed_level_and_a_highest_one():
    assert {d.level for d in draws(neighbours(), 3)} == {1, 2, 3}
    assert {d.level for d in draws(neighbours(), 3, max_level=2)} == {1, 2}
    assert {(d.level, d.positive, d.negative) for d in draws(neighbours(), 3, level=3)} == {(3, 4, 2)}
    assert {d.level for d in draws(neighbours(), 3, level=4)} == {0}
    with pytest.raises(UsageError, match="exclude each other"):
        dense_config(level=1, max_level=2)


def test_a_grey_zone_takes_nothing_from_those_with_few_related_documents():
    found = neighbours(related=4, grey=10)
    assert found.related(3) == 4
    assert {d.level for d in draws(found, 3)} == {1, 2, 3}
    some = neighbours(related=1, grey=2)
    assert (some.related(3), len(some.near(3))) == (1, 3)
    assert {d.positive for d in draws(some, 3)} == {4}
    assert len({d.negative for d in draws(some, 3)} & {0, 1}) == 1


def test_neighbours_by_hops():
    """3 - 4 and 3 - 2 are links, 0 and 1 lie behind 2; 5 and 6 have no links."""
    graph = LinkGraph.from_edges([str(i) for i in range(7)], *np.array(G2).T)
    found = Hops().find(graph, np.ones(7, bool))
    assert [sorted(found.near(3)[:2]), sorted(found.near(3)[2:])] == [[2, 4], [0, 1]]
    assert found.scores_of(3).tolist() == [1.0, 1.0, 0.5, 0.5]
    assert found.near(5).tolist() == []
    assert Hops(farthest=1).find(graph, np.ones(7, bool)).related(3) == 2
    assert [Hops(related=1).find(graph, np.ones(7, bool), seed=s).related(3) for s in range(3)] == [1, 1, 1]
    some = Hops().find(graph, np.arange(7) != 2)  # without text it is no neighbour, and yet leads on
    assert sorted(some.near(3)) == [0, 1, 4]
    assert {d.level for d in draws(found, 3)} == {1, 2}  # those on the third level are as near as each other
    assert dense_config(neighbours="hops", farthest=2).neighbours == Hops(farthest=2)


def test_all_that_are_reachable(monkeypatch):
    """A wheel of 200: more than the 64 that are kept by default."""
    ring = [(i, (i + 1) % 200) for i in range(200)] + [(0, i) for i in range(2, 199)]
    assert neighbours(ring, 200).related(0) == 64
    assert neighbours(ring, 200, related=0).related(0) == 199
    monkeypatch.setattr(intimacy, "ALL", 100)
    with pytest.raises(UsageError, match="give --related"):
        neighbours(ring, 200, related=0)


def test_alpha_and_tolerance_reach_the_intimacy(monkeypatch):
    near = neighbours(alpha=0.9)
    np.testing.assert_allclose(
        near.scores[near.indptr[3] : near.indptr[4]],
        -np.sort(-np.delete(dense_intimacy(_matrix(G2, 7), 0.9)[3], [3, 5, 6])),
        rtol=1e-5,
    )
    monkeypatch.setattr(intimacy, "top_intimacy", partial(top_intimacy, exact=1))  # pushes
    found = [len(neighbours(G2, 7, tolerance=tolerance).near(4)) for tolerance in (0.6, 1e-6)]
    assert found[0] < found[1] == 4


def _matrix(edges, size):
    graph = LinkGraph.from_edges([str(i) for i in range(size)], *np.array(edges).T)
    return graph.matrix("sym")


def test_isolated_documents_stay_for_the_semantic_half_or_go():
    of = neighbours()
    assert sampler(of).anchors()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert sampler(of, isolated=False).anchors()[:, 0].tolist() == [0, 1, 2, 3, 4]
    for config, kept in (
        (dense_config(objective="quintuplet"), True),
        (dense_config(objective="quintuplet", isolated="skip"), False),
        (dense_config(objective="quintuplet", gamma=0.0), False),
        (dense_config(objective="semantics"), True),
        (dense_config(), False),
        (dense_config(objective="structure"), False),
    ):
        assert config.objective.keeps_isolated is kept


def test_every_fragment_is_an_anchor_once():
    of = sampler(neighbours(), fragments=3, unit="fragment")
    assert of.anchors().tolist() == [[d, f, 0] for d in range(7) for f in range(3)]
    assert of.steps() == 5
    seen = [(d.anchor, tuple(t)) for b in of.epoch(0) for d, t in zip(b.draws, b.anchor)]
    assert len(seen) == 20  # the last anchor is left out, as a smaller batch is
    assert max(Counter(seen).values()) <= 2  # the first fragments of a document read alike
    assert max(Counter(document for document, _ in seen).values()) == 3
    for batch in of.epoch(0):
        anchors = np.array([d.anchor for d in batch.draws])
        assert batch.near[anchors[:, None] == anchors].all()  # fragments of one document are no negatives
    assert len({tuple(t) for b in of.epoch(0) for d, t in zip(b.draws, b.corrupted) if d.anchor == 3}) == 3
    documents = sampler(neighbours(), fragments=3)
    assert len(documents.anchors()) == 7


def test_the_semantic_positive_is_of_the_same_fragment_or_of_any():
    for same in (True, False):
        of = sampler(neighbours(), fragments=3, same_fragment=same, corrupted=0.01)
        apart = [
            int((a != c).sum()) for e in range(5) for b in of.epoch(e) for a, c in zip(b.anchor, b.corrupted)
        ]
        assert (max(apart) == 1) is same


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_so_many_tokens_are_replaced(share):
    (batch,) = sampler(neighbours(), corrupted=share).epoch(0)
    assert [int((a != c).sum()) for a, c in zip(batch.anchor, batch.corrupted)] == [round(4 * share)] * 4
    (batch,) = sampler(neighbours(), corrupted=share, corruption="mask").epoch(0)
    assert [int((c == 0).sum()) for c in batch.corrupted] == [round(4 * share)] * 4


def test_the_nearest_of_all_texts_of_a_batch_by_hand():
    """Distances from the anchor, document 10: .00 itself, .05 another row of it, .10 its corrupted text, .30
    its positive 12, .35 its related document 15, .40 document 13, .90 document 14.
    """
    of = neighbours(STAR, 16)

    def rows(mask_related):
        fixed = _Fixed([Draw(10, 1, 12, 14), Draw(10, 1, 15, 13)])
        again = sampler(of, how=fixed, mask_related=mask_related).draw([(10, -1, 0), (10, 0, 0)], 0)
        return Vectors(
            anchor=torch.tensor([[0.0], [0.05]]),
            positive=torch.tensor([[0.3], [0.35]]),
            negative=torch.tensor([[0.9], [0.4]]),
            corrupted=torch.tensor([[0.1], [0.1]]),
            level=torch.tensor([1, 1]),
            near=torch.from_numpy(again.near),
            near_positive=torch.from_numpy(again.near_positive),
            near_negative=torch.from_numpy(again.near_negative),
        )

    def nearest(given, pool):
        others, near = given.others(pool)
        chosen, valid = hardest(given.anchor, others, near)
        return pytest.approx(others[chosen[0]].item()) if valid[0] else None

    masked = rows(True)
    assert nearest(masked, "all") == 0.4
    assert nearest(rows(False), "all") == 0.35
    assert nearest(masked, "anchors") is None
    assert torch.isfinite(Semantics()(masked))
    none = replace(masked, near_negative=torch.ones(2, 2, dtype=torch.bool))
    assert nearest(none, "all") is None
    assert Semantics(pool="all")(none).item() == 0
    alone = replace(masked, level=torch.tensor([1, 0]))  # the other row has its own text as pair
    assert nearest(alone, "all") == 0.9


class _Fixed(Draws):
    """Draws that are given."""

    def __init__(self, given):
        self.given = list(given)

    def draw(self, neighbours, anchor, rng):
        return self.given.pop(0)


# ------------------------------------------------------------------------------------------------ losses


def vectors(level):
    eye = torch.eye(2, dtype=torch.bool)
    return Vectors(
        anchor=torch.tensor([[0.0, 0.0], [0.0, 1.2]]),
        positive=torch.tensor([[3.0, 4.0], [0.0, 1.2]]),
        negative=torch.tensor([[0.0, 6.0], [0.0, 1.2]]),
        corrupted=torch.tensor([[1.0, 0.0], [0.0, 1.2]]),
        level=torch.tensor([level, 0]),
        near=torch.tensor([[True, False], [True, True]]),
        near_positive=eye,
        near_negative=eye,
    )


@pytest.mark.parametrize(
    ("name", "changes", "level", "loss"),
    [
        ("quintuplet", {}, 1, 0.65),
        ("quintuplet", {"gamma": 0.25}, 1, 0.825),
        ("quintuplet", {"gamma": 0.0, "structural_margin": 4.0}, 3, 1 / 3),
        ("quintuplet", {"gamma": 0.0, "structural_margin": 4.0, "margin": "geometric"}, 3, 0),
        ("quintuplet", {"gamma": 0.0, "structural_margin": 4.0, "margin": "constant"}, 3, 3),
        ("quintuplet", {"gamma": 1.0, "semantic_margin": 2.0}, 1, 1.8),
        ("structure", {"structural_margin": 8.0, "margin": "geometric"}, 2, 3),
        ("semantics", {"semantic_margin": 1.0}, 1, 0.8),
        ("fixed-margin", {"gamma": 0.0}, 3, 1),
        ("triplet", {"structural_margin": 5.0}, 1, 4),
    ],
)
def test_settings_of_the_losses_by_hand(name, changes, level, loss):
    """Distances 5 and 6 to the structural pair, 1 and 1.2 to the semantic one."""
    assert dense_config(objective=name, **changes).objective(vectors(level)).item() == pytest.approx(
        loss, abs=1e-6
    )


def test_a_half_that_counts_nothing_is_not_encoded():
    def branches(**changes):
        return dense_config(objective="quintuplet", **changes).objective.branches

    assert branches() == ("anchor", "positive", "negative", "corrupted")
    assert branches(gamma=0) == ("anchor", "positive", "negative")
    assert branches(gamma=1) == ("anchor", "corrupted")


def test_settings_that_the_objective_does_not_read_are_refused():
    for changes, what in (
        ({"gamma": 0.3}, "gamma has no effect with --objective contrastive.*quintuplet, fixed-margin"),
        ({"objective": "quintuplet", "temperature": 0.1}, "temperature has no effect"),
        ({"objective": "triplet", "max_level": 2}, "max-level has no effect with --positives row"),
        ({"objective": "triplet", "alpha": 0.3}, "alpha has no effect with --neighbours linked"),
        ({"objective": "fixed-margin", "margin": "geometric"}, "margin has no effect"),
        ({"objective": "structure", "same_fragment": True}, "same-fragment has no effect"),
        ({"objective": "semantics", "level": 1}, "level has no effect with --objective semantics"),
        (
            {"objective": "quintuplet", "gamma": 1, "margin": "geometric"},
            "no effect with --gamma 1",
        ),
        ({"objective": "quintuplet", "gamma": 0, "corrupted": 0.5}, "corrupted has no effect with --gamma 0"),
        *(
            (
                {"positives": "row", name: value},
                f"{name.replace('_', '-')} has no effect with --(neighbours linked|positives row)",
            )
            for name, value in {
                "related": 8,
                "grey": 1,
                "alpha": 0.2,
                "tolerance": 0.1,
                "axis": "row",
            }.items()
        ),
        ({"positives": "row", "level": 1}, "level has no effect with --positives row"),
        ({"related": 0, "grey": 5}, "grey has no effect with --related 0"),
        ({"held_out": 0, "patience": 2}, "patience has no effect with --held-out 0"),
        ({"steps": 5, "epochs": 2}, "epochs has no effect with --steps 5"),
    ):
        with pytest.raises(UsageError, match=what):
            dense_config(**changes)
    assert dense_config(objective="quintuplet", gamma=0.3).objective.gamma == 0.3


def test_pairs_without_levels_come_from_links_unless_told_otherwise():
    def chosen(**changes):
        values = values_of(dense_config(**changes))
        return values["positives"], values["neighbours"]

    assert chosen() == ("hierarchical", "intimacy")
    assert chosen(positives="row") == chosen(objective="triplet") == ("row", "linked")
    assert chosen(positives="row", neighbours="intimacy", related=8) == ("row", "intimacy")
    assert chosen(objective="triplet", positives="hierarchical", max_level=2) == ("hierarchical", "intimacy")


def test_every_setting_is_what_a_copy_of_it_has():
    for preset in PRESETS:
        config = dense_config(preset)
        assert changed(config) == config
    assert 8 <= sum(one.common for one in settings_of(DenseConfig)) <= 16


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "hinge"},
        {"margin": "linear"},
        {"pool": 2000},
        {"temperature": 0.0},
        {"structural_margin": -1.0},
        {"structural_margin": float("nan")},
        {"tolerance": 0.0},
        {"rate": float("inf")},
        {"warmup": 2.0},
    ],
)
def test_settings_that_cannot_be(changes):
    with pytest.raises(UsageError):
        dense_config(**{"objective": "quintuplet" if "margin" in str(changes) else "contrastive", **changes})


def test_the_papers_settings():
    paper = SimpleNamespace(**values_of(dense_config("paper")))
    assert (paper.objective, paper.margin, paper.gamma) == ("quintuplet", "harmonic", 0.5)
    assert (paper.structural_margin, paper.semantic_margin) == (2.0, 0.5)
    assert (paper.related, paper.mask_related, paper.axis, paper.alpha) == (0, False, "row", 0.15)
    assert (paper.epochs, paper.held_out, paper.batch, paper.rate) == (1, 0.0, 24, 5e-5)
    assert (paper.fragment_tokens, paper.best, paper.normalise, paper.pool) == (128, 5, False, "anchors")
    assert dense_config("paper", related=64, epochs=None).neighbours.related == 64
    with pytest.raises(UsageError, match="preset"):
        dense_config("quick")


def test_measured_every_so_many_steps_until_patience_ends(tiny):
    whole = trainer(tiny, every=2).fit()
    assert [m.step for m in whole.history] == [0, 2, 4, 6]
    stopped = trainer(tiny, every=2, steps=40, rate=1e-12, patience=2).fit()
    assert [m.step for m in stopped.history] == [0, 2, 4, 6]
    assert stopped.best == 0


def test_the_rate_rises_as_long_as_warmup_says(tiny):
    task = trainer(tiny, warmup=0.5, rate=0.001, steps=10)
    loop, rates = task.trainer(), []
    for step, batch in enumerate(task.batches(0)):
        loop.step(batch, step)
        rates.append(loop.optimizers[0].param_groups[0]["lr"])
    assert rates[:4] == pytest.approx([0.0002, 0.0004, 0.0006, 0.0008])
    loop = trainer(tiny, warmup=0.0, rate=0.001, steps=10).trainer()
    loop.step(batch, 0)
    assert loop.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.001)


def test_bfloat16_is_used_where_it_is_asked_for(tiny):
    found = []
    for asked in ("fp32", "bf16"):
        one = trainer(tiny, precision=asked)
        one.encoder.model.eval()
        with torch.no_grad():
            found.append(one.encoding.encode(next(one.sampler.epoch(0)).anchor))
    assert 1e-5 < float((found[0] - found[1]).abs().max()) < 0.1


def test_without_anything_held_out_the_last_step_is_kept(tiny):
    said = Said()
    fit = trainer(tiny, said, held_out=0.0).fit()
    assert fit.best == fit.steps == 6
    assert [m.measures for m in fit.history] == [{}] * 3
    assert any("nothing is held out" in line for line in said.lines)


def test_a_margin_that_cannot_be_kept_is_said(tiny):
    def lines(**changes):
        said = Said()
        fit = trainer(tiny, said, steps=1, **changes).fit()
        return fit.counts["distance"], [line for line in said.lines if "can hardly be kept" in line]

    wide, said = lines(objective="quintuplet", structural_margin=0.5)
    assert wide > 0.5
    assert not said
    apart, said = lines(objective="quintuplet", structural_margin=2 * wide)
    assert apart == wide
    assert "lower --structural-margin" in said[0]
    narrow, said = lines(objective="structure", scale=0.01)
    assert narrow == pytest.approx(wide / 100, rel=1e-3)
    assert said
    assert not lines()[1]  # contrastive has none
    unit = 1 / 32**0.5  # a layer norm of 32 numbers gives vectors of length 1, before they are averaged
    assert lines(objective="structure", structural_margin=1.2, scale=unit)[1]


def test_what_is_counted_beside_the_training(tiny):
    """Isolated documents have no structural pair; a wide margin keeps every hinge active, one of 0 some."""
    documents = collection(48) + [Document(f"alone{i}", text=f"w{i}") for i in range(12)]
    fit = trainer(tiny, documents=documents, steps=5, objective="quintuplet", structural_margin=1e3).fit()
    tally = fit.counts
    assert tally["anchors"] == 60
    assert tally["masked"] == 12
    assert fit.masked == 0.2
    assert tally["structural"] == tally["active_structural"] == 48
    assert 0 < tally["active_semantic"] <= tally["semantic"] <= 60
    fit = trainer(tiny, documents=documents, steps=5, objective="structure", structural_margin=0.0).fit()
    assert 0 < fit.counts["active_structural"] < fit.counts["structural"]
    assert "semantic" not in fit.counts
    fit = trainer(tiny, steps=5).fit()
    assert "active_structural" not in fit.counts
    parts = trainer(tiny, documents=documents, steps=5, objective="quintuplet", accumulate=3).fit()
    assert parts.counts["structural"] == 48


def test_a_collection_in_which_nothing_is_told_apart(tiny):
    """One component of fewer documents than are related to each: no negative is left."""
    ring = [Document(str(i), text=f"w{i}", links=(str((i + 1) % 20),)) for i in range(20)]
    ring_of = {"documents": ring, "held_out": 0.0}
    with pytest.raises(TrainingError, match=r"no document had another one to be told from.*lower --related"):
        trainer(tiny, **ring_of, related=64).fit()
    assert trainer(tiny, **ring_of, related=4).fit().steps == 6
    assert trainer(tiny, **ring_of, related=64, objective="quintuplet").fit().steps == 6
    assert trainer(tiny, **ring_of, related=64, mask_related=False).fit().steps == 6


def test_a_score_that_is_not_divided(tiny):
    encoder = TextEncoder.load(tiny, longest=16)
    long, short = Document("long", text=" ".join(["w1 w2"] * 40)), Document("short", text="w1 w2")
    for normalise in (True, False):
        ranker = DenseRanker.of("dense", encoder, 4, {}, best=5, normalise=normalise)
        scores = ranker.score(
            ranker.encode_query(Query("q", "w1 w2")), ranker.encode_documents([long, short])
        )
        assert (scores[0] > scores[1]) is not normalise
        assert ranker.bounds[0] <= scores.min() <= scores.max() <= ranker.bounds[1] + 1e-6
        assert ranker.bounds[1] == pytest.approx(
            1 if normalise else sum(np.exp(-0.05 * k) for k in (1, 2, 3, 4))
        )
    assert ranker.version != DenseRanker.of("dense", encoder, 4, {}).version


def test_how_fast_the_weights_of_fragments_fall(tiny, tmp_path):
    encoder = TextEncoder.load(tiny, longest=16)
    told = DenseRanker.of("dense", encoder, 4, {}, best=4, decay=2.0, normalise=False)
    told.save(tmp_path / "ranker")
    ranker = DenseRanker.load(tmp_path / "ranker")
    features = ranker.encode_documents([Document("a", text=" ".join(f"w{i}" for i in range(30)))])
    query = ranker.encode_query(Query("q", "w1 w2 w3"))
    cosines = np.sort(np.maximum(ranker.cosines(query, features)[0], 0))[::-1]
    by_hand = sum(cosine * np.exp(-2.0 * k) for k, cosine in enumerate(cosines.tolist(), 1))
    assert ranker.score(query, features).tolist() == pytest.approx([by_hand])
    assert ranker.version != DenseRanker.of("dense", encoder, 4, {}, best=4, normalise=False).version
    assert dense_config(decay=0.5).decay == 0.5
