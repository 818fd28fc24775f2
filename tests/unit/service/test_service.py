"""Parts of the service: HTTP errors, costs of queries, relevance scores and the log."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.common.errors import TrainingError, UsageError
from rerank.documents.records import Document, Query
from rerank.documents.stop_words import query_language, without_stop_words
from rerank.engines.opensearch.columns import Column
from rerank.rankers.cnn.towers import Head
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.projection.ranker import Terms as ProjectionTerms
from rerank.scoring.vector_cache import VectorCache
from rerank.service import logs
from rerank.service.context import DeadlineError, EncodingCosts, RequestContext
from rerank.service.endpoints import rerank, rerank_ids, search
from rerank.service.hook import hook
from rerank.service.pool import DisconnectedError, Pool
from rerank.service.schemas import HookCall, IdsBody, RerankBody, SearchBody
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.stack.linear import Linear
from rerank.stack.normalize import Moments
from rerank.stack.relevance import Calibration, RelevanceModel
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace
from tests.support.rankers import cnn
from tests.support.service import call, read_answer


def test_an_explanation_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(hook.__globals__, "_LONGEST_ANSWER", 500)
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document("a", text="apple")])
    workspace.engine.close()
    options = {"stack": "bm25", "explain": True}
    body = {"query": {"match": {"a": "apple"}}, "scores": [1.0] * 10, "rerank": options, "features": {}}
    snapshot = Snapshot(Settings(folder=str(workspace.folder)))
    with pytest.raises(UsageError, match=r"an explanation of .* bytes; ask without"):
        hook(snapshot, HookCall.read(call(body)), RequestContext(time.monotonic() + 60, 10))


def test_log_lines_are_json_and_a_closed_stream_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    stream, log = io.StringIO(), logging.getLogger("rerank.service")
    monkeypatch.setattr("sys.stderr", Closed())
    logs.start()
    logs.event("request")  # the stream is closed
    monkeypatch.setattr("sys.stderr", stream)
    logs.start()
    logs.event("request", path="/v1/hook", query="wölfe\n")
    logs.problem("failed", kind="KeyError")
    log.handlers.clear()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time") <= second.pop("time")
    assert first == {"level": "info", "event": "request", "path": "/v1/hook", "query": "wölfe\n"}
    assert second == {"level": "error", "event": "failed", "kind": "KeyError"}


def linear(normalization: str) -> Linear:
    return Linear(("tfidf", "text"), (2, 3), normalization)


@pytest.mark.parametrize("normalization", ["min-max", "z-score", "none"])
@given(rows=st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=9))
def test_relevance_scores_are_between_0_and_1_in_the_same_order(normalization, rows):
    final = linear(normalization).combine(np.array(rows))[0]
    scores = linear(normalization).relevance(final)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (np.diff(scores[np.argsort(final)]) >= 0).all()


def test_relevance_scores_match_values_by_hand():
    np.testing.assert_allclose(linear("min-max").relevance(np.array([5.0, 2.0])), [1.0, 0.4])
    np.testing.assert_allclose(linear("z-score").relevance(np.log([3.0, 1 / 3])), [0.75, 0.25])
    np.testing.assert_allclose(linear("none").relevance(np.array([3.0, -1 / 3])), [0.875, 0.375])
    bm25 = Linear(("bm25",), (1,), normalization="none").relevance(np.array([41.5, 41.25]))
    assert 1 > bm25[0] > bm25[1]
    assert linear("none").relevance(np.array([1e308, -1e308])).tolist() == [1.0, 0.0]


async def connected() -> dict[str, Any]:
    """Wait, as a client does that stays connected."""
    await asyncio.Event().wait()
    return {}


async def disconnected() -> dict[str, Any]:
    return {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("receive", "seconds", "error"),
    [(connected, 0.05, TimeoutError), (disconnected, 600, DisconnectedError)],
)
def test_a_thread_stops_after_the_deadline_or_a_disconnect(receive, seconds, error):
    pool = Pool(1, "test")
    context = RequestContext(time.monotonic() + seconds, 10)
    ended = threading.Event()

    def work() -> bytes:
        try:
            while not ended.wait(0.001):
                context.check()
        finally:
            ended.set()
        return b""

    with pytest.raises((error, DeadlineError)):
        asyncio.run(pool.run(work, context, receive))
    assert ended.wait(60)
    pool.stop()


def test_a_process_ends_although_a_thread_works():
    program = """
import threading
from concurrent.futures import ThreadPoolExecutor
from rerank.service.pool import end_soon
ThreadPoolExecutor().submit(threading.Event().wait)  # for ever
end_soon()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0


@pytest.fixture(scope="module")
def unencoded(tmp_path_factory) -> Snapshot:
    """Twenty documents without features, and a ranker."""
    workspace = Workspace.create(tmp_path_factory.mktemp("unencoded") / "ws", lang="en")
    documents = [Document(f"d{i:02}", text="apple " + "pear " * i) for i in range(20)]
    workspace.engine.write(documents)
    workspace.engine.close()
    workspace.install(cnn())
    return Snapshot(Settings(folder=str(workspace.folder), stack="bm25*0.5+text*0.5"))


