"""The log: JSON lines on standard error."""

from __future__ import annotations

import json
import logging
import re
import traceback
from datetime import datetime, timezone

# JSON does not escape these: characters that control a terminal, and surrogates that no stream can write.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_LOG = logging.getLogger("rerank.service")


class Lines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        head = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        text = json.dumps({**head, **getattr(record, "fields", {})}, ensure_ascii=False, default=str)
        return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def start() -> None:
    """Send the log of the service and warnings of its libraries to standard error, as JSON lines."""
    logging.raiseExceptions = False  # the reader may go
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    levels = {"rerank.service": logging.INFO, "uvicorn": logging.WARNING, "asyncio": logging.WARNING}
    for name, level in levels.items():
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
        log.setLevel(level)


def event(name: str, **fields: object) -> None:
    """Log a step of the service as one JSON line. fields: further entries of the line."""
    _LOG.info(name, extra={"fields": fields})


def problem(name: str, **fields: object) -> None:
    """Log an error as one JSON line. fields: further entries of the line."""
    _LOG.error(name, extra={"fields": fields})


def places(error: BaseException) -> list[str]:
    """The code locations of an error. Its message is left out: it may contain a query."""
    return [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-8:]]
