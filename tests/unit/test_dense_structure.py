"""Links of ``dense`` that relate nothing; and which layers learn."""

from __future__ import annotations

import pytest

from rerank.errors import TrainingError
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.structure import Structure
from rerank.rankers.dense.texts import Texts
from rerank.records import Document
from tests.words import Words


def test_nothing_related_says_what_else_could_serve():
    def message(documents):
        texts = Texts.read(documents, Words().tokens)
        with pytest.raises(TrainingError) as error:
            Structure.find(texts, DenseConfig())
        return str(error.value)

    found = message([Document("a", text="w1", links=("gone", "a")), Document("b", text="w2")])
    assert "no two linked documents have text (1 link to unknown ids)" in found
    assert "add --untrained, or --queries and --qrels" in found
    assert "no document has any text" in message([Document("a", links=("b",)), Document("b")])
    assert "no two linked documents" in message([Document("a", links=("b",)), Document("b", text="w2")])


def test_which_layers_learn():
    def layers(*there, **changes):
        return [DenseConfig.of(**changes).learning_layers(n) for n in there]

    assert layers(1, 2, 3, 6, 12) == [0, 0, 2, 2, 2]
    assert layers(6, train_layers=0) == [0]
    assert layers(6, train_layers=5) == [5]
    assert layers(12, preset="paper") == [0]
