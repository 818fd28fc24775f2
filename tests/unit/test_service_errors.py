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


def test_an_explanation_longer_than_its_length_can_say(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document("a", text="apple")])
    workspace.engine.close()
    names, hits = [f"clause:c{i}" for i in range(45)], 10_000
    clauses = [{"match": {"a": {"query": "apple", "_name": name.removeprefix("clause:")}}} for name in names]
    requested_fields = {"stack": " + ".join(f"{name}*0.1" for name in ("bm25", *names)), "explain": True}
    body = {"query": {"bool": {"should": clauses}}, "clauses": {}, "rerank": requested_fields, "features": {}}
    read = HookBody.read(call({**body, "scores": [1.0] * hits}, numbers=True))
    snapshot = Snapshot.load(Settings(str(workspace.folder)))
    with pytest.raises(UsageError, match=r"an explanation of .* bytes; ask without"):
        hook(snapshot, read, RequestContext(time.monotonic() + 60, hits))
