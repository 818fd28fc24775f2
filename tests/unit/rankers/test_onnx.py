"""Models in ONNX Runtime: encoders, cross-encoders, and queries of BERT."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rerank import Document, Workspace, train
from rerank.common.arrays import passage_cosines
from rerank.common.errors import UsageError
from rerank.documents.records import Query
from rerank.rankers.encoder.bert import Bert
from rerank.rankers.encoder.cross_encoder import CrossEncoder
from rerank.rankers.encoder.onnx import OnnxBert, OnnxModel
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.registry import load_ranker
from tests.support.rankers import bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

SIZES = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "vocab_size": 46}


def exported(tiny: str, folder: Path, kind: type, **options: int) -> Path:
    """Write a DistilBERT, which NumPy does not run, as a file of ONNX only. kind: class of transformers."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path(tiny) / name, folder / name)
    torch.manual_seed(3)
    config = transformers.DistilBertConfig(
        **SIZES, max_position_embeddings=64, initializer_range=0.5, **options
    )
    config._attn_implementation = "eager"
    model = kind(config).eval()
    model.save_pretrained(folder / "weights")
    shutil.copyfile(folder / "weights" / "config.json", folder / "config.json")
    ids = torch.tensor([[2, 6, 7, 3]])
    (folder / "onnx").mkdir()
    torch.onnx.export(
        _Output(model),
        (ids, torch.ones_like(ids)),
        str(folder / "onnx" / "model.onnx"),
        input_names=["input_ids", "attention_mask"],
        output_names=["output"],
        dynamic_axes={name: {0: "n", 1: "t"} for name in ("input_ids", "attention_mask")},
        dynamo=False,
    )
    return folder


class _Output(torch.nn.Module):
    """A model whose first output is a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask, return_dict=False)[0]


def test_an_encoder_of_onnx_gives_the_vectors_of_transformers(tiny, tmp_path):
    folder = exported(tiny, tmp_path / "model", transformers.DistilBertModel)
    workspace = Workspace.create(tmp_path / "ws")
    documents = [Document("a", text="w1 w2 w3"), Document("b", text="w4 " * 40), Document("c")]
    workspace.engine.write(documents)
    with pytest.raises(UsageError, match="cannot learn"):
        train(workspace, "dense", config={"model": str(folder)})
    config = {"untrained": True, "model": str(folder), "passage_tokens": 16}
    trained = train(workspace, "dense", config=config).rankers[0].ranker
    (stored,) = workspace.folder.glob("rankers/dense-*")
    ranker = load_ranker(stored)
    assert ranker.version == trained.version
    oracle = transformers.DistilBertModel.from_pretrained(folder / "weights").eval()
    with torch.no_grad():
        states = oracle(input_ids=torch.tensor([[2, 7, 8, 9, 3]])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(states.mean(dim=0), dim=0).numpy()
    np.testing.assert_allclose(ranker.encode_query(Query("q", "w1 w2 w3")), expected, atol=1e-5)
    features = ranker.encode_documents(documents)
    assert passage_cosines(expected, features, ranker.passages)[0, 0] > 0.999
    assert features[:, -1].tolist() == [1, 5, 0]  # 40 tokens, windows of 14, each 7 tokens later
    assert not ranker.encode_query(Query("q", "")).any()


@pytest.mark.parametrize("labels", [1, 2])
def test_a_cross_encoder_of_onnx_gives_the_scores_of_transformers(tiny, tmp_path, labels):
    kind = transformers.DistilBertForSequenceClassification
    folder = exported(tiny, tmp_path / "model", kind, num_labels=labels)
    encoder = CrossEncoder.load(str(folder))
    oracle = kind.from_pretrained(folder / "weights").eval()
    with torch.no_grad():
        logits = oracle(input_ids=torch.tensor([[2, 7, 3, 8, 9, 3]])).logits[0].tolist()
    expected = logits[-1] - (logits[0] if labels == 2 else 0)
    assert encoder.score("w1", "w2 w3") == pytest.approx(expected, abs=1e-4)
    assert encoder.score("w1 " * 90, "w2 " * 90) != 0  # cut at the 64 tokens that the model reads
    (folder / "onnx" / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(UsageError, match="cannot be read"):
        CrossEncoder.load(str(folder))


def test_a_damaged_file_of_onnx_is_reported_in_one_line(tiny, tmp_path):
    folder = exported(tiny, tmp_path / "model", transformers.DistilBertModel)
    path = folder / "onnx" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match="cannot be run") as raised:
        TextEncoder.load(str(folder))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("types", [[0] * 9, [0, 0, 0, 0, 1, 1, 1, 1, 1]])
def test_bert_gives_equal_states_in_numpy_and_in_onnx_runtime(tmp_path, types):
    torch.manual_seed(4)
    folder = bert(tmp_path / "model")
    plain = Bert.load(folder)
    ids = [2, 7, 8, 3, 9, 10, 11, 12, 3]
    np.testing.assert_allclose(OnnxBert.of(plain).states(ids, types), plain.states(ids, types), atol=2e-5)


def test_a_file_of_onnx_is_not_preferred_to_other_weights(tiny, tmp_path):
    """Models of safetensors can learn, and files of 8 bits have other names."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "model.onnx").write_bytes(b"not read")
    assert TextEncoder.load(str(folder), longest=16).version() == TextEncoder.load(tiny, longest=16).version()
    (folder / "model.safetensors").unlink()
    (folder / "model.onnx").rename(folder / "model_quantized.onnx")
    with pytest.raises(UsageError, match="no weights in safetensors"):
        TextEncoder.load(str(folder))


def test_a_query_runs_an_encoder_of_onnx_once(tiny, tmp_path, monkeypatch):
    folder = exported(tiny, tmp_path / "model", transformers.DistilBertModel)
    encoder = TextEncoder.load(str(folder), longest=16)
    runs: list[int] = []
    run = OnnxModel.run

    def counted(self, ids, mask, types):
        runs.append(ids.shape[1])
        return run(self, ids, mask, types)

    monkeypatch.setattr(OnnxModel, "run", counted)
    assert encoder.width == 32
    runs.clear()
    for _ in range(2):
        encoder.of_queries.encode([[7, 8, 9]])
    assert runs == [5, 5]  # with two special tokens
