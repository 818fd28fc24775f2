"""One connection: limits for the bytes and the time of a request.

uvicorn reads a header to its end, however long, and waits for the rest of a request for ever. Here the line
and the headers of a request are bounded in bytes, in number and in time, its body in time, and so is a client
that does not take its answer. Bodies that are on their way are bounded together: the one that takes longest
makes room. Connections are bounded, too; beyond that a few are accepted for ``/healthz`` only, the newest
first, so that it answers whatever happens.
"""

from __future__ import annotations

import asyncio
import http
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rerank.service import logs, metrics
from rerank.service.settings import Settings

if TYPE_CHECKING:
    from rerank.service.app import Entrance

HEAD_BYTES, HEAD_COUNT = 32 * 2**10, 100
"""Bytes of the line and the headers of a request; number of headers and trailers."""

_SPARE = 64  # connections beyond the bound, for /healthz
_SPARE_PATIENCE = 1.0  # seconds that those may take to ask
_SMALL = 2**17  # bytes of a hook's call that may be answered at once
_LINGER, _DISCARDED = 1.0, 2**24  # seconds and bytes that a refused client may go on writing: it shall read


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Crowd:
    """The connections of a process.

    spare:  those beyond the bounds, oldest first.
    bodies: bytes of the bodies that are on their way, longest on their way first; held: of all.
    """

    settings: Settings
    count: int = 0
    spare: dict[Connection, None] = field(default_factory=dict)
    bodies: dict[Connection, int] = field(default_factory=dict)
    held: int = 0

    def enter(self, connection: Connection) -> bool:
        """Count a connection; whether it is one too many."""
        if self.count < self.settings.max_connections:
            self.count += 1
            return False
        if len(self.spare) >= _SPARE:
            oldest = next(iter(self.spare))
            del self.spare[oldest]
            oldest.transport.abort()
        self.spare[connection] = None
        return True

    def hold(self, connection: Connection, size: int) -> None:
        """Count the bytes of a body that the service keeps."""
        before = self.bodies.setdefault(connection, 0)
        after = self.bodies[connection] = min(before + size, self.settings.max_body)
        self.held += after - before
        while self.held > self.settings.max_body * self.settings.max_requests:
            slowest = next(iter(self.bodies))
            self.release(slowest)
            slowest.make_room()

    def release(self, connection: Connection) -> None:
        """A body is complete, or its connection has ended."""
        self.held -= self.bodies.pop(connection, 0)

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        self.release(connection)
        if connection.extra:
            self.spare.pop(connection, None)
        else:
            self.count -= 1


