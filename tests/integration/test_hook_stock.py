"""``rerank hook --route stock`` on a real node with ML Commons: its features and its limits.

docs/opensearch/install.md#stock-processors describes the behavior that is tested here.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rerank import Workspace
from rerank.hook import HookOptions
from rerank.hook.stock import MADE, connector
from tests.support.hook import (
    INDEX,
    ML,
    PIPELINE,
    STACK,
    TOKEN,
    articles,
    assert_equal_hits,
    broken_service,
    hook_status,
    ids,
    installed_hook,
    query_hits,
    scored,
    texts,
)
from tests.support.opensearch import Answer, Proxy
from tests.support.service import Server, serving, wait_until
from tools.opensearch_node import LOCAL_ENDPOINTS, PRIVATE_ADDRESSES, TRUSTED_ENDPOINTS, Node, free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(ml_node, small, trained, tmp_path_factory) -> Path:
    return articles(ml_node, small, trained, tmp_path_factory.mktemp("stock") / "ws")


@pytest.fixture(scope="module", autouse=True)
def permitted(ml_node) -> Iterator[None]:
    """ML Commons may call services on this machine."""
    with ml_node.changed({TRUSTED_ENDPOINTS: LOCAL_ENDPOINTS, PRIVATE_ADDRESSES: True}):
        yield


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """The user's shell has the token of the service. Without it, the service does not describe itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RERANK_SERVICE_TOKEN", TOKEN)
        yield


@pytest.fixture(scope="module")
def service(cluster, script, tmp_path_factory) -> Iterator[Server]:
    with serving(script, cluster, tmp_path_factory.mktemp("serve"), RERANK_SERVICE_TOKEN=TOKEN) as started:
        yield started


@pytest.fixture(scope="module")
def token(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN)
    return path


def options(service: Server, token: Path, *more: object) -> list[Any]:
    # The time limit is generous, because test machines are busy.
    given = ["--route", "stock", "--service", service.url, "--stack", STACK, "--depth", 50]
    return [*given, "--timeout", 20, "--token-file", token, *more]


@pytest.fixture
def removed(cluster, run, ml_node) -> Iterator[None]:
    """Removes the pipeline after the test, with all its parts."""
    yield
    assert run("hook", "remove", "--route", "stock", "-w", cluster).code == 0
    assert_no_parts_remain(ml_node)


@pytest.fixture
def installed(removed, cluster, service, token, run) -> None:
    done = run("hook", "install", "-w", cluster, *options(service, token))
    assert (done.code, done.err) == (0, "")


def search(node: Node, text: str, pipeline: str = PIPELINE, **more: Any) -> dict[str, Any]:
    """Send the search of a client: with the pipeline and the query text."""
    body: dict[str, Any] = {
        "query": {"match": {"content": text}},
        "size": 10,
        "ext": {"rerank": {"query_context": {"query_text": text}}},
        **more,
    }
    body = {name: value for name, value in body.items() if value is not None}
    answer: dict[str, Any] = node.request("POST", f"/{INDEX}/_search?search_pipeline={pipeline}", body)
    return answer


def plain(node: Node, text: str, **more: Any) -> list[str]:
    return ids(search(node, text, "_none", **{**more, "ext": None}))


def expected(run, cluster, text: str, count: int = 10, depth: int = 50) -> list[str]:
    """Return the ids of ``rerank query``."""
    hits = query_hits(run, cluster, text, "--stack", STACK, "--depth", depth, count=count)
    return [id for id, _ in hits]


def parts_of_kind(node: Node, kind: str) -> dict[str, dict[str, Any]]:
    try:
        found = node.request("POST", f"{ML}/{kind}/_search", {"query": {"match_all": {}}, "size": 100})
    except ValueError:  # no such part was ever made
        return {}
    hits = {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}
    return {id: about for id, about in hits.items() if about.get("description") == MADE}


def assert_no_parts_remain(node: Node) -> None:
    for kind in ("models", "connectors", "model_groups"):
        assert parts_of_kind(node, kind) == {}
    with pytest.raises(ValueError, match="404"):
        node.request("GET", f"/_search/pipeline/{PIPELINE}")


