"""The search-pipeline processor on a real node, with a small HTTP server in the place of the service."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.node import VERSION, CannotRunError, Node, java_home

PLUGIN = Path(__file__).resolve().parents[2] / "opensearch_plugin"
TOKEN = "open sesame"
WORDS = {"query": {"match": {"text": "cell"}}}
COUNT = 30  # documents of the index "cells"


def build(target: Path, version: str = VERSION) -> Path:
    """Build the plugin for a server, and return its zip."""
    if shutil.which("mvn") is None:
        raise CannotRunError("Maven (mvn) builds the plugin; install it")
    local = os.environ.get("MAVEN_REPO_LOCAL", str(Path.home() / ".m2" / "repository"))
    command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={local}", f"-Dopensearch.version={version}"]
    done = subprocess.run(
        [*command, f"-Dtarget={target}", "package"],
        cwd=PLUGIN,
        env={**os.environ, "JAVA_HOME": str(java_home(version))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        text = done.stdout + done.stderr
        if "Could not transfer" in text or "Could not resolve" in text:
            raise CannotRunError(f"Maven cannot bring what the plugin needs: {text[-500:]}")
        raise AssertionError(text)
    (archive,) = target.glob("*.zip")
    return archive


def set_token(node: Node, token: str) -> None:
    """Write the token into the node's keystore, with the distribution's own tool."""
    environment = {
        "PATH": os.environ["PATH"],
        "OPENSEARCH_JAVA_HOME": str(node._java),
        "OPENSEARCH_PATH_CONF": str(node.folder / "config"),
    }
    tool = str(node.home / "bin" / "opensearch-keystore")
    if not (node.folder / "config" / "opensearch.keystore").exists():
        subprocess.run([tool, "create"], env=environment, check=True, capture_output=True)
    add = [tool, "add", "--stdin", "--force", "rerank.token"]
    subprocess.run(add, env=environment, input=f"{token}\n".encode(), check=True, capture_output=True)
    if os.getuid() == 0:  # the node does not run as root
        owner = (node.folder / "config" / "opensearch.yml").stat()
        os.chown(node.folder / "config" / "opensearch.keystore", owner.st_uid, owner.st_gid)


@pytest.fixture(scope="module")  # no longer: other tests have nodes of their own
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the plugin and a few indices."""
    with running(VERSION, tmp_path_factory.mktemp("plugin")) as node:
        yield node


@contextlib.contextmanager
def running(version: str, target: Path, **options: Any) -> Iterator[Node]:
    try:
        node = Node(version=version, heap="768m", plugins=[build(target, version)], **options)
    except CannotRunError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        set_token(node, TOKEN)
        node.start().wait()
        fill(node)
        yield node
    finally:
        node.stop()


def fill(node: Node) -> None:
    features = {"type": "binary", "doc_values": True}
    properties = {
        "id": {"type": "keyword"},
        "text": {"type": "text"},
        "kind": {"type": "keyword"},
        "n": {"type": "integer"},
        "words": {"type": "completion"},
        "rerank_features": {"properties": {"text@v": features, "meta@w": features}},
    }
    for index, shards in (("cells", 1), ("spread", 3), ("small", 1)):
        settings: dict[str, object] = {"number_of_shards": shards, "number_of_replicas": 0}
        if index == "small":
            settings |= {"max_result_window": 20, "max_docvalue_fields_search": 1}
        node.request("PUT", f"/{index}", {"settings": settings, "mappings": {"properties": properties}})
        for i in range(COUNT):
            source: dict[str, Any] = {
                "id": str(i),
                "text": "cell " * (COUNT - i) + "filler " * i,
                "kind": "ab"[i % 2],
                "n": i,
                "words": f"cell{i}",
                "rerank_features": {"text@v": b64encode(bytes([i, 0, 0])).decode()},
            }
            if index == "small":
                del source["id"]
            if i % 2:  # half of the documents lack this one
                source["rerank_features"]["meta@w"] = b64encode(bytes([0, i, 0])).decode()
            node.request("PUT", f"/{index}/_doc/{i}", source)
        node.request("POST", f"/{index}/_refresh")
    node.request("POST", "/_aliases", {"actions": [{"add": {"index": "cells", "alias": "tissue"}}]})


Answering = Callable[["Handler", dict[str, Any]], None]


def reverse(body: dict[str, Any], **more: object) -> dict[str, Any]:
    """The answer of most tests: the last is the best."""
    n = len(body["ids"])
    return {"ids": body["ids"][::-1], "scores": [100.0 + n - i for i in range(n)], **more}


def wish(*features: str, id: str | None = None, categories: str | None = None) -> dict[str, Any]:
    """What the service wants with the next call."""
    return {"features": list(features), "id": id, "categories": categories, "voters": 3 if categories else 0}


BARE = wish("text@v", id="id", categories="kind")
"""With the field that repeats _id, candidates come without stored fields."""


