"""OpenSearch settings, credentials, error messages and stored features, all without a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError, UsageError
from rerank.engines.base import FIRST_STAGES
from rerank.engines.opensearch import OpenSearchEngine, Settings, fields_of
from rerank.engines.opensearch.columns import FEATURES, Column, column, columns, feature_key, ranker_of
from rerank.engines.opensearch.connection import connect
from rerank.engines.opensearch.errors import describe_block, explain, root_cause
from rerank.workspace import config_file

HERE = Settings(("http://127.0.0.1:9200",), "articles")

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
names = st.from_regex(r"[a-z0-9äü][a-z0-9äü_.-]{0,20}", fullmatch=True)
urls = st.tuples(
    st.sampled_from(["http", "https"]),
    st.sampled_from(["127.0.0.1", "[::1]", "localhost", "search.example.org"]),
    st.integers(1, 65535).map(lambda port: f":{port}") | st.just(""),
    st.sampled_from(["", "/", "/path/to"]),
).map(lambda parts: f"{parts[0]}://{''.join(parts[1:])}")
settings = st.builds(
    Settings,
    url=st.lists(urls, min_size=1, max_size=3).map(tuple),
    index=names,
    shards=st.integers(1, 1000),
    replicas=st.integers(0, 1000),
    search_type=st.sampled_from(["query_then_fetch", "dfs_query_then_fetch"]),
    timeout=st.floats(0.001, 1e6),
    user=text.filter(lambda user: ":" not in user),
    client_cert=st.just("cert.pem"),
    **dict.fromkeys(("ca_file", "password_file", "token_file", "client_key", "aws_region"), text),
    aws_service=st.sampled_from(["es", "aoss"]),
)


@given(settings)
def test_settings_in_rerank_toml_are_read_again(given_settings: Settings) -> None:
    assert Settings.read(given_settings.table(), "") == given_settings
    written = config_file.render_settings("en", "opensearch", given_settings.table(), FIRST_STAGES)
    table = config_file.read(written)["opensearch"]
    assert Settings.read(table, "") == given_settings
    assert table.keys() <= set(Settings.__struct_fields__)


@given(
    st.dictionaries(
        st.sampled_from(["title", "text", "categories", "links", "lang"]),
        st.lists(text.filter(str.strip), min_size=1),
    )
)
def test_fields_in_rerank_toml_are_read_again(table: dict[str, list[str]]) -> None:
    if table and not {"title", "text"} & table.keys():
        with pytest.raises(UsageError, match="neither title nor text is given"):
            fields_of(table, "x")
        return
    written = HERE.table() | ({"fields": table} if table else {})
    engine = OpenSearchEngine.in_workspace(Path(), None, written, new=False, settings_file="")
    config = config_file.read(config_file.render_settings(None, "opensearch", written, engine.first_stages))
    read = config["opensearch"].pop("fields", {})
    assert fields_of(read, "") == {name: tuple(paths) for name, paths in table.items()}
    assert Settings.read(config["opensearch"], "") == HERE
    assert config["first_stage"] == "bm25"


def test_only_values_that_differ_from_the_defaults_are_written() -> None:
    assert HERE.table() == {"url": "http://127.0.0.1:9200", "index": "articles"}
    two = Settings(("http://a", "http://b"), "x", timeout=5)
    assert two.table() == {"url": ["http://a", "http://b"], "index": "x", "timeout": 5}
    assert Settings.read({**HERE.table(), "timeout": 5}, "").timeout == 5.0


INVALID_URLS = ("a:9200", "ftp://x", "http://", "http://a:0", "http://a:70000", "http://[::1", "http://a\n")
INVALID_NAMES = ("A", "a,b", "a*", "_x", "a/b", "ü" * 121)
INVALID_SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"url": url}, "url is missing") for url in ("", [])),
    *(({"url": url}, "url") for url in (5, ["http://a", 5])),
    *(({"url": url}, "is not the URL of a node") for url in INVALID_URLS),
    ({"url": "http://a/?b"}, "URL"),
    ({"index": ""}, "index is missing"),
    *(({"index": name}, "is not the name of an index") for name in INVALID_NAMES),
    ({"index": 5}, "index: "),
    *(({"shards": value}, "shards: ") for value in (0, True, 1.5)),
    ({"replicas": -1}, "replicas: "),
    *(({"timeout": value}, "timeout: ") for value in (0, float("inf"), float("nan"), "1")),
    ({"search_type": "x"}, "search_type: "),
    ({"client_key": "x"}, "client_cert"),
    ({"user": "me:x"}, "user"),
    ({"password": "secret"}, "`password`; the settings are url, index,"),
]


@pytest.mark.parametrize(("change", "what"), INVALID_SETTINGS)
def test_invalid_settings_are_refused(change: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as error:
        Settings.read({**HERE.table(), **change}, "rerank.toml")
    assert str(error.value).startswith("rerank.toml: ")
    assert what in str(error.value)
    assert "secret" not in str(error.value)


@given(
    st.text(max_size=30),
    st.sampled_from(["{}", "http://{}", "http://u:{}@h", "https://h:{}", "{}@h", "http://h/?{}"]),
)
@example("\\\x1b", "http://{}")
def test_any_url_is_accepted_or_refused_without_its_password(part: str, form: str) -> None:
    url = form.format(part)
    try:
        read = Settings.read({"url": url, "index": "x"}, "here")
    except UsageError as error:
        line = str(error)
    else:
        line = ""
        connect(read)
    if "@" in url or "?" in url:
        assert "URL" in line
        assert line.startswith("here: ")


def transport(status: int, kind: str = "", reason: str = "", **body: Any) -> Exception:
    error = {"type": kind, "reason": reason, "root_cause": [{"type": kind, "reason": reason}], **body}
    return client_errors.TransportError(status, kind, {"error": error, "status": status})


LINES: list[tuple[Exception, str]] = [
    (client_errors.ConnectionError("N/A", "x", Exception("a\nb" * 500)), "cannot be reached (a ba b"),
    (transport(400, "index_closed_exception", "closed"), "index 'articles' is closed; open it"),
    (transport(503, "x", "no shard available"), "not all shards of 'articles' answer"),
    (client_errors.TransportError(502, "<html><b>Bad</b></html>", "<html>"), "the cluster (502)"),
    (client_errors.TransportError(500, "<html>\n<b>Bad</b></html>", "<html>"), "refuses (500): Bad"),
    (client_errors.TransportError(500, "", ""), "refuses (500): no reason given"),
    (client_errors.TransportError(400, "x", {"error": "plain\nwords"}), "refuses (400): plain words"),
    (transport(400, "x", "r" * 1000), "…"),
    (transport(429, "x", "[TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark"), "flood-stage"),
    (transport(503, "x", "[SERVICE_UNAVAILABLE/1/state not recovered / initialized];"), "not recovered"),
]
"""Errors that the test nodes do not cause. test_opensearch_refusals and _connection_faults cover the others.
"""


@pytest.mark.parametrize(("error", "what"), LINES)
def test_errors_are_explained_in_one_line(error: Exception, what: str) -> None:
    line = str(explain(error, HERE, "searching"))
    assert what in line
    assert "\n" not in line
    assert len(line) < 600


def test_the_innermost_cause_is_reported() -> None:
    inner = {"type": "a", "reason": "outer", "caused_by": {"type": "b", "reason": "inner"}}
    assert root_cause({"error": {"type": "x", "failed_shards": [{"reason": inner}]}}) == ("x", "outer: inner")
    assert root_cause({"error": {"type": "x", "root_cause": [inner]}}) == ("x", "outer: inner")
    assert root_cause({"error": {"type": "x", "reason": "why"}}) == ("x", "why")
    assert root_cause(None) == ("", "no reason given")
    assert describe_block("mapper parsing failed") == ""


@given(
    st.sampled_from(["<f4", "<f2", "<f8", "|i1", "<i8", "|u1"]),
    st.integers(1, 50),
    st.lists(st.booleans(), max_size=20),
    st.integers(0, 2**32 - 1),
)
def test_stored_features_are_decoded_unchanged(dtype: str, width: int, there: list[bool], seed: int) -> None:
    raw = np.random.default_rng(seed).integers(
        0, 256, (sum(there), width * np.dtype(dtype).itemsize), np.uint8
    )
    values = raw.view(dtype)
    made = Column(dtype, width, 12.5)
    encoded = iter(made.encode(values))
    texts = [next(encoded) if present else None for present in there]
    assert all("=" not in actual for actual in texts if actual)  # OpenSearch removes the padding
    rows, missing = made.decode(texts)
    assert missing.tolist() == [not present for present in there]
    assert rows.dtype == np.dtype(dtype)
    assert rows.shape == (len(there), width)
    assert rows[~missing].tobytes() == values.tobytes()
    assert not rows[missing].view(np.uint8).any()
    # The mapping also preserves them.
    key = feature_key("text", "v1.2")
    known = columns({"properties": {FEATURES: {"properties": {key: made.mapping()}}}})
    assert known == {key: made}
    assert ranker_of(key) == ("text", "v1.2")


def test_features_of_another_width_are_refused() -> None:
    texts = Column("<f4", 4, 0).encode(np.ones((2, 4), np.float32))
    with pytest.raises(EngineError, match=r"8 values of <f4"):
        Column("<f4", 8, 0).decode(texts)
    with pytest.raises(EngineError, match="encode them again"):
        Column("<f4", 4, 0).decode([texts[0][:8], texts[1] + texts[0][8:]])
    for shape in ((3, 2), (2, 0), (2,)):
        with pytest.raises(EngineError, match="'text' encoded 2"):
            column("text", np.zeros(shape, np.float32), 2, None)
    with pytest.raises(
        EngineError, match="width 2, but its stored ones have dtype <f4 and width 4; give it a"
    ):
        column("text", np.zeros((2, 2), np.float32), 2, Column("<f4", 4, 0))
