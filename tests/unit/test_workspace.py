"""The folder: making, opening and refusing it; rankers put in use; stacks looked up by what a user types."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.combiners.linear import Linear
from rerank.engines import registry
from rerank.engines.base import SearchRequest
from rerank.engines.local import LocalEngine
from rerank.errors import BusyError, InputError, NotTrainedError, UsageError, WorkspaceError
from rerank.files import folder_lock
from rerank.rankers.cnn.heads import CosineHead
from rerank.rankers.cnn.ranker import CnnRanker
from rerank.rankers.cnn.towers import Tower, Vocabulary
from rerank.records import Document, Qrels, Query
from rerank.stack.stack import Stack
from rerank.workflows.ingest import ingest
from rerank.workflows.tune import tune
from rerank.workspace import Workspace


def make_ranker(name="text", version="v1", seed=0):
    random = np.random.default_rng(seed)

    def tower():
        vectors = random.normal(size=(4, 2)).astype(np.float16)
        vectors[0] = 0
        part = "meta" if name == "meta" else "text"
        filters, bias = random.normal(size=(1, 2, 3)).astype(np.float32), np.zeros(3, np.float32)
        return Tower(Vocabulary(part, ["apple", "pear", "fig"], 50), vectors, None, filters, bias, False)

    sides = [random.normal(size=shape).astype(np.float32) for shape in ((3, 4), (4,), (3, 4), (4,))]
    return CnnRanker(name, version, [tower()], [tower()], CosineHead(*sides), {})


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document("a", text="apple"), Document("b", text="pear apple")])
    return workspace


# -------------------------------------------------------------------------------------------- the folder


def test_a_workspace_is_found_again(tmp_path):
    assert not Workspace.exists(tmp_path / "deep" / "ws")
    made = Workspace.create(tmp_path / "deep" / "ws", lang="de")
    made.engine.write([Document("a", text="Apfel")])
    assert Workspace.exists(tmp_path / "deep" / "ws")
    found = Workspace.open(str(tmp_path / "deep" / "ws"))
    assert (found.lang, len(found.engine), found.trained()) == ("de", 1, [])
    assert found.engine is found.engine
    mixed = Workspace.open(Workspace.create(tmp_path / "mixed").folder)
    assert mixed.lang is None
    assert mixed.engine.find(SearchRequest("x", first_stage="tfidf", depth=1)).ids == []


def test_there_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "none", tmp_path, tmp_path / "file"):
        with pytest.raises(
            WorkspaceError, match=r"no workspace here; make one with `rerank ingest CORPUS -w "
        ):
            Workspace.open(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name, what in (("ws", "not empty, and not a workspace"), ("file", "a file, and not a workspace")):
        with pytest.raises(WorkspaceError, match=what):
            Workspace.create(tmp_path / name)
    with pytest.raises(WorkspaceError, match="cannot make a workspace"):
        Workspace.create(tmp_path / "file" / "ws")
    assert [path.name for path in (tmp_path / "ws").iterdir()] == ["letter.txt"]
    (tmp_path / "empty").mkdir()
    Workspace.create(tmp_path / "empty")
    with pytest.raises(BusyError, match="has just made a workspace"):
        Workspace.create(tmp_path / "empty")


def test_a_folder_in_which_another_process_is_making_a_workspace(tmp_path):
    with (
        folder_lock(tmp_path, "busy"),
        pytest.raises(BusyError, match="another process is making a workspace"),
    ):
        Workspace.create(tmp_path)
    assert list(tmp_path.iterdir()) == []
    Workspace.create(tmp_path)


def test_a_creation_that_was_cut_off_is_begun_again(tmp_path):
    LocalEngine.create(tmp_path / "ws" / "engine", lang="it").close()
    assert not Workspace.exists(tmp_path / "ws")
    made = Workspace.create(tmp_path / "ws", lang="en")
    assert (made.lang, made.engine.lang) == ("en", "en")


def test_a_folder_whose_name_is_no_text(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/w\xff")
    with pytest.raises(WorkspaceError, match=r"w\\udcff': the name is not UTF-8"):
        Workspace.create(folder)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", ["2", "0", '"one"', "[]"])
def test_a_workspace_of_another_version(workspace, number):
    file = workspace.folder / "rerank.toml"
    file.write_text(file.read_text().replace("format = 1", f"format = {number}"))
    with pytest.raises(
        WorkspaceError, match=r"ws: a workspace of format .*, but this version .* reads 1; use"
    ):
        Workspace.open(workspace.folder)
    file.write_text("engine = 'local'\n")
    with pytest.raises(WorkspaceError, match="format None"):
        Workspace.open(workspace.folder)


@pytest.mark.parametrize("content", ["{", "[]", "3", '["ab"]', ""])
def test_a_damaged_engine_file(workspace, content):
    (workspace.folder / "engine" / "engine.json").write_text(content)
    with pytest.raises(WorkspaceError, match=r"engine.json cannot be read|was written in format None"):
        _ = Workspace.open(workspace.folder).engine


def test_settings_that_an_editor_has_marked(workspace):
    file = workspace.folder / "rerank.toml"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert Workspace.open(workspace.folder).lang == "en"


@pytest.mark.parametrize(
    "content",
    [
        b"format = ",
        b"\xff\xfe",
        b"format = 1\nformat = 1\n",
        b"a" + b".a" * 3000 + b" = 1",
        b"a" + b".a" * 100_000 + b" = 1",
    ],
    ids=range(5),
)
def test_a_damaged_settings_file(workspace, content):
    (workspace.folder / "rerank.toml").write_bytes(content)
    with pytest.raises(WorkspaceError, match=r"rerank\.toml: cannot be read") as caught:
        Workspace.open(workspace.folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("first_stage", "frist_stage", "`frist_stage`"),
        ('"tfidf"', '"tfidg"', "'tfidg'"),
        ('"tfidf"', "3", "first_stage"),
        ('"en"', '"english"', "'english'"),
        ('"en"', '["en"]', "lang"),
        ("format", 'token = "secret"\nformat', "`token`"),
        ('"local"', '["local"]', "engine"),
        ("format", "opensearch = 5\nformat", "[opensearch]"),
        ("format", "local = 5\nformat", "[local]"),
        ('"tfidf"', '"template:a\\u0000b"', "the character 0"),
    ],
)
def test_a_setting_that_is_wrong_names_the_file(workspace, old, new, what):
    file = workspace.folder / "rerank.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises((UsageError, WorkspaceError)) as caught:
        Workspace.open(workspace.folder)
    assert str(caught.value).startswith(f"{file}: ")
    assert what in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_engine_that_is_not_known(workspace):
    file = workspace.folder / "rerank.toml"
    file.write_text(file.read_text().replace('"local"', '"solr"'))
    with pytest.raises(UsageError, match="engine 'solr' is unknown"):
        _ = Workspace.open(workspace.folder).engine


def test_the_category_graph_is_kept(workspace):
    assert workspace.category_edges() is None
    edges = [("C.2.4", "C.2"), ("E. coli", "bacteria"), ("ü x", "y")]
    workspace.save_category_edges(edges)
    assert Workspace.open(workspace.folder).category_edges() == edges
    workspace.save_category_edges([("a", "b")])
    assert workspace.category_edges() == [("a", "b")]


# ----------------------------------------------------------------------------------------------- rankers


def contents(workspace):
    return sorted(path.name for path in (workspace.folder / "rankers").iterdir())


def test_installing_swaps_the_version(workspace):
    one, two = make_ranker(seed=1), make_ranker(version="v2", seed=2)
    workspace.install(one)
    assert contents(workspace) == ["text-v1", "text.json"]
    assert workspace.ranker("text").version == "v1"
    workspace.install(make_ranker("meta", "m1"))
    workspace.install(two)
    assert contents(workspace) == ["meta-m1", "meta.json", "text-v2", "text.json"]
    assert workspace.trained() == Workspace.open(workspace.folder).trained() == ["meta", "text"]
    for opened in (workspace, Workspace.open(workspace.folder)):
        found = opened.ranker("text")
        assert found is opened.ranker("text")
        assert found is not two  # what is used is what is stored
        query = Query("q", "apple pear")
        assert found.encode_query(query).tolist() == two.encode_query(query).tolist()


def test_a_ranker_that_was_not_trained_names_the_command(workspace):
    workspace.install(make_ranker())
    with pytest.raises(
        NotTrainedError,
        match=r"signal 'meta' is not trained in .*ws \(there are bm25, tfidf, text\);"
        r" train it with `rerank train meta --queries QUERIES --qrels QRELS`",
    ):
        workspace.ranker("meta")
    with pytest.raises(UsageError, match="signal 'texts' is unknown; this workspace has bm25, tfidf, text"):
        workspace.ranker("texts")
    for signals in (["tfidf", "meta"], ["meta"]):
        with pytest.raises(NotTrainedError):
            workspace.pipeline(signals)
    assert set(workspace.pipeline(["tfidf", "text", "bm25"]).rankers) == {"text"}


@pytest.mark.parametrize("content", ["{}", "[]", "null", "3", "{", '{"version": "v7"}', '{"version": null}'])
def test_a_damaged_pointer(workspace, content):
    workspace.install(make_ranker())
    (workspace.folder / "rankers" / "text.json").write_text(content)
    with pytest.raises(WorkspaceError, match=r"train .*again"):
        Workspace.open(workspace.folder).ranker("text")


def test_a_ranker_whose_files_are_gone(workspace):
    workspace.install(make_ranker())
    shutil.rmtree(workspace.folder / "rankers" / "text-v1")
    with pytest.raises(WorkspaceError, match=r"text-v1: the ranker cannot be read .*train it again"):
        Workspace.open(workspace.folder).ranker("text")


def test_a_name_that_begins_like_another(workspace):
    workspace.install(make_ranker("text", "v1"))
    other = make_ranker("text", "v1", seed=5)
    other.name, other.variant = "text-x", "text"
    workspace.install(other)
    leftover = workspace.folder / "rankers" / "text-old"
    leftover.mkdir()
    (leftover / "ranker.json").touch()
    (workspace.folder / "rankers" / ".new").mkdir()
    workspace.install(make_ranker("text", "v2", seed=2))
    assert contents(workspace) == ["text-v2", "text-x-v1", "text-x.json", "text.json"]
    again = Workspace.open(workspace.folder)
    assert (again.ranker("text").version, again.ranker("text-x").version) == ("v2", "v1")
    with pytest.raises(UsageError, match="text-x-v1 holds text-x; choose another name"):
        workspace.install(make_ranker("text", "x-v1"))
    assert Workspace.open(workspace.folder).ranker("text-x").version == "v1"


def install_for_ever(folder, rankers):
    workspace = Workspace.open(folder)
    while True:
        for ranker in rankers:
            workspace.install(ranker)


def test_installations_that_are_killed_while_others_load(workspace):
    """Of 16 kills none leaves no ranker, and no load fails; two that install at once take turns."""
    rankers = [make_ranker(version=f"v{seed}", seed=seed) for seed in (1, 2, 3)]
    workspace.install(rankers[0])
    vectors = {one.version: one.encode_query(Query("q", "apple pear")).tolist() for one in rankers}
    random = np.random.default_rng(0)
    context, loads = multiprocessing.get_context("fork"), 0
    for round in range(8):
        children = [
            context.Process(target=install_for_ever, args=(workspace.folder, order))
            for order in (rankers, rankers[::-1])
        ]
        for child in children:
            child.start()
        end = time.monotonic() + random.uniform(0.01, 0.05)
        while time.monotonic() < end or loads <= round:
            found = Workspace.open(workspace.folder).ranker("text")
            assert found.encode_query(Query("q", "apple pear")).tolist() == vectors[found.version]
            loads += 1
        for child in children:
            child.kill()
            child.join()
        assert Workspace.open(workspace.folder).ranker("text").version in vectors
    workspace.install(rankers[0])
    assert contents(workspace) == ["text-v1", "text.json"]


@pytest.mark.parametrize("file", ["model.safetensors", "ranker.json", "vocabularies.json"])
def test_a_corrupted_ranker(workspace, file):
    workspace.install(make_ranker())
    path = workspace.folder / "rankers" / "text-v1" / file
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(WorkspaceError, match="text-v1"):
        Workspace.open(workspace.folder).ranker("text")
    workspace.install(make_ranker())  # the same version again repairs it
    assert Workspace.open(workspace.folder).ranker("text").version == "v1"


# ------------------------------------------------------------------------------------------------ stacks


@pytest.fixture
def tuned(workspace):
    for name in ("text", "meta"):
        workspace.install(make_ranker(name))
    stack = Stack(
        Linear(("tfidf", "text", "meta"), (0.5, 0.3, 0.2), normalization="z-score"),
        "tfidf",
        depth=50,
        versions={"text": "v1", "meta": "v1"},
    )
    path = workspace.stack_path(stack.signals)
    path.parent.mkdir()
    stack.save(path)
    return workspace


def test_a_stack_by_its_signals_in_any_order(tuned):
    for text in ("tfidf,text,meta", "meta,text,tfidf", " text + tfidf,meta"):
        found = tuned.stack(text)
        assert (str(found), found.combiner.normalization, found.depth) == (
            "tfidf*0.50 + text*0.30 + meta*0.20",
            "z-score",
            50,
        )


def test_a_stack_with_weights_is_just_that(tuned):
    found = tuned.stack("text*0.25 + bm25*0.75")
    assert (str(found), found.combiner.normalization, found.first_stage) == (
        "text*0.25 + bm25*0.75",
        "min-max",
        "bm25",
    )
    assert found.versions == {}


def test_a_single_signal_is_that_signal_alone(tuned):
    assert str(tuned.stack("bm25")) == "bm25*1.00"
    assert tuned.stack("bm25").first_stage == "bm25"
    assert (str(tuned.stack("text")), tuned.stack("text").first_stage) == ("text*1.00", "tfidf")
    file = tuned.folder / "rerank.toml"
    file.write_text(file.read_text().replace('first_stage = "tfidf"', 'first_stage = "bm25"'))
    assert Workspace.open(tuned.folder).stack("text").first_stage == "bm25"


def test_a_stack_by_its_file(tuned, tmp_path):
    stack = replace(tuned.stack("tfidf,text,meta"), depth=7)
    stack.save(tmp_path / "mine.json")
    assert tuned.stack(str(tmp_path / "mine.json")) == stack
    with pytest.raises(InputError, match="no such stack file"):
        tuned.stack(str(tmp_path / "none.json"))


def test_a_stack_that_is_not_tuned_says_how_to_tune_it_and_weights(tuned):
    with pytest.raises(InputError, match="stack 'tfidf,text' is not tuned") as caught:
        tuned.stack("tfidf,text")
    assert "`rerank tune --stack tfidf,text --queries QUERIES --qrels QRELS`" in str(caught.value)
    assert "--stack 'tfidf*0.50 + text*0.50'" in str(caught.value)
    with pytest.raises(InputError, match="tune --stack tfidf,text,meta"):
        tuned.stack("text,meta")


@pytest.mark.parametrize("text", ["tfidf,joint", "joint", "joint*0.5+tfidf*0.5"])
def test_a_stack_with_a_signal_that_is_not_trained(tuned, text):
    with pytest.raises(NotTrainedError, match="rerank train joint "):
        tuned.stack(text)


@pytest.mark.parametrize(
    "text", ["", "tfidf,", "tfidf*2*3", "tfidf,tfidf", "tfidf*0.5+text", "nothing", "a b"]
)
def test_a_stack_that_is_none(tuned, text):
    with pytest.raises(UsageError) as caught:
        tuned.stack(text)
    assert "\n" not in str(caught.value)


def test_a_stack_that_was_tuned_before_its_ranker_is_stale(tuned):
    stack = tuned.stack("tfidf,text,meta")
    assert tuned.outdated(stack) == []
    tuned.install(make_ranker("meta", "v2", 8))
    assert tuned.outdated(stack) == ["meta"]
    assert tuned.outdated(tuned.stack("meta*1+tfidf*1")) == []


class Elsewhere(LocalEngine):
    """An engine of somebody else: it is in a folder that its settings name."""

    @classmethod
    def in_workspace(
        cls, folder: Path, lang: str | None, settings: Mapping[str, Any], *, new: bool, where: str
    ) -> LocalEngine:
        return super().in_workspace(Path(settings["path"]), lang, {}, new=new, where=where)

    @classmethod
    def place_of(cls, settings: Mapping[str, Any], where: str) -> str:
        return f"folder {settings.get('path')}"


def test_an_engine_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration is all that it takes."""
    monkeypatch.setitem(registry.ENGINES, "elsewhere", f"{__name__}:Elsewhere")
    settings = {"path": str(tmp_path / "there"), "more": {"of": ["it"]}}
    made = Workspace.create(tmp_path / "ws", lang="en", engine="elsewhere", settings=settings)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "1", "text": "A sorted list"}\n')
    ingest(made, [corpus])
    again = Workspace.open(tmp_path / "ws")
    assert isinstance(again.engine, Elsewhere)
    assert again.config["elsewhere"] == settings
    assert again.engine.find(SearchRequest("sorting", first_stage="tfidf", depth=1)).ids == ["1"]
    assert again.place == f"folder {tmp_path / 'there'}"
    again.check_place("elsewhere", settings)
    with pytest.raises(UsageError, match=r"documents are in folder .*there; leave"):
        again.check_place("elsewhere", {"path": "nowhere"})
    config = tmp_path / "ws" / "rerank.toml"
    config.write_text("elsewhere = 3\n" + config.read_text().split("[elsewhere")[0])
    with pytest.raises(UsageError, match=r"rerank\.toml: elsewhere = 3"):
        Workspace.open(tmp_path / "ws")


