"""The tables of the peers are what benchmarks/peers/table.py makes of its result files."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture(scope="module")
def table() -> Any:
    """Import ``table.py`` of the peers."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("table")
    sys.path.remove(str(SCRIPTS))


def test_the_tables_are_what_their_command_makes(table: Any) -> None:
    for path, text in table.pages().items():
        assert path.read_text("utf-8") == text, "run python benchmarks/peers/table.py"


def test_every_case_of_a_better_peer_is_named(table: Any) -> None:
    for path in table.RESULTS.glob("*.json"):
        result = json.loads(path.read_text("utf-8"))
        of = {row["peer"]: row for row in result["rows"]}
        ours = next((of[one] for one in table.OURS if one in of), None)
        named = table.better([result])
        for row in result["rows"] if ours else ():
            above = any(row[name] > ours[name] for name in table.MEASURES)
            if not row["peer"].startswith("rerank-"):
                assert (f"{table.PEERS[row['peer']]} 0." in named) is above
