"""`rerank judge clicks` as users run it: output, bad input, full disks and kills."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import limit_file_size
from tests.support.click_logs import judgments, page, write


@pytest.fixture
def log(tmp_path):
    records = []
    for number in range(300):
        text = f"query {number % 30}"
        names = [f"d{(number + rank) % 40}" for rank in range(10)]
        records += [{**record, "application": "shop"} for record in page(str(number), text, names, names[:1])]
    return write(tmp_path / "ubi_events.ndjson", records)


def test_the_report_names_every_count(run, log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("judge", "clicks", log, "--out", "judged").ok()
    assert "impressions" in done.out
    assert "3,000" in done.out
    assert "shop" in done.out
    assert "written to judged" in done.out
    report = run("judge", "clicks", log, "--out", "judged", "--json").json
    assert report == json.loads(Path("judged/report.json").read_text("utf-8"))
    assert (report["page_views"], report["impressions"], report["clicks"]) == (300, 3000, 300)
    files = judgments(Path("judged"))
    assert len(files["train"]) + len(files["dev"]) == 30
    assert not files["train"].keys() & files["dev"].keys()
    assert len(files["dev"]) == report["dev"]["queries"]
    assert sorted(path.name for path in Path("judged").iterdir()) == [
        "dev.tsv",
        "queries.jsonl",
        "report.json",
        "train.tsv",
    ]


def test_bad_options_and_logs_fail_in_one_line(run, log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = ("--out", "judged")
    run("judge", "clicks", *out).fails(2, "the click log is missing")
    run("judge", "clicks", log, *out, "--profile", "p", "-q").fails(2, "--profile needs --ubi URL")
    run("judge", "clicks", log, *out, "--from", "yesterday").fails(2, "'yesterday' is not a date")
    run("judge", "clicks", log, *out, "--from", "1769817600").fails(2, "'1769817600' is not a date")
    run("judge", "clicks", log, *out, "--from", "20260131", "--to", "20260131", "-q").fails(
        2, "--to is not after --from"
    )
    run("judge", "clicks", log, *out, "--clicks", ",").fails(2, "name one action or more")
    run("judge", "clicks", log, *out, "--clicks", "VIEW", "-q").fails(
        2, "--impressions and --clicks both name view"
    )
    run("judge", "clicks", log, *out, "--ubi", "search:9200", "-q").fails(
        2, "--ubi: 'search:9200' is not the URL"
    )
    run("judge", "clicks", "none.ndjson", *out, "-q").fails(1, "none.ndjson: no such file")
    run("judge", "clicks", log, *out, "--to", "2020-01-01", "-q").fails(1, "events has a time")
    run("judge", "clicks", log, *out, "--application", "store", "-q").fails(
        1, "none of 3,300 events is of the application 'store'; the log has shop"
    )
    Path("mine.txt").write_text("my notes", "utf-8")
    run("judge", "clicks", log, *out, "--srw", "mine.txt", "-q").fails(2, "mine.txt: exists and has other")
    run("judge", "clicks", log, *out, "--srw", "no/srw.json", "-q").fails(2, "the folder no does not exist")
    assert Path("mine.txt").read_text("utf-8") == "my notes"
    run("judge", "clicks", log, *out, "-w", "nowhere").fails(2, "nowhere: not a workspace")
    assert not Path("judged").exists()


def test_files_are_whole_or_absent_on_a_full_disk(spawn, log, tmp_path):
    spawn("judge", "clicks", log, "--out", tmp_path / "whole", cwd=tmp_path).ok()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    limit = (min(sizes.values()) + max(sizes.values())) // 2
    out = tmp_path / "out"
    done = spawn("judge", "clicks", log, "--out", out, cwd=tmp_path, preexec_fn=limit_file_size(limit))
    assert done.code == 1
    assert "cannot be written" in done.err
    check_whole(out, tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_command_leaves_whole_files(spawn, script, log, tmp_path):
    """It is killed when a file appears in the folder, also a temporary one."""
    spawn("judge", "clicks", log, "--out", tmp_path / "whole", cwd=tmp_path).ok()
    for files in range(1, 5):
        out = tmp_path / f"out {files}"
        with subprocess.Popen([*script, "-q", "judge", "clicks", log, "--out", out], cwd=tmp_path) as process:
            while process.poll() is None:
                if out.exists() and len(list(out.iterdir())) >= files:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        check_whole(out, tmp_path / "whole")
        spawn("judge", "clicks", log, "--out", out, cwd=tmp_path)


def check_whole(out, whole):
    """Each file has its whole content; temporary files have other names."""
    for path in out.iterdir():
        if path.name == "report.json":
            assert json.loads(path.read_text("utf-8"))["page_views"] == 300
        elif not path.name.startswith("."):
            assert path.read_bytes() == (whole / path.name).read_bytes()
