"""The hook: a search pipeline that sends hits to the service.

Routes: ``plugin`` (docs/opensearch/install.md) and ``stock`` (docs/opensearch/install.md#stock-processors).
"""

from __future__ import annotations

from rerank.hook.base import Hook
from rerank.hook.options import HookOptions
from rerank.hook.plugin import PluginHook
from rerank.hook.reports import InstallReport, Request, Status
from rerank.hook.stock import StockHook
from rerank.hook.trial import SearchTrial, try_search
from rerank.workspace.workspace import Workspace

ROUTES: dict[str, type[Hook]] = {"plugin": PluginHook, "stock": StockHook}
"""How a cluster calls the service."""

__all__ = [
    "ROUTES",
    "Hook",
    "HookOptions",
    "InstallReport",
    "Request",
    "SearchTrial",
    "Status",
    "hook",
    "try_search",
]


def hook(workspace: Workspace, route: str = "plugin", name: str | None = None, token: str = "") -> Hook:
    """Return the hook of a workspace: it installs, checks and removes the search pipeline that reranks.

    route: how the cluster calls the service, one of ``ROUTES``.
    name:  name of the pipeline; None: ``rerank-INDEX``, with the suffix of the route.
    token: token of the service, which hides its stack without it.

    Raises UsageError if the documents are not in OpenSearch.
    """
    return ROUTES[route](workspace, name, token)
