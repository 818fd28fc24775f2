"""Citations of documents: their JSON form, the names of references, and the network built from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rerank.common.errors import InputError
from rerank.documents.records import Document
from rerank.formats import read_corpus
from rerank.formats.references import named_key
from rerank.rankers.graphs.citations import Citations, mentions
from rerank.rankers.graphs.cocitation import LEVELS
from rerank.workflows.ingest import ingest


def test_different_spellings_of_one_reference_give_one_key():
    same = ["10.1000/AbC", "doi:10.1000/abc", "DOI: 10.1000/abc", "https://doi.org/10.1000/ABC",
            "http://dx.doi.org/10.1000/abc", "doi.org/10.1000/abc", " 10.1000/abc "]  # fmt: skip
    assert {named_key(name) for name in same} == {"10.1000/abc"}
    assert {named_key(n) for n in ("pmid:7", "PMID 7", "https://pubmed.ncbi.nlm.nih.gov/7/")} == {"pmid:7"}
    assert [named_key(n) for n in ("b10.1000/x", "7", "W7", "10.5")] == ["b10.1000/x", "7", "W7", "10.5"]


def read(tmp_path, record):
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "x", **record}))
    return next(read_corpus(tmp_path / "c.jsonl")).extra


def test_citations_without_a_reference_are_left_out(tmp_path):
    rows = ["doi:10.1000/A", {"ref": 7, "section": "Intro", "sentence": 3, "text": "So [7].", "more": 1}]
    nothing = [{"ref": None}, {"section": 1}, {"ref": " "}]
    titles = {"https://doi.org/10.1000/a": "On A", "10.1000/b": "On B"}
    actual = Document("x", extra=read(tmp_path, {"citations": rows + nothing, "references": titles}))
    assert [tuple(one) for one in mentions(actual)] == [("10.1000/a", 0, 0, 0), ("7", 1, 1, 1)]
    assert Citations.from_documents([actual]).titles == {"10.1000/a": "On A", "10.1000/b": "On B"}
    empty = Document("x", extra=read(tmp_path, {"citations": None, "references": None}))
    assert Citations.from_documents([empty]).titles == {}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"citations": 17}, "citations: expected list or null, got integer"),
        ({"citations": [17]}, r"citations\[0\]: expected"),
        ({"citations": [{"ref": ["a"]}]}, r"citations\[0\].ref: expected"),
        ({"citations": [{"ref": "a", "sentence": 1.5}]}, r"citations\[0\].sentence: expected"),
        ({"references": ["a"]}, "references: expected"),
        ({"references": {"a": 1}}, "references"),
    ],
)
def test_invalid_citations_are_refused(tmp_path, record, said):
    with pytest.raises(InputError, match=rf"c\.jsonl:1: {said}"):
        read(tmp_path, record)


def test_unknown_places_do_not_relate_mentions():
    def places(*rows):
        return [tuple(actual[1:]) for actual in mentions(Document("x", extra={"citations": list(rows)}))]

    def row(section=None, paragraph=None, sentence=None):
        given = {"section": section, "paragraph": paragraph, "sentence": sentence}
        return {"ref": "a", **{name: value for name, value in given.items() if value is not None}}

    assert places(row(), row()) == [(0, 0, 0), (1, 1, 1)]
    assert places(row("s"), row("s")) == [(0, 0, 0), (0, 1, 1)]
    assert places(row(None, 4), row(None, 4), row(None, 5)) == [(0, 0, 0), (0, 0, 1), (0, 1, 2)]
    # sentences are numbered per paragraph, and paragraphs per section
    assert places(row(0, 0, 0), row(0, 1, 0), row(1, 0, 0)) == [(0, 0, 0), (0, 1, 1), (1, 2, 2)]
    # a sentence in a paragraph without a number
    assert places(row(0, None, 8), row(0, None, 8), row(0, None, 9)) == [(0, 0, 0), (0, 0, 0), (0, 1, 1)]
    linked = mentions(Document("x", links=("b", "https://doi.org/10.1000/C")))
    assert [tuple(actual) for actual in linked] == [("b", 0, 0, 0), ("10.1000/c", 1, 1, 1)]
    assert mentions(Document("x", links=("b",), extra={"citations": []})) == []


def test_a_workspace_builds_a_network_from_its_citations(tmp_path, write_lines):
    at = {"section": 0, "paragraph": 0, "sentence": 0}
    documents = [
        {"_id": "d", "title": "Own", "doi": "https://doi.org/10.1000/D", "pmid": 5, "text": "An abstract"},
        {"_id": "x", "citations": [{"ref": "10.1000/d", **at}, {"ref": "y", **at}, {"ref": "x", **at}],
         "references": {"10.1000/d": "As cited", "y": "Outside"}},
        {"_id": "z", "citations": [{"ref": "pmid:5", "section": 0}, {"ref": "w", "section": 0}]},
        {"_id": "l", "links": ["y", "w"], "text": "long", "abstract": "short"},
    ]  # fmt: skip
    workspace = ingest(tmp_path / "ws", [write_lines(tmp_path / "c.jsonl", documents)]).workspace
    citations = workspace.citations()
    assert {*citations.ids} == {"d", "x", "z", "l", "y"}
    assert dict(citations.titles) == {"d": "Own", "y": "Outside"}
    network = citations.network
    assert network.keys == ("d", "y", "w")
    assert [network.levels[level].pairs() for level in LEVELS] == [1, 1, 2, 3]

    # an update replaces what the document cites
    ingest(workspace, [write_lines(tmp_path / "c.jsonl", [{"_id": "x"}])])
    assert workspace.citations().network.keys == ("d", "w", "y")
    assert "y" not in workspace.citations().titles


def test_the_code_on_the_cocitation_page_converts_a_paper():
    page = (Path(__file__).resolve().parents[3] / "docs" / "explanation" / "encoders.md").read_text("utf-8")
    exec(page.partition("```python\n")[2].partition("```")[0], names := {})
    span = {"start": 23, "ref_id": "BIBREF0"}
    text = {"section": "Methods", "text": "We listened. They howl [1].", "cite_spans": [span]}
    entry = {"title": "Howling", "other_ids": {"DOI": ["10.1000/A"]}}
    parsed = {"bib_entries": {"BIBREF0": entry}, "body_text": [text]}
    paper = {"paper_id": "7", "title": "On wolves", "abstract": "They howl.", "pdf_parse": parsed}
    actual = names["document"](paper)
    assert actual["citations"] == [{"ref": "10.1000/a", "section": "Methods", "paragraph": 0, "sentence": 1}]
    assert actual["references"] == {"10.1000/a": "Howling"}
