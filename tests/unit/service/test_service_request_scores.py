"""Lexical scores of the documents in a request equal the local engine's scores for these documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.documents.records import Document
from rerank.documents.text import analyzer
from rerank.engines.local import LocalEngine
from rerank.engines.search_request import SearchRequest
from rerank.service.request_scores import LexicalScorer

TEXTS = [
    "The grey wolf hunts in packs, and the pack follows the wolf",
    "A red fox sleeps",
    "",
    "Wolves and foxes: the grey ones sleep",
    "grey grey grey",
]


@pytest.mark.parametrize("query", ["grey wolf", "sleeping", "wolf wolf fox", "nothing known", ""])
def test_request_scores_equal_the_scores_of_the_engine(tmp_path, query):
    engine = LocalEngine.create(tmp_path / "engine", "en")
    ids = [str(i) for i in range(len(TEXTS))]
    engine.write([Document(id, text=text) for id, text in zip(ids, TEXTS)])
    analyze = analyzer("en").analyze
    counts = LexicalScorer([analyze(text) for text in TEXTS])
    for signal, tolerance in (("tfidf", 1e-6), ("bm25", 0.02)):  # tantivy rounds document lengths
        found = engine.find(SearchRequest(query, ids=ids, first_stage=signal))
        expected = dict(zip(found.ids, found.scores))
        scores = counts.score(signal, analyze(query))
        np.testing.assert_allclose(scores, [expected[id] for id in ids], atol=1e-6, rtol=tolerance)


@pytest.mark.parametrize("query", ["grey wolf", "sleeping fox", "wolf wolf fox"])
def test_a_document_of_a_request_has_the_score_of_the_collection(tmp_path, query):
    """The statistics come from the collection, so the score does not depend on the other documents."""
    engine = LocalEngine.create(tmp_path / "engine", "en")
    ids = [str(i) for i in range(len(TEXTS))]
    engine.write([Document(id, text=text) for id, text in zip(ids, TEXTS)])
    analyze = analyzer("en").analyze
    for signal, tolerance in (("tfidf", 1e-6), ("bm25", 0.02)):
        found = engine.find(SearchRequest(query, ids=ids, first_stage=signal))
        expected = dict(zip(found.ids, found.scores))
        for id, text in zip(ids, TEXTS):
            alone = LexicalScorer([analyze(text)], engine.term_statistics(f"{query} {text}"))
            (score,) = alone.score(signal, analyze(query))
            assert score == pytest.approx(expected[id], rel=tolerance, abs=1e-6)


@given(
    st.lists(st.lists(st.sampled_from("abcde")), max_size=8),
    st.lists(st.sampled_from("abcdef")),
    st.sampled_from(["bm25", "tfidf"]),
)
def test_scores_are_finite_and_zero_without_a_shared_term(documents, query, signal):
    scores = LexicalScorer(documents).score(signal, query)
    assert scores.shape == (len(documents),)
    assert np.isfinite(scores).all()
    shared = [bool(set(document) & set(query)) for document in documents]
    assert ((scores > 0) == shared).all()
