"""Broken services, and a pipeline of the stock route that uses them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.node import Node
from tests.proxy import Answer, Proxy, Request

STACK = "bm25*0.4 + text*0.35 + meta*0.25"
TOKEN = "sesame"
INDEX = "articles"
PIPELINE = "rerank-articles-stock"
ML = "/_plugins/_ml"
LOCAL = [r"^http://127\.0\.0\.1:\d+/.*$"]
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"


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
