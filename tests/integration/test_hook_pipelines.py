"""The search-pipeline processor in pipelines: other processors, settings, and its installation on nodes."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.hook import (
    COUNT,
    NUMBERS,
    PLACES,
    TOKEN,
    WORDS,
    Dummy,
    Hook,
    fill,
    ids,
)
from tests.support.processes import run_program
from tools.opensearch_node import VERSION, Node, distribution, with_plugins
from tools.opensearch_plugin import SETTINGS, build, put_pipeline, set_token, tool_environment


def test_default_pipelines_and_verbose_mode_work(hook: Hook) -> None:
    with hook.node.changed({"index.search.default_pipeline": "hook"}, "cells"):
        assert ids(hook.plain(WORDS)) == NUMBERS[::-1][:10]
        assert ids(hook.plain(WORDS, more="search_pipeline=_none")) == NUMBERS[:10]
        assert ids(hook.plain(WORDS, more="verbose_pipeline=true")) == NUMBERS[::-1][:10]
        assert hook.node.request("POST", "/cells/_count", WORDS)["count"] == COUNT


def multi_search(node: Node, *lines: dict[str, Any]) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
    try:
        body = "".join(f"{json.dumps(line)}\n" for line in lines)
        connection.request("POST", "/_msearch", body, {"Content-Type": "application/x-ndjson"})
        answers: list[dict[str, Any]] = json.loads(connection.getresponse().read())["responses"]
        return answers
    finally:
        connection.close()


def test_multi_searches_are_reranked(hook: Hook) -> None:
    off = {**WORDS, "search_pipeline": "_none"}
    with hook.node.changed({"index.search.default_pipeline": "hook"}, "cells"):
        answers = multi_search(
            hook.node, {"index": "cells"}, WORDS, {"index": "spread"}, WORDS, {"index": "cells"}, off
        )
    assert ids(answers[0]) == NUMBERS[::-1][:10]
    assert ids(answers[1]) == ids(hook.plain(WORDS, "spread"))
    assert ids(answers[2]) == NUMBERS[:10]


def test_searches_by_a_template_are_reranked(hook: Hook) -> None:
    template = {"source": {"query": {"match": {"text": "{{words}}"}}}, "params": {"words": "cell"}}
    path = "/cells/_search/template"
    assert ids(hook.node.request("POST", f"{path}?search_pipeline=hook", template)) == NUMBERS[::-1][:10]
    with hook.node.changed({"index.search.default_pipeline": "hook"}, "cells"):
        assert ids(hook.node.request("POST", path, template)) == NUMBERS[::-1][:10]
    template["source"]["search_pipeline"] = "hook"  # OpenSearch ignores it
    assert ids(hook.node.request("POST", path, template)) == NUMBERS[:10]


def test_other_processors_in_the_pipeline_work(hook: Hook, dummy: Dummy) -> None:
    rename = {"rename_field": {"field": "n", "target_field": "number"}}
    config = {"rerank_stack": {"url": dummy.url}}
    filtered = {"filter_query": {"query": {"term": {"kind": "a"}}}}
    responses = [{"rerank_stack": {}}, rename]
    pipeline = {"request_processors": [filtered, config, config], "response_processors": responses}
    hook.node.request("PUT", "/_search/pipeline/hook", pipeline)
    answer = hook.search(WORDS)
    assert [hit["_source"]["number"] for hit in answer["hits"]["hits"]] == list(range(28, 8, -2))
    assert answer["hits"]["total"]["value"] == 15


def test_processors_before_ours_can_see_whole_hits(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse(requested_fields=PLACES)
    rename = {"rename_field": {"field": "n", "target_field": "number"}}
    config = {"rerank_stack": {"url": dummy.url, "fetch": "candidates"}}
    pipeline = {"request_processors": [config], "response_processors": [rename, {"rerank_stack": {}}]}
    hook.node.request("PUT", "/_search/pipeline/hook", pipeline)
    hook.search(WORDS)
    answer = hook.search(WORDS)
    assert [hit["_source"]["number"] for hit in answer["hits"]["hits"]] == list(range(29, 19, -1))


@pytest.mark.parametrize(
    "config",
    [
        {"url": "http://user:secret@host"},
        {"depth": 0},
        {"unknown": 1},
    ],
    ids=str,
)
def test_invalid_processor_settings_are_refused(hooked: Node, config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=": 400 "):
        put_pipeline(hooked, "wrong", **{"url": "http://127.0.0.1:1", **config})


def test_a_search_cannot_bring_a_url(hook: Hook, dummy: Dummy) -> None:
    pipeline = {"request_processors": [{"rerank_stack": {"url": dummy.url}}]}
    with pytest.raises(ValueError, match="stored pipelines only"):
        hook.plain({**WORDS, "search_pipeline": pipeline})
    assert dummy.seen == []


def test_the_token_can_be_changed(hook: Hook, dummy: Dummy) -> None:
    try:
        set_token(hook.node, "changed")
        hook.node.request("POST", "/_nodes/reload_secure_settings")
        hook.search(WORDS)
        assert dummy.seen[-1][1]["Authorization"] == "Bearer changed"
    finally:
        set_token(hook.node, TOKEN)
        hook.node.request("POST", "/_nodes/reload_secure_settings")


def test_stats_count_calls_and_times(hook: Hook, dummy: Dummy) -> None:
    hook.search(WORDS)
    before = hook.stats()
    hook.search(WORDS)
    stats = hook.stats()
    assert stats["calls"]["count"] == before["calls"]["count"] + 1
    assert stats["calls"]["total_ms"] > before["calls"]["total_ms"]
    assert stats["calls"]["max_ms"] > 0
    assert stats["node"]


def label_version(archive: Path, version: str, folder: Path) -> Path:
    """Return a copy of the plugin's zip, labeled with another version."""
    made = folder / archive.name.replace("0.1.0", version)
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(
                name,
                data.replace(b"version=0.1.0", b"version=" + version.encode())
                if name.endswith("ties")
                else data,
            )
    return made


