"""The click log of User Behavior Insights (UBI) in a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from rerank.common.errors import EngineError
from rerank.engines.opensearch.auth import check_trust, trust
from rerank.engines.opensearch.connection import Settings, check
from rerank.engines.opensearch.index import Index
from rerank.engines.opensearch.reading import pages
from rerank.formats.click_log import LogRecord, record_of_source

QUERIES = "ubi_queries"
EVENTS = "ubi_events"
_PAGE = 10_000  # records per request
_FIELDS = ("query_id", "user_query", "application", "client_id", "timestamp")


def read_ubi(settings: Settings, id_fields: Sequence[str]) -> Iterator[LogRecord]:
    """Yield the records of both indices, each at one point in time.

    settings: of the cluster; their index is not used. id_fields: of the object, with the id of a document.

    Raises EngineError if ``ubi_events`` is missing or must not be read. Without ``ubi_queries``, only events
    with a text can be used.
    """
    objects = [f"event_attributes.object.{field}" for field in id_fields]
    parts = {
        QUERIES: [*_FIELDS, "query_response_id", "query_response_hit_ids"],
        EVENTS: [*_FIELDS, "action_name", "event_attributes.position.ordinal", *objects],
    }
    trust(settings)
    check_trust(settings, settings.where)
    for name, fields in parts.items():
        index = Index(replace(settings, index=name), Path())
        check(index.client, index.settings)
        if not index.indices():
            if name == EVENTS:
                raise EngineError(
                    f"{settings.where} has no index {name!r}; check the URL, or give the log as files"
                )
            continue
        for hits in pages(index, {"size": _PAGE, "_source": fields}):
            for hit in hits:
                yield record_of_source(f"{name}/{hit['_id']}", hit["_source"])
