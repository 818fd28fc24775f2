"""``rerank mine cocitation``: the worked example as JSON lines, a terminal's view, who is not found."""

from __future__ import annotations

import csv

import pytest
from rerank.cli import output

from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS
from rerank.records import Document
from rerank.workspace import Workspace
from tests.unit.test_cocitation import X, Y


def rows(mentions):
    found = []
    for ref, section, paragraph, sentence in mentions:
        place = {"section": section, "paragraph": paragraph, "sentence": sentence}
        found.append({"ref": ref, **place, "text": f"Sentence {sentence}."})
    return found


@pytest.fixture(scope="module")
def cited(tmp_path_factory, write_lines, run):
    folder = tmp_path_factory.mktemp("cited")
    titles = {"a": "On the growth of yeast", "b": "On the death of yeast cells", "c": "Wolves", "e": "Owls"}
    documents = [
        {"_id": "X", "title": "The paper X", "citations": rows(X), "references": titles},
        {"_id": "Y", "title": "The paper Y", "citations": rows(Y)},
        {"_id": "d", "title": "A document", "text": "that the collection has"},
    ]
    done = run("ingest", write_lines(folder / "c.jsonl", documents), "-w", folder / "ws")
    assert "2 documents list 9 references and cite them 14 times" in done.out
    return folder / "ws"


def test_sizes(cited, run):
    found = run("mine", "cocitation", "-w", cited, "--json").json
    assert (found["citing"], found["references"], found["outside"], found["titled"]) == (2, 6, 4, 6)
    assert [found["levels"][level]["pairs"] for level in LEVELS] == [4, 6, 7, 10]
    assert found["levels"]["sentence"] == {"groups": 4, "largest": 2, "references": 5, "pairs": 4}
    shown = run("mine", "cocitation", "-w", cited).out
    assert "2 documents cite 6 references" in shown
    assert shown.splitlines()[-1].split() == ["one", "document", "2", "5", "5", "10"]


def test_neighbors_by_level(cited, run):
    command = ("mine", "cocitation", "-w", cited, "--show")
    found = run(*command, "on the GROWTH of yeast!", "--json").json["shown"]
    assert (found["key"], found["title"], found["cited_by"]) == ("a", "On the growth of yeast", ["X"])
    assert found["sizes"] == {"sentence": 2, "paragraph": 3, "section": 4, "document": 4}
    assert [(one["key"], one["level"]) for one in found["neighbors"]] == [
        ("b", "sentence"), ("e", "sentence"), ("c", "paragraph"), ("d", "section")
    ]  # fmt: skip
    assert found["neighbors"][1]["sentences"] == [{"document": "X", "text": "Sentence 3."}]
    assert found["neighbors"][3] | {"sentences": []} == {
        "key": "d", "title": "A document", "level": "section", "documents": ["X"], "sentences": []
    }  # fmt: skip
    shown = run(*command, "b").out
    assert "cited by 2 documents, together with other references: 3 in a sentence, 3 in a paragraph" in shown
    assert "  c Wolves (2 documents)\n      Y: Sentence 0.\n" in shown


def test_neighbors_are_those_of_the_network(cited, run):
    network = Workspace.open(cited).citations().network()
    for key in network.keys:
        ids = network.neighbors(network.at(key), "document")
        finest = network.finest(network.at(key), ids)
        expected = dict(zip(network.names(ids), (LEVELS[place - 1] for place in finest)))
        shown = run("mine", "cocitation", "-w", cited, "--show", key, "--json").json["shown"]
        assert {one["key"]: one["level"] for one in shown["neighbors"]} == expected


def test_a_terminal_gets_short_lines(cited, run, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    lines = run("mine", "cocitation", "-w", cited, "--show", "b").out.splitlines()
    assert max(len(line) for line in lines if line.startswith(" ")) == 20


def test_who_is_not_found(cited, run, tmp_path, write_lines):
    command = ("mine", "cocitation", "-w", cited, "--show")
    run(*command, "yeast cells").fails(2, "no document cites 'yeast cells'", "b (On the death of")
    run(*command, "quarks").fails(2, "no document cites 'quarks'; give a DOI")
    run(*command, "Y").fails(2, "no document cites 'Y'")
    run("ingest", write_lines(tmp_path / "c.jsonl", [{"_id": "1"}]), "-w", tmp_path / "ws")
    run("mine", "cocitation", "-w", tmp_path / "ws").fails(
        1, "no document has citations; ingest articles (`rerank ingest ARCHIVE --format jats -w "
    )  # fmt: skip


def test_pairs_from_links_alone(run, tmp_path, write_lines):
    """Against a count over all pairs of each document's links."""
    documents = [
        {"_id": "1", "links": ["2", "10", "x", "1"]},
        {"_id": "2", "links": ["10", "x"]},
        {"_id": "10", "links": ["2", "2"]},
        {"_id": "x"},
    ]
    run("ingest", write_lines(tmp_path / "c.jsonl", documents), "-w", tmp_path / "ws")
    shown = run("mine", "cocitation", "-w", tmp_path / "ws", "--out", tmp_path / "pairs.tsv").out.splitlines()
    assert shown[3].split() == ["one", "sentence", "0", "0", "0", "0"]
    with open(tmp_path / "pairs.tsv") as file:
        found = list(csv.reader(file, delimiter="\t"))
    assert found == [
        ["a", "b", "sentence", "paragraph", "section", "document"],
        ["2", "10", "0", "0", "0", "1"],
        ["2", "x", "0", "0", "0", "1"],
        ["10", "x", "0", "0", "0", "2"],
    ]


def test_the_most_cited_of_one_title_is_meant():
    titles = {"p": "One title", "q": "One Title."}
    one = Document("x", extra={"citations": [{"ref": "p"}], "references": titles})
    other = Document("y", extra={"citations": [{"ref": "q"}, {"ref": "q"}]})
    citations = Citations.of([one, other])
    assert citations.titled("one title") == ["q", "p"]
    assert citations.citing_of("q") == ["y"]
