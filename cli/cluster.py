"""The connection to OpenSearch: URL and index, or a profile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rerank.common.values import without_none

from .options import Function, option

if TYPE_CHECKING:
    import rerank
    from rerank.engines.opensearch import Settings


PROFILES_VARIABLE = "RERANK_PROFILES"
"""Environment variable with the path of the file of profiles."""
_PATH_SETTINGS = ("token_file", "password_file", "ca_file", "client_cert", "client_key")
"""Settings of a profile that are paths; relative paths start at the folder of the profile's file."""


def connection_options(function: Function) -> Function:
    """Add --url, --index and --profile to a command: the options that identify an index."""
    url_option = option(
        "--url",
        metavar="URL",
        multiple=True,
        group="Connection",
        help="Node of the cluster. Default: of the profile.",
    )
    index_option = option(
        "--index", metavar="NAME", group="Connection", help="Index or alias. Default: of the profile."
    )
    profile_option = option(
        "--profile",
        metavar="NAME",
        group="Connection",
        help=f"Profile in ~/.config/rerank/profiles.toml or {PROFILES_VARIABLE}.",
    )
    return url_option(index_option(profile_option(function)))


def connection_settings(
    url: Sequence[str],
    index: str | None,
    profile: str | None,
    shards: int | None = None,
    replicas: int | None = None,
) -> Settings | None:
    """Return the settings of a cluster; None without a URL and a profile. Options override the profile.

    Raises UsageError for a missing URL or index, or a wrong profile.
    """
    from rerank.engines.opensearch import Settings

    options: dict[str, Any] = {"index": index, "shards": shards, "replicas": replicas}
    overrides = without_none(options)
    if profile is None and not url:
        if overrides:
            raise click.UsageError("--index, --shards and --replicas need --url or --profile")
        return None
    table: dict[str, Any] = {}
    location = "the command"
    if profile is not None:
        table, location = _read_profile(profile)
    if url:
        table["url"] = list(url)
    table.update(overrides)
    _check_required(table)
    return Settings.read(table, location)


def _check_required(table: Mapping[str, Any]) -> None:
    """Raise UsageError for settings without a URL or an index."""
    for name, example in (("url", "http://127.0.0.1:9200"), ("index", "articles")):
        if not table.get(name):
            raise click.UsageError(f"--{name} is missing, for example --{name} {example}")


def ubi_settings(
    url: str | None, profile: str | None, documents: Settings | None, *, profile_option: str = "--profile"
) -> Settings | None:
    """Return the settings of the cluster of a click log; None without URL.

    profile:        the profile with the credentials of this cluster. Default: the credentials of the
        cluster of the documents, if it is the same one. They are sent to no other URL.
    documents:      settings of the cluster of the documents, if they are in one.
    profile_option: the option of the profile, for messages.

    Raises UsageError for a wrong URL or profile, and a profile without URL.
    """
    from rerank.engines.opensearch import Settings
    from rerank.engines.opensearch.ubi import EVENTS

    if url is None:
        if profile is not None:
            raise click.UsageError(f"{profile_option} needs --ubi URL")
        return None
    table: dict[str, Any] = {}
    location = "--ubi"
    if profile is not None:
        table, location = _read_profile(profile)
    elif documents is not None:
        nodes = {node.rstrip("/") for node in documents.url}
        if url.rstrip("/") in nodes:
            table = documents.table()
    return Settings.read({**table, "url": url, "index": EVENTS}, location)


def cluster_of(workspace: rerank.Workspace | None) -> Settings | None:
    """Return the settings of the cluster with the documents; None if they are in a folder."""
    from rerank.engines.opensearch import OpenSearchEngine

    if workspace is not None and isinstance(workspace.engine, OpenSearchEngine):
        return workspace.engine.settings
    return None


def _profiles_file() -> Path:
    file = os.environ.get(PROFILES_VARIABLE)
    if file:
        return Path(file)
    config_folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config_folder) / "rerank" / "profiles.toml"


def _read_profile(name: str) -> tuple[dict[str, Any], str]:
    """Return a table of the profile file, with absolute paths, and its name for messages."""
    from rerank.common.errors import UsageError
    from rerank.workspace import config_file

    file = _profiles_file()
    if not file.exists():
        raise UsageError(f"{file}: no such file; write a table [{name}] in it")
    if file.stat().st_uid not in (0, os.geteuid()):
        raise UsageError(f"{file}: belongs to another user; profiles must be your own")
    tables = config_file.load(file)
    table = tables.get(name)
    if not isinstance(table, dict):
        raise UsageError(f"{file}: no profile {name!r}; profiles: {', '.join(tables) or 'none'}")
    table = dict(table)
    for setting in _PATH_SETTINGS:
        if table.get(setting):
            table[setting] = str(file.parent.resolve() / table[setting])
    return table, f"{file}: profile {name}"
