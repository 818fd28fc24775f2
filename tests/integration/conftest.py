"""The command, the small collection and the hook on a node, for tests on real nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.conftest import run, script, small, spawn, trained, write_lines
from tests.hook import Dummy, Hook, running
from tests.node import VERSION, Node

__all__ = ["run", "script", "small", "spawn", "trained", "write_lines"]


@pytest.fixture(scope="module")  # no longer: other tests have nodes of their own
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the plugin and a few indices."""
    with running(VERSION, tmp_path_factory.mktemp("plugin")) as node:
        yield node


@pytest.fixture
def dummy() -> Iterator[Dummy]:
    started = Dummy()
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def hook(hooked: Node, dummy: Dummy) -> Hook:
    return Hook(hooked, dummy.url)
