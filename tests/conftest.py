"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.node import VERSION, CannotRunError, Node, maven, running
from tests.unavailable import unavailable


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A command that is interrupted in this process ignores what comes after; the next test is another."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A real OpenSearch node; where none can run, its tests are skipped, in CI they fail."""
    try:
        with running() as started:
            yield started
    except CannotRunError as error:
        unavailable(error)


@pytest.fixture(scope="session")
def knn_node() -> Iterator[Node]:
    """A node with the k-NN plugin."""
    names = ("opensearch-job-scheduler", "opensearch-knn")
    try:
        plugins = [maven(f"org.opensearch.plugin:{name}:{VERSION}.0:zip") for name in names]
        with running(plugins=plugins, heap="512m") as started:
            yield started
    except CannotRunError as error:
        unavailable(error)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A randomly initialised BERT of two layers with a vocabulary of forty words."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("tiny")
    words = [f"w{i}" for i in range(40)]
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *words]) + "\n"
    )
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=46,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)
