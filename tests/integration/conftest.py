"""Fixtures for the hook on a node, and for names, files, credentials and certificates in fault tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rerank.engines.opensearch import bulk
from tests.support.cli import Result
from tests.support.hook import Dummy, Hook, fill
from tests.support.opensearch import MANY, Authority, at, lines
from tools.opensearch_node import Node


@pytest.fixture(scope="module")
def hooked(plugged: Node) -> Node:
    """A node with the plugin and a few indices."""
    fill(plugged)
    return plugged


@pytest.fixture
def dummy() -> Iterator[Dummy]:
    started = Dummy()
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def hook(hooked: Node, dummy: Dummy) -> Hook:
    return Hook(hooked, dummy.url)


@pytest.fixture
def name(node: Node) -> Iterator[str]:
    """A unique index name."""
    chosen = f"faults-{secrets.token_hex(4)}"
    yield chosen
    node.request("DELETE", f"/{chosen}*?expand_wildcards=all")


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the credentials and profiles of the user."""
    monkeypatch.setenv("RERANK_PROFILES", str(tmp_path / "profiles.toml"))
    for variable in ("PASSWORD", "PASSWORD_FILE", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"RERANK_OPENSEARCH_{variable}", raising=False)
    for variable in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{variable}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not retry for two minutes."""
    monkeypatch.setattr(bulk, "PATIENCE", 0.5)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    path.write_bytes(lines(20))
    return path


@pytest.fixture
def folder(run: Callable[..., Result], few: Path, node: Node, name: str, tmp_path: Path) -> Path:
    """A workspace whose 20 documents are on the node."""
    run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).ok()
    return tmp_path / "ws"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.jsonl"
    path.write_bytes(lines(MANY, word="gene"))
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))
