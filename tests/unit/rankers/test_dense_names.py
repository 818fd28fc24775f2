"""An encoder that reads the names of categories instead of texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rerank import Document, Query, Workspace, train
from rerank.common.errors import TrainingError
from rerank.rankers.registry import load_ranker

DOCUMENTS = [
    Document("1", "w1 w2", "w3 w4", categories=("w5_w6", "w7::w8")),
    Document("2", "w1 w2", "w3 w4", categories=("w9",)),
    Document("3", "w5 w6", "w7 w8"),
]
NAMES = ["w5 w6, w7 w8", "w9", ""]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, tiny):
    workspace = Workspace.create(tmp_path_factory.mktemp("names") / "ws", lang="en")
    workspace.engine.write(DOCUMENTS)
    config = {"untrained": True, "model": tiny, "names": True}
    return workspace, train(workspace, "dense", as_name="subjects", config=config).rankers[0].ranker


def test_the_names_are_encoded_as_texts(fitted):
    _, ranker = fitted
    documents_of_names = [Document(str(number), text=text) for number, text in enumerate(NAMES)]
    expected = replace(ranker, names=False).encode_documents(documents_of_names)
    actual = ranker.encode_documents(DOCUMENTS)
    assert (actual == expected).all()
    assert not actual[2].any()


def test_the_stored_ranker_reads_names(fitted):
    workspace, ranker = fitted
    stored = load_ranker(workspace.folder / "rankers" / f"subjects-{ranker.version}")
    assert stored.version == ranker.version != replace(ranker, names=False).version
    features = stored.encode_documents(DOCUMENTS)
    assert (features == ranker.encode_documents(DOCUMENTS)).all()
    scores = stored.score(stored.encode_query(Query("q", "w5 w6")), features)
    assert scores[0] > scores[2] == 0


def test_documents_without_categories_have_no_names_to_read(tmp_path, tiny):
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document("1", "w1 w2"), Document("2", text="w3", categories=("_",))])
    with pytest.raises(TrainingError, match="categories"):
        train(workspace, "dense", config={"untrained": True, "model": tiny, "names": True})
