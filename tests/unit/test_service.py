"""Parts of the service: HTTP errors, costs of queries, relevance scores and the log."""

from __future__ import annotations

import io
import json
import logging
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.combiners.linear import Linear
from rerank.errors import UsageError
from rerank.records import Document
from rerank.service import logs
from rerank.service.context import RequestContext
from rerank.service.hook import hook
from rerank.service.schemas import HookCall
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.workspace import Workspace
from tests.endpoints import call


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
