"""Commands that work with only the base dependencies (`pip install .`), and messages for missing extras."""

from __future__ import annotations

import re
import shutil

import pytest

from rerank.errors import EXTRAS
from tests.dense import linked_documents, options, write_judgments
from tests.installed import closure, environment_with, project
from tests.service import serving

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
    needs = "a transformer needs torch: install it with `pip install 'rerank-stack[train]'`"
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
        wanted = run("query", TOPIC, "--stack", "tfidf,dense,lsi", "-w", folder, "--json").json["hits"]
        assert server.post("/v1/search", asked).json["hits"] == wanted
        given = {"query": TOPIC, "documents": [TOPIC, "w1"]}
        assert server.post("/v1/rerank", {**given, "stack": "tfidf*1 + lsi*1"}).status == 200
        answer = server.post("/v1/rerank", {**given, "stack": "tfidf*1 + dense*1"})
        answer.fails(503, "pip install 'rerank-stack[train]'")


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
        spawn("train", name, *judged, *where, env=base).fails(
            1, "install it with `pip install 'rerank-stack[train]'`"
        )
    done = spawn("evaluate", "--stack", "tfidf,text", *judged, *where, env=base)
    done.fails(1, "needs ir_measures", "rerank-stack[train]")
    spawn("serve", *where, env=base).fails(1, "the service needs ", "`pip install 'rerank-stack[service]'`")
    nobody = ("--url", "http://127.0.0.1:9", "--index", "x", "-w", tmp_path / "none")
    spawn("attach", *nobody, "text=t", env=base).fails(1, "http://127.0.0.1:9")


def test_extras_contain_the_packages_that_messages_name():
    extras = project()["optional-dependencies"]
    for extra in ("train", "service", "aws"):
        names = {re.split(r"[><=\[]", name)[0] for name in extras[extra]}
        modules = {name.replace("scikit-learn", "sklearn").replace("-", "_") for name in names}
        named = {module for module, brings in EXTRAS.items() if brings == extra}
        assert modules <= named
        brought = {
            name.replace("scikit-learn", "sklearn").replace("-", "_") for name in closure(extras[extra])
        }
        assert named <= brought
        assert not names & {re.split(r"[><=]", name)[0] for name in project()["dependencies"]}
