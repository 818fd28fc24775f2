"""What the service answers of the library's errors: in the words of HTTP."""

from __future__ import annotations

import pytest

from rerank.errors import BusyError, EngineError, InputError, UsageError, action_hint, setting_hint
from rerank.service.app import _refused
from rerank.service.settings import Settings


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UsageError(f"{setting_hint('retrieve')} 'x': no retriever"), 422, "'retrieve' 'x': no retriever"),
        (
            InputError(f"'a,b' is not tuned; tune it with {action_hint('tune', stack='a,b', qrels='QRELS')}"),
            422,
            "'a,b' is not tuned; tune it with tune",
        ),
        (BusyError("somebody writes"), 503, "somebody writes"),
        (EngineError("http://inside:9200 refused"), 502, "the engine cannot answer; see the service's log"),
        (KeyError("inside"), 500, "the service failed (KeyError); see its log"),
    ],
)
def test_errors(error, status, message):
    refused = _refused(error, "search", Settings("."))
    assert (refused.status, str(refused)) == (status, message)
