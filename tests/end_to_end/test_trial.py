"""Output of commands for a new user on the demo collection: leaks, scores, judgments, training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rerank.cli import output

import rerank
from tests.support.cli import copy_workspace

STACK = "tfidf,text,meta"


@pytest.fixture(scope="module")
def ws(trained, tmp_path_factory):
    """A workspace for the tests of this file. The tests only add to it."""
    return copy_workspace(trained, tmp_path_factory.mktemp("trial") / "ws")


@pytest.fixture
def judged(small, ws):
    """Return a function that returns the options for queries, workspace and judgments."""
    return lambda qrels: ("--queries", small.queries, "-w", ws, "--qrels", qrels)


def test_queries_of_the_training_set_are_reported(run, small, judged):
    n = len(rerank.read_qrels(small.train))
    told = run("evaluate", "--stack", STACK, *judged(small.train))
    first = told.out.splitlines()[0]
    assert first.startswith(f"text was trained on {n}; meta was trained on {n} of these {n} queries: ")
    assert "rows with †" in first
    rows = [line for line in told.out.splitlines() if line.startswith((STACK, "tfidf "))]
    assert ["†" in row.split("  ")[0] for row in rows[:2]] == [False, True]
    report = run("evaluate", "--stack", STACK, "--json", *judged(small.train)).json
    leaks = report["results"][-1]["leaks"]
    assert {"name": "text", "use": "trained", "queries": n} in leaks
    tuned = run(
        "tune", "--stack", "tfidf,text", "--out", Path(small.folder) / "leaky.json", *judged(small.train)
    )
    assert tuned.out.splitlines()[0].endswith("tune on other queries")


def test_evaluate_reports_new_documents_and_p_values(run, small, judged):
    told = run("evaluate", "--stack", STACK, *judged(small.test)).out
    assert re.search(r"^\d+ % of the relevant documents were also relevant for training", told, re.M)
    heads = [line for line in told.splitlines() if "Δ nDCG@10" in line]
    assert len(heads) == 2
    assert all("p nDCG@10 (Holm)" in head for head in heads)
    several = run("evaluate", "--stack", STACK, "--measure", "nDCG@10,RR", *judged(small.test)).out
    assert "p nDCG@10 (Holm)" in several
    assert "p RR (Holm)" in several


def test_different_first_stages_are_reported(run, small, judged):
    told = run("evaluate", "--stack", "text", "--baseline", "tfidf", *judged(small.test)).out
    assert [line.split()[2] for line in told.splitlines() if "candidate recall" in line] == ["tfidf", "bm25"]
    both = ("--stack", "bm25*0.5+text*0.5", "--stack", "tfidf*0.5+bm25*0.5", "--baseline", "tfidf", "--json")
    rows = run("evaluate", *both, *judged(small.test)).json["results"]
    assert [row["first_stage"] for row in rows] == ["tfidf", "bm25", "tfidf"]


def test_a_single_signal_keeps_its_raw_scores(run, ws):
    hits = run("query", "histones kill bacteria", "-w", ws, "--stack", "bm25", "--json").json["hits"]
    assert all(hit["score"] == hit["signals"]["bm25"]["raw"] for hit in hits)
    assert hits[0]["score"] > 1
    few = run("query", "histones kill bacteria", "-w", ws, "--stack", "bm25", "--depth", 2, "-k", 5)
    assert "raise --depth" in few.err


def test_held_out_queries_can_be_used_for_tuning(run, small, ws, judged):
    held = ws / "held-out.tsv"
    told = run("train", "lsi", "--dim", 20, *judged(small.train)).out
    assert f", held out of the judgments: tune on {held}; candidates by bm25\n" in told
    tuned = run("tune", "--stack", "tfidf,lsi", *judged(held))
    assert "comes out too large" not in tuned.out


def test_ctrl_c_reports_the_kept_and_missing_rankers(run, small, plain, monkeypatch):
    start = output.Bar.start

    def interrupted(self, title, total=None, unit=""):
        if title.startswith(("s2net", "mine")):
            raise KeyboardInterrupt
        start(self, title, total, unit)

    monkeypatch.setattr(output.Bar, "start", interrupted)
    assert run("ingest", small.corpus, "-w", plain).code == 0
    options = (
        "--dim", 8, "--terms", 60, "--letters", 0,
        "--queries", small.queries, "--qrels", small.train, "--dev-qrels", small.dev, "-w", plain,
    )  # fmt: skip
    named = run("train", "s2net", "--as", "mine", *options)
    assert named.err.splitlines()[-1] == "rerank: interrupted; not trained: mine"
    done = run("train", "lsi", "s2net", "opca", *options)
    assert (done.code, done.out) == (130, "")
    encode = f"`rerank encode -w {plain}` stores the features of the others"
    assert done.err.splitlines()[-1] == f"rerank: interrupted; not trained: s2net, opca; {encode}"
    assert [one["name"] for one in run("status", "-w", plain, "--json").json["rankers"]] == ["lsi"]


def test_given_options_override_presets_and_files(run, tmp_path):
    """Epochs replace steps. The next error is that the collection has no links."""
    (tmp_path / "one.jsonl").write_text('{"_id": "a", "text": "words"}\n')
    (tmp_path / "some.toml").write_text("epochs = 3\n")
    assert run("ingest", tmp_path / "one.jsonl", "-w", tmp_path / "ws").code == 0
    train = ("train", "dense", "-w", tmp_path / "ws")
    for given in (("--preset", "whole", "--epochs", 3), ("--config", tmp_path / "some.toml", "--steps", 40)):
        run(*train, *given).fails(1, "links")
    run(*train, "--steps", 4, "--epochs", 2).fails(2, "--epochs has no effect with --steps 4; leave it out")
