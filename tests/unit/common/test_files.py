"""Atomic writing: either the old or the new file exists, and no temporary file remains."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rerank.common.errors import RerankError
from rerank.common.files import atomic_write, write_bytes, write_text


def test_the_old_file_stays_until_the_block_ends(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old\n")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old\n"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_keeps_the_old_file_and_leaves_no_other(tmp_path, error):
    path = tmp_path / "a.txt"
    write_bytes(path, b"old")
    with pytest.raises(error), atomic_write(path) as file:
        raise error(file.write(b"half"))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_path_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "nowhere" / "a.txt", tmp_path / "a"):
        with pytest.raises(RerankError, match=f"{path}: cannot be written: .*"):
            write_bytes(path, b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("follow", [True, False])
def test_a_link_is_followed_only_on_request(tmp_path, follow):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new", follow=follow)
    assert (tmp_path / "link").is_symlink() == follow
    assert [(tmp_path / name).read_text() for name in ("link", "real")] == ["new", "new" if follow else "old"]


def test_a_named_pipe_is_written_and_kept(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit((tmp_path / "pipe").read_text)
        write_text(tmp_path / "pipe", "new", follow=True)
        assert read.result() == "new"
    assert (tmp_path / "pipe").is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_the_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
