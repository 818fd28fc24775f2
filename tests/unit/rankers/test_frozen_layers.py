"""The division of an encoder into layers that are trained and layers that are not."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from rerank.common.errors import UsageError
from rerank.rankers.encoder.transformer import TextEncoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rerank.rankers.encoder.batching import BatchEncoder  # noqa: E402


@pytest.fixture(scope="module")
def three(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with three layers."""
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("three") / "model")
    config = transformers.BertConfig.from_pretrained(tiny, num_hidden_layers=3)
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def encoder(three: str) -> TextEncoder:
    encoder = TextEncoder.load(three, longest=32)
    encoder.precision = "fp32"
    return encoder


def texts(count: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, 46, size=n).astype(np.int32) for n in rng.integers(1, 30, size=count)]


def encode_whole(encoder: TextEncoder, some: list[np.ndarray]) -> torch.Tensor:
    return encoder.forward(*encoder.batch([one.tolist() for one in some]))


@pytest.mark.parametrize("layers", [1, 2])
def test_both_halves_together_equal_the_whole_encoder(encoder: TextEncoder, layers: int) -> None:
    cache = BatchEncoder(encoder, layers)
    encoder.model.eval()
    torch.testing.assert_close(cache.encode(texts()), encode_whole(encoder, texts()), atol=1e-5, rtol=0)


def test_cached_vectors_are_correct_and_new_texts_are_computed(encoder: TextEncoder) -> None:
    cache = BatchEncoder(encoder, 1)
    assert cache.fill(texts()[:12])
    encoder.model.eval()
    torch.testing.assert_close(cache.encode(texts()), encode_whole(encoder, texts()), atol=3e-3, rtol=0)
    ours = cache.unit_vectors(texts())
    for one, other in zip(ours, encoder.encode([t.tolist() for t in texts()])):
        assert one @ other > 0.9999


def test_gradients_equal_the_gradients_of_the_whole_model(encoder: TextEncoder) -> None:
    cache = BatchEncoder(encoder, 1)
    encoder.model.eval()
    name = "encoder.layer.2.output.dense.weight"
    weight = dict(encoder.model.named_parameters())[name]
    cache.encode(texts()).square().sum().backward()
    ours, weight.grad = weight.grad, None
    encode_whole(encoder, texts()).square().sum().backward()
    torch.testing.assert_close(ours, weight.grad, atol=1e-4, rtol=1e-4)


def test_the_cache_is_not_filled_if_memory_is_too_small(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rerank.rankers.encoder.batching._memory", lambda: 1000)
    cache = BatchEncoder(encoder, 1)
    assert not cache.fill(texts())
    encoder.model.eval()
    torch.testing.assert_close(cache.encode(texts()), encode_whole(encoder, texts()), atol=1e-5, rtol=0)


def test_an_encoder_of_another_type_is_trained_without_a_cache(three: str) -> None:
    config = transformers.DistilBertConfig(n_layers=2, dim=32, n_heads=2, hidden_dim=64, vocab_size=46)
    model = TextEncoder.load(three, layers=1, longest=32)
    model.precision = "fp32"
    model.model = transformers.DistilBertModel(config)
    cache = BatchEncoder(model, 1)
    model.model.eval()
    torch.testing.assert_close(cache.encode(texts()), encode_whole(model, texts()), atol=1e-5, rtol=0)
    assert not cache.caches_outputs
    learning = {name for name, parameter in model.model.named_parameters() if parameter.requires_grad}
    assert learning
    assert all(name.startswith("transformer.layer.1.") for name in learning)


def test_more_layers_than_the_model_has_are_refused(encoder: TextEncoder) -> None:
    with pytest.raises(UsageError, match="the model has 3 layers"):
        BatchEncoder(encoder, 4)
