"""The scorer on all engines, also for documents that are deleted or lack features before scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from rerank.documents.records import Document, Query
from rerank.engines.base import Encoder, Engine
from rerank.engines.search_request import SearchRequest
from rerank.scoring.pipeline import Pipeline
from rerank.scoring.scorer import ScoringInput, ScoringResult
from tests.conformance.test_engines import ENGINES, kinds
from tests.support.rankers import Plain

IDS = ["a", "b", "c", "d", "e"]
DOCUMENTS = [Document(id, text="tree " * (i + 1), categories=(id,)) for i, id in enumerate(IDS)]
SIGNALS = ("tfidf", "words", "bm25")
QUERY = Query("q", "tree")


class Words(Plain):
    """Score: the number of words of a document."""

    family, name, bounds = "words", "words", (0.0, 1000.0)

    def encode_documents(self, documents: Sequence[Document]) -> np.ndarray:
        return np.array([[len(document.text.split()), 1] for document in documents], np.float16)

    def encode_query(self, query: Query) -> np.ndarray:
        return np.array([1, 0], np.float32)


@pytest.fixture(params=kinds(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    for engine in ENGINES[request.param](tmp_path, request):
        engine.write(DOCUMENTS)
        yield engine


def by_id(scored: ScoringResult) -> dict[str, list[float]]:
    return dict(zip(scored.ids, scored.raw.tolist()))


def from_search(engine: Engine) -> ScoringInput:
    features = {"words": "v1"}
    return ScoringInput.from_candidates(
        engine.find(SearchRequest("tree", first_stage="tfidf", depth=10, features=features)), "tfidf"
    )


def from_ids(engine: Engine) -> ScoringInput:
    return ScoringInput(IDS, {})


@pytest.mark.parametrize("gone", [IDS, IDS[1:3], []], ids=len)
@pytest.mark.parametrize("given", [from_search, from_ids])
def test_a_document_deleted_before_its_lookup_counts_as_empty(
    engine: Engine, given: Callable[[Engine], ScoringInput], gone: list[str]
) -> None:
    """No features are stored, so all candidates are looked up. One, several or none of them remain."""
    scorer = Pipeline(engine, {"words": Words()}).scorer(SIGNALS, "tfidf")
    before, candidates = by_id(scorer.score(QUERY, given(engine))), given(engine)
    engine.write([], delete=gone)
    scored = scorer.score(QUERY, candidates)
    assert sorted(scored.ids) == IDS
    assert scored.recomputed == {"words": 5}
    for id, (tfidf, words, _) in by_id(scored).items():
        assert words == (0 if id in gone else before[id][1])
        if candidates.scores:
            assert tfidf == before[id][0]  # from the search
        elif id in gone:
            assert tfidf == 0


def test_scoring_by_ids_equals_scoring_of_search_results(engine: Engine) -> None:
    """The scores of equal candidates do not depend on their source, with or without stored features."""
    scorer = Pipeline(engine, {"words": Words()}).scorer(SIGNALS, "tfidf")
    actual, named = (scorer.score(QUERY, given(engine)) for given in (from_search, from_ids))
    assert actual.recomputed == named.recomputed == {"words": 5}
    assert by_id(actual) == by_id(named)
    engine.write_features([Encoder("words", "v1", Words().encode_documents)])
    # Statistics of a cluster count updated documents until segments merge, so compare values of the same
    # moment.
    again, fetched = (scorer.score(QUERY, given(engine)) for given in (from_search, from_ids))
    assert again.recomputed == fetched.recomputed == {}
    assert by_id(again) == by_id(fetched)
    assert {id: raw[1] for id, raw in by_id(again).items()} == {
        id: raw[1] for id, raw in by_id(actual).items()
    }
