"""The log: JSON lines on standard error."""

from __future__ import annotations

import json
import logging
import re
import traceback
from datetime import datetime, timezone
from typing import Any

# JSON does not escape these: characters that control a terminal, and surrogates that no stream can write.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_LOG = logging.getLogger("rerank.service")


class Lines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        head = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        text = json.dumps({**head, **getattr(record, "fields", {})}, ensure_ascii=False, default=str)
        return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def start() -> None:
    """Log to standard error, also warnings of the server."""
    logging.raiseExceptions = False  # the reader may go
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    levels = {"rerank.service": logging.INFO, "uvicorn": logging.WARNING, "asyncio": logging.WARNING}
    for name, level in levels.items():
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
        log.setLevel(level)


def event(name: str, **fields: Any) -> None:
    """Log a step of the service."""
    _LOG.info(name, extra={"fields": fields})


def problem(name: str, **fields: Any) -> None:
    """Log an error."""
    _LOG.error(name, extra={"fields": fields})


def places(error: BaseException) -> list[str]:
    """The code locations of an error. Its message is left out: it may contain a query."""
    return [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-8:]]
