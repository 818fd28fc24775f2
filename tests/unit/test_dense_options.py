"""What each setting of ``dense`` changes: draws, losses, training, the score."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rerank.errors import TrainingError, UsageError
from rerank.rankers.dense import neighbors as neighbors_of
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.corruption import Vocabulary
from rerank.rankers.dense.losses import make_loss
from rerank.rankers.dense.quintuplets import QuintupletSampler
from rerank.rankers.dense.texts import Passages, Texts
from rerank.records import Document
from tests.dense import collection, trainer
from tests.quintuplets import vectors
from tests.unit.test_dense_draws import neighbors
from tests.watch import Watch
from tests.words import Words


def sampler(of, passages=None, **options):
    words = Words()
    texts = [f"{'long ' * 30 if passages else ''}w{i} x{i} y{i} z{i}" for i in range(len(of.usable))]
    read = Texts.read([Document(str(i), text=t) for i, t in enumerate(texts)], words.tokens)
    vocabulary = Vocabulary(np.arange(1, len(words.number), dtype=np.int32), mask=0)
    return QuintupletSampler(of, Passages(read.tokens, 8, passages or 8), vocabulary, 4, **options)


# ------------------------------------------------------------------------------------------------- draws


def test_all_that_are_reachable(monkeypatch):
    """A wheel of 200: more than the 64 that are kept by default."""
    ring = [(i, (i + 1) % 200) for i in range(200)] + [(0, i) for i in range(2, 199)]
    assert len(neighbors(ring, 200).near(0)) == 64
    assert len(neighbors(ring, 200, related=0).near(0)) == 199
    monkeypatch.setattr(neighbors_of, "ALL", 100)
    with pytest.raises(UsageError, match="give --related"):
        neighbors(ring, 200, related=0)


def test_isolated_documents_are_anchors_of_the_semantic_half():
    of = neighbors()
    assert sampler(of).anchors()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert sampler(of, isolated=False).anchors()[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_every_document_is_an_anchor_once():
    of = sampler(neighbors(), passages=3)
    assert of.anchors().tolist() == [[d, 0] for d in range(7)]
    assert of.steps() == 1
    for batch in of.epoch(0):
        anchors = np.array([d.anchor for d in batch.pairs])
        assert batch.near[anchors[:, None] == anchors].all()
        assert len(set(anchors.tolist())) == 4


# ------------------------------------------------------------------------------------------------ losses


@pytest.mark.parametrize(
    ("changes", "level", "loss"),
    [
        ({}, 1, 0.65),
        ({"gamma": 0.25}, 1, 0.825),
        ({"gamma": 0.0, "structural_margin": 4.0}, 3, 1 / 3),
        ({"gamma": 1.0, "semantic_margin": 2.0}, 1, 1.8),
    ],
)
def test_settings_of_the_losses_by_hand(changes, level, loss):
    """Distances 5 and 6 to the structural pair, 1 and 1.2 to the semantic one."""
    config = DenseConfig.of(objective="quintuplet", **changes)
    assert make_loss(config)(vectors(level)).item() == pytest.approx(loss, abs=1e-6)


def test_a_half_that_counts_nothing_is_not_encoded():
    def reads(**changes):
        return make_loss(DenseConfig.of(objective="quintuplet", **changes)).reads

    assert reads() == ("anchor", "positive", "negative", "corrupted")
    assert reads(gamma=0) == ("anchor", "positive", "negative")
    assert reads(gamma=1) == ("anchor", "corrupted")
    assert "corrupted" not in make_loss(DenseConfig.of()).reads


def test_settings_that_have_no_effect_are_refused():
    for changes, what in (
        ({"gamma": 0.3}, "gamma has no effect with --objective contrastive"),
        ({"objective": "quintuplet", "temperature": 0.1}, "temperature has no effect"),
        (
            {"objective": "quintuplet", "gamma": 1, "structural_margin": 1},
            "structural-margin has no effect with --gamma 1",
        ),
        ({"objective": "quintuplet", "gamma": 1, "related": 8}, "related has no effect with --gamma 1"),
        (
            {"objective": "quintuplet", "gamma": 0, "semantic_margin": 1},
            "semantic-margin has no effect with --gamma 0",
        ),
        ({"positives": "linked", "related": 8}, "related has no effect with --positives linked"),
        ({"held_out": 0, "patience": 2}, "patience has no effect with --held-out 0"),
        ({"steps": 5, "epochs": 2}, "epochs has no effect with --steps 5"),
    ):
        with pytest.raises(UsageError, match=what):
            DenseConfig.of(**changes)
    assert DenseConfig.of(objective="quintuplet", gamma=0.3).gamma == 0.3


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "hinge"},
        {"positives": "row"},
        {"temperature": 0.0},
        {"objective": "quintuplet", "structural_margin": -1.0},
        {"objective": "quintuplet", "structural_margin": float("nan")},
        {"rate": float("inf")},
        {"objective": "quintuplet", "gamma": 2.0},
        {"passage_tokens": 3},
        {"batch": 10, "accumulate": 3},
    ],
)
def test_settings_that_cannot_be(changes):
    with pytest.raises(UsageError):
        DenseConfig.of(**changes)


def test_bfloat16_is_used_where_it_is_asked_for(tiny):
    found = []
    for asked in ("fp32", "bf16"):
        one = trainer(tiny, precision=asked)
        one.encoder.model.eval()
        with torch.no_grad():
            found.append(one.encoding.encode(next(one.sampler.epoch(0)).anchor))
    assert 1e-5 < float((found[0] - found[1]).abs().max()) < 0.1


def test_without_anything_held_out_the_last_step_is_kept(tiny):
    said = Watch()
    fit = trainer(tiny, said, held_out=0.0).fit()
    assert fit.best == fit.steps == 6
    assert [m.measures for m in fit.history] == [{}] * 3
    assert any("nothing is held out" in line for line in said.said)


def test_what_is_counted_beside_the_training(tiny):
    """Isolated documents have no structural pair; a wide margin keeps every hinge active, one of 0 some."""
    documents = collection(48) + [Document(f"alone{i}", text=f"w{i}") for i in range(12)]
    fit = trainer(tiny, documents=documents, steps=5, objective="quintuplet", structural_margin=1e3).fit()
    tally = fit.counts
    assert tally["anchors"] == 60
    assert tally["masked"] == 12
    assert tally["structural"] == tally["active_structural"] == 48
    assert 0 < tally["active_semantic"] <= tally["semantic"] <= 60
    fit = trainer(
        tiny, documents=documents, steps=5, objective="quintuplet", gamma=0.0, structural_margin=0.0
    ).fit()
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
    with pytest.raises(TrainingError, match=r"anchors had a negative.*lower --related"):
        trainer(tiny, **ring_of, related=64).fit()
    assert trainer(tiny, **ring_of, related=4).fit().steps == 6
    assert trainer(tiny, **ring_of, related=64, objective="quintuplet").fit().steps == 6
