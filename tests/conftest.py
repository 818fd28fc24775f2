"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.node import CannotRunError, Node, running


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A real OpenSearch node; where none can run, its tests are skipped, in CI they fail."""
    try:
        with running() as started:
            yield started
    except CannotRunError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
