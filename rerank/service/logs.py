"""The log: JSON lines on standard error."""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

# JSON does not escape these: characters that control a terminal, and surrogates that no stream can write.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_LOG = logging.getLogger("rerank.service")


def line(seconds: float, level: str, name: str, fields: dict[str, Any]) -> str:
    """One line of the log."""
    when = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    record = {"time": when, "level": level, "event": name, **fields}
    text = json.dumps(record, ensure_ascii=False, default=str)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level, fields = record.levelname.lower(), getattr(record, "fields", {})
        return line(record.created, level, record.getMessage(), fields)


def start() -> None:
    """Log to standard error, also warnings of the server."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    levels = {"rerank.service": logging.INFO, "uvicorn": logging.WARNING, "asyncio": logging.WARNING}
    for name, level in levels.items():
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(level)


def event(name: str, **fields: Any) -> None:
    """Write a line, faster than ``logging``."""
    for handler in _LOG.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.acquire()
            with suppress(OSError, ValueError):  # the reader has gone
                handler.stream.write(line(time.time(), "info", name, fields) + "\n")
                handler.stream.flush()
            handler.release()


def problem(name: str, **fields: Any) -> None:
    """Log an error."""
    _LOG.error(name, extra={"fields": fields})


def places(error: BaseException) -> list[str]:
    """The code locations of an error. Its message is left out: it may contain a query."""
    return [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-8:]]
