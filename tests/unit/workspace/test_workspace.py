"""The workspace folder: creation, opening and errors; activation of rankers; stacks by their text."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.common.errors import BusyError, InputError, NotTrainedError, UsageError, WorkspaceError
from rerank.common.files import folder_lock
from rerank.common.progress import Progress
from rerank.documents.records import Document, Qrels, Query
from rerank.engines import registry
from rerank.engines.local import LocalEngine
from rerank.engines.search_request import SearchRequest
from rerank.stack.linear import Linear
from rerank.stack.stack import Stack
from rerank.workflows.ingest import ingest
from rerank.workflows.train import train
from rerank.workspace.workspace import Workspace
from tests.support.rankers import cnn
from tests.unit.engines.test_local_engine_crash import PROCESSES, kill_after, kill_before, run_in_child

PROCESSES.set_forkserver_preload([__name__])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    workspace = Workspace.create(tmp_path_factory.mktemp("made") / "ws", lang="en")
    workspace.engine.write([Document("a", text="apple"), Document("b", text="pear apple")])
    workspace.engine.close()
    return workspace.folder


@pytest.fixture
def workspace(made, tmp_path):
    """A copy of a workspace of two documents."""
    return Workspace.open(shutil.copytree(made, tmp_path / "ws"))


def test_a_workspace_can_be_opened_again(tmp_path):
    assert not Workspace.exists(tmp_path / "deep" / "ws")
    made = Workspace.create(tmp_path / "deep" / "ws", lang="de")
    made.engine.write([Document("a", text="Apfel")])
    assert Workspace.exists(tmp_path / "deep" / "ws")
    actual = Workspace.open(str(tmp_path / "deep" / "ws"))
    assert (actual.lang, len(actual.engine), actual.trained()) == ("de", 1, [])
    assert actual.engine is actual.engine
    mixed = Workspace.open(Workspace.create(tmp_path / "mixed").folder)
    assert mixed.lang is None
    assert mixed.engine.find(SearchRequest("x", first_stage="tfidf", depth=1)).ids == []


def test_a_folder_without_a_workspace_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "none", tmp_path, tmp_path / "file"):
        with pytest.raises(WorkspaceError, match="no workspace here; make one with `rerank ingest"):
            Workspace.open(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_an_impossible_workspace_folder_is_refused(tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    unnamed = os.fsdecode(os.fsencode(tmp_path) + b"/w\xff")
    for folder, what in (
        (tmp_path / "ws", "not empty, and not a workspace"),
        (tmp_path / "file", "a file, and not a workspace"),
        (tmp_path / "file" / "ws", "cannot make a workspace .*; check the folder"),
        (unnamed, r"w\\udcff': the name is not UTF-8"),
    ):
        with pytest.raises(WorkspaceError, match=what):
            Workspace.create(folder)
    with pytest.raises(UsageError, match='engine \'nowhere\' is unknown; use "local" or "opensearch"'):
        Workspace.create(tmp_path / "new", engine="nowhere")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "letter.txt", "ws"]


def test_a_folder_with_a_workspace_in_creation_is_refused(tmp_path):
    (tmp_path / "ws").mkdir()
    with folder_lock(tmp_path / "ws", ""), pytest.raises(BusyError, match="process is making a workspace"):
        Workspace.create(tmp_path / "ws")
    Workspace.create(tmp_path / "ws")
    with pytest.raises(BusyError, match="has just made a workspace"):
        Workspace.create(tmp_path / "ws")


def killed_creation(folder, moment):
    if moment == "after the engine":
        kill_after(LocalEngine, "create")
    else:
        kill_before(LocalEngine, "create")
    Workspace.create(folder, lang="it")


@pytest.mark.parametrize("moment", ["before the engine", "after the engine"])
def test_an_interrupted_creation_starts_again(tmp_path, moment):
    assert run_in_child(killed_creation, tmp_path / "ws", moment) == -9
    assert not Workspace.exists(tmp_path / "ws")
    made = Workspace.create(tmp_path / "ws", lang="en")
    assert (made.lang, made.engine.lang) == ("en", "en")
    assert sorted(path.name for path in made.folder.iterdir()) == ["engine", "rerank.toml"]


@pytest.mark.parametrize("name", ["engine/design.txt", "engine/data-0/notes.txt", "rerank.toml.old"])
def test_a_folder_of_the_user_is_never_changed(tmp_path, name):
    file = tmp_path / "project" / name
    file.parent.mkdir(parents=True)
    file.write_text("dear")
    with pytest.raises(WorkspaceError, match="not empty, and not a workspace"):
        Workspace.create(tmp_path / "project")
    assert [path for path in (tmp_path / "project").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "dear"


def test_a_lost_settings_file_loses_nothing_and_the_message_restores_it(tmp_path):
    made = Workspace.create(tmp_path / "my ws", lang="de")
    made.engine.write([Document("a", text="Apfel")])
    made.engine.close()
    (made.folder / "rerank.toml").unlink()
    for use in (Workspace.open, Workspace.create):
        with pytest.raises(WorkspaceError, match=r"rerank.toml is missing") as error:
            use(made.folder)
    command = str(error.value).split("`")[-2]
    subprocess.run(["sh", "-c", command], check=True)
    again = Workspace.open(made.folder)
    assert (again.lang, again.engine.ids()) == ("de", ["a"])


def test_the_files_of_a_ranker_without_its_list_are_kept(workspace):
    workspace.install(cnn("text"))
    workspace.install(cnn("meta"))
    (workspace.folder / "rankers" / "text.json").unlink()
    workspace.install(cnn("meta", "v2", seed=2))
    assert contents(workspace) == ["meta-v2", "meta.json", "text-v1"]


@pytest.mark.parametrize("content", ["{", "[]", "3", '["ab"]', ""])
def test_a_damaged_engine_file_is_refused(workspace, content):
    (workspace.folder / "engine" / "engine.json").write_text(content)
    with pytest.raises(WorkspaceError, match=r"engine.json cannot be read|was written in format None"):
        _ = Workspace.open(workspace.folder).engine


def test_documents_of_another_analyzer_are_refused(workspace):
    file = workspace.folder / "engine" / "engine.json"
    file.write_text(file.read_text().replace('"analyzer":', '"analyzer":999'))
    with pytest.raises(WorkspaceError, match="ingest the collection again"):
        _ = Workspace.open(workspace.folder).engine


def test_a_config_with_a_byte_order_mark_is_read(workspace):
    file = workspace.folder / "rerank.toml"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert Workspace.open(workspace.folder).lang == "en"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"format = 1", b"format = ", "cannot be read"),
        (b"format = 1", b"\xff\xfe", "cannot be read"),
        (b"format = 1", b"format = 1\nformat = 1", "cannot be read"),
        (b"format = 1", b"a" + b".a" * 3000 + b" = 1", "cannot be read"),
        (b"format = 1", b"a" + b".a" * 100_000 + b" = 1", "cannot be read"),
        (b"format = 1", b"", "a workspace of format None"),
        (b"format = 1", b"format = 2", "a workspace of format 2, but this version"),
        (b"format = 1", b"format = []", "a workspace of format []"),
        (b"first_stage", b"frist_stage", "`frist_stage`"),
        (b'"bm25"', b'"tfidg"', "'tfidg'"),
        (b'"bm25"', b"3", "first_stage"),
        (b'"bm25"', b'"template:a\\u0000b"', "the character 0"),
        (b'"en"', b'"english"', "'english'"),
        (b'"en"', b'["en"]', "lang"),
        (b"format", b'token = "secret"\nformat', "`token`"),
        (b"format", b"opensearch = 5\nformat", "[opensearch]"),
        (b"format", b"local = 5\nformat", "[local]"),
        (b'"local"', b'["local"]', "engine"),
        (b'"local"', b'"solr"', "engine 'solr' is unknown"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_an_error_about_a_wrong_setting_names_the_file(workspace, old, new, what):
    file = workspace.folder / "rerank.toml"
    file.write_bytes(file.read_bytes().replace(old, new, 1))
    with pytest.raises((UsageError, WorkspaceError)) as caught:
        _ = Workspace.open(workspace.folder).engine
    said = str(caught.value)
    assert said.startswith((f"{file}: ", f"{workspace.folder}: a workspace of format"))
    assert what in said
    assert "secret" not in said
    assert "\n" not in said


def test_the_category_graph_is_stored(workspace):
    assert workspace.category_edges() is None
    edges = [("C.2.4", "C.2"), ("E. coli", "bacteria"), ("ü x", "y")]
    workspace.save_category_edges(edges)
    assert Workspace.open(workspace.folder).category_edges() == edges
    workspace.save_category_edges([("a", "b")])
    assert workspace.category_edges() == [("a", "b")]


def contents(workspace):
    return sorted(path.name for path in (workspace.folder / "rankers").iterdir())


def test_installing_activates_the_new_version(workspace):
    one, two = cnn(seed=1), cnn(version="v2", seed=2)
    workspace.install(one)
    assert contents(workspace) == ["text-v1", "text.json"]
    assert workspace.ranker("text").version == "v1"
    workspace.install(cnn("meta", "m1"))
    workspace.install(two)
    assert contents(workspace) == ["meta-m1", "meta.json", "text-v2", "text.json"]
    assert workspace.trained() == Workspace.open(workspace.folder).trained() == ["meta", "text"]
    for opened in (workspace, Workspace.open(workspace.folder)):
        actual = opened.ranker("text")
        assert actual is opened.ranker("text")
        assert actual is not two  # the stored ranker is used
        query = Query("q", "apple pear")
        assert actual.encode_query(query).tolist() == two.encode_query(query).tolist()


def test_a_pipeline_needs_only_trained_rankers(workspace):
    workspace.install(cnn())
    for signals in (["tfidf", "meta"], ["meta"]):
        with pytest.raises(NotTrainedError):
            workspace.pipeline(signals)
    assert set(workspace.pipeline(["tfidf", "text", "bm25"]).rankers) == {"text"}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("text.json", text) for text in ("{}", "[]", "null", "3", "{", '{"version": "v7"}')),
        *((f"text-v1/{name}", None) for name in ("model.safetensors", "ranker.json", "vocabularies.json")),
        ("text-v1", None),
    ],
)
def test_a_corrupted_ranker_is_refused(workspace, file, content):
    workspace.install(cnn())
    path = workspace.folder / "rankers" / file
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_bytes(bytes(path.stat().st_size) if content is None else content.encode())
    with pytest.raises(WorkspaceError, match=r"text.*train .*again"):
        Workspace.open(workspace.folder).ranker("text")
    workspace.install(cnn())  # the same version repairs it
    assert Workspace.open(workspace.folder).ranker("text").version == "v1"


def test_rankers_whose_names_have_the_same_prefix(workspace):
    workspace.install(cnn("text", "v1"))
    other = cnn("text", "v1", seed=5)
    other.name, other.variant = "text-x", "text"
    workspace.install(other)
    leftover = workspace.folder / "rankers" / "text-old"
    leftover.mkdir()
    (leftover / "ranker.json").write_text('{"name": "text"}')
    (workspace.folder / "rankers" / ".new").mkdir()
    workspace.install(cnn("text", "v2", seed=2))
    assert contents(workspace) == ["text-v2", "text-x-v1", "text-x.json", "text.json"]
    again = Workspace.open(workspace.folder)
    assert (again.ranker("text").version, again.ranker("text-x").version) == ("v2", "v1")
    with pytest.raises(UsageError, match="text-x-v1 holds text-x; choose another name"):
        workspace.install(cnn("text", "x-v1"))
    assert Workspace.open(workspace.folder).ranker("text-x").version == "v1"


def install_repeatedly(folder, rankers):
    workspace = Workspace.open(folder)
    while True:
        for ranker in rankers:
            workspace.install(ranker)


def test_a_version_that_is_replaced_while_it_is_read_is_read_again(workspace, monkeypatch):
    """Another process installs v2, which removes v1, and then v1 again."""
    first, second = (cnn(version=f"v{seed}", seed=seed) for seed in (1, 2))
    workspace.install(first)
    reads = []

    def read(folder):
        reads.append(folder.name)
        if len(reads) == 1:
            for ranker in (second, first):
                Workspace.open(workspace.folder).install(ranker)
            raise WorkspaceError("a file of the removed folder is missing")
        return first

    monkeypatch.setattr("rerank.rankers.store.load_ranker", read)
    reader = Workspace.open(workspace.folder)
    assert reader.ranker("text") is first
    assert reads == ["text-v1", "text-v1"]


def test_a_damaged_version_is_reported_at_once(workspace):
    workspace.install(cnn(version="v1"))
    (workspace.folder / "rankers" / "text-v1" / "ranker.json").unlink()
    with pytest.raises(WorkspaceError, match="cannot be read"):
        Workspace.open(workspace.folder).ranker("text")


def test_killed_installations_do_not_break_loading(workspace):
    """After each of eight kills a ranker can be loaded. Two concurrent installations take turns."""
    rankers = [cnn(version=f"v{seed}", seed=seed) for seed in (1, 2, 3)]
    workspace.install(rankers[0])
    vectors = {one.version: one.encode_query(Query("q", "apple pear")).tolist() for one in rankers}
    random = np.random.default_rng(0)
    context, loads = multiprocessing.get_context("fork"), 0
    for round in range(4):
        children = [
            context.Process(target=install_repeatedly, args=(workspace.folder, order))
            for order in (rankers, rankers[::-1])
        ]
        for child in children:
            child.start()
        end = time.monotonic() + random.uniform(0.01, 0.05)
        while time.monotonic() < end or loads <= round:
            actual = Workspace.open(workspace.folder).ranker("text")
            assert actual.encode_query(Query("q", "apple pear")).tolist() == vectors[actual.version]
            loads += 1
        for child in children:
            child.kill()
            child.join()
        assert Workspace.open(workspace.folder).ranker("text").version in vectors
    workspace.install(rankers[0])
    assert contents(workspace) == ["text-v1", "text.json"]


@pytest.fixture
def tuned(workspace):
    for name in ("text", "meta"):
        workspace.install(cnn(name))
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


@pytest.mark.parametrize(
    ("text", "shown", "normalization", "first_stage"),
    [
        ("tfidf,text,meta", "tfidf*0.50 + text*0.30 + meta*0.20", "z-score", "tfidf"),
        ("meta,text,tfidf", "tfidf*0.50 + text*0.30 + meta*0.20", "z-score", "tfidf"),
        (" text + tfidf,meta", "tfidf*0.50 + text*0.30 + meta*0.20", "z-score", "tfidf"),
        ("text*0.25 + bm25*0.75", "text*0.25 + bm25*0.75", "min-max", "bm25"),
        ("bm25", "bm25*1.00", "none", "bm25"),
        ("text", "text*1.00", "none", "bm25"),
    ],
)
def test_a_stack_is_found_by_its_text(tuned, text, shown, normalization, first_stage):
    actual = tuned.stack(text)
    assert (str(actual), actual.combiner.normalization, actual.first_stage) == (
        shown,
        normalization,
        first_stage,
    )
    assert actual.versions == ({"text": "v1", "meta": "v1"} if normalization == "z-score" else {})


def test_a_stack_uses_the_first_stage_of_the_workspace(tuned):
    file = tuned.folder / "rerank.toml"
    file.write_text(file.read_text().replace('first_stage = "bm25"', 'first_stage = "tfidf"'))
    assert Workspace.open(tuned.folder).stack("text").first_stage == "tfidf"


@pytest.mark.parametrize(
    ("text", "error", "what"),
    [
        ("tfidf,text", InputError, "`rerank tune --stack tfidf,text --queries QUERIES --qrels QRELS`"),
        ("tfidf,text", InputError, "--stack 'tfidf*0.50 + text*0.50'"),
        ("text,meta", InputError, "tune --stack text,meta"),
        ("tfidf,joint", NotTrainedError, "rerank train joint "),
        ("joint*0.5+tfidf*0.5", NotTrainedError, "rerank train joint "),
        *((text, UsageError, "") for text in ("", "tfidf,", "tfidf*2*3", "tfidf,tfidf", "tfidf*0.5+text")),
        ("nothing", UsageError, "'nothing'"),
        ("a b", UsageError, "'a b'"),
    ],
)
def test_unusable_stacks_are_refused(tuned, text, error, what):
    with pytest.raises(error) as caught:
        tuned.stack(text)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stack_tuned_before_its_ranker_is_outdated(tuned):
    stack = tuned.stack("tfidf,text,meta")
    assert tuned.outdated(stack) == []
    tuned.install(cnn("meta", "v2", 8))
    assert tuned.outdated(stack) == ["meta"]
    assert tuned.outdated(tuned.stack("meta*1+tfidf*1")) == []


class Elsewhere(LocalEngine):
    """An engine of another package. It is in a folder that its settings name."""

    @classmethod
    def in_workspace(
        cls, folder: Path, lang: str | None, settings: Mapping[str, Any], *, new: bool, settings_file: str
    ) -> LocalEngine:
        return super().in_workspace(Path(settings["path"]), lang, {}, new=new, settings_file=settings_file)

    @classmethod
    def location(cls, settings: Mapping[str, Any], settings_file: str) -> str:
        return f"folder {settings.get('path')}"


def test_an_engine_of_another_package_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registration is sufficient."""
    monkeypatch.setitem(registry.ENGINES, "elsewhere", f"{__name__}:Elsewhere")
    settings = {"path": str(tmp_path / "there"), "more": {"of": ["it"]}}
    made = Workspace.create(tmp_path / "ws", lang="en", engine="elsewhere", settings=settings)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "1", "text": "A sorted list"}\n')
    ingest(made, [corpus])
    again = Workspace.open(tmp_path / "ws")
    assert isinstance(again.engine, Elsewhere)
    assert again.settings.config["elsewhere"] == settings
    assert again.engine.find(SearchRequest("sorting", first_stage="tfidf", depth=1)).ids == ["1"]
    assert again.location == f"folder {tmp_path / 'there'}"
    again.settings.check_location("elsewhere", settings)
    with pytest.raises(UsageError, match=r"documents are in folder .*there; leave"):
        again.settings.check_location("elsewhere", {"path": "nowhere"})
    config = tmp_path / "ws" / "rerank.toml"
    config.write_text("elsewhere = 3\n" + config.read_text().split("[elsewhere")[0])
    with pytest.raises(UsageError, match=r"rerank\.toml: elsewhere = 3"):
        Workspace.open(tmp_path / "ws")


