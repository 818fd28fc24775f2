"""Searches through the hook: a node with the plugin, and servers in place of the service."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import struct
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rerank.formats import read_queries
from tests.support.cli import run_here, write_json_lines
from tests.support.opensearch import Answer, Proxy, Request, rights, unavailable
from tools.opensearch_node import VERSION, CannotRunError, Node, free_port
from tools.opensearch_plugin import SETTINGS, build, put_pipeline, set_token

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "sesame"
WORDS = {"query": {"match": {"text": "cell"}}}
COUNT = 30  # documents of the index "cells"
NUMBERS = [str(i) for i in range(COUNT)]  # the order of the first stage


@contextmanager
def running(version: str = VERSION, **options: Any) -> Iterator[Node]:
    try:
        plugins = [build(version), rights(version)]
        node = Node(version=version, heap="768m", plugins=plugins, settings=SETTINGS, **options)
    except CannotRunError as error:
        unavailable(error)
    try:
        set_token(node, TOKEN)
        yield node.start().wait()
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
            if i % 2:  # half of the documents lack this feature
                source["rerank_features"]["meta@w"] = b64encode(bytes([0, i, 0])).decode()
            node.request("PUT", f"/{index}/_doc/{i}", source)
        node.request("POST", f"/{index}/_refresh")
    node.request("POST", "/_aliases", {"actions": [{"add": {"index": "cells", "alias": "tissue"}}]})


Answering = Callable[["Handler", dict[str, Any]], None]
Hits = list[tuple[str, float]]  # ids and scores


def reverse(body: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return the answer of most tests, in which the last candidate is the best."""
    n = len(body["ids"])
    return {"ids": body["ids"][::-1], "scores": [100.0 + n - i for i in range(n)], **more}


def requested(*features: str, **more: bool) -> dict[str, Any]:
    """Return the fields that the service requests for the next call."""
    return {"features": list(features), **more}


WHOLE = requested("text@v", ids=True)
"""Candidates have ids and everything else that the user requests."""

PLACES = requested("text@v", "meta@w")
"""Candidates have no ids and no stored fields."""


def read(data: bytes) -> dict[str, Any]:
    """Decode a call, with features as Base64 and numbers as lists."""
    length = int.from_bytes(data[:4], "big")
    body: dict[str, Any] = json.loads(data[4 : 4 + length])
    begin, n = 4 + length, body.pop("hits")
    layout = f">{n}d{n}i{2 * n}q"
    numbers = struct.unpack_from(layout, data, begin)
    begin += struct.calcsize(layout)
    body["scores"] = list(numbers[:n])
    for name, part in zip(("shards", "seq_nos", "terms"), (1, 2, 3), strict=True):
        body["places"][name] = list(numbers[part * n : (part + 1) * n])
    names = body.setdefault("ids", [f"{i:06}" for i in range(n)])
    if len(set(names)) < n:  # of several indices
        body["ids"] = [f"{id}#{i}" for i, id in enumerate(names)]
    names, body["features"] = body["features"], {}
    for name in names:
        lengths = struct.unpack_from(f">{n}i", data, begin)
        begin += 4 * n
        found = body["features"][name] = []
        for length in lengths:
            found.append(b64encode(data[begin : begin + length]).decode() if length else None)
            begin += length
    assert begin == len(data)
    return body


def encode_answer(answer: dict[str, Any], sent: list[str]) -> bytes:
    """Encode an answer for the plugin. sent: the ids of the call. Other ids get the position -1."""
    answer = dict(answer)
    places = [sent.index(id) if id in sent else -1 for id in answer.pop("ids", ())]
    scores = answer.pop("scores", ())
    head = json.dumps(answer).encode()
    numbers = struct.pack(f">{len(places)}i{len(scores)}f", *places, *scores)
    return len(head).to_bytes(4, "big") + head + numbers


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise every answer takes 40 ms
    server: Dummy

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        dummy = self.server
        if self.path == "/v1/retrieve":
            call = json.loads(data)
            with dummy.lock:
                dummy.retrievals.append(call)
            dummy.retrieving(self, call)
            return
        body = read(data)
        self.ids = body["ids"]
        with dummy.lock:
            dummy.seen.append((self.path, dict(self.headers), body))
        dummy.answering(self, body)

    def send(
        self,
        answer: dict[str, Any] | bytes,
        status: int = 200,
        kind: str = "application/json",
        cut: int | None = None,
    ) -> None:
        """Send an answer. A dictionary is framed, except with an error status."""
        if isinstance(answer, bytes):
            data = answer
        else:
            data = encode_answer(answer, self.ids) if status == 200 else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True


