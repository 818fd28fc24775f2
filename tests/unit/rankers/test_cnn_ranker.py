"""The rankers text, meta and joint: NumPy agrees with torch, inputs are separate, files are checked."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
import torch
from msgspec import structs

from rerank.common.arrays import Ragged
from rerank.common.errors import WorkspaceError
from rerank.documents.records import Document, Query
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Embedding
from rerank.rankers.cnn.network import TorchRanker, TorchTower
from rerank.rankers.cnn.ranker import PARTS, CnnRanker
from rerank.rankers.cnn.towers import Vocabulary
from rerank.rankers.registry import family, load_ranker

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
CATEGORIES = ["C", "C.1", "C.2", "game", "game::chess", "music"]
DOCUMENTS = [
    Document("0", title="Alpha beta", text="gamma delta epsilon: zeta!", categories=("C.1", "music")),
    Document("1", text="beta", categories=("C.2.7", "game::chess", "unheard of")),
    Document("2", text="nothing that is known", categories=("unknown",)),
    Document("3"),
    Document("4", title="eta theta", categories=("game", "C", "C.1", "C.2", "music")),
    Document("5", text="alpha " * 50, categories=("music",)),
]
QUERIES = [
    Query("a", "alpha theta gamma zeta", ("C.1", "game")),
    Query("b", "beta"),
    Query("c", "", ("music", "C.9")),
    Query("d", "words it has not seen"),
]


def embedding(vocabulary, size, seed):
    random, names = np.random.default_rng(seed), vocabulary.names
    # fp16 represents these numbers exactly, so torch and NumPy compute with the same values.
    vectors = random.normal(size=(len(names) + 1, size)).astype(np.float16).astype(np.float32)
    vectors[0] = 0
    return Embedding(vocabulary, vectors, random.integers(1, 50, len(names)))


def make(name, head="cosine", shared=True):
    """Return a ranker with random weights and its torch twin; ``shared``: one vocabulary for both sides."""
    sizes = {"filters": 6, "vector_size": 8, "hidden": (10, 7, 5), "width": 3, "dropout": 0.5}
    config = structs.replace(CnnConfig.of(head=head), **sizes)
    torch.manual_seed(7)
    sides, made = {}, {}
    for side in ("query", "document"):
        sides[side] = []
        for part in PARTS[name]:
            names, size = (WORDS, 5) if part == "text" else (CATEGORIES, 4)
            other = not shared and side == "query"
            names = names[::-1][:-1] if other else names
            vocabulary = made.setdefault((part, other), Vocabulary(part, list(names), 40))
            sides[side].append(TorchTower(embedding(vocabulary, size, len(part) + other), config))
    model = TorchRanker(sides, config).eval()
    with torch.no_grad():
        for linear in (m for m in model.modules() if isinstance(m, torch.nn.Linear)):
            linear.weight *= 2  # so that the scores differ clearly
    trained = {"epoch": 3, "config": {"seed": 0}}
    ranker = CnnRanker(name=name, version="v1", networks=[model.numpy()], trained=trained)
    return ranker, model


def tokens(towers, records):
    return [Ragged.from_lists([tower.vocabulary.tokens(record) for record in records]) for tower in towers]


def scores_of(ranker, queries=QUERIES, documents=DOCUMENTS):
    features = ranker.encode_documents(documents)
    return np.array([ranker.score(ranker.encode_query(query), features) for query in queries])


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("head", ["cosine", "mlp"])
@pytest.mark.parametrize("shared", [True, False])
def test_torch_and_numpy_give_equal_scores(name, head, shared):
    ranker, model = make(name, head, shared)
    (network,) = ranker.networks
    with torch.no_grad():
        query = model.encode("query", tokens(network.query, QUERIES))
        document = model.encode("document", tokens(network.document, DOCUMENTS))
        pairs = [(i, j) for i in range(len(QUERIES)) for j in range(len(DOCUMENTS))]
        linear = model.score(query[[i for i, _ in pairs]], document[[j for _, j in pairs]])
    expected = (torch.tanh(linear) if head == "mlp" else linear).numpy().reshape(len(QUERIES), -1)
    np.testing.assert_allclose(
        np.array([ranker.encode_query(q) for q in QUERIES]), query.numpy(), rtol=1e-5, atol=2e-6
    )
    features = ranker.encode_documents(DOCUMENTS)
    assert features.dtype == np.float16
    assert features.shape == (len(DOCUMENTS), 8 if head == "cosine" else 10)
    np.testing.assert_allclose(features, document.numpy(), rtol=1e-3, atol=1e-6)
    exact = network.encode_documents(DOCUMENTS)
    actual = [ranker.score(ranker.encode_query(q), exact) for q in QUERIES]
    np.testing.assert_allclose(actual, expected, atol=5e-6)
    # Stored features are rounded to 11 bits.
    scores, (low, high) = scores_of(ranker), ranker.bounds
    np.testing.assert_allclose(scores, expected, atol=5e-3)
    assert scores.dtype == np.float64
    assert low - 1e-3 <= scores.min() <= scores.max() <= high + 1e-3
    assert expected.std() > 0.01


def test_each_ranker_reads_only_its_parts():
    document, query = DOCUMENTS[0], QUERIES[0]
    other_text = Document("x", text="zeta eta", categories=document.categories)
    other_categories = Document("x", document.title, document.text, ("game",))
    for name, parts in PARTS.items():
        ranker, _ = make(name)
        assert (ranker.uses_text, ranker.uses_categories) == ("text" in parts, "meta" in parts)
        one, text, categories = ranker.encode_documents([document, other_text, other_categories]).tolist()
        assert (one == text) == ("text" not in parts)
        assert (one == categories) == ("meta" not in parts)
        bare = ranker.encode_query(Query("x", query.text))
        assert (bare.tolist() == ranker.encode_query(query).tolist()) == ("meta" not in parts)


def test_a_shared_vocabulary_is_stored_and_loaded_once(tmp_path):
    for shared, kept in ((True, 2), (False, 4)):
        ranker, _ = make("joint", shared=shared)
        ranker.save(tmp_path / str(shared))
        stored = json.loads((tmp_path / str(shared) / "vocabularies.json").read_text())
        assert sum(isinstance(names, list) for names in stored.values()) == kept
        loaded = load_ranker(tmp_path / str(shared))
        assert loaded.trained == ranker.trained
        (network,) = loaded.networks
        vocabularies = [tower.vocabulary for tower in [*network.query, *network.document]]
        assert sum(a is b for a, b in combinations(vocabularies, 2)) == (2 if shared else 0)


def edit_record(change):
    """Return an edit of ``ranker.json``."""

    def edit(data):
        record = json.loads(data)
        change(record)
        return json.dumps(record).encode()

    return "ranker.json", edit


FILES = ("ranker.json", "vocabularies.json", "model.safetensors")
DAMAGE = [
    *((file, lambda data: data[: len(data) // 2]) for file in FILES),
    *((file, None) for file in FILES),
    ("model.safetensors", lambda data: b""),
    ("vocabularies.json", lambda data: b"\xff\xfe" + data),
    ("ranker.json", lambda data: b"[1, 2]"),
    edit_record(lambda record: record.update(variant="texts")),
    edit_record(lambda record: record["towers"].update({"query.text": 3})),
]


def test_a_damaged_ranker_is_reported(tmp_path):
    ranker, _ = make("joint", "mlp")
    for number, (file, damage) in enumerate(DAMAGE):
        folder = tmp_path / f"joint-v{number}"
        ranker.save(folder)
        if damage is None:
            (folder / file).unlink()
        else:
            (folder / file).write_bytes(damage((folder / file).read_bytes()))
        with pytest.raises(WorkspaceError, match=rf"joint-v{number}.*train it again") as caught:
            load_ranker(folder)
        assert "\n" not in str(caught.value)


def test_a_ranker_of_an_unknown_family_is_refused(tmp_path):
    (tmp_path / "ranker.json").write_text('{"family": "transformer"}')
    with pytest.raises(WorkspaceError, match=r"no installed package .* 'transformer'"):
        load_ranker(tmp_path)
    assert family("cnn").ranker_class() is CnnRanker
