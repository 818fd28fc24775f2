"""The connection to OpenSearch: URL and index, or a profile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import option

if TYPE_CHECKING:
    import rerank
    from rerank.engines.opensearch import Settings


VARIABLE = "RERANK_PROFILES"
_FILES = ("token_file", "password_file", "ca_file", "client_cert", "client_key")


connection = (
    option("--url URL...", "Node of the cluster. Default: of the profile."),
    option("--index NAME", "Index or alias. Default: of the profile."),
    option("--profile NAME", f"Profile in ~/.config/rerank/profiles.toml or {VARIABLE}."),
)


def settings(values: dict[str, Any]) -> Settings | None:
    """Remove the options of a cluster and return its settings; None without URL and profile.

    Raises UsageError for a missing URL or index, or a wrong profile.
    """
    from rerank.engines.opensearch import Settings

    profile, names = values.pop("profile"), ("url", "index", "shards", "replicas")
    given = {name: value for name in names if (value := values.pop(name, None)) not in (None, ())}
    if profile is None and "url" not in given:
        if given:
            raise click.UsageError("--index, --shards and --replicas need --url or --profile")
        return None
    table, where = _profile(profile) if profile is not None else ({}, "the command")
    table |= {name: list(value) if name == "url" else value for name, value in given.items()}
    for name, example in (("url", "http://127.0.0.1:9200"), ("index", "articles")):
        if not table.get(name):
            raise click.UsageError(f"--{name} is missing, for example --{name} {example}")
    return Settings.read(table, where)


def ubi_settings(url: str | None, profile: str | None, workspace: rerank.Workspace | None) -> Settings | None:
    """Return the settings of the cluster of a click log; None without URL.

    The credentials are those of the profile, or of the workspace if its documents are in the same cluster.

    Raises UsageError for a wrong URL or profile.
    """
    from rerank.engines.opensearch import OpenSearchEngine, Settings
    from rerank.engines.opensearch.ubi import EVENTS

    table: dict[str, Any] = {}
    where = "--ubi"
    if url is None:
        if profile is not None:
            raise click.UsageError("--profile needs --ubi URL")
        return None
    if profile is not None:
        table, where = _profile(profile)
    elif workspace is not None and isinstance(workspace.engine, OpenSearchEngine):
        engine = workspace.engine.settings
        if url.rstrip("/") in {node.rstrip("/") for node in engine.url}:
            table = engine.table()
    return Settings.read({**table, "url": url, "index": EVENTS}, where)


def _profile(name: str) -> tuple[dict[str, Any], str]:
    """A table of the profile file, with absolute paths, and its name for messages."""
    from rerank import config_file
    from rerank.errors import UsageError

    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    file = Path(os.environ.get(VARIABLE) or Path(base) / "rerank" / "profiles.toml")
    if not file.exists():
        raise UsageError(f"{file}: no such file; write a table [{name}] in it")
    if file.stat().st_uid not in (0, os.geteuid()):
        raise UsageError(f"{file}: belongs to another user; profiles must be your own")
    tables = config_file.load(file)
    table = tables.get(name)
    if not isinstance(table, dict):
        raise UsageError(f"{file}: no profile {name!r}; profiles: {', '.join(tables) or 'none'}")
    paths = {key: str(file.parent.resolve() / table[key]) for key in _FILES if table.get(key)}
    return {**table, **paths}, f"{file}: profile {name}"