class Connection(HttpToolsProtocol):
    """What uvicorn makes of each connection."""

    settings: Settings
    crowd: Crowd
    entrance: Entrance

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.extra = False  # beyond the bounds: for /healthz alone
        self._heard = 0  # times that the parser had something to say
        self._silent = 0  # bytes since
        self._head = 0  # bytes of the line and the headers
        self._headers = 0
        self._refusal: _Refused | None = None
        self._over = False  # answered by a refusal: what still comes is thrown away
        self._discarded = 0
        self._waiting: asyncio.TimerHandle | None = None  # for the head, or for the body
        self._writing: asyncio.TimerHandle | None = None
        self._held: tuple[RequestResponseCycle, Any] | None = None  # a hook's call, until it is whole
        self._hasty = True  # whether the next call may be answered at once: one of those that come together

    # -- connections -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.extra = self.crowd.enter(self)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what waits."""
        self.crowd.leave(self)
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    # -- what comes --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take the next bytes, unless they are too many of a kind."""
        if self._over:
            self._discarded += len(data)
            if self._discarded > _DISCARDED:
                self.transport.abort()
            return
        if self._waiting is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_head()  # the next request on a connection that was kept
        before = self._heard
        self._hasty = True
        super().data_received(data)
        # One header, chunk extension or trailer without end: the parser would keep and copy all of it.
        self._silent = 0 if self._heard != before else self._silent + len(data)
        if self._silent > HEAD_BYTES and not self._over:
            self._refuse(_Refused(431, f"more than {HEAD_BYTES:,} bytes of headers"))

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, or too many of them."""
        self._refuse(self._refusal or _Refused(400, msg))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._waiting is None:
            self._wait_for_head()
        self._heard += 1
        self._head = self._headers = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the path."""
        super().on_url(url)
        self._count(len(url), 414, "the path is longer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._headers += 1
        self._count(len(name) + len(value), 431, "the headers are longer")
        if self._headers > HEAD_COUNT:
            self._stop(_Refused(431, f"more than {HEAD_COUNT} headers"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request, and wait for its body."""
        self._heard += 1
        self._stop_waiting()
        # Before its task is made, and without the task of another one that is still answered.
        if self.extra and httptools.parse_url(self.url).path != b"/healthz":
            self._stop(_Refused(503, "too many connections; try again"))
        self._wait(self.settings.request_timeout, 408, "the body did not come in time")
        super().on_headers_complete()
        if self.extra:
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        """Another part of the body begins."""
        self._heard += 1

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._heard += 1
        if self._held is None:
            super().on_body(body)
        else:
            self.cycle.body += body
            if len(self.cycle.body) > _SMALL:
                self._go_on()
        self.crowd.hold(self, len(body))

    def on_message_complete(self) -> None:
        """Stop waiting for the body."""
        self._heard += 1
        self._stop_waiting()
        self.crowd.release(self)
        super().on_message_complete()
        if self._held is not None and not self._over:
            self._answer_at_once()

    # -- what is answered at once ------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin to work on a request; but a call of the hook is first read whole."""
        waits = self._hasty and self.entrance.waits(cast(Any, cycle.scope))
        if waits and cycle is self.cycle and cycle.more_body and not cycle.waiting_for_100_continue:
            self._held = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _go_on(self) -> None:
        """Handle a held call like other requests."""
        held, self._held = self._held, None
        if held is not None:
            super()._start_asgi_task(*held)

    def _answer_at_once(self) -> None:
        cycle, self._hasty = self.cycle, False
        answer = None
        if not (self.flow.write_paused or self.transport.is_closing()):
            answer = self.entrance.at_once(cast(Any, cycle.scope), bytes(cycle.body))
        if answer is None:
            self._go_on()
            return
        self._held = None
        content, kind, note = answer
        lines = [b"HTTP/1.1 200 OK"]
        lines += [b"%s: %s" % header for header in self.server_state.default_headers]
        lines += [b"content-type: " + kind.encode(), b"content-length: %d" % len(content)]
        lines += [b"connection: close"] * (not cycle.keep_alive)
        self.transport.write(b"\r\n".join((*lines, b"", content)))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        self.loop.call_soon(note)  # it is not sent before the event loop goes on

    # -- bounds ------------------------------------------------------------------------------------------

    def _count(self, size: int, status: int, message: str) -> None:
        self._heard += 1
        self._head += size
        if self._head > HEAD_BYTES:
            self._stop(_Refused(status, f"{message} than {HEAD_BYTES:,} bytes"))

    def _stop(self, refusal: _Refused) -> None:
        """Have the parser give up; :meth:`send_400_response` follows."""
        self._refusal = refusal
        raise refusal

    # -- time --------------------------------------------------------------------------------------------

    def _wait_for_head(self) -> None:
        most = self.settings.request_timeout
        patience = min(most, _SPARE_PATIENCE) if self.extra else most
        self._wait(patience, 408, "the request did not come in time")

    def _wait(self, seconds: float, status: int, message: str) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(seconds, self._late, seconds, status, message)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _late(self, seconds: float, status: int, message: str) -> None:
        self._waiting = None
        if self.flow.read_paused:  # it is we who do not read on
            self._wait(seconds, status, message)
        elif not self.transport.is_closing():
            self._refuse(_Refused(status, message))

    def pause_writing(self) -> None:
        """The client does not read its answer."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.settings.request_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads its answer again."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def make_room(self) -> None:
        """Give up a body that has not come yet: its memory is needed for others."""
        self._refuse(_Refused(503, "too many bodies are on their way; try again"))

    # -- refusals ----------------------------------------------------------------------------------------

    def _refuse(self, refusal: _Refused) -> None:
        """Answer, unless another answer has begun, and close the connection."""
        if self._over or self.transport.is_closing():
            return
        self._over = True
        self._stop_waiting()
        metrics.REFUSED.labels(refusal.status).inc()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # whoever works for it hears that nobody waits
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        content = msgspec.json.encode({"error": str(refusal)})
        phrase = http.HTTPStatus(refusal.status).phrase.encode()
        headers = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d" % len(content)
        self.transport.write(b"HTTP/1.1 %d %s\r\n%s\r\n\r\n%s" % (refusal.status, phrase, headers, content))
        if cycle is None and not self._heard:  # it has not said a word
            self.transport.close()
            return
        # To close while bytes are coming would reset the connection, and the answer might be lost with it.
        self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.abort)


def protocol(settings: Settings, entrance: Entrance) -> type[asyncio.Protocol]:
    """The class of connections of a service."""
    if not hasattr(HttpToolsProtocol, "_start_asgi_task"):
        logs.problem(
            "slow hook", error=f"uvicorn {uvicorn.__version__} answers no call at once; install 0.45 or later"
        )
    own = {"settings": settings, "crowd": Crowd(settings), "entrance": entrance}
    made = type("Connection", (Connection,), own)
    return cast(type[asyncio.Protocol], made)
