"""The lists of the comparison with other tools follow from its result files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PEERS = Path(__file__).parents[3] / "benchmarks" / "quality" / "peers"


@pytest.fixture(scope="module")
def table() -> Iterator[Any]:
    """Return the module that writes the tables of the comparison."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PEERS)
        yield importlib.import_module("table")


def test_every_better_peer_is_named(table: Any) -> None:
    for path in table.RESULTS.glob("*.json"):
        result = json.loads(path.read_text("utf-8"))
        of = {row["peer"]: row for row in result["rows"]}
        ours = next((of[one] for one in reversed(table.OURS) if one in of), None)
        named = table.better([result])
        for row in result["rows"] if ours else ():
            above = any(row[name] > ours[name] for name in table.MEASURES)
            if not row["peer"].startswith("rerank-"):
                assert (f"- {table.PEERS[row['peer']]}: " in named) is above