def test_install_warns_of_rankers_that_retrieve(cluster, service, token, run):
    workspace, path = Workspace.open(cluster), cluster / "stacks" / "bm25,text.json"
    path.parent.mkdir(exist_ok=True)
    replace(workspace.stack("bm25*0.5 + text*0.5"), retrieve=("bm25", "text")).save(path)
    args = ("-w", cluster, *options(service, token), "--stack", "bm25,text", "--dry-run", "--json")
    warnings = run("hook", "install", *args).json["warnings"]
    path.unlink()
    assert any("retrieves with text" in warning for warning in warnings)


def test_a_search_has_the_hits_of_rerank_query(installed, ml_node, cluster, small, run):
    moved = 0
    for text in texts(small, 12):
        answer = search(ml_node, text)
        assert_equal_hits(scored(answer), query_hits(run, cluster, text, "--stack", STACK, "--depth", 50))
        assert answer["hits"]["max_score"] == pytest.approx(scored(answer)[0][1])
        moved += plain(ml_node, text) != ids(answer)
    assert moved > 5


def test_install_repeat_status_test_and_remove(cluster, service, token, run, ml_node, text):
    args = ("-w", cluster, *options(service, token))
    dry = run("hook", "install", *args, "--dry-run", "--json").json
    assert [(r["method"], r["path"]) for r in dry["requests"]] == [
        ("POST", f"{ML}/connectors/_create"),
        ("POST", f"{ML}/models/_register?deploy=true"),
        ("PUT", f"/_search/pipeline/{PIPELINE}"),
    ]
    assert TOKEN not in json.dumps(dry)
    assert_no_parts_remain(ml_node)

    done = run("hook", "install", *args, "--json").json
    assert (done["requests"], done["warnings"]) == (dry["requests"], [])
    assert TOKEN not in json.dumps(parts_of_kind(ml_node, "connectors"))
    (model,) = parts_of_kind(ml_node, "models")
    assert run("hook", "install", *args).code == 0  # replaces all parts
    assert model not in parts_of_kind(ml_node, "models")
    assert len(parts_of_kind(ml_node, "models")) == len(parts_of_kind(ml_node, "connectors")) == 1

    status = hook_status(run, cluster, "--route", "stock")
    assert status["problems"] == []
    assert (status["exists"], status["default_of"]) == (True, [])
    config = status["config"]
    assert (config["url"], config["stack"], config["depth"]) == (service.url, STACK, 50)
    assert (config["timeout"], config["id_field"], config["state"]) == (20.0, "id", "DEPLOYED")
    assert list(status["nodes"].values()) == ["3.6.0.0"]
    trial = run("hook", "test", text, "-k", 7, "--route", "stock", "-w", cluster, "--json").json
    assert (trial["outcome"], trial["same"], len(trial["reranked"])) == ("reranked", True, 7)
    assert trial["difference"] < 1e-6

    shown = run("hook", "remove", "--route", "stock", "-w", cluster, "--dry-run")
    assert shown.out.startswith(f"would DELETE /_search/pipeline/{PIPELINE}\n")
    assert len(parts_of_kind(ml_node, "models")) == 1
    assert run("hook", "remove", "--route", "stock", "-w", cluster).code == 0
    assert_no_parts_remain(ml_node)
    assert run("hook", "remove", "--route", "stock", "-w", cluster).out == "nothing to change\n"
    status = hook_status(run, cluster, "--route", "stock")
    assert (status["exists"], len(status["problems"])) == (False, 1)
    run("hook", "test", text, "--route", "stock", "-w", cluster).fails(1, "--route stock")


