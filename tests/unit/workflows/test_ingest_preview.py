"""A dry run counts what the ingest of the same documents does."""

from __future__ import annotations

import pytest

from rerank import Document, Workspace, ingest
from rerank.common.errors import InputError
from rerank.workflows.ingest_preview import preview_ingest

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


def test_a_preview_refuses_what_the_ingest_refuses(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    for action in (ingest, preview_ingest):
        with pytest.raises(InputError, match="the language is en and cannot be changed to it"):
            action(workspace, DOCUMENTS, lang="it")
