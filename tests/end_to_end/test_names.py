"""Rankers with custom names: several of a family in one stack, through all commands."""

from __future__ import annotations

import json

import pytest

from tests.support.dense import linked_documents, options, write_judgments


@pytest.fixture(scope="module")
def named(run, tiny, write_lines, tmp_path_factory):
    """A workspace with two encoders and two projections with custom names."""
    folder = tmp_path_factory.mktemp("names")
    documents = linked_documents()
    assert run("ingest", write_lines(folder / "corpus.jsonl", documents), "-w", folder / "ws").code == 0
    rows = [
        {"query": f"w{i % 6 * 5} w{i % 6 * 5 + 1}", "document": d["text"]} for i, d in enumerate(documents)
    ]
    pairs = write_lines(folder / "pairs.jsonl", [row for row in rows if row["document"]])
    quick = options(tiny, "--steps", 2, "-w", folder / "ws")
    for more in (
        ("dense", "--as", "citations", *quick),
        ("dense", "--as", "cocited-2", "--strategy", "document", *quick),
        ("lsi", "--as", "topics", "--text-pairs", pairs, "--dim", 4, "-w", folder / "ws"),
        ("cllsi", "--as", "both.sides", "--text-pairs", pairs, "--dim", 3, "-w", folder / "ws"),
    ):
        run("train", *more).ok()
    return folder


def test_two_rankers_of_a_family_in_one_stack(named, run, write_lines):
    where = ("-w", named / "ws")
    names = ["both.sides", "citations", "cocited-2", "topics"]
    status = run("status", "--json", *where).json
    assert [(one["name"], one["features"]) for one in status["rankers"]] == [(name, True) for name in names]
    files = (*write_judgments(named, write_lines), *where)
    for stack in ("tfidf,citations,cocited-2", "tfidf,topics,both.sides"):
        assert run("tune", "--stack", stack, *files).code == 0
        hit = run("query", "w0 w1", "--stack", stack, "--json", *where).json["hits"][0]
        assert {"tfidf"} <= set(hit["signals"]) <= set(stack.split(","))  # signals with some weight
        assert stack in run("evaluate", "--stack", stack, *files).out
    retrieved = run("query", "w0 w1", "--stack", "citations", "--retrieve", "citations:5", "--json", *where)
    assert len(retrieved.json["hits"]) == 5
    assert run("encode", "--json", *where).json["encoded"] == dict.fromkeys(names, 0)


def test_a_name_belongs_to_its_ranker(named, run, tiny):
    where = ("-w", named / "ws")
    again = run("train", "dense", "--as", "citations", *options(tiny, "--steps", 3, "--json"), *where).json
    assert again["encoded"] == {"both.sides": 0, "citations": 49, "cocited-2": 0, "topics": 0}
    for file in (named / "ws" / "rankers").glob("*.json"):
        assert (
            named / "ws" / "rankers" / f"{file.stem}-{json.loads(file.read_text())[0]['version']}"
        ).is_dir()
    pairs = ("--text-pairs", named / "pairs.jsonl", *where)
    run("train", "lsi", "--as", "citations", *pairs).fails(2, "another ranker (dense, of the family dense)")
    run("train", "cca", "--as", "topics", *pairs).fails(2, "another ranker (lsi, of the family projection)")
    run("query", "w0", "--stack", "dense", *where).fails(
        1, "'dense' is not trained", "both.sides, citations, cocited-2, topics", "`rerank train dense -w "
    )
