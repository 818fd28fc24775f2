"""Every public name has an example and is in the reference, and every command has a function."""

import inspect
import os
import pkgutil
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from rerank.cli.program import COMMANDS

import rerank
from rerank.common.progress import SILENT

ROOT = Path(__file__).resolve().parents[2]


def command_functions() -> dict[str, list[str]]:
    """Return command -> names of its functions, from the table of the guide."""
    text = (ROOT / "docs" / "guides" / "python.md").read_text("utf-8")
    rows = re.findall(r"^\| `rerank (\w+)` \| (.*) \|$", text, re.M)
    return {command: re.findall(r"`(rerank[\w.]+)", functions) for command, functions in rows}


def test_every_command_has_a_function():
    functions = command_functions()
    assert list(functions) == list(COMMANDS)
    for names in functions.values():
        assert names
        assert all(pkgutil.resolve_name(name) for name in names)


def test_functions_show_no_progress_by_default():
    """The default is an object, so that no function handles None."""
    names = [f"rerank.{name}" for name in rerank.__all__]
    for function in map(pkgutil.resolve_name, chain(names, *command_functions().values())):
        if inspect.isfunction(function):
            parameter = inspect.signature(function).parameters.get("progress")
            assert parameter is None or parameter.default is SILENT, function


@pytest.mark.parametrize(
    "value",
    [getattr(rerank, name) for name in rerank.__all__],
    ids=lambda value: value.__name__,
)
def test_every_public_name_has_an_example(value):
    assert ">>> " in value.__doc__, f"{value.__name__}: an example in the docstring, which runs as a test"
    assert value.__name__ in dir(rerank)


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    generated = re.findall(r"^<!-- generated: python (.*) -->$", page, re.M)
    assert sorted(" ".join(generated).split()) == sorted(rerank.__all__)


@pytest.mark.parametrize(
    ("variables", "turns"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_of_torch_soon_sleep_unless_the_user_decides(variables, turns):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    code = "import os, rerank; print(os.environ.get('GOMP_SPINCOUNT'))"
    output = subprocess.check_output(
        [sys.executable, "-c", code], env={**environment, **variables}, text=True
    )
    assert output.strip() == turns
