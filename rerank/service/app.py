"""HTTP: limits, deadline, authentication, errors as JSON, and the change to a newer snapshot.

Nothing that takes long runs on the event loop: bodies are parsed, scored and written in a bounded pool of
threads, so health checks answer under any load. Small calls of the hook with all features are answered at
once: that takes a millisecond, and a change of threads would take as long. They do not become tasks: their
connection answers them as soon as they are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rerank.errors import (
    BusyError,
    EngineError,
    InputError,
    NotInstalledError,
    NotTrainedError,
    RerankError,
    UsageError,
)
from rerank.service import endpoints, logs, metrics, openapi, schemas
from rerank.service.access import Access, is_json
from rerank.service.endpoints import DeadlineError, RequestContext
from rerank.service.hook import hook
from rerank.service.ids import rerank_ids
from rerank.service.openapi import Endpoint
from rerank.service.settings import Settings, withheld
from rerank.service.snapshot import Snapshot, signature

OPEN = ("/healthz", "/readyz", "/openapi.json")
"""Paths that need no token."""

_HOOK = Endpoint("/v1/hook", hook, schemas.HookBody, schemas.HookAnswer, kinds=("application/octet-stream",))

_TICK = 1.0  # seconds between two looks at the workspace's files

_DISCARDED = 2**27
"""Bytes beyond the limit that are still taken from a sender. A node of OpenSearch takes queries of 100 MB,
and a connection that is cut off while it sends one would count as the service's failure, not the query's."""


class Refused(Exception):
    """A request is answered by an error."""

    def __init__(self, status: int, message: str, kind: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


class Service:
    """The state of one process: the snapshot in use, the threads, and the current requests."""

    def __init__(self, settings: Settings, snapshot: Snapshot) -> None:
        self.settings = settings
        self.snapshot = snapshot
        self.pool = ThreadPoolExecutor(settings.threads, "score")
        self.loader = ThreadPoolExecutor(1, "load")
        self.busy = 0
        self.costs: dict[str, float] = {}
        self.stopping = False
        self._asked: asyncio.Event | None = None
        self._waiting: Snapshot | None = None  # newer, and its features are not all stored yet
        self._said = ""

    # -- a newer snapshot --------------------------------------------------------------------------------

    def reload(self) -> None:
        """Load the current state of the workspace, even if features are still missing."""
        if self._asked is not None:
            self._asked.set()

    async def watch(self) -> None:
        """Take a newer snapshot whenever there is one."""
        self._asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _TICK)
            asked = self._asked.is_set()
            self._asked.clear()
            await loop.run_in_executor(self.loader, self._look, asked)

    def _look(self, asked: bool) -> None:
        settings = self.settings
        if not asked and signature(settings) == self.snapshot.signature:
            return
        before = self._waiting
        try:
            same = before is not None and signature(settings) == before.signature
            newer = before if before is not None and same else Snapshot.load(settings)
            waiting = None if asked else newer.waits_for(self.snapshot)
        except Exception as error:  # whatever it is, the snapshot in use goes on serving
            self._say("reload failed", error=str(error), kind=type(error).__name__)
            return
        self._waiting = newer if waiting is not None else None
        if waiting is not None:
            self._say("reload waits", reason=f"features of {waiting} are not all stored yet")
            return
        self.snapshot = newer  # one assignment: a request has the old one or the new one
        self._said = ""
        metrics.RELOADS.labels("done").inc()
        logs.event("reloaded", **describe(newer))

    def _say(self, name: str, **fields: str) -> None:
        said = " ".join(fields.values())
        if said != self._said:  # once, not every second
            self._said = said
            failed = name == "reload failed"
            metrics.RELOADS.labels("failed" if failed else "waiting").inc()
            (logs.problem if failed else logs.event)(name, **fields)

    # -- requests ----------------------------------------------------------------------------------------

    async def answer(self, request: Request, one: Endpoint) -> Response:
        """Read a request, process it in a thread, and answer in time."""
        settings = self.settings
        endpoint = request.scope["rerank.endpoint"] = one.name
        if not is_json(request.scope["headers"], one.kinds):
            kinds = " or ".join(("application/json", *one.kinds))
            raise Refused(415, f"the body must be JSON: send Content-Type: {kinds}", "content type")
        try:
            data = await _read(request, settings.max_body)  # connection.py ends what does not come
        except ClientDisconnect as error:
            raise _refused(error, endpoint, settings) from error
        if self.busy >= settings.max_requests:
            raise Refused(503, "too many requests at once; try again", "busy", **{"Retry-After": "1"})
        request.scope["rerank.work"] = job = self.job()
        self._take()
        future: Future[bytes] | None = None
        try:
            future = self.pool.submit(_run, one, self.snapshot, data, job)
            loop = asyncio.get_running_loop()
            future.add_done_callback(lambda _: self._give_back_from(loop))
            left = max(job.deadline - time.monotonic(), 0.001)
            content = await asyncio.wait_for(asyncio.wrap_future(future), left)
        except Exception as error:
            raise _refused(error, endpoint, settings) from error
        finally:
            if future is None:
                self._give_back()
        return Response(content, media_type=_kind(content))

    def job(self) -> RequestContext:
        """A request that begins now."""
        settings, until = self.settings, time.monotonic() + self.settings.deadline
        return RequestContext(until, settings.max_candidates, settings.max_encoded, self.costs)

    def _take(self) -> None:
        self.busy += 1
        metrics.BUSY.inc()

    def _give_back(self) -> None:
        self.busy -= 1
        metrics.BUSY.dec()

    def _give_back_from(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._give_back)


def _run(one: Endpoint, snapshot: Snapshot, data: bytes, job: RequestContext) -> bytes:
    with job.stage("parse"):
        parsed = one.read(data)
    answer = one.function(snapshot, parsed, job)
    return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


def _kind(content: bytes) -> str:
    return "application/octet-stream" if content[:1] == schemas.NUMBERS_FOLLOW else "application/json"


async def _read(request: Request, most: int) -> bytes:
    """Read a body. Too long ones are read and dropped up to a bound, so that the sender sees the answer."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= most:
            parts.append(part)
            continue
        parts.clear()
        if size > most + _DISCARDED:
            break
    if size > most:
        message = f"the body is longer than {most:,} bytes; send less"
        raise Refused(413, message, "too long", Connection="close")
    return b"".join(parts)


