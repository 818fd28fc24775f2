"""Small and large ingests into a node, the documents in it, and connection settings of workspaces."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.commands import console_script
from tests.node import Node
from tests.proxy import (
    answering,
)

REFUSED = answering(
    status=403,
    body=json.dumps(
        {"error": {"type": "security_exception", "reason": "no permissions for [indices:data/write/bulk]"}}
    ).encode(),
)
BUSY = answering(status=429, body=b'{"error": {"type": "rejected", "reason": "queue full"}}')


def lines(n: int, start: int = 0, word: str = "cell") -> bytes:
    return b"".join(
        json.dumps({"_id": f"n{i}", "text": f"{word} number {i}"}).encode() + b"\n" for i in range(start, n)
    )


MANY = 2_500  # five requests


def at(url: str, name: str) -> tuple[str, ...]:
    return ("--url", url, "--index", name, "--replicas", "0")


def profile(**settings: object) -> tuple[str, ...]:
    """Write a profile with connection settings; return the options that use it."""
    lines = [
        f"{name} = {json.dumps(value if isinstance(value, int) else str(value))}\n"
        for name, value in settings.items()
    ]
    Path(os.environ["RERANK_PROFILES"]).write_text("".join(["[test]\n", *lines]), "utf-8")
    return ("--profile", "test")


def indices(node: Node, name: str) -> dict[str, Any]:
    return node.request("GET", f"/{name}*?expand_wildcards=all")


def count(node: Node, name: str) -> int:
    node.request("POST", f"/{name}/_refresh")
    return int(node.request("GET", f"/{name}/_count")["count"])


def documents(node: Node, name: str) -> dict[str, str]:
    """Return id -> text of all documents of an index or alias, or {} if it does not exist."""
    try:
        there = count(node, name)
    except ValueError:
        return {}
    body = {"size": 10_000, "_source": ["text"]}
    hits = node.request("POST", f"/{name}/_search", body)["hits"]["hits"]
    assert there == len(hits)
    return {hit["_id"]: hit["_source"]["text"] for hit in hits}


def texts(n: int, word: str) -> dict[str, str]:
    return {f"n{i}": f"{word} number {i}" for i in range(n)}


def edit(folder: Path, **settings: Any) -> None:
    """Add or replace settings in the table [opensearch] of a workspace."""
    file = folder / "rerank.toml"
    kept = [line for line in file.read_text().splitlines() if line.split(" = ")[0] not in settings]
    place = kept.index("[opensearch]") + 1
    kept[place:place] = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    file.write_text("\n".join(kept) + "\n")


def other_scheme(url: str) -> str:
    return url.replace("https:", "http:") if url.startswith("https:") else url.replace("http:", "https:")


def reading_commands(few: Path) -> list[list[Any]]:
    """Return commands that need the index."""
    return [["status"], ["query", "cell"], ["ingest", few], ["ingest", "--delete", "n1"]]


def start_command(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*console_script(), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
