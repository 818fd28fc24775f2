"""Fixtures for all tests, and which of them run in one process. CONTRIBUTING.md says how to run them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any

for _library in ("OMP", "MKL", "OPENBLAS"):  # before NumPy: each process computes on one core
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# Secrets may go to the nodes of the tests, and what is remembered of them does not stay.
os.environ["RERANK_OPENSEARCH_HOSTS"] = "127.0.0.1,localhost"
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="rerank-tests-config-")

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling

pytest.register_assert_rewrite(
    "tests.opensearch_faults", "tests.pages"
)  # helpers whose assertions show their values

# How long an example takes is the machine's matter: what else it has to do.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

from tests import forked, hook
from tests.commands import plain, run, script, small, spawn, trained, workspace, write_lines
from tests.node import CannotRunError, Node, running, with_ml_commons
from tests.unavailable import unavailable

__all__ = ["plain", "run", "script", "small", "spawn", "trained", "workspace", "write_lines"]

NODES = {"node": "node", "ml_node": "ml", "plugin_node": "plugin"}
"""The nodes that many files share: what asks for one runs in the process that has it."""

FIRST = (
    "plugin",
    "tests/end_to_end/test_tutorials.py",
    "tests/integration/test_opensearch_cluster.py",
    "ml",
    "node",
    "tests/integration/test_hook_plugin.py",
    "tests/integration/test_opensearch_interruptions.py",
)
"""Groups and files that take minutes: started last, each would leave the other cores without work."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Several files are run in processes beside each other, single files in this one."""
    if all(".py" in argument for argument in config.args):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    waits = any("unit" not in argument for argument in config.args)
    return min(cores + waits, 4)  # one more: a quarter of the time is waiting for nodes and time-outs


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for group in sorted({NODES[name] for name in fixtures & NODES.keys()}):
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):  # one process of several
        items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """The place of a test's group or file in ``FIRST``, or behind it."""
    marker = item.get_closest_marker("xdist_group")
    group = marker.args[0] if marker else item.nodeid.partition("::")[0]
    return FIRST.index(group) if group in FIRST else len(FIRST)


class Files(LoadGroupScheduling):
    """What shares a node runs in one process, and so does each other file."""

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
    """A command that is interrupted in this process ignores what comes after; the next test is another."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def forks() -> ModuleType:
    """Starts the command, or other code, in processes that need not import torch (``tests/forked.py``)."""
    return forked


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A real OpenSearch node; where none can run, its tests are skipped, in CI they fail."""
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
    """A node with our plugin; the service's token is in its keystore."""
    with hook.running() as started:
        yield started


@pytest.fixture(scope="module")
def plugged(plugin_node: Node) -> Iterator[Node]:
    """The node with our plugin, for one file: what its tests have left goes."""
    yield plugin_node
    plugin_node.request("DELETE", "/*")
    plugin_node.request("DELETE", "/_search/pipeline/*")


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
