"""Checks before an index is attached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rerank.engines.opensearch.connection import Settings, connect
from rerank.engines.opensearch.connection import check as check_cluster
from rerank.engines.opensearch.engine import OpenSearchEngine
from rerank.engines.opensearch.errors import asking
from rerank.engines.opensearch.layout import check_fields, field_types, fields_of
from rerank.errors import EngineError, UsageError


@dataclass
class AttachedIndex:
    """Indices of a name, their document fields, and the number of documents."""

    indices: list[str] = field(default_factory=list)
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    documents: int = 0


def look(settings: Settings, fields: Mapping[str, Sequence[str]]) -> AttachedIndex:
    """Return the index to attach. fields: may be empty for an index of rerank.

    Raises EngineError or UsageError if it cannot be attached with these fields.
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
            known = ", ".join(f"{path} ({kind})" for path, kind in field_types(first.get("properties", {})))
            raise UsageError(
                f"index {settings.index!r} was not made by rerank: name the fields that contain title, text,"
                f" categories, links and lang; it has {known or 'no fields'}"
            )
        engine.index.check()
    for name, about in found.items():
        check_fields(name, about["mappings"], named)
    attached = AttachedIndex(sorted(found), named)
    attached.documents = len(engine)
    engine.close()
    return attached