def _refused(error: Exception, endpoint: str, settings: Settings) -> Refused:
    """The answer to a request that fails."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, (asyncio.TimeoutError, DeadlineError, TimeoutError)):
        return Refused(504, f"not done within {settings.deadline:g} seconds", "deadline")
    if isinstance(error, ClientDisconnect):
        return Refused(400, "the connection was closed", "disconnected")
    if isinstance(error, msgspec.DecodeError):
        if isinstance(error, msgspec.ValidationError):
            return Refused(422, str(error)[:300], "body")
        return Refused(400, f"the body is no JSON: {error}"[:300], "body")
    if isinstance(error, (UsageError, InputError, NotTrainedError)):
        return Refused(422, str(error), "request")
    if isinstance(error, BusyError):
        return Refused(503, str(error), "busy", **{"Retry-After": "1"})
    if isinstance(error, ModuleNotFoundError):
        error = NotInstalledError.of(error) or error
    if isinstance(error, NotInstalledError):
        return Refused(503, str(error), "not installed")
    if isinstance(error, EngineError):
        logs.problem("engine failed", endpoint=endpoint, error=_quiet(error, settings))
        return Refused(502, "the engine cannot answer; see the service's log", "engine")
    logs.problem(
        "failed",
        endpoint=endpoint,
        kind=type(error).__name__,
        error=_quiet(error, settings),
        places=logs.places(error),
    )
    return Refused(500, f"the service failed ({type(error).__name__}); see its log", "internal")


def _quiet(error: Exception, settings: Settings) -> str:
    """The text of an error, if it contains no query or may contain one."""
    return str(error) if settings.log_queries or isinstance(error, RerankError) else "not shown"


def _json(content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def _problem(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"error": " ".join(message.split())}, status, headers)


class Entrance:
    """Access, counters and log of each request, and calls that are answered at once."""

    def __init__(self, service: Service) -> None:
        self._service, self._settings = service, service.settings
        self._access = Access(service.settings)
        self._hook = _HOOK.name not in withheld(service.settings, service.snapshot.is_shared)

    def waits(self, scope: Scope) -> bool:
        """Whether a request is the hook's, for which a search waits."""
        return self._hook and scope["path"] == _HOOK.path and scope["method"] == "POST"

    def at_once(self, scope: Scope, data: bytes) -> tuple[bytes, str, Callable[[], None]] | None:
        """Answer a call of the hook if that takes a millisecond: content, its type, and what logs it.

        None: it is handled like other requests, as are calls that fail.
        """
        service, settings, begin = self._service, self._settings, time.perf_counter()
        if service.busy >= settings.max_requests or len(data) > settings.max_body:
            return None
        if not is_json(scope["headers"], _HOOK.kinds):
            return None
        job = service.job()
        job.here = True
        try:
            self.admit(scope)
            content = _run(_HOOK, service.snapshot, data, job)
        except Exception:
            return None

        def note() -> None:
            scope["rerank.endpoint"], scope["rerank.work"] = _HOOK.name, job
            self.note(scope, 200, spent)

        spent = time.perf_counter() - begin
        return content, _kind(content), note

    def admit(self, scope: Scope) -> None:
        """Raise Refused for a request that may not be answered."""
        path = scope["path"]
        if path == "/healthz":
            return
        if self._access.open:
            foreign = self._access.foreign(scope)
            if foreign is not None:
                raise Refused(421, foreign, "host")
            scope["rerank.known"] = True
            return
        token = self._access.token(scope)
        scope["rerank.known"] = token is not None
        if path in OPEN:
            return
        if token is None:
            needed = {"WWW-Authenticate": "Bearer"}
            raise Refused(401, "a valid bearer token is needed", "token", **needed)
        if not token.opens(_NAMES[path] if path in _NAMES else str(path)):
            raise Refused(403, f"this token is not good for {path}", "token")

    def note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and log a request that was answered."""
        endpoint = scope.get("rerank.endpoint", "other")
        metrics.of(metrics.REQUESTS, endpoint, status).inc()
        if "rerank.error" in scope:
            metrics.of(metrics.ERRORS, endpoint, scope["rerank.error"]).inc()
        if scope["path"] in (*OPEN, "/metrics") and status < 400:
            return
        fields = {"method": scope["method"], "path": scope["path"], "status": status}
        fields["ms"] = round(1000 * seconds, 2)
        job: RequestContext | None = scope.get("rerank.work")
        if job is not None:
            metrics.of(metrics.SECONDS, endpoint).observe(seconds)
            for stage, spent in list(job.seconds.items()):
                metrics.of(metrics.STAGES, endpoint, stage).observe(spent)
            if job.candidates is not None:
                metrics.of(metrics.CANDIDATES, endpoint).observe(job.candidates)
                fields["candidates"] = job.candidates
            for ranker, count in list(job.missing.items()):
                metrics.of(metrics.MISSING, endpoint, ranker).inc(count)
                fields["missing"] = dict(job.missing)
            if job.without_features:
                metrics.WITHOUT_FEATURES.inc()
                fields["without_features"] = job.without_features
            for reason, count in list(job.unscored.items()):
                metrics.of(metrics.UNSCORED, reason).inc(count)
                fields["unscored"] = dict(job.unscored)
            if job.passed is not None:
                metrics.of(metrics.PASSED, job.passed).inc()
                fields["passed"] = job.passed
            if self._settings.log_queries and job.query is not None:
                fields["query"] = job.query
        if "rerank.error" in scope:
            fields["error"] = scope["rerank.error"]
        logs.event("request", **fields)


class Gate:
    """The outermost layer: token, log, counters, and all other exceptions."""

    def __init__(self, app: ASGIApp, entrance: Entrance, service: Service) -> None:
        self._app, self._entrance, self._service = app, entrance, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._entrance.admit(scope)
            if self._entrance.waits(scope):  # not for a router
                answer = await self._service.answer(Request(scope, receive), _HOOK)
                await answer(scope, receive, noting)
            else:
                await self._app(scope, receive, noting)
        except Exception as error:
            refused = _refused(error, str(scope["path"]), self._service.settings)
            scope["rerank.error"] = refused.kind
            if not status:
                await _problem(refused.status, str(refused), refused.headers)(scope, receive, noting)
        finally:
            self._entrance.note(scope, status, time.perf_counter() - begin)


def describe(snapshot: Snapshot) -> dict[str, Any]:
    """The stack and rankers of a snapshot, for the log and ``/readyz``."""
    return {
        "stack": str(snapshot.default),
        "normalization": snapshot.default.combiner.normalization,
        "rankers": {name: ranker.version for name, ranker in snapshot.rankers.items()},
        "tuned": sorted(",".join(sorted(names)) for names in snapshot.tuned),
    }


ENDPOINTS = (
    Endpoint("/v1/rerank", endpoints.rerank, schemas.RerankBody, schemas.RerankAnswer),
    Endpoint("/v2/rerank", endpoints.rerank, schemas.RerankBody, schemas.RerankAnswer),
    Endpoint("/v1/search", endpoints.search, schemas.SearchBody, schemas.SearchAnswer),
    Endpoint("/v1/rerank_ids", rerank_ids, schemas.IdsBody, schemas.IdsAnswer),
    _HOOK,
)
_NAMES: dict[str, str] = {one.path: one.name for one in ENDPOINTS}


def create_app(service: Service) -> Starlette:
    """Make the application; ``app.state`` has the ``service`` and its ``entrance``."""
    settings = service.settings
    away = withheld(settings, service.snapshot.is_shared)
    endpoints = [one for one in ENDPOINTS if one.name not in away]
    entrance = Entrance(service)

    @cache  # a tenth of a second on the event loop, once
    def described() -> dict[str, Any]:
        return openapi.describe(endpoints, OPEN, bool(settings.tokens))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch())
        yield
        service.stopping = True
        watching.cancel()
        service.pool.shutdown(wait=False, cancel_futures=True)
        service.loader.shutdown(wait=False, cancel_futures=True)

    def posted(one: Endpoint) -> Route:
        async def handle(request: Request) -> Response:
            return await service.answer(request, one)

        return Route(one.path, handle, methods=["POST"])

    async def get(request: Request) -> Response:
        match request.url.path:
            case "/healthz":
                return _json({"ok": True})
            case "/metrics":
                return Response(metrics.text(), media_type=metrics.CONTENT_TYPE)
            case "/openapi.json":
                return _json(described())
        if service.stopping:
            return _problem(503, "stopping")
        if not request.scope["rerank.known"]:
            return _json({"ready": True})
        limits = {"max_candidates": settings.max_candidates, "deadline": settings.deadline}
        return _json({"ready": True, **describe(service.snapshot), **limits})

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        request.scope["rerank.error"] = "request"
        name = _NAMES.get(request.url.path)
        if error.status_code == 404 and name in away:
            return _problem(404, f"this service was started without {name}")
        return _problem(error.status_code, error.detail, dict(error.headers or {}))

    app = Starlette(
        routes=[*(Route(path, get) for path in (*OPEN, "/metrics")), *map(posted, endpoints)],
        middleware=[Middleware(Gate, entrance=entrance, service=service)],
        exception_handlers={HTTPException: refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # it would send clients to whatever Host they named
    app.state.service, app.state.entrance = service, entrance
    return app