def test_cluster_settings_that_forbid_the_call_are_reported(cluster, service, token, run, ml_node):
    args = ("-w", cluster, *options(service, token))
    before = ml_node.request("GET", "/_cluster/settings")["persistent"]
    try:
        unset = dict.fromkeys((TRUSTED_ENDPOINTS, PRIVATE_ADDRESSES))
        ml_node.request("PUT", "/_cluster/settings", {"persistent": unset})
        run("hook", "install", *args).fails(
            1, "trusted connector endpoint", "docs/opensearch/install.md#stock-processors"
        )
        assert_no_parts_remain(ml_node)
        ml_node.request("PUT", "/_cluster/settings", {"persistent": {TRUSTED_ENDPOINTS: LOCAL_ENDPOINTS}})
        done = run("hook", "install", *args)
        assert "private" in done.err
        assert "docs/opensearch/install.md#stock-processors" in done.err
        assert "private" in hook_status(run, cluster, "--route", "stock")["problems"][0]
        assert run("hook", "remove", "--route", "stock", "-w", cluster).code == 0
        assert_no_parts_remain(ml_node)
    finally:
        ml_node.request("PUT", "/_cluster/settings", {"persistent": before})


def test_an_interrupted_installation_is_recovered(
    removed, cluster, service, token, run, ml_node, text, tmp_path
):
    """The cluster refuses the last step. The next installation deletes the incomplete parts."""
    refusing = Proxy(
        ml_node.port,
        rule=lambda r: Answer(403) if r.method == "PUT" and "/_search/pipeline/" in r.path else None,
    )
    folder = tmp_path / "ws"
    shutil.copytree(cluster, folder)
    with refusing as proxy:
        config = (folder / "rerank.toml").read_text("utf-8")
        (folder / "rerank.toml").write_text(config.replace(ml_node.url, proxy.url), "utf-8")
        args = ("-w", folder, *options(service, token))
        run("hook", "install", *args).fails(1, "does not allow that (403)")
    assert len(parts_of_kind(ml_node, "models")) == 1
    assert run("hook", "install", "-w", cluster, *options(service, token)).code == 0
    assert len(parts_of_kind(ml_node, "models")) == len(parts_of_kind(ml_node, "connectors")) == 1
    assert run("hook", "test", text, "--route", "stock", "-w", cluster).code == 0


def test_connectors_of_others_stay(cluster, service, token, run, ml_node):
    theirs = {**connector("theirs", HookOptions(service.url)), "description": "made by others"}
    id = ml_node.request("POST", f"{ML}/connectors/_create", theirs)["connector_id"]
    try:
        assert run("hook", "install", "-w", cluster, *options(service, token)).code == 0
        assert run("hook", "remove", "--route", "stock", "-w", cluster).code == 0
        assert_no_parts_remain(ml_node)
        assert ml_node.request("GET", f"{ML}/connectors/{id}")["name"] == "theirs"
    finally:
        ml_node.request("DELETE", f"{ML}/connectors/{id}")


@pytest.mark.parametrize("act", ["install", "remove"])
def test_an_orphaned_model_of_our_connector_is_deleted(act, cluster, service, token, run, ml_node):
    """A model that remains from an interrupted installation keeps its connector in use."""
    args = ["-w", cluster, *options(service, token)]
    assert run("hook", "install", *args).code == 0
    (connector,) = parts_of_kind(ml_node, "connectors")
    orphan = {"name": "orphan", "function_name": "remote", "connector_id": connector}
    ml_node.request("POST", f"{ML}/models/_register?deploy=true", orphan)
    if act == "install":
        args[args.index(STACK)] = "text"
        assert run("hook", "install", *args).code == 0
        assert connector not in parts_of_kind(ml_node, "connectors")
        assert len(parts_of_kind(ml_node, "models")) == 1
    assert run("hook", "remove", "--route", "stock", "-w", cluster).code == 0
    assert_no_parts_remain(ml_node)


