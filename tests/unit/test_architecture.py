"""Rules of the architecture page that code can check: imports."""

from __future__ import annotations

import ast
import importlib
import os
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import rerank

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sorted((ROOT / "rerank").rglob("*.py"))
COMMANDS = sorted((ROOT / "cli").rglob("*.py"))


def name_of(path):
    return str(path.relative_to(ROOT))


@cache
def tree(path):
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes(path):
    return list(ast.walk(tree(path)))


def full_name(node, names):
    """Return the dotted name of an expression if its last part is among those of ``names``, else None."""
    last = getattr(node, "attr", getattr(node, "id", None))
    return ast.unparse(node) if last in {name.rpartition(".")[2] for name in names} else None


@cache
def imports(path, *, top_level=False, names=False):
    """Return the modules that a file imports; ``top_level``: only those imported at import time.

    With ``names``, `from a import b` gives `a.b` if that is a module.
    """
    found, nodes = set(), [tree(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            full = {f"{node.module}.{alias.name}" for alias in node.names} if names else set()
            found |= full.intersection(modules()) or {node.module}
        elif not (top_level and (isinstance(node, ast.FunctionDef) or is_for_type_checkers(node))):
            inner = (ast.stmt, ast.ExceptHandler, ast.match_case)
            nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, inner)]
    return found


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def roots(path, **options):
    return {module.split(".")[0] for module in imports(path, **options)}


def test_heavy_packages_are_imported_only_where_they_are_used():
    """Only training modules import torch at the top; other modules import heavy packages inside
    functions.

    This keeps the start of queries fast.
    """
    for path in (*LIBRARY, *COMMANDS):
        lazy = {"gensim", "scipy", "sklearn", "transformers"}
        if not is_for_training(path):
            assert "torch" not in roots(path) or name_of(path).startswith("rerank/rankers/")
            lazy |= {"torch", "ir_measures", "pytrec_eval", "tqdm"}
        assert not roots(path, top_level=True) & lazy, path


TORCH = {"batching", "checkpoint", "fit", "losses", "network", "task", "trainer"}
"""Modules of ``rerank/rankers`` that import torch at the top."""


def is_for_training(path):
    name = name_of(path)
    return name.startswith("rerank/rankers/") and bool(TORCH & {path.stem, *path.parent.parts})


def test_nothing_reads_or_writes_pickles():
    for path in (*LIBRARY, *COMMANDS):
        pickles = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
        assert not roots(path) & pickles, path
        calls = {"torch.load", "torch.save", "torch.jit.load"}
        for node in nodes(path):
            if isinstance(node, ast.Call):
                assert full_name(node.func, calls) not in calls, path
                assert not any(k.arg == "allow_pickle" and k.value.value for k in node.keywords), path


def test_the_library_neither_prints_nor_reads_the_command_line():
    calls, streams = {"print", "input", "exit", "sys.exit"}, {"sys.argv", "sys.stdout", "sys.stderr"}
    for path in LIBRARY:
        assert not roots(path) & {"click", "argparse", "tqdm"}, path
        assert "rerank.cli" not in imports(path), path
        for node in nodes(path):
            if isinstance(node, ast.Call):
                assert full_name(node.func, calls) not in calls, path
            if isinstance(node, ast.Attribute):
                assert full_name(node, streams) not in streams, path


def test_a_command_imports_the_library_only_when_it_is_called():
    """At import time a command imports only cheap modules, and training settings for its options."""
    cheap = {
        "rerank",
        "rerank.common.errors",
        "rerank.common.progress",
        "rerank.common.config",
        "rerank.common.results",
        "rerank.common.values",
        "rerank.documents.text",
    }
    cheap.add("rerank.service.settings")
    for path in COMMANDS:
        actual = {module for module in imports(path, top_level=True) if module.startswith("rerank")}
        if name_of(path) == "cli/train.py":
            actual = {one for one in actual if not one.startswith("rerank.rankers.")}
        assert actual <= cheap, path
        assert "numpy" not in roots(path), path


def test_base_classes_do_not_import_their_subclasses():
    for path in ("engines/base.py", "rankers/base.py"):
        known = imports(ROOT / "rerank" / path) & set(modules())
        assert known <= {
            "rerank.common.arrays",
            "rerank.common.errors",
            "rerank.common.files",
            "rerank.common.progress",
            "rerank.documents.filters",
            "rerank.common.order",
            "rerank.engines.hook_source",  # another interface
            "rerank.engines.search_request",
            "rerank.documents.categories",
            "rerank.documents.records",
        }


def test_modules_import_only_from_lower_layers():
    """The architecture page lists the layers."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    layers = page.partition("```layers\n")[2].partition("```")[0].splitlines()
    level = {name: len(layers) - place for place, names in enumerate(layers) for name in names.split()}
    units = {path: path.relative_to(ROOT / "rerank").parts[0].removesuffix(".py") for path in LIBRARY}
    units |= dict.fromkeys(COMMANDS, "cli")
    units |= dict.fromkeys((ROOT / "index_templates").rglob("*.py"), "index_templates")
    wrong = []
    for path, unit in units.items():
        if unit == "__init__":
            continue
        assert unit in level, f"docs/explanation/architecture.md puts {unit} in no layer"
        used = {module.split(".")[1] for module in imports(path) if module.startswith("rerank.")}
        wrong += [(name_of(path), one) for one in used if one != unit and level[one] >= level[unit]]
    assert not wrong


@cache
def modules():
    return ["rerank", *(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in LIBRARY)]


def test_every_module_can_be_imported_first():
    """Modules import each other without cycles.

    A package does not count as an import of the modules inside it.
    """
    files = {name.removesuffix(".__init__"): path for name, path in zip(modules()[1:], LIBRARY)}
    needs = {}
    for name, path in files.items():
        found = {one for module in imports(path, top_level=True, names=True) for one in prefixes(module)}
        needs[name] = {other for other in found & files.keys() if not f"{name}.".startswith(f"{other}.")}
        needs[name] |= {other for other in imports(path, top_level=True, names=True) if other in files}
        needs[name] -= {name}
    order = list(TopologicalSorter(needs).static_order())  # or a CycleError that names the cycle
    assert set(order) == files.keys()
    for name in order:
        importlib.import_module(name)


def test_benchmarks_import_names_that_exist():
    """Benchmarks run for minutes or hours, so tests do not run them."""
    for path in (ROOT / "benchmarks").rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rerank":
                for alias in node.names:
                    known = hasattr(importlib.import_module(node.module), alias.name)
                    assert known or f"{node.module}.{alias.name}" in modules(), (path, alias.name)


def prefixes(module):
    """Return the module's name and the names of the packages that contain it."""
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'rerank' has no attribute 'nonsense'"):
        _ = rerank.nonsense


@pytest.mark.xdist_group("node")
def test_tests_that_share_a_node_run_in_one_process(request):
    """pytest-xdist appends groups to test names. Without them, each process would start every node."""
    assert request.node.nodeid.endswith("@node") == ("PYTEST_XDIST_WORKER" in os.environ)
