"""What the service notes of its requests, and writes of them."""

from __future__ import annotations

import io
import json
import logging

import pytest

from rerank.service import logs
from rerank.service.endpoints import RequestContext
from rerank.service.hook import _QUICK


def test_one_slow_query_does_not_move_all_others_to_the_threads() -> None:
    costs: dict[str, float] = {}
    for seconds in (0.0004, 0.0003, 0.01, 0.0003):
        RequestContext(0.0, 1, costs=costs).encoded("text", seconds)
        assert costs["text"] < _QUICK
    for _ in range(5):
        RequestContext(0.0, 1, costs=costs).encoded("text", 0.02)
    assert costs["text"] > _QUICK


def test_lines_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    stream, log = io.StringIO(), logging.getLogger("rerank.service")
    monkeypatch.setattr("sys.stderr", Closed())
    logs.start()
    logs.event("request")  # nobody reads it
    monkeypatch.setattr("sys.stderr", stream)
    logs.start()
    logs.event("request", path="/v1/hook", query="wölfe\n")
    logs.problem("failed", kind="KeyError")
    log.handlers.clear()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time") <= second.pop("time")
    assert first == {"level": "info", "event": "request", "path": "/v1/hook", "query": "wölfe\n"}
    assert second == {"level": "error", "event": "failed", "kind": "KeyError"}