class Dummy(ThreadingHTTPServer):
    """A replacement for the service. ``answering`` defines answers, ``seen`` contains requests."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int = 0) -> None:
        # no other process gets this port after the end
        super().__init__(("127.0.0.1", port or free_port()), Handler)
        self.lock = threading.Lock()
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.sockets: list[socket.socket] = []
        self.answering: Answering
        self.reverse()
        self.retrievals: list[dict[str, Any]] = []
        self.retrieving: Answering = lambda handler, body: handler.send(b'{"passed": "nothing"}')
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def reverse(self, **more: object) -> None:
        """Answer that the last candidate is the best, with these additional values."""
        self.answering = lambda handler, body: handler.send(reverse(body, **more))

    def retrieve(self, node: Node, index: str, *ids: str, size: int = 1000, depth: int | None = None) -> None:
        """Answer that these documents are the nearest, of which ``depth`` are needed. Default: all."""
        uuids = [
            about["settings"]["index"]["uuid"]
            for about in node.request("GET", f"/{index}/_settings").values()
        ]
        retriever = {"name": "s2net", "ids": ids, "depth": len(ids) if depth is None else depth}
        answer = {"find": [retriever], "uuids": uuids, "size": size}
        self.retrieving = lambda handler, body: handler.send(json.dumps(answer).encode())

    def get_request(self) -> tuple[Any, Any]:
        found = super().get_request()
        self.sockets.append(found[0])
        return found

    def handle_error(self, *_: object) -> None:
        pass  # the node closes the connection after its timeout

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def last(self) -> dict[str, Any]:
        return self.seen[-1][2]

    def end(self) -> None:
        """Stop like a killed process: open connections end, also idle ones."""
        self.shutdown()
        self.server_close()
        for open_one in self.sockets:
            with contextlib.suppress(OSError):
                # close() is not enough: a thread that reads keeps the connection
                open_one.shutdown(socket.SHUT_RDWR)
                open_one.close()


class Hook:
    """A pipeline on the node, and searches through it. Tests can store their configuration in ``bare``."""

    bare = False
    index = "cells"

    def __init__(self, node: Node, url: str) -> None:
        self.node, self.url = node, url
        self.configure()

    def configure(self, **settings: object) -> Hook:
        # The time limit is generous, because test machines are busy. Other tests cover the breaker.
        config = {"url": self.url, "timeout": 20000, "breaker_failures": 1000, **settings}
        put_pipeline(self.node, "hook", **config)
        return self

    def search(self, body: dict[str, Any], index: str = "", more: str = "") -> dict[str, Any]:
        path = f"/{index or self.index}/_search?search_pipeline=hook{more}"
        return self.node.request("POST", path, body)

    def plain(self, body: dict[str, Any], index: str = "", more: str = "") -> dict[str, Any]:
        return self.node.request("POST", f"/{index or self.index}/_search?{more}", body)

    def counted(
        self, body: dict[str, Any], index: str = "", more: str = ""
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Search, and also return the counters that increased, and by how much."""
        answers: list[dict[str, Any]] = []
        counters = self.changes(lambda: answers.append(self.search(body, index, more)))
        return answers[0], counters

    def stats(self) -> dict[str, Any]:
        return self.node.request("GET", "/_plugins/_rerank_stack/stats")

    def searched(self, act: Callable[[], object], index: str = "cells") -> int:
        """Return the number of shard searches of an index that an action causes."""

        def searches() -> int:
            shards = self.node.request("GET", f"/{index}/_stats/search")["_all"]["total"]["search"]
            return int(shards["query_total"])

        before = searches()
        act()
        return searches() - before

    def changes(self, act: Callable[[], object]) -> dict[str, int]:
        """Return the counters that an action increases, and by how much."""
        before = flat(self.stats())
        act()
        return dict(flat(self.stats()) - before)


def flat(stats: dict[str, Any]) -> Counter[str]:
    counters = Counter({"reranked": stats["reranked"], "breaker_opened": stats["breaker_opened"]})
    for kind in ("passed", "failed"):
        counters.update({f"{kind}.{reason}": n for reason, n in stats[kind].items()})
    return counters