def test_one_limit_of_encoded_documents_holds_for_all_documents_of_the_engine(unencoded):
    ids = [f"d{i:02}" for i in range(20)]

    def context() -> RequestContext:
        return RequestContext(time.monotonic() + 600, 100, 3)

    actual = search(unencoded, SearchBody(query="apple", k=20), context())
    assert actual["unscored"] == 17
    assert [bool(hit["signals"]) for hit in actual["hits"]] == [True] * 3 + [False] * 17
    actual = rerank_ids(unencoded, IdsBody(query="apple", ids=ids), context())
    assert actual["without_features"] == {"encoded": 3, "unscored": 17}
    assert [result["index"] for result in actual["results"]][3:] == list(range(3, 20))
    body = {"query": {"match": {"a": "apple"}}, "ids": ids, "scores": list(range(20, 0, -1)), "features": {}}
    answer = read_answer(hook(unencoded, HookCall.read(call(body)), context()), ids)
    assert answer["without_features"] == {"encoded": 3, "unscored": 17}
    assert answer["ids"][3:] == ids[3:]


@pytest.mark.parametrize("stack", ["bm25", "bm25*0.5+text*0.5"])
def test_unknown_ids_keep_their_position_and_get_no_score_of_others(unencoded, stack):
    ids = ["d02", "none", "d01", "none either", "d00"]

    def scores(ids: list[str]) -> tuple[list[int], list[float]]:
        body = IdsBody(query="apple", ids=ids, stack=stack)
        answer = rerank_ids(unencoded, body, RequestContext(time.monotonic() + 600, 100, 3))
        results = answer["results"]
        order = [result["index"] for result in results]
        return order, [result["relevance_score"] for result in results]

    known_order, known_scores = scores(ids[::2])
    order, with_unknown = scores(ids)
    assert order == [2 * known_order[0], 1, 2 * known_order[1], 3, 2 * known_order[2]]
    assert with_unknown[::2] == known_scores
    assert with_unknown[1] == pytest.approx((known_scores[0] + known_scores[1]) / 2)
    assert with_unknown[3] == pytest.approx((known_scores[1] + known_scores[2]) / 2)


def test_documents_that_cannot_be_encoded_in_time_are_refused(unencoded):
    costs = EncodingCosts()
    body = RerankBody(query="apple", documents=["apple pear"] * 10)

    def context() -> RequestContext:
        return RequestContext(time.monotonic() + 100, 100, 3, costs)

    rerank(unencoded, body, context())
    costs.add("text", 1, 1.0)  # one second per character
    with pytest.raises(UsageError, match=r"10 documents .* 100 s are left; send fewer or shorter"):
        rerank(unencoded, body, context())
    for _ in range(60):  # a slow moment does not refuse requests for ever
        with contextlib.suppress(UsageError):
            rerank(unencoded, body, context())
    assert len(rerank(unencoded, body, context())["results"]) == 10


def test_the_characters_of_all_documents_are_limited(unencoded):
    documents = ["pear " * 199_999] * 5
    with pytest.raises(UsageError, match="documents have 4,999,975 characters, but a request may have 4,000"):
        rerank(unencoded, RerankBody(query="apple", documents=documents), RequestContext(math.inf, 100))


@pytest.mark.parametrize("count", [9, 100, -5])
def test_a_corrupt_number_of_passages_counts_as_missing(count):
    width = 4
    ranker = DenseRanker(name="dense", source=Path("none"), width=width, version="1", passages=2)
    features = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 2], [1, 2, 3, 4, 0, 0, 0, 0, count]], np.int8)
    assert ranker.valid(features).tolist() == [True, False]
    scores = ranker.score(np.ones(width, np.float32), features)
    assert scores[0] > 0 == scores[1]


def test_corrupt_features_of_a_call_are_computed(unencoded):
    ids = ["d00", "d01"]
    engine = unencoded.pipeline.engine
    ranker = unencoded.rankers["text"]
    features = ranker.encode_documents(engine.get(ids))
    features[0] = np.inf
    column = Column(features.dtype.str, features.shape[1], 0).encode(features)
    body = {"query": {"match": {"a": "apple"}}, "ids": ids, "scores": [2, 1]}
    sent = {**body, "features": {f"text@{ranker.version}": column}}
    answers = []
    for most in (4, 0):
        context = RequestContext(time.monotonic() + 600, 100, most)
        answers.append(read_answer(hook(unencoded, HookCall.read(call(sent)), context), ids))
    assert answers[0]["without_features"] == {"encoded": 1}
    assert answers[1]["without_features"] == {"unscored": 1}


