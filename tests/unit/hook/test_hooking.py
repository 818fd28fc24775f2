"""The requests and settings of the hook, without a node."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.common.errors import UsageError
from rerank.hook import ROUTES, HookOptions, Request, StockHook, plugin, readiness, stock
from rerank.hook.cluster import Node
from rerank.hook.readiness import service_problems
from rerank.hook.retrieval import decide_retrieval
from rerank.hook.trial import SearchTrial, describe_outcome
from rerank.stack.linear import Linear
from rerank.stack.stack import Stack

URL = "http://127.0.0.1:8765"


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8765", "ftp://a", "http://", "http://me:secret@a", "http://a?b", "http://a#b", "http://a:0",
     "http://a:99999", "http://[1", "http://a b", ""],
)  # fmt: skip
def test_invalid_service_urls_are_refused(url):
    with pytest.raises(UsageError, match="--service"):
        HookOptions(url)


@pytest.mark.parametrize("timeout", [0, -1, 60.1, float("nan")])
def test_invalid_timeouts_are_refused(timeout):
    with pytest.raises(UsageError, match="--timeout"):
        HookOptions(URL, timeout=timeout)


def test_a_slash_at_the_end_of_the_url_is_removed():
    assert HookOptions("https://search.example/base//").url == "https://search.example/base"


def test_several_services_are_stored_in_one_text():
    options = HookOptions("http://a:1/, http://b:2")
    assert options.urls == ["http://a:1", "http://b:2"]
    assert plugin.body(options)["request_processors"][0]["rerank_stack"]["url"] == "http://a:1,http://b:2"
    with pytest.raises(UsageError, match="--service: several URLs are for the route plugin"):
        stock.settings(options)
    for url in ("http://a:1,", "http://a:1,b:2", ","):
        with pytest.raises(UsageError, match="--service"):
            HookOptions(url)


def test_a_service_that_does_not_answer_is_no_problem_of_the_others(monkeypatch):
    def check_service(url, *arguments):
        return (None, [f"{url} is down"]) if "down" in url else ({"ready": True}, [f"{url} is old"])

    monkeypatch.setattr(readiness, "check_service", check_service)
    check = readiness.check_services(["http://down", "http://up"], "", {}, None, 1)
    assert check == ({"ready": True}, ["http://up is old"], ["http://down is down"])
    assert readiness.check_services(["http://down"], "", {}, None, 1).service is None


@pytest.mark.parametrize("min_score", [-0.1, 1.1, float("nan")])
def test_a_minimum_that_is_no_probability_is_refused(min_score):
    with pytest.raises(UsageError, match=r"--min-score .*: give a number from 0 to 1"):
        HookOptions(URL, min_score=min_score)


def test_every_route_has_a_different_pipeline_suffix():
    assert len({route.suffix for route in ROUTES.values()}) == len(ROUTES) == 2
    assert all(route.route == name for name, route in ROUTES.items())


def test_the_stock_route_refuses_options_of_the_plugin_route():
    for more in ({"shadow": True}, {"add_to": "other"}, {"min_score": 0.0}):
        with pytest.raises(UsageError, match="are for the route plugin"):
            stock.settings(HookOptions(URL, **more))


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ([], False), (["http://a:1"], True), (["http://b", " http://a:1/"], True), (["http://a:12"], False),
        (["http://a:*"], True), (["http://a"], False), (["https://a:1"], False), (["*"], False),
    ],
)  # fmt: skip
def test_the_plugin_compares_urls_with_the_allowed_list(allowed, expected):
    assert plugin.is_allowed("http://a:1", allowed) is expected


@pytest.mark.parametrize(("timeout", "seconds"), [(0.001, 1), (1.0, 1), (1.001, 2), (20.0, 20)])
def test_ml_commons_timeouts_are_rounded_up_to_seconds(timeout, seconds):
    made = stock.connector("a", HookOptions(URL, timeout=timeout))
    assert made["client_config"]["read_timeout"] == made["client_config"]["connection_timeout"] == seconds


@settings(max_examples=30)
@given(st.text(), st.lists(st.text(), max_size=3), st.sampled_from([None, "bm25*0.5 + text*0.5"]))
def test_the_request_is_valid_json_for_any_query(text, ids, stack):
    """ML Commons escapes the query and inserts the ids as a JSON list."""
    (action,) = stock.connector("a", HookOptions(URL, stack))["actions"]
    body = action["request_body"].replace("${parameters.documents}", json.dumps(ids))
    body = body.replace('"${parameters.query}"', json.dumps(text))
    sent = json.loads(body)
    assert (sent["query"], sent["ids"], sent.get("stack")) == (text, ids, stack)


def test_a_token_is_not_shown_in_requests():
    expected = HookOptions(URL, token="sesame")
    made = stock.connector("a", expected)
    assert "sesame" not in str(Request("POST", "/", made)) + repr(expected)
    assert made["actions"][0]["headers"] == {"Authorization": "Bearer ${credential.token}"}
    filled = stock._filled(made, {"<token>": "sesame"})
    assert filled["credential"] == {"token": "sesame"}
    assert made["credential"] == {"token": "<token>"}
    assert stock.connector("a", HookOptions(URL))["actions"][0]["headers"] == {}
    assert stock.connector("a", HookOptions(URL))["credential"]["token"]  # ML Commons requires a credential


READY = {
    "ready": True,
    "stack": "tfidf",
    "rankers": {"text": "v1", "meta": "v1"},
    "tuned": ["bm25,text"],
    "max_candidates": 1000,
}
HERE = {"text": "v1", "meta": "v1"}


@pytest.mark.parametrize("stack", [None, "text", "bm25", "text,bm25", "bm25*0.5 + meta*0.5"])
def test_a_service_with_the_same_versions_has_no_problems(stack):
    assert service_problems(READY, HERE, stack, 1000) == []
    assert service_problems({"ready": True, "rankers": {}}, {}, None, 9999) == []  # older: without limits


def test_features_that_do_not_fit_into_a_call_are_a_problem():
    """1 MiB of JSON, and 600 + 4 + 3,000 bytes for each candidate."""
    about = {**READY, "max_body": 2**24, "stored_bytes": {"text": 3000}, "max_candidates": 10_000}
    fitting = (2**24 - 2**20) // 3604
    assert service_problems(about, HERE, "bm25,text", fitting) == []
    (problem,) = service_problems(about, HERE, "bm25,text", fitting + 1)
    assert f"install with --depth {fitting}" in problem
    assert f"--max-body {2**20 + (fitting + 1) * 3604}" in problem
    assert service_problems(about, HERE, "bm25", fitting + 1) == []


@pytest.mark.parametrize(
    ("stack", "depth", "here", "part"),
    [
        ("bm25,text", 1001, HERE, "takes 1,000 candidates"),
        ("bm25,text", 1001, HERE, "--max-candidates 1001"),
        ("bm25,meta", 10, HERE, "no tuned stack 'bm25,meta'"),
        ("bm25,joint", 10, HERE, "no signal joint"),
        ("bm25*", 10, HERE, "'bm25*'"),
        (None, 10, {"text": "v2", "meta": "v1"}, "other versions of text"),
        (None, 10, {**HERE, "joint": "v1"}, "other versions of joint"),
    ],
)
def test_a_service_that_does_not_match_has_a_problem(stack, depth, here, part):
    (problem,) = service_problems(READY, here, stack, depth)
    assert part in problem


@dataclass
class Retrieval:
    """An engine without a cluster, for the decision about the documents that rankers retrieve.

    adds_documents: whether the route can add documents.
    """

    adds_documents: bool = True
    missing_vectors: int | None = 0
    condition_words: tuple[str, ...] = ("content",)

    def count_missing_vectors(self, name: str, version: str) -> int | None:
        return self.missing_vectors

    def decide(self, retrieve: bool | None, stack: Stack | None) -> tuple[bool | None, tuple, list[str]]:
        options = HookOptions(URL, retrieve=retrieve)
        options, notes = decide_retrieval(options, self, stack, self.adds_documents)
        return options.retrieve, tuple(options.words), notes


LINEAR = Linear(("bm25", "s2net"), (0.5, 0.5))
RETRIEVING = Stack(LINEAR, "bm25", retrieve=("bm25", "s2net:100"), versions={"s2net": "v1"})


@pytest.mark.parametrize("adds_documents", [True, False])
@pytest.mark.parametrize("stack", [RETRIEVING, Stack(LINEAR, "bm25"), None])
def test_a_user_who_decided_against_retrieval_gets_no_note(stack, adds_documents):
    assert Retrieval(adds_documents).decide(False, stack) == (False, (), [])


@pytest.mark.parametrize("retrieve", [None, True])
def test_searches_get_the_documents_of_a_stack_that_retrieves(retrieve):
    retrieves, words, (note,) = Retrieval().decide(retrieve, RETRIEVING)
    assert (retrieves, words) == (True, ("content",))
    assert "s2net retrieves; --no-retrieve leaves them out" in note


def test_a_route_that_cannot_add_documents_says_so():
    retrieves, words, (note,) = Retrieval(adds_documents=False).decide(None, RETRIEVING)
    assert (retrieves, words) == (None, ())
    assert "use the route plugin" in note


@pytest.mark.parametrize("stack", [Stack(LINEAR, "bm25"), None])
def test_a_stack_that_does_not_retrieve_needs_no_decision(stack):
    assert Retrieval().decide(None, stack) == (None, (), [])


def test_retrieval_that_is_not_possible_is_refused():
    with pytest.raises(UsageError, match="no ranker that retrieves"):
        Retrieval().decide(True, Stack(LINEAR, "bm25"))
    with pytest.raises(UsageError, match="cannot retrieve on this index"):
        Retrieval(missing_vectors=None).decide(None, RETRIEVING)
    # The service has the stack, and it is not readable from here.
    assert Retrieval().decide(True, None) == (True, ("content",), [])


def test_the_stock_route_deletes_only_its_own_resources():
    """A model belongs to the hook if it has its name, or if it uses one of its connectors."""
    own = {"description": stock.MADE, "name": "rerank-articles-stock"}
    resources = {
        "connectors": {"c1": own, "c2": {**own, "name": "another"}, "c3": {"name": own["name"]}},
        "models": {"m2": {"connector_id": "c1"}, "m1": own, "m3": {"connector_id": "c2"}},
        "model_groups": {"g1": {"name": "group"}},
    }

    class Resources:
        def ask(self, method, path, body=None):
            kind = path.split("/")[3]
            hits = [{"_id": id, "_source": source} for id, source in resources[kind].items()]
            return {"hits": {"hits": hits}}

        def nodes(self):
            return [Node("a", "3.6.0", dict.fromkeys(StockHook.plugins, "3.6.0.0"))]

    hook = StockHook.__new__(StockHook)
    hook.name = own["name"]
    hook.cluster = Resources()
    requests = hook._deletions("models", "connectors", "model_groups")
    assert [str(request).rpartition("_ml/")[2] for request in requests] == [
        "models/m1",
        "models/m2",
        "connectors/c1",
    ]


@pytest.mark.parametrize(
    ("outcome", "reason", "part"),
    [
        (
            "failed",
            "refused",
            "the service at http://a:1 did not answer (refused); start it with `rerank serve`",
        ),
        ("failed", "connection", "did not answer (connection)"),
        ("failed", "timeout", "did not answer (timeout)"),
        ("failed", "breaker_open", "did not answer (breaker_open)"),
        ("failed", "status_422", "the call of the service failed (status_422); `rerank hook status`"),
        ("passed", "shadow", "in shadow mode; install it again without --shadow"),
        ("passed", "the query has no text", "the query has no text"),
        ("unknown", None, "the outcome 'unknown'"),
    ],
)
def test_a_trial_says_why_nothing_was_reranked(outcome, reason, part):
    problem = describe_outcome(outcome, reason, "http://a:1")
    assert problem.startswith("nothing was reranked: ")
    assert part in problem
    assert "\n" not in problem


def trial_of(outcome, reason, *, same):
    problem = describe_outcome(outcome, reason, "http://a:1")
    trial = SearchTrial("p", {}, "bm25", 10, outcome, reason, ("a",), ("a",), ("a",), same, 0.5, problem)
    return trial


@pytest.mark.parametrize("same", [True, False])
def test_a_search_that_was_not_reranked_is_not_compared(monkeypatch, run, same):
    monkeypatch.setattr("rerank.cli.hook._open_hook", lambda *_: None)
    failed = trial_of("failed", "refused", same=same)
    monkeypatch.setattr("rerank.hook.try_search", lambda *_: failed)
    shown = run("hook", "test", "wolf", "-w", "my ws")
    assert shown.code == 1
    assert shown.out.splitlines()[-1].startswith("nothing was reranked: the service at http://a:1")
    assert "`rerank serve -w 'my ws'`" in shown.out
    assert "order" not in shown.out
    assert "scores" not in shown.out


@pytest.mark.parametrize(("outcome", "reason"), [("reranked", None), ("passed", "no_hits")])
def test_a_trial_without_a_problem_is_compared(monkeypatch, run, outcome, reason):
    monkeypatch.setattr("rerank.cli.hook._open_hook", lambda *_: None)
    monkeypatch.setattr("rerank.hook.try_search", lambda *_: trial_of(outcome, reason, same=True))
    shown = run("hook", "test", "wolf").ok()
    assert "the order is the same" in shown.out
