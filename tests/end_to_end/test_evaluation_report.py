"""``rerank evaluate --report``: the page in a browser, keyboard control, and its contents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.browser import browser, check_in_browser, check_page
from tests.support.cli import copy_workspace

__all__ = ["browser"]

STACK = "tfidf,text,meta"
HOSTILE = '</title><script>document.title="taken"</script>'


@pytest.fixture(scope="module")
def queries(small, tmp_path_factory):
    """The queries, including a hostile one."""
    path = tmp_path_factory.mktemp("queries") / "queries.jsonl"
    lines = [json.loads(line) for line in Path(small.queries).read_text("utf-8").splitlines()]
    judged = {line.split("\t")[0] for line in Path(small.test).read_text("utf-8").splitlines()}
    hostile = next(line for line in lines if line["_id"] in judged)
    hostile["text"] = f"{HOSTILE} {hostile['text']}"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def written(run, trained, small, queries, tmp_path_factory):
    """The report page of the stack in use."""
    folder = tmp_path_factory.mktemp("written")
    out = folder / "page.html"
    copy_workspace(trained, folder / "ws")
    files = ("--queries", queries, "--qrels", small.test)
    done = run("evaluate", "-w", folder / "ws", *files, "--report", out).ok()
    assert f"written to {out}" in done.err
    assert "retrieved:1000" in done.out
    return out


def test_the_report_page_is_complete_and_safe(written):
    check_page(written, hostile=" </title>", sections=3)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360)])
def test_the_report_page_works_in_a_browser(browser, written, scheme, width):
    check_in_browser(browser, written, scheme, width, title=f"{STACK} against tfidf")


def test_the_report_page_of_several_stacks(run, workspace, small, tmp_path):
    files = ("--queries", small.queries, "--qrels", small.test, "--report", tmp_path / "page.html")
    measured = ("--stack", "text", "--stack", STACK, "--measure", "RR", "--protocol", "retrieved:20")
    numbers = run("evaluate", "-w", workspace, *files, *measured, "--json").json
    assert numbers["compared"] == ["RR"]
    assert f"<title>{STACK} against bm25</title>" in (tmp_path / "page.html").read_text("utf-8")
