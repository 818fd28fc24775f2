"""A dry run counts what the ingest of the same documents does."""

from __future__ import annotations

import pytest

from rerank import Document, Workspace, ingest
from rerank.common.errors import InputError
from rerank.workflows.ingest_preview import preview_ingest
from rerank.workflows.ingest_remarks import describe_documents

DOCUMENTS = [
    Document("a", text="A grey wolf", lang="en"),
    Document("b", text="A red fox", lang="en"),
    Document("c", text=" \n"),
]


def test_a_preview_counts_as_the_ingest_does(tmp_path):
    preview = preview_ingest(tmp_path / "ws", DOCUMENTS, lang="en-GB")
    assert not (tmp_path / "ws").exists()
    report = ingest(tmp_path / "ws", DOCUMENTS, lang="en-GB")
    assert (preview.new, preview.existing, preview.removed) == (report.added, 0, 0)
    assert preview.documents == report.documents == 3
    assert preview.languages == report.languages == {"en": 2, "": 1}
    assert preview.without_text == report.without_text == 1
    assert preview.lang == report.lang == "en"


def test_a_preview_of_a_replacement_counts_the_removed_documents(tmp_path):
    ingest(tmp_path / "ws", DOCUMENTS)
    preview = preview_ingest(tmp_path / "ws", [DOCUMENTS[0], Document("d")], replace=True)
    assert (preview.new, preview.existing, preview.removed) == (1, 1, 2)


def test_a_preview_counts_deletions(tmp_path):
    workspace = ingest(tmp_path / "ws", DOCUMENTS).workspace
    preview = preview_ingest(tmp_path / "ws", [Document("d")], delete=["a", "x"])
    report = ingest(workspace, [Document("d")], delete=["a", "x"])
    assert (preview.new, preview.removed) == (report.added, report.deleted) == (1, 1)
    assert preview.unknown_deletes == report.unknown_deletes == ("x",)


def test_a_preview_describes_the_documents_as_the_ingest_does(tmp_path):
    documents = [Document("a", title="A wolf", extra={"body": "grey"}), Document("b", lang="it")]
    preview = preview_ingest(tmp_path / "ws", documents)
    remarks = list(describe_documents(preview))
    assert remarks == list(describe_documents(ingest(tmp_path / "ws", documents)))
    assert remarks[0] == "no document has a text: the field is `text`, but the documents have body"


def test_a_preview_refuses_what_the_ingest_refuses(tmp_path):
    ingest(tmp_path / "other", DOCUMENTS)
    for action in (preview_ingest, ingest):
        with pytest.raises(InputError, match="'a' is both ingested and deleted"):
            action(tmp_path / "other", DOCUMENTS, delete=["a"])
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    for action in (ingest, preview_ingest):
        with pytest.raises(InputError, match="the language is en and cannot be changed to it"):
            action(workspace, DOCUMENTS, lang="it")
