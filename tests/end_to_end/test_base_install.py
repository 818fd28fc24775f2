"""The distribution, the commands that need only the base dependencies, and messages for missing extras."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version

import pytest

import rerank
from rerank.common.errors import EXTRAS
from tests.support.cli import ROOT, closure, environment_with, project
from tests.support.dense import linked_documents, options, write_judgments
from tests.support.processes import output
from tests.support.service import serving

TOPIC = "w10 w11 w12 w13 w14"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return environment_with(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def learned(run, write_lines, tiny, tmp_path_factory):
    """A workspace with a small trained transformer and a projection, and the judged queries."""
    folder = tmp_path_factory.mktemp("learned")
    corpus = write_lines(folder / "corpus.jsonl", linked_documents())
    where = ("-w", folder / "ws")
    judged = write_judgments(folder, write_lines)
    for args in [
        ("ingest", corpus),
        ("train", "dense", *options(tiny, "--steps", 6)),
        ("train", "lsi", "--dim", 8, *judged),
    ]:
        run(*args, *where).ok()
    return folder / "ws", judged


@pytest.mark.slow
def test_rankers_give_equal_answers_without_torch(run, spawn, base, learned):
    folder, judged = learned
    stack = ("--stack", "tfidf,dense,lsi", "-w", folder, "--json")
    tuned = spawn("tune", *judged, *stack, env=base).json
    assert tuned["stack"] == run("tune", *judged, *stack).json["stack"]
    query = ("query", TOPIC, *stack, "--explain")
    assert spawn(*query, env=base).json["hits"] == run(*query).json["hits"]
    assert spawn("encode", "-w", folder, env=base).code == 0
    assert {r["name"] for r in spawn("status", "-w", folder, "--json", env=base).json["rankers"]} == {
        "dense",
        "lsi",
    }


@pytest.mark.slow
def test_encoding_with_dense_without_torch_is_refused_in_one_line(
    spawn, base, learned, write_lines, tmp_path, run
):
    folder, _ = learned
    more = write_lines(tmp_path / "more.jsonl", [{"_id": "new", "text": TOPIC}])
    needs = "a transformer needs torch: run `pip install '.[train]'` in the clone"
    folder = shutil.copytree(folder, tmp_path / "ws")
    spawn("ingest", more, "-w", folder, env=base).fails(1, needs)
    assert spawn("ingest", more, "--no-encode", "-w", folder, env=base).code == 0
    query = ("query", TOPIC, "--stack", "tfidf*1 + dense*1", "-w", folder)
    spawn(*query, env=base).fails(1, needs)
    assert run("encode", "-w", folder).code == 0
    assert spawn(*query, env=base).code == 0


@pytest.mark.slow
def test_the_service_needs_only_its_extra(learned, script, run, tmp_path, tmp_path_factory):
    folder, _ = learned
    env = environment_with(tmp_path_factory.mktemp("service"), "service")
    with serving(script, folder, tmp_path, **env) as server:
        asked = {"query": TOPIC, "stack": "tfidf,dense,lsi"}
        expected = run("query", TOPIC, "--stack", "tfidf,dense,lsi", "-w", folder, "--json").json["hits"]
        assert server.post("/v1/search", asked).json["hits"] == expected
        given = {"query": TOPIC, "documents": [TOPIC, "w1"]}
        assert server.post("/v1/rerank", {**given, "stack": "tfidf*1 + lsi*1"}).status == 200
        answer = server.post("/v1/rerank", {**given, "stack": "tfidf*1 + dense*1"})
        answer.fails(503, "pip install '.[train]'")


@pytest.mark.slow
def test_evaluation_needs_only_its_extra(workspace, small, spawn, tmp_path, tmp_path_factory):
    env = environment_with(tmp_path_factory.mktemp("evaluate"), "evaluate")
    judged = ("--queries", small.queries, "--qrels", small.dev, "-w", workspace)
    page = tmp_path / "page.html"
    spawn("evaluate", "--stack", "tfidf*0.5 + text*0.5", *judged, "--report", page, env=env).ok()
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_commands_that_work_without_the_extras(base, workspace, small, spawn, tmp_path):
    where = ("-w", workspace)
    judged = ("--queries", small.queries, "--qrels", small.dev)
    for args in [
        ("ingest", small.corpus, "--categories", small.categories, *where),
        ("query", "grey wolf", "--stack", "tfidf,text,meta", "--explain", *where),
        ("tune", "--stack", "tfidf,text", *judged, *where),
        ("ingest", small.corpus, "-w", tmp_path / "new"),
    ]:
        spawn(*args, env=base).ok()
    for name in ("text", "s2net"):
        spawn("train", name, *judged, *where, env=base).fails(1, "run `pip install '.[train]'` in the clone")
    done = spawn("evaluate", "--stack", "tfidf,text", *judged, *where, env=base)
    done.fails(1, "needs ir_measures", ".[evaluate]")
    spawn("serve", *where, env=base).fails(1, "the service needs ", "`pip install '.[service]'`")
    nobody = ("--url", "http://127.0.0.1:9", "--index", "x", "-w", tmp_path / "none")
    spawn("attach", *nobody, "text=t", env=base).fails(1, "http://127.0.0.1:9")


def test_extras_contain_the_packages_that_messages_name():
    extras = project()["optional-dependencies"]
    for extra in ("train", "evaluate", "service", "aws"):
        names = {re.split(r"[><=\[]", name)[0] for name in extras[extra]}
        modules = {name.replace("scikit-learn", "sklearn").replace("-", "_") for name in names}
        named = {module for module, brings in EXTRAS.items() if brings == extra}
        assert modules <= EXTRAS.keys()
        brought = {
            name.replace("scikit-learn", "sklearn").replace("-", "_") for name in closure(extras[extra])
        }
        assert named <= brought
        assert not names & {re.split(r"[><=]", name)[0] for name in project()["dependencies"]}


IGNORED = shutil.ignore_patterns(
    ".git", "__pycache__", "*.egg-info", "build", "dist", ".*cache", ".rerank*", ".venv", ".hypothesis"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel of a copy of the repository, which is built from its sdist."""
    pytest.importorskip("build", reason="the dev extra is not installed")
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "source", ignore=IGNORED)
    command = [sys.executable, "-m", "build", folder / "source", "--outdir", folder / "dist"]
    try:
        installed = int(version("setuptools").split(".")[0])
    except PackageNotFoundError:
        installed = 0
    if installed >= 77:  # as pyproject.toml asks for: nothing to download
        command.append("--no-isolation")
    output(*command)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def expected_files():
    """Return the paths in site-packages of all modules and data files of the repository."""
    own = ("rerank/**/*.py", "rerank/workflows/demo/collection/**/*", "rerank/reports/templates/*")
    found = {path for pattern in own for path in ROOT.glob(pattern) if path.is_file()}
    places = {path.relative_to(ROOT).as_posix() for path in found}
    for pattern in ("cli/**/*.py", "index_templates/*.py", "index_templates/*.json"):
        places |= {f"rerank/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob(pattern)}
    return places | {"rerank/py.typed"}


@pytest.mark.slow
def test_the_wheel_contains_only_the_package(built):
    with zipfile.ZipFile(built) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    package = {name for name in names if name.startswith("rerank/")}
    assert package == expected_files()
    metadata = names - package
    assert {name.split("/")[0] for name in metadata} == {f"rerank_stack-{rerank.__version__}.dist-info"}
    assert any(name.endswith("LICENSE") for name in metadata)
    assert built.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_the_installed_wheel_works_outside_the_repository(built, tmp_path):
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target)
    output(*pip, built)
    about = f"rerank_stack-{rerank.__version__}.dist-info"
    assert {path.name for path in target.iterdir()} == {"rerank", "bin", about}
    code = (
        "import json, rerank, rerank.cli, rerank.cli.query\n"
        "from rerank.workflows.demo import COLLECTION\n"
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
