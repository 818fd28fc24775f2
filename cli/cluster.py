"""Options that say where an OpenSearch cluster is and how to get in; a secret never stands among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, dict[str, Any]] = {
    "url": {"multiple": True, "metavar": "URL", "help": "A node, http or https; repeatable."},
    "index": {"metavar": "NAME", "help": "The index: an alias for those that rerank makes."},
    "dfs": {
        "is_flag": True,
        "help": "Score with idf over all shards (dfs_query_then_fetch), in one more round.",
    },
    "timeout": {
        "type": click.FloatRange(min=0, min_open=True, max=86400),
        "metavar": "SECONDS",
        "help": "Longest time of one request. Default: 60.",
    },
    "user": {"metavar": "NAME", "help": "Basic authentication; RERANK_OPENSEARCH_PASSWORD[_FILE]."},
    "token_file": {"metavar": "FILE", "help": "Bearer token; also RERANK_OPENSEARCH_TOKEN."},
    "ca_file": {"metavar": "FILE", "help": "Certificates that the server's is checked against."},
    "client_cert": {"metavar": "FILE", "help": "Client certificate."},
    "client_key": {"metavar": "FILE", "help": "Its key."},
    "aws_region": {"metavar": "REGION", "help": "Sign requests for AWS (extra `aws`)."},
    "aws_service": {"metavar": "NAME", "help": "Service to sign for. Default: es; serverless: aoss."},
}


def options(function: Function) -> Function:
    """Add the options; they arrive together as ``cluster``, and ``settings`` reads them."""

    def wrapped(**given: Any) -> Any:
        return function(cluster={name: given.pop(name) for name in _OPTIONS}, **given)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for name, about in reversed(_OPTIONS.items()):
        wrapped = click.option(f"--{name.replace('_', '-')}", **about)(wrapped)
    return wrapped  # type: ignore[return-value]


def settings(cluster: dict[str, Any], **more: Any) -> Settings:
    """Return what the options say; UsageError when that is not enough."""
    from pathlib import Path

    from rerank.engines.opensearch import Settings

    for name, example in (("url", "http://127.0.0.1:9200"), ("index", "articles")):
        if not cluster[name]:
            raise click.UsageError(f"--{name} is missing, for example --{name} {example}")
    table = {**cluster, **more, "url": list(cluster["url"])}
    table["search_type"] = "dfs_query_then_fetch" if table.pop("dfs") else None
    for name in ("token_file", "ca_file", "client_cert", "client_key"):
        if table[name]:  # the workspace may be used from another folder
            table[name] = str(Path(table[name]).resolve())
    return Settings.read({name: value for name, value in table.items() if value is not None}, "the command")


engine = click.option(
    "--engine",
    type=click.Choice(["local", "opensearch"]),
    help="Where a new workspace keeps its documents. Default: local; with --url: opensearch.",
)


def location(folder: str, engine: str | None, cluster: dict[str, Any], **more: Any) -> Settings | None:
    """Return the settings of the cluster that holds the documents; None: the workspace knows, or a folder.

    more: settings of a new index. Raises UsageError for settings of a cluster without a cluster.
    """
    from rerank.workspace import Workspace

    named = given(cluster)
    if engine == "opensearch" or (named and engine is None):
        return settings(cluster, **more) if named or not Workspace.exists(folder) else None
    if named or given(more):
        raise click.UsageError("--url, --index and other options of a cluster are for --engine opensearch")
    return None


def given(cluster: dict[str, Any]) -> bool:
    """Whether any of the options was used."""
    return any(value not in (None, False, ()) for value in cluster.values())