def texts(ids: str) -> list[dict[str, str]]:
    return [{"_id": id, "text": f"apple {id}"} for id in ids]


@pytest.mark.parametrize(("kept", "refused"), [("ab", False), ("abxyz", False), ("a", True), ("xyz", True)])
def test_replacing_more_than_half_of_the_documents_must_be_confirmed(tmp_path, kept, refused):
    workspace = ingest(tmp_path / "ws", texts("abcd")).workspace
    if refused:
        with pytest.raises(UsageError, match=r"would delete [34] of 4 documents, such as .*; add --yes"):
            ingest(workspace, texts(kept), replace=True)
        assert workspace.engine.ids() == ["a", "b", "c", "d"]
    ingest(workspace, texts(kept), replace=True, yes=refused)
    assert workspace.engine.ids() == sorted(kept)


class TrainAgain(Progress):
    """Starts the same training again while it runs."""

    def __init__(self, workspace, inputs):
        self.workspace = workspace
        self.inputs = inputs
        self.errors = []

    def show(self, **values):
        if not self.errors:
            with pytest.raises(BusyError) as refused:
                train(self.workspace, "text", **self.inputs)
            self.errors.append(str(refused.value))


def test_a_ranker_is_trained_by_one_process_at_a_time(tmp_path):
    workspace = ingest(tmp_path / "ws", texts("abcdefgh")).workspace
    inputs = {
        "queries": [Query(f"q{id}", f"apple {id}") for id in "abcdefgh"],
        "qrels": Qrels([(f"q{id}", id, 1) for id in "abcdefgh"]),
        "config": {"epochs": 1},
    }
    progress = TrainAgain(workspace, inputs)
    train(workspace, "text", **inputs, progress=progress)
    assert progress.errors == [
        "another process is training text in this workspace; try again when it is done"
    ]
    assert workspace.trained() == ["text"]
    train(workspace, "text", **inputs)  # the lock is released


