"""Shortcuts of unit tests. Tests in other folders run without them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

import pytest


@pytest.fixture(autouse=True, scope="session")
def shortcuts() -> Iterator[None]:
    """Do not wait for the disk, and search for installed packages once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        for registry in ("rankers", "engines"):
            patch.setattr(f"rerank.{registry}.registry.entry_points", cache(entry_points))
        yield
