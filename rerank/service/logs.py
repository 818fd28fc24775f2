"""The log: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

# What JSON writes as it is, and a terminal acts on; or, of half a character, what no stream can write.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_LOG = logging.getLogger("rerank.service")


def _line(seconds: float, level: str, name: str, fields: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    line = json.dumps(
        {"time": when, "level": level, "event": name, **fields}, ensure_ascii=False, default=str
    )
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        return _line(record.created, level, record.getMessage(), getattr(record, "fields", {}))


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
    """Write a line, past what makes a record of it: there is one for each request."""
    for handler in _LOG.handlers:
        if isinstance(handler, logging.StreamHandler):
            line = _line(time.time(), "info", name, fields) + "\n"
            handler.acquire()
            try:
                with suppress(OSError, ValueError):  # nobody reads it any more
                    handler.stream.write(line)
                    handler.stream.flush()
            finally:
                handler.release()


def problem(name: str, **fields: Any) -> None:
    """Write a line about something that went wrong."""
    _LOG.error(name, extra={"fields": fields})


def places(error: BaseException) -> list[str]:
    """Where an error comes from, without its message: that may hold a query."""
    return [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-8:]]
