"""The training loop of ``dense`` and its checkpoints."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rerank
from rerank.common.errors import TrainingError, UsageError
from rerank.common.progress import SILENT
from rerank.rankers.dense.fit import LinkEvaluation
from rerank.rankers.dense.neighbors import by_pagerank
from rerank.rankers.dense.quintuplets import QuintupletSampler, Vocabulary
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.trainer import ALPHA, interpolate
from tests.support.dense import collection, trainer
from tests.support.progress import Watch

on_the_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU takes a batch at once, in bf16")

SETTINGS = {"steps": 24, "every": 8, "rate": 2e-3, "held_out": 0.2, "patience": 10, "average": True}


def load(tiny):
    return TextEncoder.load(tiny, longest=16)


def train(tiny, checkpoint=None, progress=SILENT, evaluator=None, loss=None, **changes):
    task = trainer(tiny, progress, checkpoint=checkpoint, loss=loss, **{**SETTINGS, **changes})
    task.evaluate = evaluator or task.evaluate
    run = task.fit()
    return SimpleNamespace(**vars(run), best_measurement=run.best_measurement, encoder=task.encoder)


class FixedMeasures:
    """An evaluator that returns given measures and then raises KeyboardInterrupt."""

    def __init__(self, found):
        self.left = iter(found)

    def __call__(self):
        found = next(self.left, None)
        if found is None:
            raise KeyboardInterrupt
        return {"found": found, "other": -found}


@pytest.mark.parametrize("name", ["contrastive", "quintuplet"])
def test_training_improves_the_ranking_of_held_out_links(tiny, name):
    fit = train(tiny, objective=name, steps=16, every=8, rate=4e-3, average=False)
    first, best = fit.history[0], max(fit.history, key=lambda m: m.measures["NDCG"])
    assert best.measures["NDCG"] > min(first.measures["NDCG"] + 0.1, 0.95)
    assert fit.best == best.step > 0
    assert fit.alpha == best.alpha


@pytest.mark.parametrize(
    ("recalls", "steps", "best"),
    [
        ([0.5, 0.1, 0.2, 0.3, 0.4, 0.45, 0.6], 12, 12),  # below the untrained encoder, but improving
        ([0.5, 0.1, 0.2, 0.2, 0.1, 0.9, 0.9], 8, 0),  # no gain twice
        ([0.5, 0.6, 0.55, 0.7, 0.6, 0.65, 0.9], 10, 6),
    ],
)
def test_training_ends_when_the_main_measure_stops_improving(tiny, recalls, steps, best):
    fit = train(tiny, evaluator=FixedMeasures(recalls), batch=4, steps=12, every=2, patience=2, average=False)
    assert (fit.steps, fit.best) == (steps, best)
    assert [m.measures["other"] for m in fit.history] == [-one for one in recalls[: len(fit.history)]]
    assert best or not different_weights(fit.encoder, load(tiny))  # the untrained encoder is kept


def test_the_mean_with_the_untrained_weights_is_evaluated(tiny):
    fit = train(tiny, steps=4, every=2, rate=5e-3)
    tried = {m.alpha: m for m in fit.history if m.alpha < 1}
    assert tuple(tried) == (ALPHA,)
    assert {m.step for m in tried.values()} == {4}
    best = max(fit.history, key=lambda m: m.measures["NDCG"])
    assert best.measures in [m.measures for m in fit.history if (m.step, m.alpha) == (fit.best, fit.alpha)]
    without = train(tiny, steps=4, every=2, rate=5e-3, average=False)
    assert without.history == [m for m in fit.history if m.alpha == 1]


def test_an_interruption_during_averaging_keeps_the_best_weights(tiny):
    found = FixedMeasures([0.1, 0.5, 0.3])  # untrained, two measurements, then KeyboardInterrupt
    fit = train(tiny, evaluator=found, steps=4, every=2)
    assert fit.interrupted
    assert (fit.best, fit.alpha) == (2, 1.0)  # the best weights so far
    assert fit.best_measurement.measures["found"] == 0.5


def test_a_better_mean_with_the_untrained_weights_is_kept(tiny):
    fit = train(tiny, evaluator=FixedMeasures([0.1, 0.5, 0.3, 0.9]), steps=4, every=2)
    assert (fit.best, fit.alpha) == (4, ALPHA)
    assert fit.best_measurement.measures["found"] == 0.9


def test_weights_are_interpolated(tiny):
    start = load(tiny).model.state_dict()
    end = {name: weight + 1 if weight.is_floating_point() else weight for name, weight in start.items()}
    for name, weight in interpolate(start, end, 0.35).items():
        torch.testing.assert_close(weight, start[name] + 0.35 if weight.is_floating_point() else start[name])


def different_weights(one, other):
    """Return the names of weights that differ."""
    theirs = other.model.state_dict()
    return {name for name, weight in one.model.state_dict().items() if not torch.equal(weight, theirs[name])}


def test_an_interrupted_training_resumes_to_the_same_result(tiny, tmp_path):
    """The upper layer is trained, and the interruption is after the first checkpoint."""
    options = {"objective": "quintuplet", "train_layers": 1, "steps": 6, "every": 3}
    options["documents"] = collection(30)
    whole, folder = train(tiny, **options), tmp_path / "checkpoint"
    assert train(tiny, folder, Watch(at=5), **options).interrupted
    for _ in range(2):  # the last checkpoint is kept until the ranker is stored
        rest = train(tiny, folder, **options)
        assert (rest.history, rest.best) == (whole.history, whole.best)
        assert not different_weights(rest.encoder, whole.encoder)
    changed = different_weights(whole.encoder, load(tiny))
    assert changed
    assert all(name.startswith("encoder.layer.1.") for name in changed)


def test_a_checkpoint_of_another_training_is_refused(tiny, tmp_path):
    folder = tmp_path / "checkpoint"
    train(tiny, folder, Watch(at=2), steps=8, every=1)
    encoder = load(tiny)
    with torch.no_grad():
        next(encoder.model.parameters())[0] += 0.01
    encoder.save(tmp_path / "model")
    for model, rate in ((tiny, 1e-4), (str(tmp_path / "model"), SETTINGS["rate"])):
        with pytest.raises(TrainingError, match=r"other settings, or of another model.*restart"):
            train(model, folder, steps=8, every=1, rate=rate)
    (folder / "state.json").write_text("{")
    with pytest.raises(TrainingError, match=r"cannot be read.*restart"):
        train(tiny, folder, steps=8, every=1)


def test_parts_of_a_batch_give_the_gradient_of_the_whole_batch(tiny, monkeypatch):
    actual = []
    for max_tokens, memory in ((10_000, 1 << 33), (16 * 5, 1 << 33), (10_000, 1_500_000)):
        monkeypatch.setattr("rerank.rankers.encoder.batching.MAX_TOKENS", max_tokens)
        monkeypatch.setattr("rerank.rankers.encoder.batching._memory", lambda memory=memory: memory)
        task = trainer(tiny, objective="quintuplet")
        model = task.encoder.model
        model.train = lambda mode=True, model=model: model  # without dropout, which differs by part
        loss = task.loss(next(task.batches(0)))
        loss.backward()
        actual.append(
            (loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        )
    whole_loss, whole_gradient = actual[0]
    for loss, gradient in actual[1:]:
        assert whole_loss == pytest.approx(loss, abs=1e-6)
        assert not torch.equal(whole_gradient, gradient)  # it was computed in parts
        torch.testing.assert_close(whole_gradient, gradient, atol=1e-6, rtol=1e-3)


def test_a_batch_equals_the_batch_of_the_tokenizer(tiny):
    encoder, texts = load(tiny), ["w1", "", "w2 w3 w4 w5", "w6 w7"]
    theirs = encoder.tokenizer(texts, padding=True, return_tensors="pt")
    ids, mask = encoder.batch([np.array(one, dtype=np.int32) for one in encoder.tokens(texts)])
    assert ids.tolist() == theirs["input_ids"].tolist()
    assert mask.tolist() == theirs["attention_mask"].tolist()


@on_the_cpu
@pytest.mark.parametrize(("lengths", "parts"), [([14, 2, 13, 1, 3], 2), ([14, 13, 14, 14, 13], 1), ([5], 1)])
def test_separately_encoded_long_and_short_texts_have_equal_vectors(tiny, lengths, parts):
    task, rng, asked = trainer(tiny), np.random.default_rng(0), []
    encoder = task.encoder
    texts = [rng.integers(10, 30, size=length).astype(np.int32) for length in lengths]
    forward = encoder.forward
    encoder.forward = lambda ids, mask: asked.append(ids.shape[1] - 2) or forward(ids, mask)
    vectors = task.encoding.encode(texts)
    assert sorted(asked, reverse=True) == [max(lengths), 3][:parts]
    torch.testing.assert_close(vectors, forward(*encoder.batch(texts)), atol=1e-5, rtol=1e-5)


def test_equal_seeds_give_equal_batches_from_any_start(tiny):
    encoder = load(tiny)
    texts = Texts.read(collection(), encoder.tokens)
    graph, _ = texts.graph.hold_out(0.2, 0)
    of = by_pagerank(graph, texts.usable, 8)

    def sampler(seed=0):
        passages = Passages(texts.tokens, encoder.room, 4)
        return QuintupletSampler(of, passages, Vocabulary.from_tokenizer(encoder.tokenizer), 12, seed=seed)

    def flat(batches):
        return [(b.pairs, [t.tolist() for t in (*b.anchor, *b.positive, *b.corrupted)]) for b in batches]

    whole = flat(sampler().epoch(1))
    assert flat(sampler().epoch(1)) == whole
    assert flat(sampler().epoch(1, first=2)) == whole[2:]
    assert flat(sampler(1).epoch(1)) != whole
    assert flat(sampler().epoch(2)) != whole
    for batch in sampler().epoch(0):
        assert batch.near.diagonal().all()
        for i, draw in enumerate(batch.pairs):
            others = [d.anchor for d in batch.pairs]
            if draw.positive in others:
                assert batch.near[i, others.index(draw.positive)]


def test_held_out_links_are_not_used_for_training(tiny):
    task = trainer(tiny)
    held = {tuple(pair) for pair in task.held_out.tolist()}
    assert held
    assert not held & {tuple(pair) for pair in task.graph.pairs().tolist()}
    assert not (task.test.relevant & task.test.excluded).any()


def test_models_that_are_too_small_are_refused(tiny):
    with pytest.raises(UsageError, match="2 layers; 3 cannot be kept"):
        TextEncoder.load(tiny, layers=3, longest=16)
    with pytest.raises(UsageError, match="at most 64 tokens, not 128"):
        TextEncoder.load(tiny, longest=128)
    assert TextEncoder.load(tiny).modules.longest == 64


def test_ndcg_of_held_out_links_matches_values_by_hand():
    wanted = np.array([[0, 1, 0, 1], [1, 0, 0, 0]], dtype=bool)
    known = np.array([[1, 0, 0, 0], [0, 1, 1, 0]], dtype=bool)
    held = LinkEvaluation(np.arange(4), np.array([0, 1]), wanted, known)
    angles = np.array([0.0, 0.5, 0.1, 0.2])
    vectors = np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)
    # Nearest to the first document: the third, the fourth (wanted), the second (wanted). Nearest to the
    # second: the fourth, the first (wanted).
    first = (1 / np.log2(3) + 1 / np.log2(4)) / (1 + 1 / np.log2(3))
    np.testing.assert_allclose(held.ndcg(vectors), [first, 1 / np.log2(3)])


@pytest.mark.parametrize(
    ("message", "lack"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 40 bytes", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: device-side assert triggered", False),
    ],
)
def test_only_a_lack_of_memory_is_reported_as_such(tiny, tmp_path, monkeypatch, message, lack):
    def fails(*_, **__):
        raise RuntimeError(message)

    monkeypatch.setattr(TextEncoder, "forward", fails)
    workspace = rerank.Workspace.create(tmp_path / "w", lang="en")
    workspace.engine.write(collection())
    with pytest.raises(TrainingError if lack else RuntimeError, match=r"memory|assert") as error:
        rerank.train(workspace, ["dense"], config={"model": tiny, "passage_tokens": 16, "batch": 12})
    assert ("does not fit" in str(error.value)) == lack
