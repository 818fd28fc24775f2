"""Engines by name.

Packages add entry points to ``rerank.engines``, for example ``myengine = "mypackage:MyEngine"``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from rerank.common.errors import UsageError
from rerank.engines.base import Engine

GROUP = "rerank.engines"
ENGINES = {
    "local": "rerank.engines.local:LocalEngine",
    "opensearch": "rerank.engines.opensearch:OpenSearchEngine",
}
"""Name -> module and class, imported on first use."""


def engine_class(name: object, settings_file: str) -> type[Engine]:
    """Return the class of an engine, and import its module.

    name: the value of ``engine`` in the settings. settings_file: their file, which the error names.

    Raises UsageError for an unknown name.
    """
    engine: type[Engine]
    key = name if isinstance(name, str) else ""
    if key in ENGINES:
        module, _, class_name = ENGINES[key].partition(":")
        engine = getattr(import_module(module), class_name)
        return engine
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if key in installed:
        engine = installed[key].load()
        return engine
    names = " or ".join(f'"{engine_name}"' for engine_name in (*ENGINES, *installed))
    raise UsageError(f"{settings_file}: engine {name!r} is unknown; use {names}")