def test_a_wrong_token_is_reported_and_can_be_replaced(
    removed, cluster, service, token, run, ml_node, text, tmp_path
):
    (tmp_path / "wrong").write_text("abracadabra")
    done = run("hook", "install", "-w", cluster, *options(service, tmp_path / "wrong")).ok()
    assert "warning: the cluster cannot use the service: " in done.err
    assert "401" in done.err
    assert ids(search(ml_node, text)) == plain(ml_node, text)
    trial = run("hook", "test", text, "--route", "stock", "-w", cluster, "--json")
    assert trial.code == 1
    assert json.loads(trial.out)["outcome"] == "failed"
    status = hook_status(run, cluster, "--route", "stock")
    assert "401" in status["problems"][0]
    done = run("hook", "install", "-w", cluster, *options(service, token))
    assert (done.code, done.err) == (0, "")
    assert ids(search(ml_node, text)) == expected(run, cluster, text)
    assert len(parts_of_kind(ml_node, "models")) == 1


def test_a_deleted_model_is_reported_and_can_be_reinstalled(
    installed, cluster, service, token, run, ml_node, text
):
    (model,) = parts_of_kind(ml_node, "models")
    ml_node.request("POST", f"{ML}/models/{model}/_undeploy")
    # The state is undeployed, or deploy_failed if a job of ML Commons runs at the same time.
    wait_until(lambda: ml_node.request("GET", f"{ML}/models/{model}")["model_state"] != "DEPLOYED")
    status = hook_status(run, cluster, "--route", "stock")
    assert status["config"]["state"].lower() in status["problems"][0]
    assert "install it again" in status["problems"][0]
    ml_node.request("DELETE", f"{ML}/models/{model}")
    status = hook_status(run, cluster, "--route", "stock")
    assert "is missing" in status["problems"][0]
    assert ids(search(ml_node, text)) == plain(ml_node, text)
    assert run("hook", "install", "-w", cluster, *options(service, token)).code == 0
    assert ids(search(ml_node, text)) == expected(run, cluster, text)


def test_invalid_installations_are_refused(cluster, service, token, run, ml_node, tmp_path):
    args = ("-w", cluster, *options(service, token))
    run("hook", "install", *args, "--default").fails(2, "--default")
    with ml_node.changed({"index.max_result_window": 40}, INDEX):
        run("hook", "install", *args).fails(2, "max_result_window", "40")
    plugin = [str(a) for a in args if a not in ("--route", "stock")]
    run("hook", "install", *plugin).fails(2, "--token-file")
    (tmp_path / "token").write_text("two words\n")
    wrong = [*args, "--token-file", tmp_path / "token"]
    run("hook", "install", *wrong).fails(1, f"{tmp_path / 'token'}:1: ")
    theirs = {"request_processors": [{"filter_query": {"query": {"match_all": {}}}}]}
    ml_node.request("PUT", f"/_search/pipeline/{PIPELINE}", theirs)
    try:
        run("hook", "install", *args).fails(1, PIPELINE, "--name")
        run("hook", "remove", "--route", "stock", "-w", cluster).fails(1, PIPELINE)
    finally:
        ml_node.request("DELETE", f"/_search/pipeline/{PIPELINE}")
    assert_no_parts_remain(ml_node)


def test_search_options_that_work_with_the_stock_route(installed, ml_node, cluster, text, run):
    wanted = expected(run, cluster, text)
    assert ids(search(ml_node, text, size=None)) == wanted
    assert ids(search(ml_node, text, size=3)) == wanted[:3]
    path = {"rerank": {"query_context": {"query_text_path": "query.match.content.query"}}}
    assert ids(search(ml_node, text, ext=path)) == wanted
    assert ids(search(ml_node, text, _source=["id", "title"])) == wanted
    assert ids(search(ml_node, text, _source=False, docvalue_fields=["id"])) == wanted
    assert ids(search(ml_node, text, track_total_hits=10)) == wanted
    answer = search(
        ml_node,
        text,
        aggs={"n": {"value_count": {"field": "id"}}},
        suggest={"s": {"text": text, "term": {"field": "content"}}},
    )
    assert ids(answer) == wanted
    assert answer["aggregations"]["n"]["value"] == answer["hits"]["total"]["value"] > 10
    assert "s" in answer["suggest"]
    assert ids(search(ml_node, "xyzzy" * 3)) == []
    for name in (
        "é 狼 \u2028 😀",
        'a "quote" \\ and\nlines\t\x01',
        "$ {x} {{y}} %s ${z",
        "${credential.token}",
    ):
        both = f"{text} {name}"
        assert ids(search(ml_node, both)) == expected(run, cluster, both)


