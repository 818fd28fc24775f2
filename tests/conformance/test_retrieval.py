"""Retrieval in addition to the rules of ``vector_rules``: ``dense``, and the vector fields of OpenSearch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rerank.documents.records import Document, Query
from rerank.engines.base import Encoder
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.search_request import SearchRequest
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.scoring.pipeline import Pipeline
from rerank.stack.stack import Stack
from tests.conformance.test_engines import VECTORS, kinds
from tests.conformance.vector_rules import CASES, PASSAGES, collection


def test_versions_share_a_nested_field(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """OpenSearch limits an index to 50 nested fields."""
    _, several = CASES
    for engine in VECTORS["opensearch, 3 shards"](tmp_path, request):
        assert isinstance(engine, OpenSearchEngine)
        engine.write(collection(40))
        for version in ("v1", "v2", "v3.1"):
            engine.write_features([several.encoder(version)])
        (made,) = engine.index.indices().values()
        nested = made["mappings"]["properties"]["rerank_features"]["properties"]["dense:knn"]
        assert set(nested["properties"]) == {"v1", "v2", "v3%2E1"}


@pytest.mark.parametrize("kind", kinds(VECTORS))
def test_dense_retrieves_the_documents_with_the_nearest_passages(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, tiny: str
) -> None:
    """This uses ``dense`` in the pipeline."""
    encoder = TextEncoder.load(tiny, longest=16)
    ranker = DenseRanker(name="dense", source=encoder, passages=PASSAGES)
    rng = np.random.default_rng(3)
    documents = [
        Document(f"{i:03}", text=" ".join(f"w{w}" for w in rng.integers(40, size=rng.integers(0, 60))))
        for i in range(60)
    ]
    for engine in VECTORS[kind](tmp_path, request):
        engine.write([*documents, Document("zzz")])
        encode = ranker.encode_documents
        engine.write_features([Encoder("dense", ranker.version, encode, True, ranker.passages)])
        pipeline = Pipeline(engine, {"dense": ranker})
        stack = replace(Stack.parse("bm25*0.5 + dense*0.5"), depth=8, retrieve=("bm25", "dense"))
        query = Query("q", "w3 w14 w15")
        vector = ranker.encode_query(query).astype(np.float64)
        stored = engine.find(
            SearchRequest("", ids=engine.ids(), first_stage="bm25", features={"dense": ranker.version})
        )
        best = {}
        for id, row in zip(stored.ids, stored.features["dense"].astype(np.float64)):
            some = row[:-1].reshape(PASSAGES, -1)[: int(row[-1])]
            best[id] = max((float(v @ vector) / float(v @ v) ** 0.5 for v in some), default=0.0)
        assert best["zzz"] == 0
        expected = sorted((id for id in best if best[id] > 0), key=lambda id: (-best[id], id))[:8]
        answer = pipeline.answer(query, stack)
        assert answer.found["dense"] == len(expected) > 0
        assert {hit.id for hit in answer.ranking if "dense" in hit.found_by} == set(expected)
        assert answer.recomputed == {}
