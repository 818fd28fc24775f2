"""The log: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import datetime, timezone
from typing import Any

_LOG = logging.getLogger("rerank.service")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        fields |= getattr(record, "fields", {})
        return json.dumps(fields, ensure_ascii=False, default=str)


def start() -> None:
    """Write this process's log."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    _LOG.handlers = [handler]
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
    for name in ("uvicorn", "asyncio"):  # what they warn of, in the same form
        other = logging.getLogger(name)
        other.handlers, other.propagate = [handler], False
        other.setLevel(logging.WARNING)


def event(name: str, **fields: Any) -> None:
    """Write a line."""
    _LOG.info(name, extra={"fields": fields})


def problem(name: str, **fields: Any) -> None:
    """Write a line about something that went wrong."""
    _LOG.error(name, extra={"fields": fields})


def places(error: BaseException) -> list[str]:
    """Where an error comes from, without its message: that may hold a query."""
    return [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-8:]]
