"""The hook on a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hook import Dummy, Hook, fill
from tests.node import Node


@pytest.fixture(scope="module")
def hooked(plugged: Node) -> Node:
    """A node with the plugin and a few indices."""
    fill(plugged)
    return plugged


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