def test_only_the_query_text_is_sent_to_the_service(installed, ml_node, cluster, text, run):
    """Scores of the query are not sent, so its boosts and filters do not affect the order."""
    wanted = expected(run, cluster, text)
    filtered = {"bool": {"must": {"match": {"content": text}}, "must_not": {"ids": {"values": wanted[:2]}}}}
    assert not set(ids(search(ml_node, text, query=filtered))) & set(wanted[:2])
    other = {"bool": {"must": {"match_all": {}}, "filter": {"ids": {"values": wanted}}}}
    assert ids(search(ml_node, text, query=other)) != plain(ml_node, text, query=other)
    constant = {"constant_score": {"filter": {"match": {"content": text}}, "boost": 1000}}
    assert max(hit["_score"] for hit in search(ml_node, text, query=constant)["hits"]["hits"]) < 2


@pytest.mark.parametrize(
    "body",
    [
        {"ext": None},
        {"ext": {"rerank": {"query_context": {"query_text_path": "query.term.content.query"}}}},
        {"ext": {"rerank": {"query_context": {"query_text": "  "}}}},
        {"ext": {"rerank": {"query_context": {"query_text": "wolf ${parameters.documents}"}}}},
        {"ext": {"rerank": {"query_context": {"query_text": "wolf ${parameters.query}"}}}},
        {"ext": {"rerank": {"query_context": {"query_text": "wolf ${parameters.other}"}}}},
        {"track_total_hits": False},
        {"_source": False},
        {"_source": ["title"]},
        {"_source": {"excludes": ["id"]}},
        {"stored_fields": "_none_"},
        {"size": 0},
        {"size": 0, "track_total_hits": False},
    ],
    ids=json.dumps,
)
def test_searches_that_keep_the_order_of_the_first_stage(installed, ml_node, text, body):
    if body.get("stored_fields"):
        answer = search(ml_node, text, **body)
        assert "_id" not in answer["hits"]["hits"][0]
        return
    assert ids(search(ml_node, text, **body)) == plain(ml_node, text, **body)


def test_a_size_above_the_depth_reranks_all_hits(installed, ml_node, cluster, text, run):
    wanted = expected(run, cluster, text, count=120, depth=120)
    assert ids(search(ml_node, text, size=120)) == wanted


def test_more_candidates_than_the_service_accepts_are_reported(
    removed, cluster, run, script, ml_node, text, tmp_path, monkeypatch
):
    monkeypatch.delenv("RERANK_SERVICE_TOKEN")  # this service has no token
    with serving(script, cluster, tmp_path, "--max-candidates", 20) as modest:
        args = ("--route", "stock", "--service", modest.url, "--stack", STACK, "--timeout", 20)
        done = run("hook", "install", *args, "--depth", 50, "-w", cluster).ok()
        assert "takes 20 candidates" in done.err
        assert ids(search(ml_node, text)) == plain(ml_node, text)
        status = hook_status(run, cluster, "--route", "stock")
        assert ["takes 20 candidates" in problem for problem in status["problems"]] == [True]
        done = run("hook", "install", *args, "--depth", 20, "-w", cluster)
        assert (done.code, done.err) == (0, "")
        assert ids(search(ml_node, text)) == expected(run, cluster, text, depth=20)


def test_equal_ids_in_two_indices_are_not_reranked(installed, ml_node, cluster, small, text):
    best = plain(ml_node, text)[0]
    ml_node.request("PUT", f"/copies/_doc/{best}?refresh=true", {"id": best, "content": text})
    try:
        body = {
            "query": {"match": {"content": text}},
            "size": len(small.documents) + 1,
            "ext": {"rerank": {"query_context": {"query_text": text}}},
        }
        actual = ml_node.request("POST", f"/{INDEX},copies/_search?search_pipeline={PIPELINE}", body)
        del body["ext"]
        assert ids(actual) == ids(ml_node.request("POST", f"/{INDEX},copies/_search", body))
        assert ids(actual).count(best) == 2
    finally:
        ml_node.request("DELETE", "/copies")


