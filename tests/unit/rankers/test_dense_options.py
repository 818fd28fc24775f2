"""Effects of the settings of ``dense`` on draws, losses, training and scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rerank.common.errors import TrainingError, UsageError
from rerank.documents.records import Document
from rerank.rankers.dense.quintuplets import QuintupletSampler, Vocabulary
from rerank.rankers.dense.texts import Passages, Texts
from tests.support.data import Words
from tests.support.dense import trainer
from tests.support.progress import Watch
from tests.unit.rankers.test_dense_draws import neighbors


def sampler(of, passages=None, **options):
    words = Words()
    texts = [f"{'long ' * 30 if passages else ''}w{i} x{i} y{i} z{i}" for i in range(len(of.usable))]
    read = Texts.read([Document(str(i), text=t) for i, t in enumerate(texts)], words.tokens)
    vocabulary = Vocabulary(np.arange(1, len(words.number), dtype=np.int32), mask=0)
    return QuintupletSampler(of, Passages(read.tokens, 8, passages or 8), vocabulary, 4, **options)


def test_related_zero_uses_all_reachable_documents(monkeypatch):
    """A wheel of 200 documents has more related documents than the default limit of 64."""
    ring = [(i, (i + 1) % 200) for i in range(200)] + [(0, i) for i in range(2, 199)]
    assert len(neighbors(ring, 200).near(0)) == 64
    assert len(neighbors(ring, 200, related=0).near(0)) == 199
    monkeypatch.setattr("rerank.rankers.graphs.pagerank.MAX_DOCUMENTS", 100)
    with pytest.raises(UsageError, match="leave out --objective quintuplet"):
        neighbors(ring, 200, related=0)


def test_isolated_documents_are_anchors_of_the_semantic_loss():
    of = neighbors()
    assert sampler(of).anchors()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert replace(sampler(of), vocabulary=None).anchors()[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_every_document_is_an_anchor_once():
    of = sampler(neighbors(), passages=3)
    assert of.anchors().tolist() == [[d, 0] for d in range(7)]
    assert of.steps() == 1
    for batch in of.epoch(0):
        anchors = np.array([d.anchor for d in batch.pairs])
        assert batch.near[anchors[:, None] == anchors].all()
        assert len(set(anchors.tolist())) == 4


def test_bfloat16_is_used_only_if_requested(tiny):
    actual = []
    for asked in ("fp32", "bf16"):
        one = trainer(tiny, precision=asked)
        one.encoder.model.eval()
        with torch.no_grad():
            actual.append(one.encoding.encode(next(one.sampler.epoch(0)).anchor))
    assert 1e-5 < float((actual[0] - actual[1]).abs().max()) < 0.1


def test_without_held_out_links_the_last_step_is_kept(tiny):
    said = Watch()
    fit = trainer(tiny, said, held_out=0.0).fit()
    assert fit.best == fit.steps == 6
    assert [m.measures for m in fit.history] == [{}] * 3
    assert any("nothing is held out" in line for line in said.said)


def test_a_collection_without_negatives_is_refused(tiny):
    """In a complete graph, no document is left as a negative. Levels also have related negatives."""
    ids = list(map(str, range(20)))
    complete = [Document(id, text=f"w{id}", links=tuple(ids)) for id in ids]
    options = {"documents": complete, "held_out": 0.0, "steps": 2}
    with pytest.raises(TrainingError, match="anchor had a negative"):
        trainer(tiny, **options).fit()
    ring = [Document(id, text=f"w{id}", links=(ids[number - 1],)) for number, id in enumerate(ids)]
    assert trainer(tiny, **{**options, "documents": ring}).fit().steps == 2
    assert trainer(tiny, **options, objective="quintuplet").fit().steps == 2