def run_tool(node: Node, *arguments: object) -> str:
    """Run the server's tool for plugins or for its keystore, without a terminal."""
    tool, *rest = map(str, arguments)
    done = run_program(node.home / "bin" / tool, *rest, env=tool_environment(node), stdin=subprocess.DEVNULL)
    for path in node.home.rglob("plugins/**/*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_plugin_is_installed_upgraded_downgraded_and_removed(dummy: Dummy, tmp_path: Path) -> None:
    """Follows the steps of the docs page without a terminal: 3.6, then 3.8, then without the plugin."""
    archive = build()
    # the name contains the server version
    assert archive.name == f"opensearch-rerank-0.1.0-for-{VERSION}.zip"
    homes = [with_plugins(distribution(version), []) for version in (VERSION, "3.8.0")]
    node = Node(home=homes[0], heap="768m", settings=SETTINGS)
    body = {
        **WORDS,
        "aggs": {"kinds": {"terms": {"field": "kind"}}},
        "ext": {"rerank_stack": {"explain": True}},
    }
    try:
        run_tool(node, "opensearch-plugin", "install", "-b", f"file://{archive}")
        set_token(node, TOKEN)
        fill(node.start().wait())
        hook = Hook(node, dummy.url)
        node.request("PUT", "/cells/_settings", {"index.search.default_pipeline": "hook"})
        assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]

        # Another server, and an older build of the plugin: the pipeline and the default are kept.
        node.kill()
        node.home = homes[1]
        older = label_version(build("3.8.0"), "0.0.9", tmp_path)
        wrong = label_version(archive, "0.0.9", tmp_path)
        with pytest.raises(AssertionError, match=r"3\.8\.0"):  # the zip for the other server
            run_tool(node, "opensearch-plugin", "install", "-b", f"file://{wrong}")
        run_tool(node, "opensearch-plugin", "install", "-b", f"file://{older}")
        dummy.reverse(requested_fields=PLACES)
        node.start().wait()
        (about,) = node.request("GET", "/_nodes/plugins")["nodes"].values()
        assert {one["name"]: one["version"] for one in about["plugins"]}["rerank"] == "0.0.9"
        hook.search(body)
        answer = hook.search(body)
        assert ids(answer) == NUMBERS[::-1][:10]
        assert answer["ext"]["rerank_stack"]["outcome"] == "reranked"
        assert len(dummy.last["features"]["text@v"]) == COUNT
        dummy.end()
        assert ids(hook.search(body)) == NUMBERS[:10]
        assert hook.stats()["failed"] == {"refused": 1}

        # Remove first the default and the pipeline, then the token and the setting, then the plugin.
        node.request("PUT", "/cells/_settings", {"index.search.default_pipeline": None})
        node.request("DELETE", "/_search/pipeline/hook")
        node.kill()
        run_tool(node, "opensearch-keystore", "remove", "plugins.rerank_stack.token")
        run_tool(node, "opensearch-plugin", "remove", "rerank")
        del node._settings["plugins.rerank_stack.allowed_urls"]
        node.start().wait()
        assert ids(node.request("POST", "/cells/_search", WORDS)) == NUMBERS[:10]
    finally:
        node.stop()
        for home in homes:
            shutil.rmtree(home.parent, ignore_errors=True)
