"""Limits of idioms that make the project's texts hard to read. They may only fall."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.processes import output

ROOT = Path(__file__).parents[2]
LIMITS = {"docs": 0.5, "docstrings": 0.3, "help and messages": 1.2}
"""Maximum of idioms per 1,000 words by kind of text, as `tools/prose` counts them."""


@pytest.fixture(scope="module")
def counts() -> dict[str, list[int]]:
    command = [sys.executable, "tools/prose", "--json"]
    return json.loads(output(*command, cwd=ROOT))


@pytest.mark.parametrize("kind", LIMITS)
def test_texts_are_plain(counts, kind):
    words, idioms = counts[kind]
    assert 1000 * idioms / words <= LIMITS[kind], "run tools/prose --show 40"
