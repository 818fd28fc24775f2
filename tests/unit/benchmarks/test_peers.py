"""The tables of the demo and of the peers equal the output of their commands."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], Any]]:
    """Return a function that imports a script by name."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in (SCRIPTS / "quality", SCRIPTS / "quality" / "peers"):
            patch.syspath_prepend(folder)
        yield importlib.import_module


@pytest.mark.parametrize("name", ["table", "demo", "signals"])
def test_tables_equal_the_output_of_their_command(script: Callable[[str], Any], name: str) -> None:
    for path, text in script(name).pages().items():
        assert path.read_text("utf-8") == text, f"run python benchmarks/.../{name}.py"


def test_every_better_peer_is_named(script: Callable[[str], Any]) -> None:
    table = script("table")
    for path in table.RESULTS.glob("*.json"):
        result = json.loads(path.read_text("utf-8"))
        of = {row["peer"]: row for row in result["rows"]}
        ours = next((of[one] for one in reversed(table.OURS) if one in of), None)
        named = table.better([result])
        for row in result["rows"] if ours else ():
            above = any(row[name] > ours[name] for name in table.MEASURES)
            if not row["peer"].startswith("rerank-"):
                assert (f"- {table.PEERS[row['peer']]}: " in named) is above
