"""Attach: a workspace for an index that others write, and that stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rerank.engines.opensearch.connection import Settings, asking, connect
from rerank.engines.opensearch.connection import check as check_cluster
from rerank.engines.opensearch.engine import OpenSearchEngine
from rerank.engines.opensearch.index import Index
from rerank.engines.opensearch.layout import FEATURES, Adopted, fields_of
from rerank.errors import EngineError, UsageError, setting_hint

_SEARCHED = ("text", "match_only_text")


@dataclass
class Adoption:
    """What there is to adopt."""

    indices: list[str] = field(default_factory=list)
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    documents: int = 0


def look(settings: Settings, fields: Mapping[str, Sequence[str]]) -> Adoption:
    """Check that an index can be adopted with these fields; EngineError and UsageError say why not.

    No ``fields``: only for an index that rerank has made.
    """
    named = fields_of(fields, "the command")
    engine = OpenSearchEngine.open(settings, Path(), None, named)
    with asking(settings, "connecting"):
        check_cluster(connect(settings), settings)
    found = engine.index.indices()
    if not found:
        raise EngineError(f"{settings.where} has no index {settings.index!r}; check the name")
    if not named:
        made = all("rerank" in about["mappings"].get("_meta", {}) for about in found.values())
        if not made:
            first = next(iter(found.values()))["mappings"]
            there = ", ".join(f"{path} ({kind})" for path, kind in _types(first.get("properties", {})))
            raise UsageError(
                f"index {settings.index!r} was not made by rerank: say with {setting_hint('field')} which"
                f" fields hold title, text, categories, links and lang; it has {there or 'no fields'}"
            )
        engine.index.check()
    for name, about in found.items():
        _check_fields(name, about["mappings"], named)
    adoption = Adoption(sorted(found), named)
    adoption.documents = len(engine)
    engine.close()
    return adoption


def check_mappings(index: Index) -> None:
    """Check that the indices behind the name are still what they were attached as, or made by rerank."""
    if not isinstance(index.layout, Adopted):
        index.check()
        return
    for name, about in index.indices().items():
        _check_fields(name, about["mappings"], index.layout.fields)


def _check_fields(index: str, mappings: Mapping[str, Any], fields: Mapping[str, Sequence[str]]) -> None:
    types = dict(_types(mappings.get("properties", {})))
    source = mappings.get("_source", {})
    if source.get("enabled") is False:
        raise EngineError(
            f"index {index!r} keeps no _source, so its documents cannot be read; reindex it with _source"
        )
    unread = [path for paths in fields.values() for path in paths if not _in_source(path, source)]
    if unread:
        raise EngineError(
            f"index {index!r} leaves {', '.join(unread)} out of _source, so it cannot be read; name other"
            " fields, or reindex it with them"
        )
    for name, paths in fields.items():
        for path in paths:
            kind = types.get(path)
            if kind is None:
                known = ", ".join(types) or "none"
                raise UsageError(f"index {index!r} has no field {path!r} ({name}); there are {known}")
            if name in ("title", "text") and kind not in _SEARCHED:
                raise UsageError(
                    f"field {path!r} of index {index!r} is of type {kind}, and {name} needs one"
                    " of type text to search in"
                )


def _types(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Paths of the fields that hold values, with their types."""
    for name, about in properties.items():
        if above + name == FEATURES:
            continue
        if "properties" in about:
            yield from _types(about["properties"], f"{above}{name}.")
        elif about.get("type") != "object":
            yield f"{above}{name}", str(about.get("type"))


def _in_source(path: str, source: Mapping[str, Any]) -> bool:
    """Whether a field is kept in ``_source``, by the patterns of its ``includes`` and ``excludes``."""

    def covers(patterns: Sequence[str]) -> bool:
        parts = path.split(".")
        above = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return any(fnmatchcase(name, pattern) for name in above for pattern in patterns)

    includes = source.get("includes") or ["*"]
    return covers(includes) and not covers(source.get("excludes") or [])
