"""Engines by name.

Packages add entry points to ``rerank.engines``, for example ``myengine = "mypackage:MyEngine"``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from rerank.engines.base import Engine
from rerank.errors import UsageError

GROUP = "rerank.engines"
ENGINES = {
    "local": "rerank.engines.local:LocalEngine",
    "opensearch": "rerank.engines.opensearch:OpenSearchEngine",
}
"""Name -> module and class, imported on first use."""


def engine_class(name: object, where: str) -> type[Engine]:
    """Return an engine's class. Raises UsageError for an unknown name."""
    if isinstance(name, str) and name in ENGINES:
        module, _, kind = ENGINES[name].partition(":")
        found: type[Engine] = getattr(import_module(module), kind)
        return found
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if isinstance(name, str) and name in others:
        loaded: type[Engine] = others[name].load()
        return loaded
    known = " or ".join(f'"{one}"' for one in (*ENGINES, *others))
    raise UsageError(f"{where}: engine {name!r} is unknown; use {known}")
