"""Errors for ``dense`` links that relate no documents, and the choice of trained layers."""

from __future__ import annotations

import pytest

from rerank.common.errors import TrainingError
from rerank.documents.records import Document
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.neighbors import Structure
from rerank.rankers.dense.texts import Texts
from tests.support.data import Words


def refusal(documents, config):
    """Return the error about documents without the relations that the options need."""
    relation = config.relation if config.strategy is None else "citations"
    texts = Texts.read(documents, Words().tokens, relation=relation)
    with pytest.raises(TrainingError) as error:
        Structure.find(texts, config)
    return str(error.value)


def test_without_related_documents_the_error_suggests_alternatives():
    def message(*documents):
        return refusal(documents, DenseConfig())

    actual = message(Document("a", text="w1", links=("gone", "a")), Document("b", text="w2"))
    assert "no two linked documents have text (1 link to unknown ids)" in actual
    assert "add --untrained, or --queries and --qrels" in actual
    assert "no document has any text" in message(Document("a", links=("b",)), Document("b"))
    assert "no two linked documents" in message(Document("a", links=("b",)), Document("b", text="w2"))


def test_without_shared_categories_the_error_names_categories():
    documents = [Document("a", text="w1", categories=("x",)), Document("b", text="w2", categories=("y",))]
    actual = refusal(documents, DenseConfig(relation="categories"))
    assert "no two documents with text share a category" in actual
    assert "--relation links" in actual


def test_the_number_of_layers_that_are_trained():
    def layers(*there, **changes):
        return [DenseConfig.of(**changes).learning_layers(n) for n in there]

    assert layers(1, 2, 3, 6, 12) == [0, 0, 2, 2, 2]
    assert layers(6, train_layers=0) == [0]
    assert layers(6, train_layers=5) == [5]
    assert layers(6, train_layers=12) == [6]
    assert layers(12, preset="paper") == [0]
