"""Files of labeled pairs: what is read, what is refused, what is written."""

from __future__ import annotations

import gzip
import json

import pytest

from rerank.errors import InputError
from rerank.formats import read_labeled_pairs, read_unlabeled_pairs, write_labeled_pairs
from rerank.records import LabeledPair

PAIRS = [LabeledPair("d 1", "d2", True), LabeledPair("d2", "d3", False), LabeledPair("d3", "d2", False)]


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.jsonl"])
def test_what_was_written_is_read(tmp_path, name):
    write_labeled_pairs(tmp_path / name, PAIRS)
    assert read_labeled_pairs(tmp_path / name) == PAIRS
    (tmp_path / "some.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert read_labeled_pairs(tmp_path / "some.gz", known=lambda ids: {*ids}) == PAIRS
    assert read_unlabeled_pairs(tmp_path / name) == [tuple(pair) for pair in PAIRS]


def test_layouts(tmp_path):
    path = tmp_path / "pairs"
    path.write_text("x\ty\t1\n\nx\tz\t0\n")
    assert read_labeled_pairs(path) == [("x", "y", True), ("x", "z", False)]
    path.write_text('{"a": 7, "b": "y", "related": true, "who": "me"}\n{"a": "7", "b": "z", "related": 0}\n')
    assert read_labeled_pairs(path) == [("7", "y", True), ("7", "z", False)]
    path.write_text("a\tb\nx\ty\nx\tx\n")
    assert read_unlabeled_pairs(path) == [("x", "y", None), ("x", "x", None)]
    path.write_text('{"a": "x", "b": "y"}\n{"a": "x", "b": "z", "related": 0}')
    assert read_unlabeled_pairs(path) == [("x", "y", None), ("x", "z", False)]


def test_pairs_that_occur_again_and_pairs_of_one_document(tmp_path):
    path, said = tmp_path / "pairs", []
    path.write_text("x\ty\t1\nx\ty\t1\ny\tx\t1\nx\tz\t0\nz\tz\t1\n")
    assert read_labeled_pairs(path, remark=said.append) == [
        ("x", "y", True),
        ("y", "x", True),
        ("x", "z", False),
    ]
    assert [line.partition(": ")[2].split(";")[0] for line in said] == [
        "1 pair again with the same label",
        "1 pair of a document with itself skipped",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x\ty\n", ":1: 2 filled columns, not 3"),
        ("a\tb\trelated\nx\t\t1\n", ":2: 2 filled columns, not 3"),
        ("x\ty\t1\nx\tz\tno\n", ":2: the label 'no' is neither 1 (related) nor 0"),
        ("x\ty\t1\nx\tz\t2\n", ":2: the label '2'"),
        ('{"a": "x", "b": "y", "related": 0.5}\n', ":1: related: expected"),
        ('{"a": "x", "b": "y"}\n', ":1: 2 filled columns, not 3"),
        ('{"a": ["x"], "b": "y", "related": 1}\n', ":1: a: expected"),
        ('{"a": "x", "b": "y", "related": 1}\nx\ty\t0\n', ":2: invalid JSON"),
        ("x\ty\t1\nx\tz\t0\nx\ty\t0\n", ":3: the pair of 'x' and 'y' was labeled 1 on line 1, now 0; keep"),
        ("x\ty\t1\nx\tx\t0\n", ":2: document 'x' is labeled as unrelated to itself"),
        ("x\ty\t1\nx\tz\t1\n", ": 2 pairs, and all related; add unrelated pairs"),
        ("x\ty\t0\n", ": 1 pair, and all unrelated; add related pairs"),
        ("a\tb\trelated\n", ": no pairs"),
        ("x\tq\t1\nx\ty\t0\nx\tw\t1\n", ":1: there is no document 'q' (2 unknown ids"),
        ("x\ty\t1\nx\tw\t0\n", ":2: there is no document 'w'; ingest it"),
    ],
)
def test_refused(tmp_path, text, message):
    path = tmp_path / "pairs"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_labeled_pairs(path, known=lambda ids: {*ids} & {"x", "y", "z"})
    assert str(error.value).startswith(f"{path}{message}")
    assert "\n" not in str(error.value)


def test_a_pair_and_its_reverse_may_disagree(tmp_path):
    path = tmp_path / "pairs"
    path.write_text("x\ty\t1\ny\tx\t0\n")
    assert read_labeled_pairs(path) == [("x", "y", True), ("y", "x", False)]


@pytest.mark.parametrize("wrong", ["a\tb", "a\nb", " a", ""])
def test_ids_that_tsv_cannot_hold(tmp_path, wrong):
    with pytest.raises(InputError, match="TSV"):
        write_labeled_pairs(tmp_path / "p.tsv", [LabeledPair(wrong, "x", True)])
    assert not (tmp_path / "p.tsv").exists()
    write_labeled_pairs(tmp_path / "p.jsonl", [LabeledPair(wrong or " b", "x", True)])
    assert json.loads((tmp_path / "p.jsonl").read_text())["a"] == (wrong or " b")


def test_nothing_to_predict(tmp_path):
    (tmp_path / "p").write_text("a\tb\n")
    with pytest.raises(InputError, match="no pairs"):
        read_unlabeled_pairs(tmp_path / "p")
    (tmp_path / "p").write_text("x\ty\t1\tz\n")
    with pytest.raises(InputError, match="4 filled columns, not 2"):
        read_unlabeled_pairs(tmp_path / "p")
