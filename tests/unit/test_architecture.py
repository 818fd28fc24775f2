"""Rules of the architecture page that code can check: imports, and the installed files."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import sys
import zipfile
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

import rerank
from tests.programs import output

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sorted((ROOT / "rerank").rglob("*.py"))
COMMANDS = sorted((ROOT / "cli").rglob("*.py"))


def name_of(path):
    return str(path.relative_to(ROOT))


@cache
def tree(path):
    return ast.parse(path.read_text("utf-8"))


def imports(node, *, top_level=False, names=False):
    """Yield the modules that a file imports; ``top_level``: only those imported at import time.

    With ``names``, `from a import b` yields `a.b` if that is a module.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            full = {f"{child.module}.{alias.name}" for alias in child.names} if names else set()
            yield from (full & set(modules())) or {child.module}
        elif top_level and (isinstance(child, (ast.FunctionDef, ast.Lambda)) or is_for_type_checkers(child)):
            continue
        else:
            yield from imports(child, top_level=top_level, names=names)


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def roots(path, **options):
    return {module.split(".")[0] for module in imports(tree(path), **options)}


@pytest.mark.parametrize("path", [*LIBRARY, *COMMANDS], ids=name_of)
def test_heavy_packages_are_imported_only_where_they_are_used(path):
    """Only training modules import torch at the top; other modules import heavy packages inside
    functions.

    This keeps the start of queries fast.
    """
    lazy = {"gensim", "scipy", "sklearn", "transformers"}
    if not is_for_training(path):
        assert "torch" not in roots(path, top_level=True)
        assert "torch" not in roots(path) or name_of(path).startswith("rerank/rankers/")
        lazy |= {"ir_measures", "pytrec_eval", "tqdm"}
    assert not roots(path, top_level=True) & lazy


TORCH = {"batches", "batching", "checkpoint", "fit", "losses", "network", "task", "trainer"}
"""Modules of ``rerank/rankers`` that import torch at the top."""


def is_for_training(path):
    name = name_of(path)
    return name.startswith("rerank/rankers/") and bool(TORCH & {path.stem, *path.parent.parts})


@pytest.mark.parametrize("path", [*LIBRARY, *COMMANDS], ids=name_of)
def test_nothing_reads_or_writes_pickles(path):
    assert not roots(path) & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "torch.save", "torch.jit.load"), called
            assert not any(k.arg == "allow_pickle" and k.value.value is not False for k in node.keywords), (
                called
            )


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_the_library_neither_prints_nor_reads_the_command_line(path):
    assert not roots(path) & {"click", "argparse", "tqdm"}
    assert "rerank.cli" not in set(imports(tree(path)))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in ("print", "input", "exit", "sys.exit")
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("sys.argv", "sys.stdout", "sys.stderr")


@pytest.mark.parametrize("path", COMMANDS, ids=name_of)
def test_a_command_imports_the_library_only_when_it_is_called(path):
    """At import time a command imports only cheap modules, and training settings for its options."""
    found = {module for module in imports(tree(path), top_level=True) if module.startswith("rerank")}
    if name_of(path) == "cli/train.py":
        found = {one for one in found if not one.startswith("rerank.rankers.")}
    cheap = {"rerank", "rerank.errors", "rerank.progress", "rerank.config", "rerank.results", "rerank.text"}
    cheap.add("rerank.service.settings")
    assert found <= cheap
    assert "numpy" not in roots(path)


def test_base_classes_do_not_import_their_subclasses():
    for path in ("engines/base.py", "rankers/base.py"):
        known = set(imports(tree(ROOT / "rerank" / path))) & set(modules())
        assert known <= {
            "rerank.arrays",
            "rerank.errors",
            "rerank.files",
            "rerank.filters",
            "rerank.order",
            "rerank.categories",
            "rerank.records",
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
        used = {module.split(".")[1] for module in imports(tree(path)) if module.startswith("rerank.")}
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
        found = {
            one for module in imports(tree(path), top_level=True, names=True) for one in prefixes(module)
        }
        needs[name] = {other for other in found & files.keys() if not f"{name}.".startswith(f"{other}.")}
        needs[name] |= {other for other in imports(tree(path), top_level=True, names=True) if other in files}
        needs[name] -= {name}
    order = list(TopologicalSorter(needs).static_order())  # or a CycleError that names the cycle
    assert set(order) == files.keys()
    for name in order:
        importlib.import_module(name)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("*.py")), ids=name_of)
