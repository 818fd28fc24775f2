"""The documents that rankers add: the cut to the depth of each ranker, and searches of an experiment."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engines.search_request import VectorQuery
from rerank.service.context import RequestContext
from rerank.service.experiment import can_take_part
from rerank.service.retrieve import cut_to_depth, retrieve
from rerank.service.schemas import HookBody, RetrieveBody
from rerank.service.snapshot import Snapshot
from rerank.stack.linear import Linear
from rerank.stack.stack import Stack

numbers = st.integers(-3, 3).map(float)


@st.composite
def hits(draw: st.DrawFn) -> tuple[int, list[VectorQuery], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Draw the number of hits of the query, two rankers, and features of at most twelve hits."""
    count = draw(st.integers(1, 12))
    first = draw(st.integers(0, count))
    queries = []
    features = {}
    for name in ("a", "b"):
        vector = np.array(draw(st.lists(numbers, min_size=2, max_size=2)), np.float32)
        queries.append(VectorQuery(name, "v", vector, draw(st.integers(1, 5))))
        rows = draw(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=count, max_size=count))
        missing = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        features[name] = np.array(rows, np.float32), np.array(missing)
    return first, queries, features


@given(hits())
def test_the_nearest_of_each_ranker_stay(drawn) -> None:
    first, queries, features = drawn
    count = len(features["a"][0])
    ids = [f"{(i * 7) % 13:02}" for i in range(count)]
    added = cut_to_depth(queries, ids, first, features)
    stays = set(range(first))
    for query in queries:
        values, missing = features[query.name]
        scored = [(-float(values[i] @ query.vector), ids[i], i) for i in range(count) if not missing[i]]
        nearest = {i for product, _, i in sorted(scored)[: query.depth] if product < 0}
        unknown = {i for i in range(first, count) if missing[i]}
        stays |= nearest | unknown
        found = {int(added.kept_rows[i]) for i in np.flatnonzero(added.found_by[query.name])}
        assert found == (nearest | unknown) & set(added.kept_rows.tolist())
    assert added.kept_rows.tolist() == sorted(stays)


def test_hits_of_a_ranker_without_features_stay() -> None:
    query = VectorQuery("a", "v", np.ones(2, np.float32), 1)
    assert cut_to_depth([query], ["1", "2", "3"], 1, {}).kept_rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "takes_part"),
    [
        ({}, True),
        ({"rerank": {"client_id": "c1"}}, True),
        ({"shadow": True}, False),
        ({"min_score": 0.0}, False),
        ({"rerank": {"stack": "text"}}, False),
    ],
)
def test_both_calls_of_a_search_agree_on_its_experiment(options: dict[str, Any], takes_part: bool) -> None:
    """Only the stack of the experiment retrieves, and both calls use it or both do not."""
    hook_body = msgspec.convert({"hits": 1, **options}, HookBody)
    body = msgspec.convert({"query": {"match": {"body": "wheel"}}, **options}, RetrieveBody)
    assert (can_take_part(hook_body), can_take_part(body)) == (takes_part, takes_part)
    default = Stack(Linear(("bm25",), (1.0,), "none"), "bm25", 10)
    joint = Stack(Linear(("bm25",), (1.0,), "none"), "bm25", 10, ("bm25", "text:10"))
    scorer = SimpleNamespace(with_known_categories=lambda query: (query, []))
    pipeline = SimpleNamespace(retrievers=lambda *_: [], engine=SimpleNamespace(hook_source=lambda: None))
    snapshot = SimpleNamespace(
        words=("body",),
        tuned=set(),
        pipeline=pipeline,
        pipeline_of=lambda stack: pipeline,
        scorer=lambda text: (default, scorer),
        scorer_of=lambda stack: scorer,
        draw=lambda client, text: (SimpleNamespace(joint=joint), b""),
    )
    context = SimpleNamespace(timeout=1.0, stage=lambda name: nullcontext())
    answer = retrieve(cast(Snapshot, snapshot), body, cast(RequestContext, context))
    reason = "the documents are not in a cluster" if takes_part else "the stack retrieves nothing"
    assert answer == {"passed": reason}