def test_an_engine_that_nobody_provides(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='engine \'nowhere\' is unknown; use "local" or "opensearch"'):
        Workspace.create(tmp_path / "ws", engine="nowhere")
    assert not (tmp_path / "ws").exists()


def test_the_stack_in_use(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document("wolf", text="a wolf"), Document("fox", text="a fox")])
    assert workspace.default_stack == "tfidf"
    queries, qrels = [Query("q", "wolf")], Qrels([("q", "wolf", 1)])
    first = tune(workspace, "tfidf,bm25", queries=queries, qrels=qrels)
    assert workspace.default_stack == "bm25,tfidf"  # the first that is tuned
    assert workspace.stack(workspace.default_stack) == first.stack
    other = Stack.parse("bm25*0.3 + tfidf*0.7")
    other.save(tmp_path / "other.json")
    assert workspace.use_stack(str(tmp_path / "other.json")) == other
    assert Workspace.open(workspace.folder).stack("bm25,tfidf") == first.stack
    assert workspace.stack(workspace.default_stack) == other
    assert str(workspace.use_stack("bm25")) == "bm25*1.00"
    assert workspace.default_stack == "bm25"
    tune(workspace, "tfidf,bm25", queries=queries, qrels=qrels)
    assert workspace.default_stack == "bm25"  # which somebody has chosen
    with pytest.raises(NotTrainedError, match="signal 'text' is not trained"):
        workspace.use_stack("text")
    assert str(workspace.stack(workspace.default_stack)) == "bm25*1.00"
    (workspace.folder / "releases.json").write_text("[]")
    with pytest.raises(WorkspaceError, match=r"releases.json: damaged .*; remove it and choose a stack"):
        workspace.default_stack  # noqa: B018
