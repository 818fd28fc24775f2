"""Co-citations of a collection."""

from __future__ import annotations

from rerank import Workspace
from rerank.rankers.graphs.cocitation import LEVELS
from tests.unit.test_cocitation import X, Y


def rows(mentions):
    found = []
    for ref, section, paragraph, sentence in mentions:
        place = {"section": section, "paragraph": paragraph, "sentence": sentence}
        found.append({"ref": ref, **place, "text": f"Sentence {sentence}."})
    return found


def test_mine_reports_the_sizes_of_cocitation_levels(run, tmp_path, write_lines):
    titles = {"a": "On the growth of yeast", "b": "On the death of yeast cells", "c": "Wolves", "e": "Owls"}
    documents = [
        {"_id": "X", "title": "The paper X", "citations": rows(X), "references": titles},
        {"_id": "Y", "title": "The paper Y", "citations": rows(Y)},
        {"_id": "d", "title": "A document", "text": "that the collection has"},
    ]
    done = run("ingest", write_lines(tmp_path / "c.jsonl", documents), "-w", tmp_path / "ws")
    assert "2 documents list 9 references and cite them 14 times" in done.out
    found = run("mine", "cocitation", "-w", tmp_path / "ws", "--json").json
    assert (found["citing"], found["references"], found["outside"], found["titled"]) == (2, 6, 4, 6)
    assert [found["levels"][level]["pairs"] for level in LEVELS] == [4, 6, 7, 10]
    assert found["levels"]["sentence"] == {"groups": 4, "largest": 2, "references": 5, "pairs": 4}
    shown = run("mine", "cocitation", "-w", tmp_path / "ws").out
    assert "2 documents cite 6 references" in shown
    assert shown.splitlines()[-1].split() == ["one", "document", "2", "5", "5", "10"]


def test_mine_refuses_a_collection_without_citations(run, tmp_path, write_lines):
    run("ingest", write_lines(tmp_path / "c.jsonl", [{"_id": "d", "text": "x"}]), "-w", tmp_path / "ws")
    run("mine", "cocitation", "-w", tmp_path / "ws").fails(1, "no document has citations; ingest documents")


def test_mine_uses_links_if_there_are_no_citations(run, tmp_path, write_lines):
    """The expected counts cover all pairs of each document's links."""
    documents = [
        {"_id": "1", "links": ["2", "10", "x", "1"]},
        {"_id": "2", "links": ["10", "x"]},
        {"_id": "10", "links": ["2", "2"]},
        {"_id": "x"},
    ]
    run("ingest", write_lines(tmp_path / "c.jsonl", documents), "-w", tmp_path / "ws")
    shown = run("mine", "cocitation", "-w", tmp_path / "ws").out.splitlines()
    assert shown[3].split() == ["one", "sentence", "0", "0", "0", "0"]
    keys, counts = Workspace.open(tmp_path / "ws").citations().network().levels["document"].pair_counts()
    assert (len(keys), sorted(counts.tolist())) == (3, [1, 1, 2])
