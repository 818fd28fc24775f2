"""``rerank hook install``, ``status``, ``test`` and ``remove`` on a real node."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from dataclasses import replace

import pytest

from rerank import __version__
from rerank.stack.file import parse_second_phase
from rerank.stack.stack import Stack
from tests.support.hook import (
    hook_status,
)
from tests.support.hooked_articles import (
    DEFAULT,
    INDEX,
    PIPELINE,
    STACK,
    cluster,
    default_of_index,
    index_of_alias,
    installed,
    options,
    pipelines,
    plain_search,
    service,
    service_token,
)
from tests.support.rankers import bert
from tests.support.service import serving, wait_until
from tools.opensearch_node import VERSION, free_port

__all__ = ["cluster", "installed", "service", "service_token"]

pytestmark = pytest.mark.slow


def test_a_service_url_that_the_nodes_do_not_allow_is_refused(cluster, service, run, plugged):
    url = service.url.replace("127.0.0.1", "localhost")
    refused = run("hook", "install", "-w", cluster, "--service", url)
    refused.fails(
        1, f"node node-0 may not call {url}: write plugins.rerank_stack.allowed_urls", f'"{url}"]', "restart"
    )
    assert pipelines(plugged) == {}


def test_a_dry_run_prints_requests_and_changes_nothing(cluster, service, run, plugged):
    args = ("-w", cluster, "--default", *options(service), "--dry-run")
    done = run("hook", "install", *args, "--json").json
    assert [(r["method"], r["path"]) for r in done["requests"]] == [
        ("PUT", f"/_search/pipeline/{PIPELINE}"),
        ("PUT", f"/{index_of_alias(plugged)}/_settings"),
    ]
    assert (done["dry_run"], done["warnings"]) == (True, [])
    text = run("hook", "install", *args)
    assert text.out.startswith(f"would PUT /_search/pipeline/{PIPELINE} {{")
    assert text.out.endswith("nothing was changed\n")
    assert (pipelines(plugged), default_of_index(plugged)) == ({}, None)


def test_hook_commands_can_be_repeated(cluster, service, run, plugged):
    args = ("hook", "install", "-w", cluster, *options(service), "--json")
    assert len(run(*args).json["requests"]) == 1
    assert default_of_index(plugged) is None
    assert len(run(*args, "--default").json["requests"]) == 1
    assert run(*args, "--default").json["requests"] == []
    config = {"url": service.url, "depth": 50, "timeout": 20000, "on_failure": "first_stage", "stack": STACK}
    expected = {
        "request_processors": [{"rerank_stack": config}],
        "response_processors": [{"rerank_stack": {}}],
    }
    assert pipelines(plugged) == {PIPELINE: expected}
    assert default_of_index(plugged) == PIPELINE
    deeper = run(*args, "--depth", 60).json["requests"]
    assert deeper[0]["body"]["request_processors"][0]["rerank_stack"]["depth"] == 60
    dry = run("hook", "remove", "-w", cluster, "--dry-run", "--json").json
    assert [r["method"] for r in dry["requests"]] == ["PUT", "DELETE"]
    assert default_of_index(plugged) == PIPELINE
    assert len(run("hook", "remove", "-w", cluster, "--json").json["requests"]) == 2
    assert (pipelines(plugged), default_of_index(plugged)) == ({}, None)
    assert run("hook", "remove", "-w", cluster).out == "nothing to change\n"


def test_a_service_that_does_not_fit_is_not_made_the_default(cluster, service, run, plugged, tmp_path):
    args = ("hook", "install", "-w", cluster, *options(service), "--depth", 1001)
    run(*args, "--default").fails(1, "takes 1,000 candidates", "nothing was changed")
    assert (pipelines(plugged), default_of_index(plugged)) == ({}, None)
    tuned = shutil.copytree(cluster, tmp_path / "ws")  # a stack that is missing in the service's workspace
    stack = Stack.parse("bm25*0.5 + text*0.5")
    (tuned / "stacks").mkdir(exist_ok=True)
    stack.save(tuned / "stacks" / "bm25,text.json")
    lacking = ("hook", "install", "-w", tuned, "--service", service.url, "--stack", "bm25,text", "--default")
    run(*lacking).fails(1, "'bm25,text'", "nothing was changed")
    assert (pipelines(plugged), default_of_index(plugged)) == ({}, None)
    done = run(*args)  # without --default
    assert (done.code, done.err.startswith("warning: the service at")) == (0, True)
    assert run("hook", "remove", "-w", cluster).code == 0


def test_status_reports_the_configuration_and_changes_by_hand(installed, cluster, service, run, plugged):
    status = hook_status(run, cluster)
    assert (status["exists"], status["problems"]) == (True, [])
    assert status["default_of"] == status["indices"] == [installed]
    assert list(status["nodes"].values()) == ["0.1.0"]
    assert status["service"]["ready"] is True
    assert status["statistics"][plugged.url]["reranked"] >= 0
    assert "service: ready" in run("hook", "status", "-w", cluster).ok().out
    changed = pipelines(plugged)[PIPELINE]
    changed["response_processors"] = []
    plugged.request("PUT", f"/_search/pipeline/{PIPELINE}", changed)
    plugged.request("PUT", f"/{INDEX}/_settings", {DEFAULT: None})
    status = hook_status(run, cluster)
    assert status["default_of"] == []
    assert status["problems"] == [f"pipeline '{PIPELINE}' has been changed by hand"]


def test_statistics_of_shadow_mode_remain_after_it_ends(installed, cluster, service, run, text, plugged):
    assert run("hook", "install", "-w", cluster, *options(service), "--default", "--shadow").code == 0
    plain_search(plugged, text)
    assert run("hook", "install", "-w", cluster, *options(service), "--default").code == 0
    # A busy node may not answer in the five seconds of `hook status`.
    wait_until(lambda: plugged.url in hook_status(run, cluster)["statistics"])
    # Other tests may have searched on this node in shadow mode.
    wait_until(lambda: re.search(r"shadow: [1-9]", run("hook", "status", "-w", cluster).out))


def test_hook_test_compares_the_order(installed, cluster, service, run, text):
    trial = run("hook", "test", text, "-k", 7, "-w", cluster, "--json").json
    assert (trial["outcome"], trial["same"], len(trial["reranked"])) == ("reranked", True, 7)
    assert trial["difference"] < 1e-6
    shown = run("hook", "test", text, "-w", cluster)
    assert (shown.code, shown.err) == (0, "")
    assert "the order is the same" in shown.out
    # The default stack of the service has only its first stage.
    run("hook", "install", "--service", service.url, "--timeout", 20, "-w", cluster)
    trial = run("hook", "test", text, "-w", cluster, "--json").json
    assert (trial["same"], list(trial["query"]["match"])) == (True, ["content"])


def test_hook_test_includes_a_second_phase(cluster, plugged, run, script, small, text, tmp_path):
    pytest.importorskip("transformers")
    titles = {word for one in small.documents for word in one["title"].lower().split()}
    model = bert(tmp_path / "model", words=sorted(titles - {"a"}))
    phase = parse_second_phase(f"cross-encoder:{model}", 5)
    replace(Stack.parse("bm25*1.0"), second_phase=phase).save(tmp_path / "stack.json")
    with serving(script, cluster, tmp_path, "--stack", tmp_path / "stack.json") as server:
        run("hook", "install", "--service", server.url, "--timeout", 20, "-w", cluster)
        trial = run("hook", "test", text, "-w", cluster, "--json").json
    assert (trial["outcome"], trial["same"]) == ("reranked", True)
    assert trial["reranked"] != trial["plain"]
    assert sorted(trial["reranked"][:5]) == sorted(trial["plain"][:5])


def test_a_service_that_is_down_is_reported(cluster, service, run, text):
    url = f"http://127.0.0.1:{free_port()}"
    done = run("hook", "install", "--service", url, "--stack", STACK, "-w", cluster).ok()
    assert done.err.startswith(f"warning: no service answers at {url}")
    done = run("hook", "test", text, "-w", cluster, "--json")
    assert done.code == 1
    assert json.loads(done.out)["reason"] == "refused"
    shown = run("hook", "test", text, "-w", cluster)
    assert shown.code == 1
    assert f"nothing was reranked: the service at {url} did not answer (refused)" in shown.out
    status = hook_status(run, cluster)
    assert status["service"] is None
    assert "no service answers" in status["problems"][0]
    assert run("hook", "remove", "-w", cluster).code == 0


def test_replace_keeps_the_default(installed, cluster, run, plugged, small):
    run("ingest", small.corpus, "--replace", "-w", cluster).ok()
    assert index_of_alias(plugged) != installed
    assert default_of_index(plugged) == PIPELINE
    assert hook_status(run, cluster)["problems"] == []


def test_pipelines_of_other_owners_are_not_changed(cluster, service, run, plugged):
    theirs = {"request_processors": [{"filter_query": {"query": {"match_all": {}}}}]}
    plugged.request("PUT", "/_search/pipeline/theirs", theirs)
    args = ("-w", cluster, *options(service))
    with plugged.changed({DEFAULT: "theirs"}, INDEX):
        for action, given in (("install", args), ("remove", args[:2])):
            run("hook", action, *given, "--name", "theirs").fails(1, "'theirs'", "--name")
        run("hook", "install", *args, "--default").fails(1, "'theirs'", "--default")
        assert pipelines(plugged) == {"theirs": theirs}
    plugged.request("DELETE", "/_search/pipeline/theirs")


def test_a_pipeline_that_another_index_uses_is_not_removed(installed, cluster, run, plugged):
    plugged.request("PUT", "/other", {"settings": {DEFAULT: PIPELINE, "number_of_replicas": 0}})
    try:
        run("hook", "remove", "-w", cluster).fails(1, "default of other")
        assert default_of_index(plugged) == PIPELINE
    finally:
        plugged.request("DELETE", "/other")


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        (("install",), 2, ["--service"]),
        (("test",), 2, ["QUERY"]),
        (("status", "--default"), 2, ["--default"]),
        (("install", "words", "--service", "http://a"), 2, ["words"]),
        (("install", "--service", "ftp://a"), 2, ["ftp://a"]),
        (("install", "--service", "http://me:secret@a"), 2, ["keystore"]),
        (("install", "--service", "http://a", "--stack", "a.json"), 2, ["rerank serve --stack"]),
        (("install", "--service", "http://a", "--stack", "txt"), 2, ["'txt' is unknown"]),
        (("install", "--service", "http://a", "--stack", "bm25,text,meta"), 1, ["not tuned"]),
        (("install", "--service", "http://a", "--route", "stock"), 1, ["opensearch-neural-search"]),
        (("install", "--service", "http://a", "--id-field", "id"), 2, ["--id-field"]),
        (("status", "--token-file", "a"), 2, ["--token-file"]),
        (("status", "--name", "a/b"), 2, ["--name 'a/b'"]),
        (("test", "wheel"), 1, ["rerank hook install"]),
        (("test", "wheel", "--name", "none-such"), 1, ["'none-such'"]),
    ],
)
def test_invalid_hook_commands_are_refused(cluster, run, args, code, parts):
    run("hook", *args, "-w", cluster).fails(code, *parts)


def test_the_hook_refuses_a_workspace_on_the_local_engine(plain, run):
    for action in (["status"], ["remove"], ["test", "words"], ["install", "--service", "http://a"]):
        run("hook", *action, "-w", plain).fails(2, str(plain), "`rerank attach ")


def test_a_node_without_the_plugin_is_reported(node, small, run, write_lines, tmp_path):
    index = f"hook-{secrets.token_hex(4)}"
    few = write_lines(tmp_path / "few.jsonl", small.documents[:5])
    args = ("--url", node.url, "--index", index, "--replicas", 0, "-w", tmp_path / "ws")
    assert run("ingest", few, *args).code == 0
    try:
        done = run("hook", "install", "--service", "http://127.0.0.1:1", "-w", tmp_path / "ws")
        archive = f"opensearch-rerank-{__version__}-for-{VERSION}.zip"
        done.fails(1, "plugin missing", "1 of 1 node)", "bin/opensearch-plugin install", archive)
        status = hook_status(run, tmp_path / "ws")
        assert list(status["nodes"].values()) == [None]
        assert status["statistics"] == {}
        assert len(status["problems"]) == 2
        assert run("hook", "remove", "-w", tmp_path / "ws").out == "nothing to change\n"
    finally:
        node.request("DELETE", f"/{index}-*")
