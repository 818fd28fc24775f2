"""Progress on the terminal, and ctrl-C while modules are imported."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings

import pytest
from rerank.cli import output
from rerank.cli.program import run as main
from rerank.cli.program import show_once

import rerank
from rerank.engines.opensearch.auth import SecretWarning

IMPORTS = """
import sys, time
class Slow:
    def find_spec(self, name, path, target=None):
        if name == module:
            print("ready", flush=True)
            for _ in range(6000):  # a signal just before a sleep does not end it
                time.sleep(0.1)
module, sys.argv = sys.argv[1], ["rerank", "status"]
sys.meta_path.insert(0, Slow())
from rerank.cli import main
main()
"""


@pytest.mark.parametrize("module", ["click", "rerank.cli.status"])
def test_ctrl_c_during_imports_ends_with_one_line(module):
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTS, module], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 130
            assert process.stderr.read().strip() == "rerank: interrupted"
        finally:
            process.kill()


def test_names_and_warnings_cannot_control_the_terminal(monkeypatch):
    """Progress bars contain names of rankers and files, and warnings contain texts of servers."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = output.Bar()
    bar.start("encode \x1b]0;owned\x07", 10, "document")
    bar.show(ranker="\x9b31m")
    bar.advance(10)
    bar.finish()
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", lambda *_: None)
        show_once()
        warnings.warn(SecretWarning("said by a server: \x1b[2J"), stacklevel=1)
    shown = screen.getvalue()
    assert "encode ␛]0;owned␇" in shown
    assert "warning: said by a server: ␛[2J" in shown
    assert not re.search("\x1b[^\\[]|\x07|\x9b|\x1b\\[2J", shown)  # only the bar writes escapes


def test_a_log_reports_the_progress_of_a_step(monkeypatch, capsys):
    monkeypatch.setattr(output, "INTERVAL", 0.0)
    bar = output.Bar()
    bar.start("encode", 1200, "document")
    bar.advance(300)
    bar.finish()
    assert re.fullmatch(r"encode: 300 of 1,200 documents in 00:\d\d\n", capsys.readouterr().err)
    quiet = output.Bar(hidden=True)
    quiet.start("encode", 1200, "document")
    quiet.advance(300)
    quiet.finish()
    quiet.say("a remark")
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def accents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accents") / "ws"
    rerank.ingest(folder, [{"_id": "café", "title": "café 😀 title", "text": "-5 degrees"}], lang="en")
    return folder


def run(*arguments, encoding):
    """Run the command in this process, with output streams of this encoding."""
    out, err = io.BytesIO(), io.BytesIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rerank", *map(str, arguments)])
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding, errors="backslashreplace"))
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        return subprocess.CompletedProcess(sys.argv, code, out.getvalue(), err.getvalue())


def test_a_process_writes_in_the_encoding_of_its_terminal(accents):
    command = [sys.executable, "-m", "rerank.cli", "query", "degrees", "--stack", "bm25", "-w", accents]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout == run(*command[3:], encoding="ascii").stdout


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii", "utf-8"])
def test_every_encoding_of_the_terminal_can_be_written(accents, encoding):
    shown = run("query", "degrees", "--stack", "bm25", "-w", accents, encoding=encoding)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"title" in shown.stdout
    done = run("query", "degrees", "--stack", "bm25", "-w", accents, "--json", encoding=encoding)
    assert done.returncode == 0
    (hit,) = json.loads(done.stdout)["hits"]
    assert (hit["id"], hit["title"]) == ("café", "café 😀 title")


def test_a_query_that_begins_with_a_dash_is_searched_or_the_separator_is_named(accents):
    refused = run("query", "-5 degrees", "-w", accents, encoding="utf-8")
    assert refused.returncode == 2
    assert b"query -- TEXT" in refused.stderr
    assert refused.stderr.count(b"\n") == 1
    actual = run("query", "--stack", "bm25", "-w", accents, "--json", "--", "-5 degrees", encoding="utf-8")
    assert len(json.loads(actual.stdout)["hits"]) == 1


def test_a_language_of_a_query_that_is_no_code_is_refused(accents):
    refused = run("query", "wolf", "--lang", "klingon", "-w", accents, encoding="utf-8")
    assert refused.returncode == 2
    assert b"'klingon' is not a language code" in refused.stderr


def test_the_queries_of_a_file_are_ranked_without_judgments(accents, tmp_path):
    queries = tmp_path / "queries.csv"
    queries.write_text("id,text\nq1,degrees\nq2,nothing\n", "utf-8")
    options = ("rank", "--queries", queries, "--stack", "bm25", "-w", accents)
    shown = run(*options, encoding="latin-1")
    first, second = map(json.loads, shown.stdout.splitlines())
    assert (first["_id"], [hit["id"] for hit in first["hits"]]) == ("q1", ["café"])
    assert second == {"_id": "q2", "hits": []}
    saved = tmp_path / "out.run"
    assert run(*options, "--save-run", saved, encoding="latin-1").returncode == 0
    assert list(rerank.read_run(saved)) == ["q1"]
    assert saved.read_text("utf-8").startswith("q1 Q0 café 1 ")
