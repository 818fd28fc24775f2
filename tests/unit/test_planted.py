"""Workspace files that name other files: files outside the workspace are not read, written or removed."""

from __future__ import annotations

import json

import pytest

from rerank import Document, Workspace, encode
from rerank.common.errors import WorkspaceError
from rerank.engines.search_request import SearchRequest
from tests.support.data import folder, fruit, tune_fruit
from tests.support.rankers import cnn

__all__ = ["folder", "fruit"]

PLACES = ["rerank.toml", "releases.json", "stacks/text,tfidf.json", "rankers/text.json"]


def move_and_link(folder, place, to):
    """Move a file or folder, and put a link in its place."""
    (folder / place).rename(to)
    (folder / place).symlink_to(to)


def test_a_workspace_with_links_to_other_disks_is_usable(folder, tmp_path):
    """The workspace is reached by a link, and its big folders are elsewhere."""
    for place in ("engine/data-0/features", "engine", "rankers"):
        move_and_link(folder, place, tmp_path / place.replace("/", "-"))
    (tmp_path / "here").symlink_to(folder)
    workspace = Workspace.open(tmp_path / "here")
    before = {hit["id"] for hit in workspace.search("apple pear").hits}
    workspace.engine.write([Document("new", text="apple")])
    workspace.install(cnn())
    encode(workspace)
    tune_fruit(workspace)
    assert {hit["id"] for hit in workspace.search("apple pear", k=99).hits} > before
    workspace.engine.close()
    assert all((folder / place).is_symlink() for place in ("engine", "rankers"))


@pytest.mark.parametrize("place", PLACES)
def test_a_linked_file_is_replaced_and_its_target_is_unchanged(folder, tmp_path, place):
    """A link, for example from an unpacked archive, must not choose the file that is overwritten."""
    move_and_link(folder, place, tmp_path / "mine")
    before = (tmp_path / "mine").read_bytes()
    workspace = Workspace.open(folder)
    workspace.install(cnn(seed=1, version="v2"))
    encode(workspace)
    tune_fruit(workspace)
    workspace.use_stack("tfidf")
    workspace.engine.close()
    assert (tmp_path / "mine").read_bytes() == before


def test_installing_removes_only_files_that_it_created(folder, tmp_path):
    """The folder of rankers may contain other files, because it can be a link."""
    move_and_link(folder, "rankers", tmp_path / "home")
    for name in (".ssh", "thesis", "text-notes"):
        (tmp_path / "home" / name).mkdir()
    (tmp_path / "home" / ".new" / "ranker").mkdir(parents=True)
    (tmp_path / "home" / ".text.json.0123456789ab.tmp").touch()
    (tmp_path / "home" / "draft.tmp").touch()
    workspace = Workspace.open(folder)
    (folder / "stacks" / "text,tfidf.json").unlink()
    (folder / "releases.json").unlink()
    workspace.install(cnn(seed=1, version="v2"))
    actual = {path.name for path in (tmp_path / "home").iterdir()}
    assert actual == {".ssh", "thesis", "text-notes", "draft.tmp", "text.json", "text-v2"}


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "values",
    [
        {"version": "../../../etc"},
        {"version": ".."},
        {"family": None},
    ],
)
def test_a_record_cannot_refer_to_other_places(folder, values):
    path = folder / "rankers" / "text.json"
    (record,) = json.loads(path.read_text())
    path.write_text(json.dumps([record, record | values]))
    workspace = Workspace.open(folder)
    with pytest.raises(WorkspaceError, match=r"rankers/text\.json: damaged \("):
        workspace.ranker("text")
    assert "text" in workspace.trained()
    workspace.engine.close()


@pytest.mark.parametrize(
    ("values", "what"),
    [
        *(({"data": name}, "data") for name in ("/dev/zero", "../../other", "data-1/../..", "data-x")),
        ({"lang": 3}, "lang"),
    ],
)
def test_an_engine_stays_inside_its_folder(folder, values, what):
    edit_json(folder / "engine" / "engine.json", **values)
    with pytest.raises(WorkspaceError, match=rf"engine\.json cannot be read: .*{what}"):
        _ = Workspace.open(folder).engine


def test_features_of_impossible_sizes_are_computed_again(folder):
    (path,) = (folder / "engine" / "data-0" / "features" / "text" / "v1").glob("float*")
    expected = Workspace.open(folder).search("apple", stack="text").rows()
    for name in ("float32x-1", f"float32x{10**30}", "float32x999999999", "Ox2", "objectx2", "x"):
        path.rename(path.with_name(name))
        workspace = Workspace.open(folder)
        assert workspace.search("apple", stack="text").rows() == expected  # computed again
        workspace.engine.close()
        path.with_name(name).rename(path)


def test_the_stack_in_use_cannot_be_a_file_elsewhere(folder, tmp_path):
    releases = json.loads((folder / "releases.json").read_text())
    releases["history"][0]["version"] = str(tmp_path / "any.json")
    (folder / "releases.json").write_text(json.dumps(releases))
    with pytest.raises(WorkspaceError, match=r"releases\.json: damaged"):
        _ = Workspace.open(folder).default_stack


def test_ingesting_removes_only_files_that_it_created(folder):
    mine, cut_off = (folder / "engine" / "data-0" / "tfidf" / name for name in ("mine", "99.tmp"))
    mine.mkdir()
    cut_off.mkdir()
    workspace = Workspace.open(folder)
    workspace.engine.write([Document("new", text="apple")])
    workspace.engine.close()
    assert (mine.is_dir(), cut_off.exists()) == (True, False)


@pytest.mark.parametrize("name", ["{}/victim", "../../../victim"])
def test_the_text_index_does_not_remove_other_files(folder, tmp_path, name):
    """tantivy removes each file that is in its list and in no segment."""
    victim = tmp_path / "victim"
    victim.touch()
    path = folder / "engine" / "data-0" / "index" / ".managed.json"
    path.write_text(json.dumps([*json.loads(path.read_text()), name.format(tmp_path)]))
    engine = Workspace.open(folder).engine
    engine.write([Document("new", text="apple")])  # builds the index again
    assert victim.exists()
    assert "new" in engine.find(SearchRequest("apple", "bm25")).ids