def read(data: bytes) -> dict[str, Any]:
    """A call, with its features as Base64."""
    length = int.from_bytes(data[:4], "big")
    body: dict[str, Any] = json.loads(data[4 : 4 + length])
    begin = 4 + length
    for name, rows in body["features"].items():
        found: list[str | None] = []
        for i in range(len(body["ids"])):
            if i in rows["missing"]:
                found.append(None)
                continue
            found.append(b64encode(data[begin : begin + rows["bytes"]]).decode())
            begin += rows["bytes"]
        body["features"][name] = found
    assert begin == len(data)
    return body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer takes 40 ms
    server: Dummy

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = read(self.rfile.read(int(self.headers["Content-Length"])))
        dummy = self.server
        with dummy.lock:
            dummy.seen.append((self.path, dict(self.headers), body))
        dummy.answering(self, body)

    def send(
        self, answer: object, status: int = 200, kind: str = "application/json", cut: int | None = None
    ) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True


class Dummy(ThreadingHTTPServer):
    """Stands for the service; ``answering`` says how, ``seen`` has what it was asked."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.sockets: list[socket.socket] = []
        self.answering: Answering = lambda handler, body: handler.send(reverse(body))
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def get_request(self) -> tuple[Any, Any]:
        found = super().get_request()
        self.sockets.append(found[0])
        return found

    def handle_error(self, *_: object) -> None:
        pass  # the node hangs up when it has waited long enough

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def last(self) -> dict[str, Any]:
        return self.seen[-1][2]

    def end(self) -> None:
        """Stop as a killed process does: connections end, idle or not."""
        self.shutdown()
        self.server_close()
        for open_one in self.sockets:
            with contextlib.suppress(OSError):
                open_one.shutdown(socket.SHUT_RDWR)  # close alone leaves a thread that reads with it
                open_one.close()


@pytest.fixture
def dummy() -> Iterator[Dummy]:
    started = Dummy()
    try:
        yield started
    finally:
        started.end()


class Hook:
    """A pipeline on the node, and searches through it."""

    def __init__(self, node: Node, url: str) -> None:
        self.node, self.url = node, url
        self.configure()

    def configure(self, **settings: object) -> Hook:
        # Generous: the machines that run tests are busy. The breaker has tests of its own.
        config = {"url": self.url, "timeout": 20000, "breaker_failures": 1000, **settings}
        pipeline = {
            "request_processors": [{"rerank_stack": config}],
            "response_processors": [{"rerank_stack": {}}],
        }
        self.node.request("PUT", "/_search/pipeline/hook", pipeline)
        return self

    def search(self, body: dict[str, Any], index: str = "cells", more: str = "") -> dict[str, Any]:
        return self.node.request("POST", f"/{index}/_search?search_pipeline=hook{more}", body)

    def plain(self, body: dict[str, Any], index: str = "cells", more: str = "") -> dict[str, Any]:
        return self.node.request("POST", f"/{index}/_search?{more}", body)

    def counted(
        self, body: dict[str, Any], index: str = "cells", more: str = ""
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Search, and return also which counters went up by how much."""
        answers: list[dict[str, Any]] = []
        counters = self.changes(lambda: answers.append(self.search(body, index, more)))
        return answers[0], counters

    def stats(self) -> dict[str, Any]:
        return self.node.request("GET", "/_rerank/stats")

    def changes(self, act: Callable[[], object]) -> dict[str, int]:
        """Which counters go up while something is done, and by how much."""
        before = flat(self.stats())
        act()
        after = flat(self.stats())
        return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


def flat(stats: dict[str, Any]) -> dict[str, int]:
    counters = {"reranked": stats["reranked"], "breaker_opened": stats["breaker_opened"]}
    for kind in ("passed", "failed"):
        counters |= {f"{kind}.{reason}": n for reason, n in stats[kind].items()}
    return counters


@pytest.fixture
def hook(hooked: Node, dummy: Dummy) -> Hook:
    return Hook(hooked, dummy.url)


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


def without_took(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("took", "profile")}


NUMBERS = [str(i) for i in range(COUNT)]  # the order of the first stage


def test_hits_come_in_the_order_of_the_service(hook: Hook, dummy: Dummy) -> None:
    answer, counters = hook.counted(WORDS)
    assert ids(answer) == NUMBERS[::-1][:10]
    assert [hit["_score"] for hit in answer["hits"]["hits"]] == [100.0 + COUNT - i for i in range(10)]
    assert answer["hits"]["max_score"] == 100.0 + COUNT
    assert answer["hits"]["total"] == {"value": COUNT, "relation": "eq"}
    assert counters == {"reranked": 1}


def test_the_call(hook: Hook, dummy: Dummy) -> None:
    hook.configure(stack="mine")
    hook.search(WORDS, "tissue")
    path, headers, body = dummy.seen[-1]
    assert path == "/v1/hook"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Content-Type"] == "application/octet-stream"
    assert "Upgrade" not in headers
    assert body["query"]["match"]["text"]["query"] == "cell"
    assert body["ids"] == NUMBERS
    first = [hit["_score"] for hit in hook.plain({**WORDS, "size": COUNT})["hits"]["hits"]]
    assert body["scores"] == first
    del body["query"], body["ids"], body["scores"]
    assert body == {"stack": "mine", "index": ["tissue"], "rerank": None, "features": {}, "categories": {}}
    ext = {"stack": "other", "query": "my words", "categories": ["a", "b"]}
    hook.search({**WORDS, "ext": {"rerank": ext}})
    assert (dummy.last["stack"], dummy.last["rerank"]) == ("other", ext)


