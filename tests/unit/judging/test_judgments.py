"""Judgments by hand: the file of grades, and the grade of several judges."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.common.errors import InputError
from rerank.judging.judgments import (
    HandJudgment,
    JudgmentFile,
    NotSavedError,
    read_judgments,
    summarize_judgments,
)

grades = st.integers(0, 3)


def line(grade, id="d1", by="ann", **more):
    return json.dumps({"query_id": "q1", "id": id, "grade": grade, "by": by, **more}) + "\n"


def test_the_last_line_of_a_judge_counts(tmp_path):
    path = tmp_path / "pool.judged.jsonl"
    path.write_text(
        line(1) + line(3, by="ben") + line(2, note="längst") + line(0, "d2") + "\n" + line(None, "d2")
    )
    judgments = read_judgments(path)
    assert [(one.id, one.by, one.grade, one.note) for one in judgments] == [
        ("d1", "ben", 3, ""),
        ("d1", "ann", 2, "längst"),
    ]


@pytest.mark.parametrize("size", range(1, len(line(2)) + 1))
def test_an_incomplete_last_line_is_ignored(tmp_path, size):
    """A service that is killed may leave a part of a line. Without its newline, the line is whole."""
    path = tmp_path / "pool.judged.jsonl"
    path.write_text(line(1) + line(2)[:size])
    whole = size >= len(line(2)) - 1
    assert [one.grade for one in read_judgments(path)] == ([2] if whole else [1])
    JudgmentFile(path).append(HandJudgment("q1", "d2", 3, by="ben"))
    kept = [line(2).strip()] if whole else []
    assert path.read_text().splitlines()[:-1] == [line(1).strip(), *kept]
    assert [one.grade for one in read_judgments(path)] == [2 if whole else 1, 3]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (line(1)[:20] + "\n" + line(1), ":1: not a judgment in JSON"),
        (line(1) + "[1]\n", ":2: not a JSON object"),
        (line(4), ":1: grade: .*<= 3"),
        (line(1.5), ":1: grade"),
        (line(1, by=""), ":1: by: "),
        ('{"query_id": "q1", "id": "d1", "grade": 1}\n', ":1: missing field by; add it"),
        ('{"query_id": 1, "id": "d1", "grade": 1, "by": "ann"}\n', ":1: query_id: "),
    ],
)
def test_damaged_lines_are_named(tmp_path, text, problem):
    path = tmp_path / "pool.judged.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=problem):
        read_judgments(path)


def test_a_missing_file_and_other_encodings_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file; check the path"):
        read_judgments(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(line(1).encode() + b"\xe9\n")
    with pytest.raises(InputError, match=r"latin.jsonl:2: byte 1 \(0xe9\) is not UTF-8"):
        read_judgments(tmp_path / "latin.jsonl")


@given(st.dictionaries(st.sampled_from("abcde"), grades, min_size=1))
def test_the_grade_of_several_judges_is_their_median(by_judge):
    """Between two middle grades, the lower one counts."""
    summary = summarize_judgments(
        [HandJudgment("q", "d", grade, by=judge) for judge, grade in by_judge.items()]
    )
    ordered = sorted(by_judge.values())
    assert summary.qrels["q"]["d"] == ordered[(len(ordered) - 1) // 2]
    assert summary.shared == (len(by_judge) > 1)
    assert len(summary.disagreements) == (len(set(by_judge.values())) > 1)


def test_disagreement_by_hand():
    """d1: 0, 1 and 3 give 1. d2: 1 and 2 give 1. d3: 2 and 2 agree. d4 has one judge."""
    rows = {"d1": (0, 1, 3), "d2": (1, 2), "d3": (2, 2), "d4": (3,)}
    lines = [HandJudgment("q", id, g, by=by) for id, row in rows.items() for by, g in zip("abc", row)]
    summary = summarize_judgments(lines)
    assert dict(summary.qrels["q"]) == {"d1": 1, "d2": 1, "d3": 2, "d4": 3}
    assert summary.judges == {"a": 4, "b": 3, "c": 1}
    assert [(one.id, one.difference) for one in summary.disagreements] == [("d1", 3), ("d2", 1)]
    assert summary.describe().startswith(
        "3 documents with several judges; 2 with different grades, 1 of these"
    )
    assert summarize_judgments(lines[-1:]).describe() == ""


APPENDING = """
import sys
from rerank.judging.judgments import HandJudgment, JudgmentFile
file = JudgmentFile(sys.argv[1])
for number in range(100):
    file.append(HandJudgment("q", f"d{number}", number % 4, by=sys.argv[2]))
"""


def test_several_processes_append_whole_lines(tmp_path):
    path = tmp_path / "pool.judged.jsonl"
    watching = JudgmentFile(path)
    processes = [subprocess.Popen([sys.executable, "-c", APPENDING, path, judge]) for judge in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert Counter(one.by for one in read_judgments(path)) == {"a": 100, "b": 100, "c": 100}
    watching.refresh()
    assert len(watching.lines) == 300


LIMITED = """
import resource, sys
from rerank.judging.judgments import HandJudgment, JudgmentFile, NotSavedError
for size in sys.argv[2:]:
    file = JudgmentFile(sys.argv[1] + size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))
    for number in range(10):
        try:
            file.append(HandJudgment("q1", f"d{number}", 1, by="ann"))
        except NotSavedError as error:
            print(error)
            break
"""
FULL_AT = (0, 10, 100, 250)
"""Sizes of a file at which the disk is full, in bytes."""


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory):
    """Return size -> file that could not grow beyond it, and the error. One process writes all of them."""
    start = tmp_path_factory.mktemp("full") / "judged."
    command = [sys.executable, "-c", LIMITED, start, *map(str, FULL_AT)]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    errors = done.stdout.splitlines()
    return {size: (Path(f"{start}{size}"), error) for size, error in zip(FULL_AT, errors, strict=True)}


@pytest.mark.parametrize("size", FULL_AT)
def test_a_full_disk_keeps_the_confirmed_lines(full_disk, tmp_path, size):
    """Each line has the same length. A part of the next line does not stay in the file."""
    path, error = full_disk[size]
    assert "not saved: " in error
    JudgmentFile(tmp_path / "one").append(HandJudgment("q1", "d0", 1, by="ann"))
    length = os.path.getsize(tmp_path / "one")
    assert os.path.getsize(path) == size // length * length
    assert len(read_judgments(path)) == size // length


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotSavedError, match=r"not saved: .*file/judged.jsonl: Not a directory"):
        JudgmentFile(tmp_path / "file" / "judged.jsonl")


KILLED = """
import sys
from rerank.judging.judgments import HandJudgment, JudgmentFile
file = JudgmentFile(sys.argv[1])
for number in range(100_000):
    file.append(HandJudgment("q1", f"d{number}", 1, by="ann"))
    print(number, flush=True)
"""


def test_a_killed_process_loses_no_confirmed_line(tmp_path):
    path = tmp_path / "pool.judged.jsonl"
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    confirmed = [int(process.stdout.readline()) for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    confirmed += map(int, process.stdout.read().split())
    process.wait()
    process.stdout.close()
    assert len(read_judgments(path)) >= confirmed[-1] + 1
