"""``rerank hook``: a plain ``_search`` on a real node returns the order of ``rerank query``."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from rerank.engines.search_request import SearchRequest
from rerank.formats import read_queries, read_run
from rerank.stack.linear import Linear
from rerank.stack.normalize import Moments
from rerank.stack.relevance import Calibration, RelevanceModel
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace
from tests.support.hook import (
    TOKEN,
    assert_equal_hits,
    compare_rights,
    copy_for_user,
    flat,
    hook_status,
    ids,
    query_hits,
    scored,
    texts,
)
from tests.support.hooked_articles import (
    DEFAULT,
    INDEX,
    PIPELINE,
    STACK,
    cluster,
    index_of_alias,
    installed,
    options,
    plain_search,
    service,
    service_token,
)
from tests.support.service import call_hook, negate_scores, read_answer, serving, wait_until

__all__ = ["cluster", "installed", "service", "service_token"]

pytestmark = pytest.mark.slow


def test_a_plain_search_returns_the_hits_of_rerank_query(installed, plugged, cluster, small, run):
    before = plugged.request("GET", "/_plugins/_rerank_stack/stats")["failed"]
    moved = 0
    for text in texts(small, 12):
        actual = plain_search(plugged, text)
        assert_equal_hits(actual, query_hits(run, cluster, text, "--stack", STACK, "--depth", 50))
        without = plain_search(plugged, text, "?search_pipeline=_none")
        moved += [id for id, _ in without] != [id for id, _ in actual]
    assert moved > 5
    assert plugged.request("GET", "/_plugins/_rerank_stack/stats")["failed"] == before


@pytest.mark.parametrize("stack", [STACK, "bm25*0.5 + tfidf*0.5"])
def test_hits_without_ids_are_identified_by_their_places(cluster, service, plugged, stack):
    """The engine needs ids to compute missing features and other signals."""
    query, name = {"match": {"content": "cell growth"}}, index_of_alias(plugged)
    search = {"query": query, "size": 30, "seq_no_primary_term": True, "_source": False}
    hits = plugged.request("POST", f"/{INDEX}/_search?search_pipeline=_none", search)["hits"]["hits"]
    uuid = plugged.request("GET", f"/{name}/_settings")[name]["settings"]["index"]["uuid"]
    body = {"query": query, "stack": stack, "hits": 30, "places": {"uuids": [uuid]}, "timeout": 20}
    head = json.dumps(body).encode()
    parts = [[hit["_score"] for hit in hits], [0] * 30]
    parts += [[hit[part] for hit in hits] for part in ("_seq_no", "_primary_term")]
    numbers = [np.array(part, kind).tobytes() for part, kind in zip(parts, (">f8", ">i4", ">i8", ">i8"))]
    call = b"".join((len(head).to_bytes(4, "big"), head, *numbers))
    names = [hit["_id"] for hit in hits]
    actual = read_answer(service.post("/v1/hook", call).body, names)
    expected = call_hook(service, {"query": query, "stack": stack, "ids": names, "scores": parts[0]})
    assert actual["ids"] == expected["ids"]
    assert actual["scores"] == pytest.approx(expected["scores"], abs=1e-6)
    assert expected["requested_fields"]["features"][0] == "document"
    assert not expected["requested_fields"]["ids"]


def test_a_retrained_ranker_is_not_used_until_promoted(cluster, service, run, plugged, small, tmp_path):
    """Searches continue with the old version. A stack that is put in use is served at once."""
    workspace = Workspace.open(cluster)
    old = {name: workspace.ranker(name) for name in ("text", "meta")}
    words = texts(small, 2)
    orders: list[list[str]] = []

    def use(**versions: str) -> None:
        stack = Stack.parse(STACK, versions={**{name: one.version for name, one in old.items()}, **versions})
        stack.save(tmp_path / "stack.json")
        assert run("stack", "use", tmp_path / "stack.json", "-w", cluster).code == 0

    def check_order(version: str) -> None:
        """Assert that searches return the order of ``rerank query``, only with stored features."""
        assert workspace.versions()["text"] == version
        plain_search(plugged, words[0])  # the node learns which fields the service requests
        lacking = missing_text_features()
        for text in words:
            actual = plain_search(plugged, text)
            assert_equal_hits(actual, query_hits(run, cluster, text, "--depth", 50))
        assert missing_text_features() == lacking
        orders.append([id for id, _ in actual[:5]])  # statistics count old copies until segments merge

    def served(version: str) -> None:
        wait_until(lambda: service.get("/readyz").json["rankers"]["text"] == version)

    def wait_for_stack() -> None:
        """Wait until the service uses the stack that was put in use."""
        wanted = [id for id, _ in query_hits(run, cluster, words[0], "--depth", 50)]
        wait_until(lambda: [id for id, _ in plain_search(plugged, words[0])] == wanted)

    def missing_text_features() -> float:
        return service.metric('rerank_features_missing_total{endpoint="hook",ranker="text"}')

    use()
    options = ("--service", service.url, "--depth", 50, "--timeout", 20, "--default")
    try:
        assert run("hook", "install", "-w", cluster, *options).code == 0
        wait_for_stack()
        check_order(old["text"].version)
        workspace.install(negate_scores(old["text"], "other"))
        assert run("encode", "-w", cluster, "--json").json["encoded"]["text"] == len(small.documents)
        check_order(old["text"].version)
        assert workspace.engine.missing_features("text", old["text"].version) == 0
        use(text="other")
        served("other")
        check_order("other")
        assert "active again: " in run("stack", "rollback", "-w", cluster).out
        served(old["text"].version)
        check_order(old["text"].version)
        assert orders[0] == orders[1] == orders[3] != orders[2]
    finally:
        run("hook", "remove", "-w", cluster)
        (cluster / "releases.json").unlink(missing_ok=True)
        for path in (cluster / "stacks").glob("*.json"):
            path.unlink()
        workspace.install(old["text"])
        run("encode", "-w", cluster)
        served(old["text"].version)


def test_the_documented_rights_are_sufficient_and_necessary(
    cluster, plugged, run, script, text, tmp_path, monkeypatch
):
    """This covers the user who installs and the user of the service."""
    served = copy_for_user(cluster, tmp_path / "served", "server", plugged, monkeypatch)
    folder = copy_for_user(cluster, tmp_path / "ws", "installer", plugged, monkeypatch)
    with serving(script, served, tmp_path, "--only", "hook", RERANK_SERVICE_TOKEN=TOKEN) as server:
        args = ("-w", folder, *options(server), "--default")
        assert run("hook", "install", *args).code == 0
        try:
            plain_search(plugged, text)
            best = plain_search(plugged, text)[0][0]
            document = plugged.request("GET", f"/{INDEX}/_source/{best}")
            document["text"] += " changed"  # its features are removed, so the service reads the document
            plugged.request("PUT", f"/{INDEX}/_doc/{best}?refresh=true", document)
            plain_search(plugged, text)
            state = run("hook", "status", "-w", folder)
            assert state.code == 1
            assert "without features of text" in state.out
        finally:
            assert run("hook", "remove", "-w", folder).code == 0
            assert run("encode", "-w", cluster).code == 0
    assert compare_rights(plugged, "server", "guides/operate.md", "`--only hook`") == (set(), set())
    unnamed, unneeded = compare_rights(
        plugged, "installer", "opensearch/install.md", "The user needs the right to search"
    )
    assert (unnamed - {"indices:data/read/search"}, unneeded) == (set(), set())


def test_hits_below_a_probability_are_left_out_as_by_rerank_query(
    cluster, run, script, text, plugged, tmp_path
):
    moments = (Moments(10.0, 5.0), Moments(0.3, 0.2), Moments(0.3, 0.2))
    stack = Stack.parse(STACK)
    fitted = Linear(stack.signals, stack.combiner.weights, "fitted", moments)
    model = RelevanceModel(fitted, Calibration(0.0, 1.0, 0.0, 40, None, 0.1))
    file = tmp_path / "stack.json"
    replace(stack, relevance=model).save(file)
    answer = run("query", text, "--stack", file, "--depth", 50, "-k", 50, "-w", cluster, "--json").json
    probabilities = sorted(hit["relevance"] for hit in answer["hits"])
    least = (probabilities[20] + probabilities[21]) / 2
    few = ("--min-score", least, "--depth", 50)
    expected = query_hits(run, cluster, text, "--stack", file, *few, count=50)
    assert len(expected) == 29
    refused = ("hook", "install", "-w", cluster, "--min-score", least)
    with serving(script, cluster, tmp_path, "--stack", file, RERANK_SERVICE_TOKEN=TOKEN) as server:
        try:
            run(*refused, *options(server)).fails(2, "no probabilities")  # of the untuned stack
            installed = ("hook", "install", "-w", cluster, "--service", server.url, "--timeout", 20, *few)
            assert run(*installed, "--default", "--json").ok().json["warnings"] == []
            body = {"query": {"match": {"content": text}}, "size": 20, "from": 20}
            for _ in range(2):  # without and with the fields that the service requests
                answer = plugged.request("POST", f"/{INDEX}/_search", body)
                assert_equal_hits(scored(answer), expected[20:])
                assert answer["hits"]["total"] == {"value": 29, "relation": "eq"}
                assert answer["ext"]["rerank_stack"]["removed"] == 21
            assert hook_status(run, cluster)["problems"] == []
            assert run("hook", "test", text, "-k", 40, "-w", cluster, "--json").json["same"]
        finally:
            run("hook", "remove", "-w", cluster)


def test_our_searches_do_not_use_the_default_pipeline(
    installed, cluster, service, run, plugged, tmp_path, small
):
    """Otherwise the service would search the node, which would call the service again."""
    adopted = tmp_path / "adopted"
    run("attach", "title=title", "text=text", "--url", plugged.url, "--index", INDEX, "-w", adopted).ok()
    before = flat(plugged.request("GET", "/_plugins/_rerank_stack/stats"))
    words = texts(small, 4)
    for folder in (cluster, adopted):
        engine = Workspace.open(folder).engine
        assert len(engine.find(SearchRequest(words[0], first_stage="bm25", depth=20))) == 20
        requests = [SearchRequest(text, "bm25", depth=20) for text in words]
        assert [len(actual) for actual in engine.search(requests)] == [20] * 4
        assert len(engine) == len(small.documents)
        actual = engine.find(SearchRequest(words[0], first_stage="bm25", depth=20))
        assert None not in engine.get(actual.ids)
        assert engine.score(words[0], "bm25", actual).all()
        assert len(engine.find(SearchRequest(words[0], ids=actual.ids, first_stage="bm25"))) == 20
        assert len(engine.ids()) == len(list(engine.documents())) == len(small.documents)
    after = flat(plugged.request("GET", "/_plugins/_rerank_stack/stats"))
    # OpenSearch always uses the default pipeline at a point in time. These searches are not reranked.
    for counters in (before, after):
        counters.pop("passed.no_text_query", None)
    assert after == before


def test_answers_of_the_service_are_sent_without_delay(service):
    """With Nagle's algorithm, each answer on an open connection would wait 40 ms for the client's ACK.

    On a busy machine most answers are slow, but not all of them.
    """
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    quick_answers = 0
    for number in range(1000):
        begin = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        seconds = time.perf_counter() - begin
        quick_answers += number >= 20 and seconds < 0.03  # the kernel sends the first ACKs at once
        if quick_answers == 10:
            break
    connection.close()
    assert quick_answers == 10


def test_searches_through_an_existing_pipeline_rank_like_evaluate(
    installed, plugged, cluster, service, small, run, tmp_path
):
    """The text scores are 20 times as high, and the pipeline has a filter, as in production."""
    theirs = {
        "request_processors": [{"filter_query": {"query": {"exists": {"field": "title"}}}}],
        "response_processors": [{"rename_field": {"field": "title", "target_field": "name"}}],
    }
    plugged.request("PUT", "/_search/pipeline/theirs", theirs)
    plugged.request("PUT", f"/{installed}/_settings", {DEFAULT: "theirs"})
    run("hook", "install", "-w", cluster, *options(service), "--add-to", "theirs", "--default").ok()
    processors = plugged.request("GET", f"/_search/pipeline/{PIPELINE}")[PIPELINE]["request_processors"]
    assert [next(iter(one)) for one in processors] == ["filter_query", "rerank_stack"]
    assert not [line for line in hook_status(run, cluster)["problems"] if "by hand" in line]
    match = {"match": {"content": {"query": "{{text}}", "boost": 20}}}
    template, runs = tmp_path / "loud.json", tmp_path / "runs"
    template.write_text(f"GET articles/_search?search_pipeline=theirs\n{json.dumps({'query': match})}")
    how = ("--first-stage", f"template:{template}", "--protocol", "retrieved:50", "--save-run", runs)
    how += ("--ignore-categories",)  # a plain search has no categories
    run(
        "evaluate", "--stack", STACK, *how, "--queries", small.queries, "--qrels", small.test, "-w", cluster
    ).ok()
    (file,) = [one for one in runs.iterdir() if "text" in one.name]
    ranked = read_run(file)
    queries = {query.id: query.text for query in read_queries(small.queries)}
    for id in [*ranked][:10]:
        match["match"]["content"]["query"] = queries[id]
        body = {"query": match, "size": 10}
        answer = plugged.request("POST", f"/{INDEX}/_search?search_pipeline={PIPELINE}", body)
        assert ids(answer) == [document for document, _ in ranked[id][:10]]
    run("hook", "test", queries[id], "-w", cluster).ok()
    run("hook", "install", "-w", cluster, *options(service), "--add-to", "gone").fails(2, "--add-to gone")