def test_benchmarks_import_names_that_exist(path):
    """Benchmarks run for minutes or hours, so tests do not run them."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rerank":
            for alias in node.names:
                known = hasattr(importlib.import_module(node.module), alias.name)
                assert known or f"{node.module}.{alias.name}" in modules(), alias.name


def prefixes(module):
    """Return the module's name and the names of the packages that contain it."""
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'rerank' has no attribute 'nonsense'"):
        _ = rerank.nonsense


IGNORED = shutil.ignore_patterns(
    ".git", "__pycache__", "*.egg-info", "build", "dist", ".*cache", ".rerank*", ".venv", ".hypothesis"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist of a copy of the repository, and the wheel that is built from the sdist."""
    pytest.importorskip("build", reason="the dev extra is not installed")
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "source", ignore=IGNORED)
    command = [sys.executable, "-m", "build", folder / "source", "--outdir", folder / "dist"]
    try:
        installed = int(version("setuptools").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        installed = 0
    if installed >= 77:  # as pyproject.toml asks for: nothing to download
        command.append("--no-isolation")
    output(*command)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sdist, wheel


def expected_files():
    """Return the paths in site-packages of all modules and data files of the repository."""
    places = {f"rerank/{path.relative_to(ROOT / 'rerank').as_posix()}" for path in LIBRARY}
    places |= {f"rerank/cli/{path.relative_to(ROOT / 'cli').as_posix()}" for path in COMMANDS}
    templates = (path for kind in ("*.py", "*.json") for path in (ROOT / "index_templates").glob(kind))
    places |= {f"rerank/index_templates/{path.name}" for path in templates}
    folders = (ROOT / "rerank" / "demo" / "collection", ROOT / "rerank" / "report_page" / "templates")
    data = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    places |= {f"rerank/{path.relative_to(ROOT / 'rerank').as_posix()}" for path in data}
    return places | {"rerank/py.typed"}


@pytest.mark.slow
def test_the_wheel_contains_only_the_package(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    package = {name for name in names if name.startswith("rerank/")}
    assert package == expected_files()
    metadata = names - package
    assert {name.split("/")[0] for name in metadata} == {f"rerank_stack-{rerank.__version__}.dist-info"}
    assert any(name.endswith("LICENSE") for name in metadata)
    assert built[1].name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_the_installed_wheel_works_outside_the_repository(built, tmp_path):
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target)
    output(*pip, built[1])
    about = f"rerank_stack-{rerank.__version__}.dist-info"
    assert {path.name for path in target.iterdir()} == {"rerank", "bin", about}
    code = (
        "import json, rerank, rerank.cli, rerank.cli.query\n"
        "from rerank.demo import COLLECTION\n"
        "from rerank.formats import read_corpus, read_qrels\n"
        "documents = sum(1 for _ in read_corpus(COLLECTION / 'corpus.jsonl.gz'))\n"
        "judged = len(read_qrels(COLLECTION / 'qrels' / 'test.tsv'))\n"
        "print(json.dumps([rerank.__file__, rerank.cli.__file__, documents, judged]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    printed = output(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    package, commands, documents, judged = json.loads(printed)
    assert package == str(target / "rerank" / "__init__.py")
    assert commands == str(target / "rerank" / "cli" / "__init__.py")
    assert documents == 1979
    assert judged > 100
    assert "Start with `rerank demo`" in output(target / "bin" / "rerank", "--help", env=environment)


@pytest.mark.xdist_group("node")
def test_tests_that_share_a_node_run_in_one_process(request):
    """pytest-xdist appends groups to test names. Without them, each process would start every node."""
    assert request.node.nodeid.endswith("@node") == ("PYTEST_XDIST_WORKER" in os.environ)
