"""One core and compiled modules for each process, and names for the examples in docstrings.

``workspace`` with judged ``queries`` and ``qrels``, and ``folder`` for files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tools.opensearch_node import cache

for _library in ("OMP", "MKL", "OPENBLAS"):  # before NumPy, which starts its threads when it is imported
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

if sys.dont_write_bytecode:
    # Otherwise each process compiles thousands of modules again, and pytest rewrites all assertions again.
    # The folder is outside of the checkout, which stays without bytecode.
    sys.pycache_prefix = sys.pycache_prefix or str(cache() / "bytecode")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest

from rerank import Document, Qrels, Query, Workspace

TEXTS = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}


@pytest.fixture(autouse=True)
def examples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Define the names for examples that use them."""
    test = getattr(request.node, "dtest", None)
    if test is not None and ("workspace" in test.docstring or "folder" in test.docstring):
        folder = tmp_path_factory.mktemp("example")
        test.globs["folder"] = folder
        if "workspace" in test.docstring:
            test.globs.update(names(folder))


def names(folder: Path) -> dict[str, Any]:
    """Return the names and their values."""
    workspace = Workspace.create(folder / "ws", lang="en")
    workspace.engine.write(Document(id, text=text) for id, text in TEXTS.items())
    queries = [Query("q1", "hunts at night"), Query("q2", "mice")]
    return {
        "workspace": workspace,
        "queries": queries,
        "qrels": Qrels([("q1", "owl", 1), ("q2", "fox", 1)]),
    }