def test_the_window(hook: Hook) -> None:
    hook.configure(depth=20)
    best = NUMBERS[:20][::-1]
    for start, size in ((0, 1), (0, 20), (5, 10), (19, 1), (15, 5)):
        answer = hook.search({**WORDS, "from": start, "size": size})
        assert ids(answer) == best[start : start + size]
        assert answer["hits"]["max_score"] == 120.0
    hook.configure(depth=100)  # more than there are documents
    assert ids(hook.search({**WORDS, "from": 28, "size": 10})) == ["1", "0"]
    assert ids(hook.search({**WORDS, "from": 50, "size": 10})) == []


def test_features_are_fetched_when_the_service_asks(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(
        reverse(body, wishes=wish("text@v", "meta@w", "no@x"))
    )
    hook.search(WORDS)
    assert dummy.last["features"] == {}
    answer = hook.search({**WORDS, "_source": False})
    features = dummy.last["features"]
    assert features["text@v"] == [b64encode(bytes([i, 0, 0])).decode() for i in range(COUNT)]
    wanted = [b64encode(bytes([0, i, 0])).decode() if i % 2 else None for i in range(COUNT)]
    assert features["meta@w"] == wanted
    assert features["no@x"] == [None] * COUNT
    assert all(set(hit) == {"_index", "_id", "_score"} for hit in answer["hits"]["hits"])
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=wish()))
    hook.search(WORDS)
    hook.search(WORDS)
    assert dummy.last["features"] == {}


def test_fields_that_the_user_asks_for_come_back(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=wish("text@v", "meta@w")))
    hook.search(WORDS)
    for fields in (["n"], ["n", "rerank_features.text@v"], ["rerank_features.*"], [{"field": "n"}]):
        body = {**WORDS, "docvalue_fields": fields, "size": COUNT}
        found = {h["_id"]: h.get("fields") for h in hook.search(body)["hits"]["hits"]}
        assert found == {h["_id"]: h.get("fields") for h in hook.plain(body)["hits"]["hits"]}
        assert dummy.last["features"]["text@v"][3] == b64encode(bytes([3, 0, 0])).decode()


@pytest.mark.parametrize(
    "more",
    [
        {"_source": False},
        {"_source": ["n"]},
        {"_source": {"excludes": ["text", "rerank_features"]}},
        {"stored_fields": []},
        {"track_total_hits": False},
        {"track_total_hits": 5},
        {"aggs": {"kinds": {"terms": {"field": "kind"}, "aggs": {"mean": {"avg": {"field": "n"}}}}}},
        {"highlight": {"fields": {"text": {}}}},
        {"suggest": {"s": {"text": "cel", "term": {"field": "text"}}}},
        {"sort": ["_score"]},
        {"sort": [{"_score": "desc"}]},
        {"version": True, "seq_no_primary_term": True},
        {"script_fields": {"twice": {"script": "doc['n'].value * 2"}}},
        {"fields": ["n", "kind"]},
        {"post_filter": {"term": {"kind": "a"}}},
        {"min_score": 0.0001},
        {"track_scores": True},
        {"timeout": "10s", "terminate_after": 1000},
        {"rescore": {"window_size": 5, "query": {"rescore_query": {"match": {"text": "filler"}}}}},
        {"explain": True},
        {"profile": True},
    ],
    ids=lambda more: "-".join(more),
)
@pytest.mark.parametrize("wishes", [wish("text@v"), BARE], ids=["whole", "bare"])
def test_works_with(hook: Hook, dummy: Dummy, more: dict[str, Any], wishes: dict[str, Any]) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=wishes))
    body = {**WORDS, **more}
    hook.search(body)
    answer, counters = hook.counted({**body, "size": 12, "from": 1})
    assert counters == {"reranked": 1}
    plain = hook.plain({**body, "size": 100})
    wanted = plain["hits"]["hits"][::-1][1:13]
    for hit, score in zip(wanted, range(100), strict=False):
        hit["_score"] = 100.0 + len(plain["hits"]["hits"]) - 1 - score
        hit.pop("_explanation", None)
    found = without_took(answer)
    for hit in found["hits"]["hits"]:
        hit.pop("_explanation", None)
    assert found["hits"]["hits"] == wanted
    plain["hits"] |= {"hits": wanted, "max_score": 100.0 + len(dummy.last["ids"])}
    assert found == without_took(plain)
    assert dummy.last["features"]["text@v"][0] is not None
    if "profile" in more:
        assert len(answer["profile"]["shards"]) == 1


