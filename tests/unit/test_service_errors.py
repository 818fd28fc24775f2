"""What the service answers of the library's errors: in the words of HTTP."""

from __future__ import annotations

import time

import pytest

from rerank.errors import BusyError, EngineError, InputError, UsageError
from rerank.records import Document
from rerank.service.app import _refusal
from rerank.service.endpoints import RequestContext
from rerank.service.hook import hook
from rerank.service.schemas import HookBody
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.workspace import Workspace
from tests.endpoints import call


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UsageError("--retrieve 'x': no retriever"), 422, "no retriever"),
        (
            InputError("'a,b' is not tuned; tune it with `rerank tune --stack a,b --qrels QRELS`"),
            422,
            "'a,b' is not tuned",
        ),
        (BusyError("somebody writes"), 503, "somebody writes"),
        (
            EngineError("http://inside:9200 refused"),
            502,
            "the engine cannot answer",
        ),
        (KeyError("inside"), 500, "the service failed (KeyError); see its log"),
    ],
)
def test_errors(error, status, message):
    refused = _refusal(error, "/v1/search", Settings("."))
    assert refused.status == status
    assert message in str(refused)


def test_an_explanation_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setitem(hook.__globals__, "_LONGEST_ANSWER", 500)
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document("a", text="apple")])
    workspace.engine.close()
    options = {"stack": "bm25", "explain": True}
    body = {"query": {"match": {"a": "apple"}}, "scores": [1.0] * 10, "rerank": options, "features": {}}
    snapshot = Snapshot.load(Settings(str(workspace.folder)))
    with pytest.raises(UsageError, match=r"an explanation of .* bytes; ask without"):
        hook(snapshot, HookBody.read(call(body)), RequestContext(time.monotonic() + 60, 10))
