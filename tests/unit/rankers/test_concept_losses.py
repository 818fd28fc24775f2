"""The losses of ``concept``: by hand, against simple loops, and their gradients by finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rerank.rankers.concept.batches import PairBatch
from rerank.rankers.concept.losses import (
    ConceptLoss,
    GraphComponentLoss,
    MomentumLoss,
    centroids,
)
from rerank.rankers.concept.ranker import Head
from rerank.rankers.encoder.batching import BatchEncoder, with_vectors
from rerank.rankers.encoder.transformer import TextEncoder

Z = torch.tensor([[1, 0], [0.6, 0.8], [-1, 0], [-0.8, 0.6]], dtype=torch.float64)
TWO = np.array([0, 0, 1, 1])


def batch(component=TWO, ends=((0, 1), (0, 2), (1, 3)), related=(1, 0, 0), weight=(1, 1, 1)):
    size = len(component)
    return PairBatch(
        np.arange(size),
        np.array(component),
        [np.arange(6 + i, 10 + i, dtype=np.int32) for i in range(size)],
        np.array(ends, dtype=np.int64).reshape(-1, 2),
        np.array(related, dtype=np.float64),
        np.array(weight, dtype=np.float64),
    )


def batch_with_vectors(vectors, **changes):
    return with_vectors(batch(**changes), ("anchor",), vectors)


def component_loss(component=TWO, vectors=Z):
    found = GraphComponentLoss(np.array(component), vectors.shape[1]).double()
    found.on_epoch_start(lambda of: vectors.numpy()[of])
    return found


POINTS = Z.numpy()


@pytest.mark.parametrize(
    ("points", "component", "centers", "phi"),
    [
        (POINTS, [0, 0, 1, 1], [[0.894427, 0.447214], [-0.948683, 0.316228]], [0.184919, 0.128924]),
        (POINTS[:3], [0, 0, 1], [[0.894427, 0.447214], [-1, 0]], [0.184919, 0.01]),  # one text
        (POINTS[[0] * 4], [0, 0, 1, 1], [[1, 0]] * 2, [0.01, 0.01]),  # equal texts
        (POINTS, [0, -1, 0, -1], [[0, 0]], [np.inf]),  # no direction; texts without a component
    ],
)
def test_centroids_and_concentrations_match_values_by_hand(points, component, centers, phi):
    actual = centroids(points, np.array(component))
    np.testing.assert_allclose(actual[0], centers, atol=1e-6)
    assert actual[1] == pytest.approx(phi, abs=2e-5)


def test_the_component_loss_matches_a_simple_loop():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(9, 4))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    component = np.array([0, 0, 0, 1, 1, 2, 2, -1, -1])
    found = component_loss(component, torch.tensor(z))
    total, anchors = 0.0, 0
    for i in range(9):
        if component[i] < 0:
            continue
        anchors += 1
        logits = []
        for c in range(3):
            members = z[component == c]
            center = members.mean(axis=0) / np.linalg.norm(members.mean(axis=0))
            logits.append(z[i] @ center / found.phi[c].item())
        total += math.log(sum(math.exp(one) for one in logits)) - logits[component[i]]
    mine = found(batch_with_vectors(torch.tensor(z), component=component))
    assert mine.item() == pytest.approx(total / anchors, rel=1e-6)


def test_texts_without_component_and_components_without_direction():
    none = batch_with_vectors(Z.clone().requires_grad_(), component=[-1] * 4)
    actual = component_loss()(none)
    assert actual.item() == 0
    actual.backward()
    apart = component_loss([0, 1, 0, 1])  # the first centroid is 0
    u = Z.clone().requires_grad_()
    loss = apart(batch_with_vectors(u, component=[0, 1, 0, 1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(u.grad).all()


@pytest.fixture(scope="module")
def batches(tiny):
    encoder = TextEncoder.load(tiny, longest=16)
    encoder.precision = "fp32"
    return BatchEncoder(encoder)


def momentum_loss(batches, keys, documents, **settings):
    found = MomentumLoss(batches, queue=len(keys), **settings)
    found.keys = torch.tensor(keys, dtype=torch.float64)
    found.documents = torch.tensor(documents)
    return found


def test_no_keys_give_no_loss_and_a_text_is_not_its_own_negative(batches):
    for documents, losing in (([-1, -1], False), ([0, 0], False), ([5, 0], True)):
        actual = momentum_loss(batches, [[0, 1], [-1, 0]], documents)
        assert (actual.each(Z[:1], Z[:1], torch.tensor([0])).item() > 0) == losing


def test_the_momentum_loss_matches_a_simple_loop(batches):
    rng = np.random.default_rng(0)
    z, k, keys = (rng.normal(size=shape) for shape in ((4, 3), (4, 3), (6, 3)))
    documents = [0, 9, 9, 2, -1, 8]
    found = momentum_loss(batches, keys.tolist(), documents)
    mine = found.each(torch.tensor(z), torch.tensor(k), torch.arange(4))
    for i in range(4):
        logits = [z[i] @ k[i] / 0.1]
        logits += [z[i] @ keys[j] / 0.1 for j in range(6) if documents[j] not in (-1, i)]
        assert mine[i].item() == pytest.approx(math.log(sum(map(math.exp, logits))) - logits[0])


def test_the_queue_is_first_in_first_out(batches):
    """The queue has four places. The batches are [a, b, c], [d, a, e], [f, g, h], [i, j, k, l, m]."""
    actual = MomentumLoss(batches, queue=4)
    seen = []
    for documents in ([0, 1, 2], [3, 0, 4], [5, 6, 7], [8, 9, 10, 11, 12]):
        seen.append([one for one in actual.documents.tolist() if one >= 0])
        new = torch.tensor(documents)
        actual._batch = (torch.nn.functional.one_hot(new, 32).float(), new)
        actual.on_step_end()
        assert actual.keys.argmax(dim=1)[actual.documents >= 0].tolist() == [
            one for one in actual.documents.tolist() if one >= 0
        ]
    assert seen == [[], [0, 1, 2], [2, 3, 0, 4], [4, 5, 6, 7]]
    assert actual.documents.tolist() == [9, 10, 11, 12]


def test_the_momentum_encoder_follows_slowly(batches):
    actual = MomentumLoss(batches, momentum=0.9)
    (learning, *_), (before, *_) = actual.encoder_weights, [one.clone() for one in actual.slow]
    assert torch.equal(actual.slow[0], learning)
    kept = learning.detach().clone()
    with torch.no_grad():
        learning += 1
    for _ in range(3):
        actual.on_step_end()
    torch.testing.assert_close(actual.slow[0], before + (1 - 0.9**3))
    learning.data.copy_(kept)


def test_keys_have_no_gradient_and_do_not_change_the_encoder(batches):
    actual = MomentumLoss(batches)
    batches.encoder.model.train()
    before = torch.get_rng_state()
    weights = [one.detach().clone() for one in actual.encoder_weights]
    with torch.no_grad():
        actual.slow[0] += 0.5
    one, two = actual.encoded(batch().anchor), actual.encoded(batch().anchor)
    assert not one.requires_grad
    assert torch.equal(one, two)  # without dropout
    assert torch.equal(torch.get_rng_state(), before)
    assert batches.encoder.model.training
    assert all(torch.equal(a, b) for a, b in zip(weights, actual.encoder_weights))
    with torch.no_grad():
        actual.slow[0] -= 0.5
    assert not torch.equal(actual.encoded(batch().anchor), one)
    assert one.norm(dim=1).tolist() == pytest.approx([1] * 4, abs=1e-6)


def random_head(width):
    found, generator = ConceptLoss(width), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for one in found.parameters():
            one += torch.randn(one.shape, generator=generator) / width
    return found


def test_the_classifier_loss_matches_a_simple_loop():
    found = random_head(4)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 4)).astype(np.float32)
    weight = (1.0, 3.0, 0.5)
    w = {name: one.detach().numpy() for name, one in found.named_parameters()}
    total = 0.0
    for i, j, y, share in zip((0, 0, 1), (1, 2, 3), (1, 0, 0), weight):
        u, v = (2 * z[one] / np.linalg.norm(z[one]) for one in (i, j))
        logit = u @ w["first"] + v @ w["second"] + np.abs(u - v) @ w["apart"]
        p = 1 / (1 + math.exp(-(logit + w["bias"][0])))
        total -= share * math.log(p if y else 1 - p)
    mine = found(batch_with_vectors(torch.tensor(z), weight=weight))
    assert mine.item() == pytest.approx(total / sum(weight), rel=1e-5)


def test_the_stored_head_gives_the_trained_scores_in_both_orders():
    found, generator = random_head(6), torch.Generator().manual_seed(1)
    u, v = (torch.randn(5, 6, generator=generator) for _ in range(2))
    forward, backward = found.logits(u, v).sigmoid(), found.logits(v, u).sigmoid()
    assert not torch.allclose(forward, backward)
    a, b = (torch.nn.functional.normalize(one, dim=1).numpy() for one in (u, v))
    head = Head(**vars(found.head()))
    expected = ((forward + backward) / 2).detach().numpy()
    np.testing.assert_allclose(head.relatedness(a, b), expected, atol=1e-5)
    np.testing.assert_allclose(head.relatedness(b, a), head.relatedness(a, b), atol=1e-6)
    one = [head.relatedness(a, b[i])[i] for i in range(5)]
    np.testing.assert_allclose(one, expected, atol=1e-5)
    np.testing.assert_allclose(head.relatedness(a[0], b), head.relatedness(b, a[:1]), atol=1e-6)


def test_the_initial_head_ranks_by_distance():
    head = ConceptLoss(8).head()
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(20, 8)).astype(np.float32) for _ in range(2))
    a, b = a / np.linalg.norm(a, axis=1)[:, None], b / np.linalg.norm(b, axis=1)[:, None]
    order = np.argsort(head.relatedness(a, b))
    np.testing.assert_array_equal(order, np.argsort(-np.abs(a - b).sum(axis=1)))
    assert head.relatedness(a, a).min() > 0.9


def test_a_batch_without_pairs_has_no_loss():
    assert ConceptLoss(2)(batch_with_vectors(Z.float(), ends=(), related=(), weight=())).item() == 0


@pytest.mark.parametrize("name", ["classifier", "components", "momentum", "graph-component"])
def test_gradients_match_finite_differences(batches, name):
    parts = {
        "classifier": random_head(2).double(),
        "components": component_loss(),
        "momentum": momentum_loss(batches, [[0.0, 1], [-1, 0.3]], [7, 8]),
    }
    parts["momentum"].encoded = lambda tokens: torch.flip(Z, dims=(0,))
    weights = {"classifier": 1.0, "components": 0.1, "momentum": 0.1}
    chosen = [name] if name in parts else [*parts]

    def loss(vectors):
        return sum(weights[one] * parts[one](batch_with_vectors(vectors)) for one in chosen)

    start = (Z * torch.tensor([[1.5], [0.7], [1.0], [2.0]])).requires_grad_()
    assert torch.autograd.gradcheck(loss, (start,), eps=1e-6, atol=1e-5)


def test_the_concept_loss_is_the_sum_of_its_parts(batches):
    vectors = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    whole = ConceptLoss(32, [GraphComponentLoss(TWO, 32), MomentumLoss(batches)])
    one, (two, three) = ConceptLoss(32), whole.contrasts
    two.on_epoch_start(lambda of: torch.nn.functional.normalize(vectors, dim=1).numpy()[of])
    pairs = batch_with_vectors(vectors)
    expected = one(pairs) + 0.1 * (two(pairs) + three(pairs))
    assert whole(pairs).item() == pytest.approx(expected.item())
