"""The constants that the plugin (Java) shares with the service and the hook (Python)."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from rerank.engines.opensearch.layout import FEATURES
from rerank.hook import plugin
from rerank.service.app import ENDPOINTS
from rerank.service.schemas import FRAME, LONGEST_HOOK, HookCall, SearchOptions

SOURCE = Path(__file__).parents[2] / "opensearch_plugin/src/main/java/rerank/opensearch/Protocol.java"


@pytest.fixture(scope="module")
def java() -> dict[str, object]:
    constants = re.findall(r'(\w+) = ("[^"]*"|[\d_]+(?: << \d+)?)', SOURCE.read_text("utf-8"))
    return {name: eval(value, {"__builtins__": {}}) for name, value in constants}


def test_java_names_and_the_frame_equal_the_python_ones(java):
    assert java["PATH"] in {one.path for one in ENDPOINTS if one.body is HookCall}
    assert java["PROCESSOR"] == plugin.PROCESSOR
    assert (java["ALLOWED_URLS"], java["FEATURES"]) == (plugin.ALLOWED, f"{FEATURES}.")
    assert java["FRAME"] == FRAME
    assert java["LONGEST_QUERY"] * 4 == LONGEST_HOOK


@pytest.mark.parametrize("more", [0, 1])
def test_limits_of_options_are_equal_in_java_and_python(java, more):
    category = "a" * (java["LONGEST_CATEGORY"] + more)
    for options in (
        {"stack": "a" * (java["LONGEST_STACK"] + more)},
        {"categories": [category]},
        {"categories": ["a"] * (java["MOST_CATEGORIES"] + more)},
    ):
        if more:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(options, SearchOptions)
        else:
            msgspec.convert(options, SearchOptions)
