"""An environment with only the declared dependencies of rerank. Other installed packages are hidden."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HIDING = """
import sys
from importlib.machinery import PathFinder

class VisibleFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else super().find_spec(name, path, target)

sys.meta_path[:] = [VisibleFinder if finder is PathFinder else finder for finder in sys.meta_path]
"""


def project() -> dict[str, object]:
    """Return the table ``[project]`` of pyproject.toml."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and later read TOML")
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def closure(requirements: Iterable[str]) -> set[str]:
    """Return names of the installed distributions that these requirements need, also indirectly."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        try:
            theirs = [Requirement(text) for text in distribution(wanted.name).requires or ()]
        except PackageNotFoundError:
            continue
        if name in found and not wanted.extras:
            continue
        found.add(name)
        waiting += [(one, part) for one in theirs for part in ("", *wanted.extras)]
    return found


def environment_with(folder: Path, *extras: str) -> dict[str, str]:
    """Return environment variables of a process with rerank, its base dependencies and these extras."""
    table = project()
    declared: list[str] = list(table["dependencies"])  # type: ignore[call-overload]
    for extra in extras:
        declared += table["optional-dependencies"][extra]  # type: ignore[index]
    there = closure(declared) | {str(table["name"])}
    hidden = {
        module
        for module, names in packages_distributions().items()
        if not there & {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    }
    (folder / "sitecustomize.py").write_text(HIDING.format(names=hidden), "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