def test_documents_are_shown_as_in_a_file(tmp_path, run):
    row = {"_id": "a", "title": "Apfel", "text": "rot", "categories": ["fruit"], "lang": "de", "year": 2024}
    workspace = ingest(tmp_path / "ws", [row, {"_id": "b", "text": "grün"}]).workspace
    assert run("show", "a", "b", "-w", workspace.folder, "--json").json == {
        "documents": [row, {"_id": "b", "text": "grün"}],
        "unknown": [],
    }
    assert json.loads(run("show", "a", "-w", workspace.folder).out) == row
    partial = run("show", "a", "c", "-w", workspace.folder)
    assert (partial.code, json.loads(partial.out)) == (1, row)
    assert "no document has the id c" in partial.err
    run("show", "c", "-w", workspace.folder).fails(1, "no document has the id c")


def test_a_ranker_or_a_version_is_removed_unless_the_active_stack_uses_it(workspace, run):
    workspace.install(cnn("meta"))
    workspace.install(cnn("text"))
    workspace.use_stack("bm25*0.5 + text*0.5")
    workspace.install(cnn("text", "v2", seed=2))
    assert contents(workspace) == ["meta-v1", "meta.json", "text-v1", "text-v2", "text.json"]
    for version in ([], ["--version", "v1"]):
        run("remove", "text", *version, "-w", workspace.folder).fails(2, "the active stack")
    assert run("remove", "text", "--version", "v2", "-w", workspace.folder, "--json").json["removed"] == [
        "v2"
    ]
    assert run("remove", "meta", "-w", workspace.folder, "--json").json["removed"] == ["v1"]
    assert contents(workspace) == ["text-v1", "text.json"]
    run("remove", "meta", "-w", workspace.folder).fails(1, "signal 'meta' is not trained")
    assert Workspace.open(workspace.folder).versions() == {"text": "v1"}
