"""Attach: a workspace for an index that others write. Only a field for features is added to its mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerank.engines.opensearch.connection import Settings, asking, connect
from rerank.engines.opensearch.connection import check as check_cluster
from rerank.engines.opensearch.engine import OpenSearchEngine
from rerank.engines.opensearch.layout import FEATURES, fields_of
from rerank.errors import EngineError, UsageError, setting_hint

_FEATURES = {"properties": {FEATURES: {"type": "object", "dynamic": "false"}}}
_SEARCHED = ("text", "match_only_text")


@dataclass
class Adoption:
    """What there is to adopt. changes: index -> the body of the mapping update that it needs."""

    indices: list[str] = field(default_factory=list)
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    documents: int = 0
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)


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
    adoption = Adoption(sorted(found), named)
    for name, about in found.items():
        mappings = about["mappings"]
        _check_fields(name, mappings, named)
        there = mappings.get("properties", {}).get(FEATURES)
        if there is None:
            adoption.changes[name] = _FEATURES
        elif there.get("type", "object") != "object" or there.get("enabled") is False:
            kind = there.get("type", "object") if there.get("enabled", True) else "object, not enabled"
            raise EngineError(
                f"index {name!r} has a field {FEATURES!r} of type {kind}, which rerank needs for"
                " features; reindex without it"
            )
    adoption.documents = len(engine)
    engine.close()
    return adoption


def change(settings: Settings, adoption: Adoption) -> None:
    """Update the mappings."""
    client = connect(settings)
    with asking(settings, "adding the field for features"):
        for name, body in adoption.changes.items():
            client.indices.put_mapping(index=name, body=body)
    client.close()


def _check_fields(index: str, mappings: Mapping[str, Any], fields: Mapping[str, Sequence[str]]) -> None:
    types = dict(_types(mappings.get("properties", {})))
    source = mappings.get("_source", {})
    if source.get("enabled") is False:
        raise EngineError(
            f"index {index!r} keeps no _source, so its documents cannot be read; reindex it with _source"
        )
    left_out = [path for path in source.get("excludes", ()) if path not in (FEATURES, f"{FEATURES}.*")]
    left_out += [f"all but {path}" for path in source.get("includes", ())]
    if left_out:
        # Storing features writes a document again from its _source: the rest of it would be gone.
        raise EngineError(
            f"index {index!r} leaves {', '.join(left_out)} out of _source, which storing features would lose;"
            " reindex it with the whole _source"
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
