"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.node import VERSION, CannotRunError, Node, maven, running


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


@pytest.fixture(scope="session")
def knn_node() -> Iterator[Node]:
    """A node with the k-NN plugin."""
    names = ("opensearch-job-scheduler", "opensearch-knn")
    try:
        plugins = [maven(f"org.opensearch.plugin:{name}:{VERSION}.0:zip") for name in names]
        with running(plugins=plugins, heap="512m") as started:
            yield started
    except CannotRunError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