def test_an_exception_in_scoring_one_search_is_counted_and_passed_on(unencoded, caplog):
    class Broken(dict):
        def __getitem__(self, key):
            raise IndexError("bug")

    body = {"query": {"match": {"a": "apple"}}, "ids": ["d00"], "scores": [1]}
    ranker = unencoded.rankers["text"]
    features = {f"text@{ranker.version}": [None]}
    sent = HookCall.read(call({**body, "features": features}))
    broken = copy.copy(unencoded)
    broken.columns = Broken()
    context = RequestContext(time.monotonic() + 600, 100, 3)
    answer = read_answer(hook(broken, sent, context), ["d00"])
    assert answer == {"passed": "scoring failed"}
    assert context.passed == "scoring failed"


def test_a_query_vector_that_is_not_finite_never_orders_hits(tmp_path):
    whole = cnn()
    (network,) = whole.networks
    arrays = {**network.head.arrays, "query": np.full_like(network.head.arrays["query"], np.nan)}
    broken = replace(whole, networks=[replace(network, head=Head(arrays))], version="")
    with pytest.raises(TrainingError, match="text has a query vector that is not finite"):
        VectorCache().encode(broken, Query("q", "apple"))
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document(id, text="apple") for id in ("a", "b")])
    workspace.install(broken)
    workspace.engine.close()
    snapshot = Snapshot(Settings(folder=str(workspace.folder), stack="bm25*0.5+text*0.5"))
    sent = HookCall.read(call({"query": {"match": {"a": "apple"}}, "ids": ["a", "b"], "scores": [2, 1]}))
    answer = hook(snapshot, sent, RequestContext(time.monotonic() + 600, 100, 3))
    assert read_answer(answer, ["a", "b"]) == {"passed": "scoring failed"}


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory) -> Snapshot:
    """Documents a to e, and a stack of bm25 with p = 1 / (1 + exp(-score))."""
    workspace = Workspace.create(tmp_path_factory.mktemp("calibrated") / "ws", lang="en")
    workspace.engine.write([Document(id, text="apple") for id in "abcde"])
    fitted = Linear(("bm25",), (1.0,), "fitted", (Moments(0.0, 1.0),))
    model = RelevanceModel(fitted, Calibration(0.0, 1.0, 0.0, 40, None, 0.1))
    file = workspace.folder / "own.json"
    replace(Stack.parse("bm25*1"), relevance=model).save(file)
    workspace.engine.close()
    return Snapshot(Settings(folder=str(workspace.folder), stack=str(file)))


def call_for_probabilities(snapshot: Snapshot, **more: object) -> dict[str, Any]:
    ids = list("abcde")
    body = {"query": {"match": {"a": "apple"}}, "ids": ids, "scores": [2.0, 1.0, 0.0, -1.0, -2.0], **more}
    sent = HookCall.read(call(body))
    return read_answer(hook(snapshot, sent, RequestContext(time.monotonic() + 600, 100, 3)), ids)


def test_the_hook_leaves_out_hits_below_a_probability(calibrated):
    answer = call_for_probabilities(calibrated, min_score=0.5, rerank={"explain": True})
    assert (answer["ids"], answer["scores"], answer["removed"]) == (list("abc"), [2.0, 1.0, 0.0], 2)
    assert answer["relevance"] == pytest.approx([1 / (1 + math.exp(-score)) for score in (2, 1, 0)])
    assert len(answer["signals"]) == 3
    answer = call_for_probabilities(calibrated, min_score=1)
    assert (answer["ids"], answer["removed"]) == ([], 5)
    assert call_for_probabilities(calibrated, min_score=0)["removed"] == 0
    assert "removed" not in call_for_probabilities(calibrated)


@pytest.mark.parametrize("min_score", [-0.1, 1.5, 100])
def test_a_minimum_that_is_no_probability_passes_the_search(calibrated, min_score):
    answer = call_for_probabilities(calibrated, min_score=min_score)
    assert answer == {"passed": "min_score is not from 0 to 1"}


def test_a_minimum_without_a_calibration_passes_the_search(calibrated):
    """A stack of a request has no probabilities."""
    answer = call_for_probabilities(calibrated, min_score=0.5, stack="bm25")
    assert answer == {"passed": "the stack has no probabilities"}


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read in /proc")
def test_long_words_of_users_take_no_memory(unencoded):
    cache = VectorCache()
    terms = ProjectionTerms(["apple"], np.ones(1, np.float32), 0, 400)

    def ask(number: int) -> None:
        word = chr(ord("a") + number % 26) * 100_000 + str(number)
        without_stop_words(word, "en")
        query_language(word, "de")
        terms.vector(word)
        cache.encode(unencoded.rankers["text"], Query("q", word))
        many = tuple(f"{number}{word[:300]}" for _ in range(100))
        cache.encode(unencoded.rankers["text"], Query("q", "apple", many))
        with contextlib.suppress(UsageError):
            unencoded.scorer(f"nope{number}")

    for number in range(20):
        ask(number)
    before = resident()
    for number in range(100):
        ask(number)
    assert resident() - before < 10_000_000
