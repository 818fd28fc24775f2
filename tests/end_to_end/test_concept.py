"""``concept`` from labeled pairs to a ranking, and its bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank import Document, Workspace
from tests.conformance.ranker_rules import check_ranker
from tests.support import dense

TOPICS = 6
TEXTS = [{key: one[key] for key in ("_id", "text")} for one in dense.documents()]


def pairs(first, last):
    """Return pairs of documents from number ``first`` on, related if their topics are equal."""
    some = range(first * TOPICS, last * TOPICS)
    return [(f"d{a}", f"d{b}", int((a - b) % TOPICS == 0)) for a in some for b in some if a < b]


def write_pairs(path, rows):
    path.write_text("a\tb\trelated\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture
def labeled(run, write_lines, tmp_path):
    """A workspace, and files of pairs for training and dev."""
    corpus = write_lines(tmp_path / "corpus.jsonl", TEXTS)
    assert run("ingest", corpus, "-w", tmp_path / "ws").code == 0
    return (
        tmp_path / "ws",
        write_pairs(tmp_path / "train.tsv", pairs(0, 5)),
        write_pairs(tmp_path / "dev.tsv", pairs(5, 8)),
    )


def options(tiny, *more):
    return dense.options(tiny, "--batch", 12, "--queue", 8, *more)


def test_labeled_pairs_train_a_ranker(run, labeled, tiny, tmp_path, write_lines):
    folder, train, dev = labeled
    command = ("train", "concept", "--labeled-pairs", train, "--dev-pairs", dev)
    done = run(*command, *options(tiny, "--steps", 30), "-w", folder).ok()
    assert "60 related and 375 unrelated pairs of 30 documents to learn from; 6 components" in done.out
    assert "AUC of dev pairs" in done.out
    ranker = Workspace.open(folder).ranker("concept")
    assert (ranker.retrieves, ranker.bounds) == (False, (0.0, 1.0))
    assert 0 < ranker.threshold < 1
    assert ranker.relatedness(ranker.vectors(["", "w1"]), ranker.vectors(["w1", "w1"]))[0] == 0.0
    check_ranker(ranker, documents=[Document(one["_id"], text=one["text"]) for one in TEXTS])
    asked = run("query", "w0 w1 w2", "--stack", "bm25*0.5 + concept*0.5", "--explain", "-w", folder).ok()
    assert "concept" in asked.out
    given = ("--pairs", train, "--dev-pairs", dev, "-w", folder)
    run("pairs", "evaluate", "--ranker", "concept", *given).ok()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([("d0", "nobody", 1)], "'nobody'"),
        ([("d0", "d6", 1), ("d0", "d1", 0)], "make 1 component"),
        (pairs(5, 8), "no pair to learn from is related (153 are dev pairs"),
    ],
)
def test_pairs_that_cannot_train_concept_are_refused(run, labeled, tiny, tmp_path, change, message):
    folder, _, dev = labeled
    file = write_pairs(tmp_path / "bad.tsv", change)
    settings = ("--model", tiny, "--passage-tokens", 16, "--queue", "2", "--steps", 2)
    done = run("train", "concept", "--labeled-pairs", file, "--dev-pairs", dev, *settings, "-w", folder)
    assert done.code == 1, done
    assert message in done.err.splitlines()[-1]
    assert not list(Path(folder).glob("rankers/*concept*"))
