"""Fixtures for all tests, and the grouping of tests into processes. See CONTRIBUTING.md."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# The nodes of the tests may receive secrets, and the list of trusted hosts is temporary.
os.environ["RERANK_OPENSEARCH_HOSTS"] = "127.0.0.1,localhost"
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="rerank-tests-config-")

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

# assertions of these helpers show their values
pytest.register_assert_rewrite("tests.support")

# The duration of an example depends on the other work of the machine.
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

# Tests import many modules. A collection of all their objects takes 0.1 seconds, so it runs less often.
gc.set_threshold(700, 10, 200)

from tests.support import hook, processes
from tests.support.cli import Small, plain, run, script, small, spawn, trained, workspace, write_lines
from tests.support.opensearch import unavailable
from tools.opensearch_node import CannotRunError, Node, running, with_ml_commons

__all__ = ["plain", "run", "script", "small", "spawn", "trained", "workspace", "write_lines"]

NODES = {"node": "node", "ml_node": "ml", "plugin_node": "plugin"}
"""Nodes that many files share. All tests that use one of them run in the same process."""

FIRST = (
    "plugin",
    "tests/end_to_end/test_tutorials.py",
    "tests/integration/test_opensearch_cluster.py",
    "ml",
    "node",
    "tests/integration/test_hook_pipelines.py",
    "tests/integration/test_opensearch_interruptions.py",
)
"""Groups and files that take minutes. If they started last, the other cores would be idle."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Several files run in parallel processes, a single file in this process."""
    if all(".py" in argument for argument in config.args):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    waits = any("unit" not in argument for argument in config.args)
    # one more, because a quarter of the time is spent waiting for nodes and timeouts
    return min(cores + waits, 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for group in sorted({NODES[name] for name in fixtures & NODES.keys()}):
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=position)


def pytest_collection_finish() -> None:
    """Exclude the objects of imported modules from garbage collections. They live until the end."""
    gc.collect()
    gc.freeze()


def position(item: pytest.Item) -> int:
    """Return the place of a test's group or file in ``FIRST``, or the place after it."""
    marker = item.get_closest_marker("xdist_group")
    group = marker.args[0] if marker else item.nodeid.partition("::")[0]
    return FIRST.index(group) if group in FIRST else len(FIRST)


class Files(LoadGroupScheduling):
    """Runs tests that share a node in one process, and each other file in one process."""

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        if scope != nodeid:
            return scope
        file = nodeid.partition("::")[0]
        return file if file.startswith("tests/") else "doctests"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files | None:
    return Files(config, log) if config.option.dist == "loadgroup" else None


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Restore the signal handler, because an interrupted command leaves SIGINT ignored in this process."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def forks() -> ModuleType:
    """Starts the command, or other code, in processes that need not import torch."""
    return processes


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A real OpenSearch node. If none can run, its tests are skipped, or fail in CI."""
    try:
        with running() as started:
            yield started
    except CannotRunError as error:
        unavailable(error)


@pytest.fixture(scope="session")
def ml_node() -> Iterator[Node]:
    """A node with k-NN, ML Commons and neural-search, and our plugin."""
    try:
        home = with_ml_commons()
    except CannotRunError as error:
        unavailable(error)
    with hook.running(home=home) as started:
        yield started


@pytest.fixture(scope="session")
def knn_node(ml_node: Node) -> Node:
    """A node with the k-NN plugin."""
    return ml_node


@pytest.fixture(scope="session")
def plugin_node() -> Iterator[Node]:
    """A node with our plugin and the service's token in its keystore."""
    with hook.running() as started:
        yield started


@pytest.fixture(scope="module")
def plugged(plugin_node: Node) -> Iterator[Node]:
    """The node with our plugin, for one file. Indices and pipelines of its tests are deleted at the end."""
    yield plugin_node
    plugin_node.request("DELETE", "/*")
    plugin_node.request("DELETE", "/_search/pipeline/*")


@pytest.fixture(scope="session")
def text(small: Small) -> str:
    """A query of the small collection, without stop words."""
    return hook.texts(small, 1)[0]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A randomly initialized BERT of two layers with a vocabulary of forty words."""
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