def test_what_the_first_hits_are_about(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=BARE))
    hook.search(WORDS)
    assert dummy.last["categories"] == {}
    for more in ({}, {"highlight": {"fields": {"text": {}}}}, {"docvalue_fields": ["kind"]}):
        answer = hook.search({**WORDS, **more})
        assert dummy.last["categories"] == {"0": ["a"], "1": ["b"], "2": ["a"]}
        assert all(("fields" in hit) == ("docvalue_fields" in more) for hit in answer["hits"]["hits"])


@pytest.mark.parametrize("change", ["update", "delete"])
def test_documents_that_change_while_the_service_thinks(hook: Hook, dummy: Dummy, change: str) -> None:
    """What was ranked is no more: the candidates are searched for once more."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=BARE))
        if change == "delete":
            hook.node.request("DELETE", "/changing/_doc/new?refresh=true")
        else:
            hook.node.request("PUT", "/changing/_doc/new?refresh=true", {**source, "n": 2})
        dummy.answering(handler, body)

    mapping = {"mappings": hook.node.request("GET", "/cells/_mapping")["cells"]["mappings"]}
    source = {"id": "new", "text": "novel", "n": 1}
    hook.node.request("PUT", "/changing", mapping)
    try:
        hook.node.request("PUT", "/changing/_doc/new?refresh=true", source)
        hook.node.request("PUT", "/changing/_doc/newer?refresh=true", {**source, "id": "newer"})
        dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=BARE))
        body = {"query": {"match": {"text": "novel"}}}
        hook.search(body, "changing")
        dummy.answering = answer
        found, counters = hook.counted(body, "changing")
        plain = hook.plain(body, "changing")["hits"]["hits"]
        assert [(h["_id"], h["_source"]) for h in found["hits"]["hits"]] == [
            (h["_id"], h["_source"]) for h in plain
        ][::-1]
        assert counters == {"reranked": 1}
        assert len(dummy.seen) == 3
    finally:
        hook.node.request("DELETE", "/changing")


def test_documents_that_do_not_repeat_their_id(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=BARE))
    for index in ("cells,small", "cells,spread"):
        hook.search(WORDS, index)
        answer, counters = hook.counted({**WORDS, "size": 15}, index)
        assert counters == {"reranked": 1}
        body = {**WORDS, "size": 20 if "small" in index else 60}
        plain = hook.plain(body, index)["hits"]["hits"][::-1][:15]
        assert [(h["_index"], h["_id"], h["_source"]) for h in answer["hits"]["hits"]] == [
            (h["_index"], h["_id"], h["_source"]) for h in plain
        ]


def test_names_and_inner_hits_of_queries(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=BARE))
    named = {"match": {"text": {"query": "cell", "_name": "words"}}}
    for query in (
        named,
        {"bool": {"must": {"constant_score": {"filter": named}}}},
        {
            "boosting": {
                "positive": {"bool": {"must": named}},
                "negative": {"term": {"kind": "b"}},
                "negative_boost": 0.5,
            }
        },
    ):
        hook.search({"query": query})
        answer = hook.search({"query": query})
        assert all(hit["matched_queries"] == ["words"] for hit in answer["hits"]["hits"])


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("sort", {**WORDS, "sort": ["n"]}),
        ("sort", {**WORDS, "sort": [{"_score": "asc"}]}),
        ("sort", {**WORDS, "sort": ["_score", "n"]}),
        ("search_after", {**WORDS, "sort": ["n"], "search_after": [3]}),
        ("size_0", {**WORDS, "size": 0, "aggs": {"kinds": {"terms": {"field": "kind"}}}}),
        ("window", {**WORDS, "from": 15, "size": 10}),
        ("window", {**WORDS, "size": 21}),
        ("collapse", {**WORDS, "collapse": {"field": "kind"}}),
        ("no_text_query", {}),
        ("no_text_query", {"query": {"match_all": {}}}),
        ("no_text_query", {"query": {"term": {"kind": "a"}}, "size": 3}),
        ("no_text_query", {"suggest": {"s": {"text": "cel", "term": {"field": "text"}}}}),
        ("no_ids", {**WORDS, "stored_fields": "_none_"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_passes_through(hook: Hook, dummy: Dummy, reason: str, body: dict[str, Any]) -> None:
    hook.configure(depth=20)
    answer, counters = hook.counted(body)
    assert counters == {f"passed.{reason}": 1}
    assert without_took(answer) == without_took(hook.plain(body))
    assert dummy.seen == []


def test_passes_what_the_user_turns_off(hook: Hook, dummy: Dummy) -> None:
    body = {**WORDS, "ext": {"rerank": {"off": True}}}
    assert hook.changes(lambda: hook.search(body)) == {"passed.off": 1}
    assert ids(hook.search(body)) == NUMBERS[:10]
    assert dummy.seen == []


def test_passes_scrolls_and_points_in_time_with_search_after(hook: Hook, dummy: Dummy) -> None:
    assert hook.changes(lambda: hook.search({**WORDS, "size": 4}, more="&scroll=1m")) == {"passed.scroll": 1}
    pit = hook.node.request("POST", "/cells/_search/point_in_time?keep_alive=1m")["pit_id"]
    body = {**WORDS, "pit": {"id": pit, "keep_alive": "1m"}}
    after = {**body, "sort": ["n"], "search_after": [3]}
    path = "/_search?search_pipeline=hook"
    assert hook.changes(lambda: hook.node.request("POST", path, after)) == {"passed.search_after": 1}
    sliced = {**body, "slice": {"id": 0, "max": 2}}
    assert hook.changes(lambda: hook.node.request("POST", path, sliced)) == {"passed.slice": 1}
    assert dummy.seen == []
    answer = hook.node.request("POST", path, body)  # a page of a point in time is a search like others
    assert ids(answer) == NUMBERS[::-1][:10]
    assert "pit_id" in answer
    assert dummy.last["index"] == ["cells"]
    pit = hook.node.request("POST", "/small/_search/point_in_time?keep_alive=1m")["pit_id"]
    hook.node.request("POST", path, {**WORDS, "pit": {"id": pit}})
    assert len(dummy.last["ids"]) == 20  # its max_result_window


def test_passes_what_the_service_passes(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send({"passed": "no words"})
    body = {"query": {"bool": {"filter": {"term": {"kind": "a"}}}}, "from": 2, "size": 3}
    answer, counters = hook.counted(body)
    assert counters == {"passed.no words": 1}
    assert without_took(answer) == without_took(hook.plain(body))


def test_nothing_found_asks_nobody(hook: Hook, dummy: Dummy) -> None:
    body = {"query": {"match": {"text": "absent"}}}
    answer, counters = hook.counted(body)
    assert counters == {"passed.no_hits": 1}
    assert without_took(answer) == without_took(hook.plain(body))
    assert dummy.seen == []


def test_text_that_the_user_says_makes_any_query_rerankable(hook: Hook, dummy: Dummy) -> None:
    body = {"query": {"match_all": {}}, "size": 3, "ext": {"rerank": {"query": "cell"}}}
    answer = hook.search(body)
    assert ids(answer) == NUMBERS[::-1][:3]
    hook.search({"ext": {"rerank": {"query": "cell"}}})
    assert dummy.last["query"] is None


def test_limits_of_an_index_are_kept(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=wish("text@v", "meta@w")))
    assert ids(hook.search(WORDS, "small")) == NUMBERS[:20][::-1][:10]
    assert len(dummy.last["ids"]) == 20  # max_result_window
    hook.search(WORDS, "small")
    assert dummy.last["features"] == {}  # max_docvalue_fields_search
    assert hook.changes(lambda: hook.search({**WORDS, "from": 19, "size": 1}, "small")) == {"reranked": 1}


def test_several_indices_and_shards(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=wish("text@v")))
    hook.search(WORDS, "spread")
    answer = hook.search({**WORDS, "size": COUNT}, "spread")
    plain = hook.plain({**WORDS, "size": COUNT}, "spread")
    assert ids(answer) == ids(plain)[::-1]
    assert answer["_shards"]["total"] == 3
    hook.search(WORDS, "cells,spread")
    answer = hook.search({**WORDS, "size": 60}, "cells,spread")
    plain = hook.plain({**WORDS, "size": 60}, "cells,spread")
    assert [(h["_index"], h["_id"]) for h in answer["hits"]["hits"]] == [
        (h["_index"], h["_id"]) for h in plain["hits"]["hits"]
    ][::-1]
    assert len(set(dummy.last["ids"])) == 60  # the same ids of two indices are told apart
    assert dummy.last["index"] == ["cells", "spread"]
    decoded = [b64encode(bytes([int(h["_id"]), 0, 0])).decode() for h in plain["hits"]["hits"]]
    assert dummy.last["features"]["text@v"] == decoded
    hook.search(WORDS, "cell*")
    assert dummy.last["index"] == ["cell*"]
    assert ids(hook.search(WORDS, "tissue")) == NUMBERS[::-1][:10]


def test_missing_index_is_the_searches_own_error(hook: Hook) -> None:
    with pytest.raises(ValueError, match=r"404.*index_not_found"):
        hook.search(WORDS, "nowhere")
    with pytest.raises(ValueError, match=r"400.*parsing_exception"):
        hook.search({"query": {"nonsense": {}}})


def test_explain(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(
        reverse(body, signals=[{"text": i / 2, "words": ["a"]} for i in range(len(body["ids"]))])
    )
    body = {**WORDS, "_source": False, "size": 2, "ext": {"rerank": {"explain": True}}}
    answer = hook.search(body)
    assert answer["ext"]["rerank"]["outcome"] == "reranked"
    assert answer["ext"]["rerank"]["took_ms"] > 0
    scores = dummy.last["scores"]
    assert [hit["fields"] for hit in answer["hits"]["hits"]] == [
        {"_rerank": [{"first_stage": {"rank": rank, "score": scores[rank - 1]}, "signals": signals}]}
        for rank, signals in ((30, {"text": 0.0, "words": ["a"]}), (29, {"text": 0.5, "words": ["a"]}))
    ]
    assert "ext" not in hook.search(WORDS)
    assert "_rerank" not in json.dumps(hook.search(WORDS))
    answer = hook.search({**body, "sort": ["n"]})
    assert (answer["ext"]["rerank"]["outcome"], answer["ext"]["rerank"]["reason"]) == ("passed", "sort")
    dummy.answering = lambda handler, body: handler.send(b"<html>")
    answer = hook.search(body)
    assert (answer["ext"]["rerank"]["outcome"], answer["ext"]["rerank"]["reason"]) == ("failed", "not_json")


@pytest.mark.parametrize(
    "ext", [{"of": True}, {"off": "yes"}, {"query": 3}, {"stack": None}, {"categories": "a"}]
)
def test_a_wrong_ext_is_an_error(hook: Hook, ext: object) -> None:
    with pytest.raises(ValueError, match=": 400 "):
        hook.search({**WORDS, "ext": {"rerank": ext}})


def hang(handler: Handler, body: dict[str, Any]) -> None:
    time.sleep(3)


def hang_in_body(handler: Handler, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"ids": [')
    handler.wfile.flush()
    time.sleep(3)


def endless(handler: Handler, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def hang_up(handler: Handler, body: dict[str, Any]) -> None:
    handler.close_connection = True


def sending(change: Callable[[dict[str, Any]], object], **more: Any) -> Answering:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        result = reverse(body)
        changed = change(result)
        handler.send(result if changed is None else changed, **more)

    return answer


def put(name: str, value: Callable[[list[Any]], list[Any]]) -> Answering:
    return sending(lambda answer: answer.update({name: value(answer[name])}))


FAULTS: dict[str, tuple[str, Answering]] = {
    "hangs": ("timeout", hang),
    "hangs in the body": ("timeout", hang_in_body),
    "hangs up": ("connection", hang_up),
    "truncated": ("connection", sending(lambda answer: None, cut=40)),
    "truncated JSON": ("not_json", sending(lambda answer: json.dumps(answer)[:-30].encode())),
    "500": ("status_500", sending(lambda answer: None, status=500)),
    "503": ("status_503", sending(lambda answer: None, status=503)),
    "401": ("status_401", sending(lambda answer: {"detail": "token"}, status=401)),
    "413": ("status_413", sending(lambda answer: {"detail": "large"}, status=413)),
    "redirect": ("status_302", sending(lambda answer: None, status=302)),
    "HTML": ("not_json", sending(lambda answer: b"<html><body>Welcome</body></html>", kind="text/html")),
    "empty": ("bad_answer", sending(lambda answer: b"")),
    "a list": ("bad_answer", sending(lambda answer: [answer])),
    "another object": ("bad_answer", sending(lambda answer: {"results": []})),
    "too few scores": ("bad_answer", put("scores", lambda scores: scores[:-1])),
    "too few hits": ("bad_answer", sending(lambda a: {k: v[:-1] for k, v in a.items()})),
    "too many hits": ("bad_answer", sending(lambda a: {k: v + v[:1] for k, v in a.items()})),
    "unknown id": ("bad_answer", put("ids", lambda ids: ids[:-1] + ["x"])),
    "id twice": ("bad_answer", put("ids", lambda ids: ids[:-1] + ids[:1])),
    "id null": ("bad_answer", put("ids", lambda ids: ids[:-1] + [None])),
    "NaN": ("not_json|bad_answer", put("scores", lambda scores: scores[:-1] + [float("nan")])),
    "infinite": ("not_json|bad_answer", put("scores", lambda scores: [float("inf"), *scores[1:]])),
    "beyond float": ("bad_answer", put("scores", lambda scores: [1e300, *scores[1:]])),
    "null": ("bad_answer", put("scores", lambda scores: [None, *scores[1:]])),
    "text for a score": ("bad_answer", put("scores", lambda scores: ["1", *scores[1:]])),
    "a pattern for features": ("bad_answer", sending(lambda answer: answer.update(wishes=wish("*")))),
    "huge": ("too_large", sending(lambda answer: b'{"ids": "' + b"x" * 20_000_000 + b'"}')),
    "endless": ("too_large", endless),
    "deep": ("not_json|bad_answer", sending(lambda answer: b'{"ids": ' + b"[" * 100_000)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_service_does_the_search_answers(hook: Hook, dummy: Dummy, fault: str) -> None:
    reason, dummy.answering = FAULTS[fault]
    hook.configure(timeout=1000 if reason == "timeout" else 20000)
    body = {**WORDS, "from": 2, "size": 3, "docvalue_fields": ["n"]}
    start = time.monotonic()
    answer, counters = hook.counted(body)
    took = time.monotonic() - start
    assert counters in [{f"failed.{one}": 1} for one in reason.split("|")]
    assert without_took(answer) == without_took(hook.plain(body))
    if reason == "timeout":
        assert 1 <= took < 2.9
        assert answer["took"] >= 1000
    dummy.answering = lambda handler, body: handler.send(reverse(body))
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]


@pytest.mark.parametrize("wishes", [wish("text@v"), BARE], ids=["whole", "bare"])
def test_a_failure_removes_the_features_too(hook: Hook, dummy: Dummy, wishes: dict[str, Any]) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=wishes))
    hook.search(WORDS)
    for answering in (FAULTS["500"][1], lambda handler, body: handler.send({"passed": "x"})):
        dummy.answering = answering
        answer = hook.search(WORDS)
        assert "text@v" in dummy.last["features"]
        assert without_took(answer) == without_took(hook.plain(WORDS))


def test_nobody_listens(hooked: Node, dummy: Dummy) -> None:
    dummy.end()
    hook = Hook(hooked, dummy.url)
    answer, counters = hook.counted(WORDS)
    assert counters == {"failed.refused": 1}
    assert without_took(answer) == without_took(hook.plain(WORDS))
    hook = Hook(hooked, "http://host.invalid:1")
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.refused": 1}


def test_failures_are_errors_where_wanted(hook: Hook, dummy: Dummy) -> None:
    hook.configure(on_failure="error", breaker_failures=1, breaker_pause=60000)
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
    dummy.answering = FAULTS["500"][1]
    with pytest.raises(ValueError, match=r"503 .*status_500"):
        hook.search(WORDS)
    with pytest.raises(ValueError, match=r"503 .*breaker_open"):
        hook.search(WORDS)
    assert ids(hook.search({**WORDS, "sort": ["n"]}))  # nothing to rerank, so nothing that fails


def test_the_breaker(hook: Hook, dummy: Dummy) -> None:
    hook.configure(breaker_failures=3, breaker_pause=2000, timeout=2000)
    for fault in ("500", "413", "500", "500"):  # 413 is one search's fault: it starts the count again
        dummy.answering = FAULTS[fault][1]
        hook.search(WORDS)
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.status_500": 1, "breaker_opened": 1}
    called = len(dummy.seen)
    counted = hook.changes(lambda: [hook.search(WORDS) for _ in range(5)])
    assert counted == {"failed.breaker_open": 5}
    assert len(dummy.seen) == called
    time.sleep(2.1)
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.status_500": 1}  # one trial, and open again
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.breaker_open": 1}
    dummy.answering = lambda handler, body: handler.send(reverse(body))
    time.sleep(2.1)
    assert hook.changes(lambda: [hook.search(WORDS) for _ in range(3)]) == {"reranked": 3}


def test_restarts_are_survived(hooked: Node) -> None:
    first = Dummy()
    hook = Hook(hooked, first.url)
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
    first.end()
    second = Dummy(first.server_port)
    try:
        # The node has a connection that is no more.
        assert hook.changes(lambda: hook.search(WORDS)) == {"reranked": 1}
    finally:
        second.end()


def test_a_connection_that_breaks_once_does_not_matter(hook: Hook, dummy: Dummy) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        dummy.answering = lambda handler, body: handler.send(reverse(body))
        hang_up(handler, body)

    dummy.answering = answer
    assert hook.counted(WORDS)[1] == {"reranked": 1}
    assert len(dummy.seen) == 2


def test_restarted_under_load(hooked: Node) -> None:
    service = Dummy()
    hook = Hook(hooked, service.url).configure(breaker_pause=200)
    stop = threading.Event()
    wrong: list[list[str]] = []

    def search() -> None:
        while not stop.is_set():
            found = ids(hook.search(WORDS))
            if found not in (NUMBERS[:10], NUMBERS[::-1][:10]):
                wrong.append(found)

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(search) for _ in range(4)]
        for _ in range(3):
            time.sleep(0.5)
            service.end()
            time.sleep(0.2)
            service = Dummy(service.server_port)
        time.sleep(0.5)
        stop.set()
        for run in runs:
            run.result()
    assert wrong == []
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
    service.end()


def test_many_at_once(hook: Hook, dummy: Dummy) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        time.sleep(0.5)
        handler.send(reverse(body))

    found: list[dict[str, Any]] = []
    dummy.answering = answer
    with ThreadPoolExecutor(100) as pool:
        counters = hook.changes(lambda: found.extend(pool.map(hook.search, [WORDS] * 100)))
    assert counters == {"reranked": 100}
    assert all(ids(one) == NUMBERS[::-1][:10] for one in found)


def test_no_more_calls_than_allowed(hook: Hook, dummy: Dummy) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        with dummy.lock:
            now[0] += 1
            now[1] = max(now)
        time.sleep(0.3)
        with dummy.lock:
            now[0] -= 1
        handler.send(reverse(body))

    now = [0, 0]
    hook.configure(max_connections=4)
    dummy.answering = answer
    with ThreadPoolExecutor(30) as pool:
        counted = hook.changes(lambda: list(pool.map(hook.search, [WORDS] * 30)))
    assert now[1] <= 4
    assert set(counted) == {"reranked", "failed.busy"}
    assert sum(counted.values()) == 30


def test_no_search_thread_waits(hook: Hook, dummy: Dummy) -> None:
    waiting = threading.Event()

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        waiting.wait(30)
        handler.send(reverse(body))

    dummy.answering = answer
    with ThreadPoolExecutor(60) as pool:
        runs = [pool.submit(hook.search, WORDS) for _ in range(60)]
        while len(dummy.seen) < 60:
            time.sleep(0.05)
        threads = hook.node.request("GET", "/_cat/thread_pool/search,generic?format=json&h=name,active")
        plain = hook.plain(WORDS)  # more searches wait than there are threads, yet this one runs
        waiting.set()
        assert ids(plain) == NUMBERS[:10]
        assert max(int(pool["active"]) for pool in threads) < 10
        assert all(ids(run.result()) == NUMBERS[::-1][:10] for run in runs)


def test_long_queries_and_many_hits(hook: Hook, dummy: Dummy) -> None:
    words = "cell " + "x" * 100_000
    hook.search({"query": {"match": {"text": {"query": words}}}})
    assert dummy.last["query"]["match"]["text"]["query"] == words
    hook.configure(depth=10000)
    assert ids(hook.search({**WORDS, "size": 10000})) == NUMBERS[::-1]
    assert hook.changes(lambda: hook.plain({**WORDS, "size": 10000})) == {}


def test_default_pipeline_msearch_and_verbose(hook: Hook) -> None:
    hook.node.request("PUT", "/cells/_settings", {"index.search.default_pipeline": "hook"})
    try:
        assert ids(hook.plain(WORDS)) == NUMBERS[::-1][:10]
        assert ids(hook.plain(WORDS, more="search_pipeline=_none")) == NUMBERS[:10]
        assert ids(hook.plain(WORDS, more="verbose_pipeline=true")) == NUMBERS[::-1][:10]
        assert hook.node.request("POST", "/cells/_count", WORDS)["count"] == COUNT
    finally:
        hook.node.request("PUT", "/cells/_settings", {"index.search.default_pipeline": None})


def test_other_processors_in_the_pipeline(hook: Hook, dummy: Dummy) -> None:
    rename = {"rename_field": {"field": "n", "target_field": "number"}}
    config = {"rerank_stack": {"url": dummy.url}}
    filtered = {"filter_query": {"query": {"term": {"kind": "a"}}}}
    responses = [{"rerank_stack": {}}, rename]
    pipeline = {"request_processors": [filtered, config, config], "response_processors": responses}
    hook.node.request("PUT", "/_search/pipeline/hook", pipeline)
    answer = hook.search(WORDS)
    assert [hit["_source"]["number"] for hit in answer["hits"]["hits"]] == list(range(28, 8, -2))
    assert answer["hits"]["total"]["value"] == 15


def test_processors_before_ours_see_whole_hits_where_wanted(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=BARE))
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
        {},
        {"url": "ftp://host"},
        {"url": "host:9200"},
        {"url": "http://"},
        {"url": "http://user:secret@host"},
        {"url": "http://host?a=b"},
        {"depth": 0},
        {"depth": 10001},
        {"depth": "deep"},
        {"timeout": 0},
        {"on_failure": "shrug"},
        {"fetch": "nothing"},
        {"max_connections": 0},
        {"breaker_failures": 0},
        {"unknown": 1},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(hooked: Node, config: dict[str, Any]) -> None:
    if config and "url" not in config:
        config = {"url": "http://127.0.0.1:1", **config}
    pipeline = {
        "request_processors": [{"rerank_stack": config}],
        "response_processors": [{"rerank_stack": {}}],
    }
    with pytest.raises(ValueError, match=": 400 "):
        hooked.request("PUT", "/_search/pipeline/wrong", pipeline)


def test_a_search_cannot_bring_its_own_url(hook: Hook, dummy: Dummy) -> None:
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


def test_stats(hook: Hook, dummy: Dummy) -> None:
    hook.search(WORDS)
    before = hook.stats()
    hook.search(WORDS)
    stats = hook.stats()
    assert stats["calls"]["count"] == before["calls"]["count"] + 1
    assert stats["calls"]["total_ms"] > before["calls"]["total_ms"]
    assert stats["calls"]["max_ms"] > 0
    assert stats["node"]


@pytest.mark.slow
def test_the_newest_server(tmp_path: Path, dummy: Dummy) -> None:
    with running("3.8.0", tmp_path) as node:
        dummy.answering = lambda handler, body: handler.send(reverse(body, wishes=BARE))
        hook = Hook(node, dummy.url)
        body = {
            **WORDS,
            "aggs": {"kinds": {"terms": {"field": "kind"}}},
            "ext": {"rerank": {"explain": True}},
        }
        hook.search(body)
        answer = hook.search(body)
        assert ids(answer) == NUMBERS[::-1][:10]
        assert answer["ext"]["rerank"]["outcome"] == "reranked"
        assert len(dummy.last["features"]["text@v"]) == COUNT
        dummy.end()
        assert ids(hook.search(body)) == NUMBERS[:10]
        assert hook.stats()["failed"] == {"refused": 1}