def copy_for_user(folder: Path, copy: Path, user: str, node: Node, patch: pytest.MonkeyPatch) -> Path:
    """Copy a workspace, so that its requests have this user. The test plugin records them."""
    shutil.copytree(folder, copy)
    config = (copy / "rerank.toml").read_text("utf-8")
    config = config.replace("[opensearch]", f'[opensearch]\nuser = "{user}"')
    (copy / "rerank.toml").write_text(config, "utf-8")
    patch.setenv("RERANK_OPENSEARCH_PASSWORD", "secret")
    patch.setenv("RERANK_OPENSEARCH_HOSTS", node.url.removeprefix("http://"))
    return copy


def compare_rights(node: Node, user: str, page: str, begin: str) -> tuple[set[str], set[str]]:
    """Return rights that were needed but are not in a docs paragraph, and rights only in the paragraph."""
    (text,) = [one for one in (ROOT / "docs" / page).read_text("utf-8").split("\n\n") if begin in one]
    named = re.findall(r"`((?:indices|cluster):[^`]+)`", text)
    asked = node.request("GET", "/_rights")["actions"][user]
    unnamed = {one for one in asked if not any(fnmatchcase(one, pattern) for pattern in named)}
    return unnamed, {pattern for pattern in named if not any(fnmatchcase(one, pattern) for one in asked)}


def articles(node: Node, small: Any, trained: Path, folder: Path) -> Path:
    """Create a workspace in the index "articles" of the node, with rankers from another workspace."""
    few = write_json_lines(folder.parent / "few.jsonl", small.documents[:20])
    where = ("--index", "articles", "--replicas", 0, "--url", node.url)
    run_here("ingest", few, "-w", folder, "--categories", small.categories, *where).ok()
    shutil.copytree(trained / "rankers", folder / "rankers")
    run_here("ingest", small.corpus, "--replace", "-w", folder).ok()
    return folder


def texts(small: Any, count: int) -> list[str]:
    """Return queries of the collection without stop words, like the first stage of ``rerank query``."""
    found = read_queries(small.queries)[:count]
    return [" ".join(query.search_text("en").split()) for query in found]


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


def scored(answer: dict[str, Any]) -> Hits:
    return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]


def query_hits(run: Callable[..., Any], folder: Path, text: str, *options: object, count: int = 10) -> Hits:
    """Return ids and scores of ``rerank query``."""
    answer = run("query", text, *options, "-k", count, "-w", folder, "--json").json
    return [(hit["id"], hit["score"]) for hit in answer["hits"]]


def assert_equal_hits(found: Hits, wanted: Hits) -> None:
    """Assert that both have the same order, and the same scores to six digits."""
    assert [id for id, _ in found] == [id for id, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-6)


def without_took(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("took", "profile")}


def hook_status(run: Callable[..., Any], folder: Path, *options: object) -> dict[str, Any]:
    """Return the report of ``rerank hook status``, and check that its exit code agrees with its problems."""
    done = run("hook", "status", *options, "-w", folder, "--json")
    report: dict[str, Any] = json.loads(done.out)
    assert done.code == bool(report["problems"]), done
    return report


STACK = "bm25*0.4 + text*0.35 + meta*0.25"
TOKEN = "sesame"
INDEX = "articles"
PIPELINE = "rerank-articles-stock"
ML = "/_plugins/_ml"


@contextmanager
def broken_service(mode: str) -> Iterator[str]:
    """Run a service with invalid answers."""
    stop = threading.Event()

    def rule(request: Request) -> Answer:
        places = range(len(json.loads(request.body)["ids"]))
        results: list[dict[str, Any]] = [{"index": i, "relevance_score": i + 0.5} for i in places]
        if mode == "hang":
            stop.wait(60)
        if mode == "few":
            results.pop()
        if mode == "nan":
            results[0]["relevance_score"] = float("nan")
        return Answer(
            body=b"<html>no</html>" if mode == "html" else json.dumps({"results": results}).encode()
        )

    with Proxy(rule=rule) as proxy:
        try:
            yield proxy.url
        finally:
            stop.set()


@contextmanager
def installed_hook(run, cluster: Path, url: str, node: Node, *, timeout: float = 1.0) -> Iterator[None]:
    args = ("--route", "stock", "--service", url, "--depth", 50, "--timeout", timeout)
    run("hook", "install", *args, "-w", cluster).ok()
    try:
        yield
    finally:
        assert run("hook", "remove", "--route", "stock", "-w", cluster).code == 0
