"""Limits of a connection that uvicorn lacks: bytes of a head, seconds of a transfer, and connections."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rerank.service import metrics

HEAD_BYTES = 32 * 2**10
_LONG_HEAD = f"the headers are longer than {HEAD_BYTES:,} bytes; send less"

CONNECTIONS_PER_REQUEST = 16
"""Connections for each request at the same time. Clients keep idle connections."""
_LINGER = 1.0
"""Seconds to read on after a refusal: to close at once could lose the answer."""
_DISCARDED = 2**24
"""Bytes to read on after a refusal."""
_INTERVAL = 0.5  # seconds between two checks of a connection

_WAITING, _IDLE, _NEW, _BUSY = range(4)
"""Uses of a connection. If there are too many connections, the first of these is closed, the oldest first."""


class Connection(HttpToolsProtocol):
    """A client's connection. It is closed if a request takes too long or is too large."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.settings = self.app.settings
        self._use = _NEW, self.loop.time()  # and since when
        self._written = self.loop.time()  # when the client had last read everything
        self._unparsed = 0  # bytes since the last complete part of a request
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request. If there are too many connections, close the one that was idle longest."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_PER_REQUEST * self.settings.max_requests:
            metrics.REFUSED.labels("connections").inc()
            connections = cast("set[Connection]", self.connections)
            min(connections, key=lambda connection: connection._use).transport.abort()
        self._set_use(_WAITING)
        self._check()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. After a refusal, drop them, and close the connection after too many."""
        self._unparsed += len(data)
        if not self._refused:
            super().data_received(data)
            if self._unparsed > HEAD_BYTES:
                self._refuse(431, _LONG_HEAD)
        elif self._unparsed > _DISCARDED:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._use[0] != _WAITING:
            self._set_use(_WAITING)

    def on_headers_complete(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value)
        if size > HEAD_BYTES:
            self._refuse(431, _LONG_HEAD)
            return
        self._unparsed = 0
        self._set_use(_WAITING)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._unparsed = 0

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if not self._refused:
            self._set_use(_BUSY)
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._use[0] == _BUSY and self.cycle.response_complete:
            self._set_use(_IDLE)

    def _set_use(self, use: int) -> None:
        self._use = use, self.loop.time()

    def _check(self) -> None:
        """End the connection if its client takes too long to send a request, or to read an answer."""
        if self not in self.connections:  # it has ended
            return
        earliest = self.loop.time() - self.settings.request_timeout
        if self.transport.get_write_buffer_size() == 0:
            self._written = self.loop.time()
        if self.flow.read_paused and self._use[0] == _WAITING:  # by the service: it answers a request
            self._set_use(_WAITING)
        use, since = self._use
        is_request_late = use == _WAITING and since < earliest
        if self._written < earliest:
            self.transport.abort()
        elif is_request_late:
            self._refuse(408, "the request did not come in time")
        self.loop.call_later(_INTERVAL, self._check)

    def _refuse(self, status: int, message: str) -> None:
        """Answer if possible, then close."""
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
        self.transport.write(b"%s%s\r\n\r\n%s" % (STATUS_LINE[status], headers, content))
        self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.abort)
