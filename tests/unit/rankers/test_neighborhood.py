"""Documents whose vectors move toward their nearest documents."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as array_strategy

from rerank import Document, Qrels, train
from rerank.common.arrays import feature_width, split_passages
from rerank.common.errors import WorkspaceError
from rerank.common.progress import SILENT
from rerank.rankers.dense.neighborhood import Neighborhood
from rerank.rankers.registry import load_ranker
from rerank.rankers.training.job import TrainingJob
from rerank.workflows.auto.nearest import relevant_neighbor_share
from rerank.workflows.auto.training import Deadline
from tests.support.data import QUERIES, qrels, topical

NUMBERS = st.integers(-127, 127)


def unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def moved_by_hand(passages, stored, count):
    """The passages of one document, moved by a loop over the stored documents."""
    mean = unit(sum(unit(passage) for passage in passages))
    cosines = [(float(mean @ unit(other)), unit(other)) for other in stored]
    others = sorted((pair for pair in cosines if pair[0] <= 0.999), key=lambda pair: -pair[0])[:count]
    neighbors = np.mean([vector for _, vector in others], axis=0) if others else np.zeros(len(mean))
    return [unit(unit(passage) + neighbors) if passage.any() else passage for passage in passages]


@given(
    array_strategy(np.int8, (3, 2, 4), elements=NUMBERS),
    array_strategy(np.int8, (6, 4), elements=NUMBERS),
    st.integers(1, 4),
)
def test_vectors_move_as_in_a_simple_loop(documents, stored, count):
    stored = stored[stored.any(axis=1)]
    assume(len(stored))
    cosines = np.stack(means(documents)) @ np.stack([unit(row) for row in stored.astype(float)]).T
    assume(np.diff(np.sort(cosines, axis=1), axis=1).min(initial=1) > 1e-4)  # no ties
    assume(np.abs(cosines - 0.999).min() > 1e-4)
    features = np.zeros((3, feature_width(2, 4)), np.int8)
    split_passages(features, 2)[:] = documents
    actual = Neighborhood(stored).move(features, 2, count)
    expected = [moved_by_hand(passages, stored.astype(float), count) for passages in documents.astype(float)]
    np.testing.assert_allclose(actual, expected, atol=1e-3)


def means(documents):
    return [unit(sum(unit(passage) for passage in passages)) for passages in documents.astype(float)]


def test_a_document_and_its_copies_are_not_its_neighbors():
    copies = np.array([[127, 0], [127, 0], [126, 1]], np.int8)
    features = np.array([[127, 0, 1]], np.int8)
    assert Neighborhood(copies).move(features, 1, 2).tolist() == [[[1.0, 0.0]]]


def test_without_documents_nothing_moves():
    nothing = np.zeros((0, 2), np.int8)
    assert Neighborhood(nothing).move(np.array([[0, 127, 1]], np.int8), 1, 3).tolist() == [[[0.0, 1.0]]]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, tiny):
    workspace = topical(tmp_path_factory.mktemp("neighbors") / "ws")
    workspace.engine.write([Document("empty")])
    common = {"untrained": True, "model": tiny, "passage_tokens": 16}
    plain = train(workspace, "dense", config=common).rankers[0].ranker
    moving = train(workspace, "dense", config={**common, "neighbors": 2}).rankers[0].ranker
    return workspace, plain, moving


def test_the_stored_ranker_moves_documents_that_it_has_not_seen(fitted):
    workspace, plain, moving = fitted
    stored = load_ranker(workspace.folder / "rankers" / f"dense-{moving.version}")
    assert stored.version == moving.version != plain.version
    unseen = [Document("new", text="w3 w4 w9"), Document("nothing")]
    features = stored.encode_documents(unseen)
    assert (features == moving.encode_documents(unseen)).all()
    assert (features[0] != plain.encode_documents(unseen)[0]).any()
    assert not features[1].any()


def test_a_ranker_without_the_vectors_of_its_neighbors_is_damaged(fitted, tmp_path):
    workspace, _, moving = fitted
    folder = tmp_path / "dense-copy"
    shutil.copytree(workspace.folder / "rankers" / f"dense-{moving.version}", folder)
    (folder / "neighborhood.safetensors").unlink()
    with pytest.raises(WorkspaceError, match="neighbors"):
        load_ranker(folder)


def test_neighbors_become_more_similar(fitted):
    workspace, plain, moving = fitted
    documents = [document for document in workspace.engine.documents() if document.content]

    def similarity(ranker):
        vectors = ranker.encode_documents(documents)[:, :-1].astype(float)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = vectors @ vectors.T
        return np.sort(cosines, axis=1)[:, -3:-1].mean()

    assert similarity(moving) > similarity(plain)


def test_a_trained_map_has_neighbors_of_its_own_vectors(fitted, tiny):
    workspace, _, untrained = fitted
    config = {"model": tiny, "passage_tokens": 16, "neighbors": 2}
    report = train(
        workspace, "adapter", queries=QUERIES, qrels=qrels(0, 24), dev_qrels=qrels(24, 36), config=config
    )
    assert report.rankers[0].epoch > 0
    ranker = report.rankers[0].ranker
    assert ranker.neighbors == 2
    assert (ranker.neighborhood.vectors != untrained.neighborhood.vectors).any()


def test_a_trained_ranker_gets_its_neighbors_after_its_time(fitted, tmp_path):
    workspace, plain, moving = fitted
    job = TrainingJob(workspace.engine, None, tmp_path, progress=Deadline(SILENT, 0.0))
    assert (Neighborhood.of(plain, job).vectors == moving.neighborhood.vectors).all()


@pytest.mark.parametrize("neighbors", [1, 3, 50])
def test_the_share_of_relevant_neighbors_matches_counting(neighbors):
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(30, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    judged = {f"q{number}": rng.choice(30, size=number + 1, replace=False) for number in range(6)}
    shares = []
    for rows in judged.values():
        hits = 0
        pairs = 0
        for row in rows:
            order = sorted((i for i in range(30) if i != row), key=lambda i: -(vectors[row] @ vectors[i]))
            nearest = order[:neighbors]
            hits += len(set(nearest) & set(rows))
            pairs += len(nearest)
        shares.append(hits / pairs)
    relevant = Qrels((query, f"d{row}", 1) for query, rows in judged.items() for row in rows)
    ids = [f"d{row}" for row in range(30)]
    assert relevant_neighbor_share(ids, vectors, relevant, neighbors) == pytest.approx(np.mean(shares))
    assert relevant_neighbor_share(ids, vectors, Qrels([("q", "unknown", 1)]), neighbors) == 0
