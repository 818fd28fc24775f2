"""Limits of one connection that uvicorn lacks: bytes and seconds of head and body."""

from __future__ import annotations

import asyncio
import http
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rerank.service import metrics
from rerank.service.app import Service

HEAD_BYTES = 32 * 2**10

_LINGER, _DISCARDED = 1.0, 2**24
"""Seconds and bytes to read on after a refusal: to close at once could lose the answer."""


class Connection(HttpToolsProtocol):
    """A client's connection."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        service = cast(Service, self.app.service)
        self.settings = service.settings
        # In both, the connection that waits longest is the first.
        self.waiting = service.waiting  # for a request
        self.idle = service.idle  # after an answer
        self._unparsed = 0  # bytes since the last complete part of a request
        self._refused = False
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._wait("the request did not come in time")
        if len(self.connections) > self.settings.max_connections:
            metrics.REFUSED.labels("connections").inc()
            oldest = next(iter(self.waiting))
            if oldest is self and self.idle:
                oldest = next(iter(self.idle))
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless the request was refused."""
        self._unparsed += len(data)
        if self._refused:
            if self._unparsed > _DISCARDED:
                self.transport.abort()
            return
        super().data_received(data)
        if self._unparsed > HEAD_BYTES:
            self._refuse(431, f"the headers are longer than {HEAD_BYTES:,} bytes; send less")

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP."""
        self._refuse(400, msg)

    def on_message_begin(self) -> None:
        """Wait for the head of a request."""
        super().on_message_begin()
        if self._reading is None:
            self._wait("the request did not come in time")

    def on_headers_complete(self) -> None:
        """Wait for the body."""
        self._unparsed = 0
        self._wait("the body did not come in time")
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A chunk of the body begins."""
        self._unparsed = 0

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._unparsed = 0
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self.idle[self] = None

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.settings.request_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _wait(self, problem: str) -> None:
        self._stop_waiting()
        self.waiting[self] = None
        self._reading = self.loop.call_later(self.settings.request_timeout, self._late, problem)

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        self.idle.pop(self, None)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _late(self, problem: str) -> None:
        if self.flow.read_paused:  # by the service: it still answers an earlier request
            self._wait(problem)
        else:
            self._refuse(408, problem)

    def _refuse(self, status: int, message: str) -> None:
        """Answer if possible, then close."""
        self._stop_waiting()
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        metrics.REFUSED.labels(status).inc()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the application stops reading
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        content = msgspec.json.encode({"error": message})
        headers = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d" % len(content)
        phrase = http.HTTPStatus(status).phrase.encode()
        self.transport.write(b"HTTP/1.1 %d %s\r\n%s\r\n\r\n%s" % (status, phrase, headers, content))
        self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.abort)