def test_on_failure_error_fails_searches_that_cannot_be_reranked(
    removed, cluster, service, token, run, ml_node, text
):
    run("hook", "install", "-w", cluster, *options(service, token, "--on-failure", "error")).ok()
    assert ids(search(ml_node, text)) == expected(run, cluster, text)
    for body, status in (
        ({"ext": None}, 500),
        ({"size": 0}, 400),
        ({"track_total_hits": False}, 500),
        ({"_source": False}, 422),
    ):
        with pytest.raises(ValueError, match=f"_search[^:]*: {status} "):
            search(ml_node, text, **body)


@pytest.mark.parametrize("mode", ["hang", "few", "nan", "html", "down"])
def test_a_broken_service_keeps_the_order_of_the_first_stage(cluster, run, ml_node, text, mode):
    with broken_service(mode) as url:
        url = f"http://127.0.0.1:{free_port()}" if mode == "down" else url
        with installed_hook(run, cluster, url, ml_node):
            for _ in range(2):
                begin = time.perf_counter()
                answer = search(ml_node, text)
                # a busy node is slow; without a limit this takes 30 s
                assert time.perf_counter() - begin < 25
                assert ids(answer) == plain(ml_node, text)


def test_an_attached_index_without_an_id_field_is_reranked(
    ml_node, small, text, trained, token, run, tmp_path, script
):
    """The documents have no field with their id, so searches request it as a doc value."""
    name = f"library-{secrets.token_hex(4)}"
    ml_node.request("PUT", f"/{name}", {"settings": {"number_of_replicas": 0}})
    for document in small.documents[:60]:
        body = {"name": document["title"], "body": document["text"], "tags": document["categories"]}
        ml_node.request("PUT", f"/{name}/_doc/{document['_id']}", body)
    ml_node.request("POST", f"/{name}/_refresh")
    folder = tmp_path / "ws"
    fields = ("title=name", "text=body", "categories=tags")
    run("attach", *fields, "--url", ml_node.url, "--index", name, "-w", folder).ok()
    shutil.copytree(trained / "rankers", folder / "rankers")
    try:
        assert run("encode", "-w", folder).code == 0
        stack = "bm25*0.5 + text*0.5"
        with serving(script, folder, tmp_path) as own:
            args = ("--route", "stock", "--service", own.url, "--stack", stack, "--timeout", 20)
            # The token in this shell's environment is not sent automatically.
            done = run("hook", "install", *args, "-w", folder).ok()
            assert "401" in done.err
            assert "--token-file" in done.err
            done = run("hook", "install", *args, "--token-file", token, "-w", folder)
            assert (done.code, done.err) == (0, "")
            trial = run("hook", "test", text, "--route", "stock", "-w", folder, "--json").json
            assert (trial["outcome"], trial["same"]) == ("reranked", True)
            body = {"query": {"match": {"body": text}}, "docvalue_fields": ["_id"], "_source": False}
            body |= {"ext": {"rerank": {"query_context": {"query_text": text}}}}
            body |= {"highlight": {"fields": {"body": {}}}, "size": 3}
            path = f"/{name}/_search?search_pipeline=rerank-{name}-stock"
            hits = ml_node.request("POST", path, body)["hits"]["hits"]
            assert [hit["fields"]["_id"] for hit in hits] == [[hit["_id"]] for hit in hits]
            assert any("highlight" in hit for hit in hits)
            assert hits[0]["_id"] in trial["expected"]
            status = hook_status(run, folder, "--route", "stock")
            assert (status["problems"], status["config"]["id_field"]) == ([], "_id")
            assert run("hook", "remove", "--route", "stock", "-w", folder).code == 0
        assert_no_parts_remain(ml_node)
    finally:
        ml_node.request("DELETE", f"/{name}")
