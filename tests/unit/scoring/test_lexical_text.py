"""A query with two texts: lexical signals search for the translation, rankers read the original."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Workspace, evaluate, tune
from tests.support.rankers import Plain, put

WORDS = {"lupo": "wolf", "volpe": "fox"}


class Dictionary(Plain):
    """Score: 1 if the document has the Italian translation of the English word in the query."""

    family, name = "dictionary", "dictionary"

    def encode_documents(self, documents: Sequence[Document]) -> np.ndarray:
        return np.array([[word in d.content.split() for word in WORDS] for d in documents], np.float32)

    def encode_query(self, query: Query) -> np.ndarray:
        return np.array([word in query.text.split() for word in WORDS.values()], np.float32)


TEXTS = {"w": "un lupo grigio", "f": "una volpe grigia", "b": "un lupo e una volpe", "o": "un gufo"}
QUERY = Query("q", "fox", lexical_text="lupo")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace.create(tmp_path_factory.mktemp("lexical") / "ws", lang="it")
    workspace.engine.write(Document(id, text=text) for id, text in TEXTS.items())
    put(workspace, Dictionary())
    return workspace


def test_each_signal_reads_its_text(workspace: Workspace) -> None:
    """By hand: tf-idf prefers the shorter text with a wolf. The ranker prefers the text with a fox."""
    pipeline = workspace.pipeline(["tfidf", "bm25", "dictionary"])
    answer = pipeline.answer(QUERY, workspace.stack("bm25*0.1 + tfidf*0.2 + dictionary*0.7"))
    actual = {hit.id: hit.signals for hit in answer.ranking.top(9)}
    assert list(actual) == ["b", "w"]
    assert {id: signals["dictionary"].raw for id, signals in actual.items()} == {"b": 1.0, "w": 0.0}
    of_translation = pipeline.answer("lupo", workspace.stack("tfidf"))
    scores = {hit.id: hit.score for hit in of_translation.ranking.top(9)}
    assert {id: signals["tfidf"].raw for id, signals in actual.items()} == scores
    assert actual["w"]["bm25"].raw > 0
    assert pipeline.answer("fox", workspace.stack("tfidf")).ranking.ids == []


@pytest.mark.parametrize("protocol", ["retrieved:10", "judged"])
def test_tune_and_evaluate_use_both_texts(workspace: Workspace, tmp_path: Path, protocol: str) -> None:
    at = {"queries": [QUERY], "qrels": Qrels([("q", "b", 1), ("q", "w", 0)])}
    path = tmp_path / "s.json"
    tune(workspace, "tfidf,dictionary", protocol=protocol, out=path, **at)
    first, stack = evaluate(workspace, [str(path)], protocols=[protocol], measures=["RR"], **at).results
    assert (first.measures["RR"], stack.measures["RR"]) == (0.5, 1.0)


def test_the_cache_distinguishes_translations(workspace: Workspace) -> None:
    pipeline = workspace.pipeline(["tfidf", "dictionary"])
    stack = workspace.stack("tfidf*0.5 + dictionary*0.5")
    queries = [Query("q", "fox", lexical_text=text) for text in ("lupo", "gufo")]
    rankings = [pipeline.answer(query, stack).ranking for query in queries]
    assert [ranking.ids for ranking in rankings] == [["b", "w"], ["o"]]


def test_stop_words_of_the_query_are_not_searched(tmp_path: Path) -> None:
    """All lexical signals remove the stop words of the query's language. Documents keep theirs."""
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    texts = {
        "a": "the who",
        "b": "the cost of search",
        "c": "die hard",
        "d": "der Preis der Suche",
        "e": "über",
    }
    workspace.engine.write(Document(id, text=text) for id, text in texts.items())

    def found(text: str, lang: str | None = None) -> list[str]:
        stack = workspace.stack("bm25*0.5 + tfidf*0.5")
        answer = workspace.pipeline(stack.signals).answer(Query("q", text, lang=lang), stack)
        return [hit.id for hit in answer.ranking.top(9)]

    assert found("what is the cost of it") == ["b"]
    assert sorted(found("the who")) == ["a", "b"]  # no other word is left to search
    assert found("who is WHO") == ["a"]  # uppercase: a name
    assert found("die hard") == ["c"]
    assert found("die Suche", "de") == ["d"]
    assert sorted(found("die u\u0308ber")) == ["c", "e"]  # a decomposed letter
    assert sorted(found("die Suche", "zz")) == ["c", "d"]  # no list for the language


def test_stop_words_of_a_query_in_another_language_are_not_searched(tmp_path: Path) -> None:
    """This also holds without `lang`, and in tuning. Short names keep their words."""
    workspace = Workspace.create(tmp_path / "ws", lang="de")
    texts = {"a": "Art of Illusion", "b": "Strategy, ein Spiel", "c": "Das Spiel und die Kosten"}
    workspace.engine.write(Document(id, text=text) for id, text in texts.items())
    stack = workspace.stack("bm25*0.5 + tfidf*0.5")

    def found(query: Query) -> list[str]:
        ranking = workspace.pipeline(stack.signals).answer(query, stack).ranking
        return sorted(ranking.ids)

    for lang in (None, "en"):
        assert found(Query("q", "the strategy of games", lang=lang)) == ["b"]
        assert found(Query("q", "of", lang=lang)) == ["a"]
    assert found(Query("q", "das Spiel und die Kosten")) == ["b", "c"]
    assert found(Query("q", "von der Art", lang="de")) == ["a"]
    query, qrels = Query("q", "the strategy of games"), Qrels([("q", "b", 1)])
    tuned = tune(workspace, "bm25,tfidf", queries=[query], qrels=qrels)
    assert tuned.scoring.candidate_recall == {"bm25": 1.0}
    assert tuned.tuned.single_signal == {"bm25": 1.0}
