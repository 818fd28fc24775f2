"""Every public name has an example and is in the reference, and every command has a function."""

import pkgutil
import re
from pathlib import Path

import pytest
from rerank.cli.program import COMMANDS

import rerank

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_has_a_function():
    text = (ROOT / "docs" / "guides" / "python.md").read_text("utf-8")
    rows = re.findall(r"^\| `rerank (\w+)` \| (.*) \|$", text, re.M)
    assert [command for command, _ in rows] == list(COMMANDS)
    for _, functions in rows:
        named = re.findall(r"`(rerank[\w.]+)", functions)
        assert named
        assert all(pkgutil.resolve_name(one) for one in named)


@pytest.mark.parametrize(
    "found",
    [getattr(rerank, name) for name in rerank.__all__],
    ids=lambda found: found.__name__,
)
def test_every_public_name_has_an_example(found):
    assert ">>> " in found.__doc__, f"{found.__name__}: an example in the docstring, which runs as a test"
    assert found.__name__ in dir(rerank)


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    generated = re.findall(r"^<!-- generated: python (.*) -->$", page, re.M)
    assert sorted(" ".join(generated).split()) == sorted(rerank.__all__)
