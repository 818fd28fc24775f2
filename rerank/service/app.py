"""The ASGI application. A pool of threads scores, so health checks always answer."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import msgspec

from rerank.common.errors import (
    BusyError,
    EngineError,
    InputError,
    NotInstalledError,
    NotTrainedError,
    RerankError,
    UsageError,
)
from rerank.judging.judgments import NotSavedError
from rerank.service import endpoints, logs, metrics, openapi, schemas
from rerank.service.access import Access, has_kind
from rerank.service.asgi import Receive, Scope, Send
from rerank.service.body import (
    Bodies,
    Body,
    BodyError,
    BodyTooLongError,
    Reservation,
    content_encoding,
)
from rerank.service.context import DeadlineError, EncodingCosts, RequestContext
from rerank.service.hook import hook
from rerank.service.judging import HEADERS, HTML, NEXT, PAGE, Judging
from rerank.service.openapi import JUDGE_PAGES, OPEN, PAGES, Endpoint
from rerank.service.pool import DisconnectedError, Pool, end_soon
from rerank.service.retrieve import retrieve
from rerank.service.settings import JUDGE, Settings, withheld
from rerank.service.snapshot import Snapshot, signature
from rerank.service.ubi_log import UbiLog

_DOCUMENTS = "Documents, best first: index in the request and relevance_score; the stack used is the model"
_SEARCH = "The JSON of `rerank query --json`"
_RETRIEVE = "Ids of documents, or k-NN fields and vectors: docs/reference/http.md#the-protocol-of-the-hook"
_HOOK = "Length, JSON, order and scores: docs/reference/http.md#the-protocol-of-the-hook"
_JUDGED = "saved, and how many hits the judge has graded: done, total"
ENDPOINTS = (
    Endpoint("/v1/rerank", endpoints.rerank, schemas.RerankBody, _DOCUMENTS),
    Endpoint("/v2/rerank", endpoints.rerank, schemas.RerankBody, _DOCUMENTS),
    Endpoint("/rerank", endpoints.rerank, schemas.RerankBody, _DOCUMENTS),
    Endpoint("/v1/search", endpoints.search, schemas.SearchBody, _SEARCH),
    Endpoint("/v1/rerank_ids", endpoints.rerank_ids, schemas.IdsBody, _DOCUMENTS),
    Endpoint("/v1/hook", hook, schemas.HookCall, _HOOK),
    Endpoint("/v1/retrieve", retrieve, schemas.RetrieveBody, _RETRIEVE, "hook"),
)

_INTERVAL = 1.0  # seconds between two checks of the workspace's files
_DISCARDED = 2**27
"""Bytes above the limit that are read and dropped, so that the client receives the answer. OpenSearch takes
queries of 100 MB; a closed connection would count as a failure of the service, not of the query."""

_RETRY_HEADER = ("Retry-After", "1")
_TOKEN_HEADER = ("WWW-Authenticate", "Bearer")


class Answer(NamedTuple):
    """The content of an answer, with its status, content type and headers."""

    content: bytes
    status: int = 200
    kind: str = schemas.JSON
    headers: tuple[tuple[str, str], ...] = ()


class RefusedError(Exception):
    """An error answer. kind: its counter."""

    def __init__(self, status: int, message: str, kind: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers


@dataclass
class Notes:
    """Facts about a request for the log and the counters."""

    endpoint: str = "other"
    context: RequestContext | None = None
    error: str | None = None


class Application:
    """The ASGI application of one process. Raises RerankError if the workspace cannot be read."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.snapshot = Snapshot(settings)
        self._ubi_log = UbiLog(settings.ubi_log) if settings.ubi_log else None
        self._access = Access(settings)
        self._withheld = withheld(settings, self.snapshot.is_shared)
        self._endpoints = {endpoint.path: endpoint for endpoint in ENDPOINTS}
        self._judging = None if settings.judge is None else Judging(settings.judge)
        if self._judging is not None:
            self._endpoints[PAGE] = judge_endpoint(self._judging.judge)
        self._costs = EncodingCosts()
        self._bodies = Bodies(settings.max_body, settings.max_requests)
        self._pool = Pool(settings.threads, "score")
        self._documents_pool = Pool(max(settings.threads // 2, 1), "documents")
        self._loader = ThreadPoolExecutor(1, "load")
        self._newer: Snapshot | None = None  # not in use: some of its features are not stored yet
        self._reported = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, count and log a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        begin = time.perf_counter()
        notes = Notes()
        status = 0
        try:
            try:
                answer = await self._answer(scope, receive, notes)
            except Exception as error:
                refused = _refusal(error, str(scope["path"]), self.settings)
                notes.error = refused.kind
                content = msgspec.json.encode({"error": " ".join(str(refused).split())})
                answer = Answer(content, refused.status, headers=refused.headers)
            head = [("content-type", answer.kind), ("content-length", str(len(answer.content)))]
            encoded = [(name.encode(), text.encode()) for name, text in (*head, *answer.headers)]
            status = answer.status
            await send({"type": "http.response.start", "status": status, "headers": encoded})
            await send({"type": "http.response.body", "body": answer.content})
        finally:
            self._log(scope, notes, status, time.perf_counter() - begin)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Watch the workspace until the server stops."""
        logs.start()
        logs.event("started", pid=os.getpid(), **self.snapshot.describe())
        if self.snapshot.is_shared:
            served = "is not served" if "search" in self._withheld else "is served"
            note = f"/v1/search {served}: it returns every document that this service may read"
            logs.event("note", note=note)
        loop = asyncio.get_running_loop()
        parent = multiprocessing.parent_process()
        if parent is not None:
            loop.add_reader(parent.sentinel, os.kill, os.getpid(), signal.SIGTERM)
        watching = loop.create_task(self._watch())
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for pool in (self._pool, self._documents_pool):
            pool.stop()
        self._loader.shutdown(wait=False, cancel_futures=True)
        watching.cancel()
        if self._ubi_log is not None:
            self._ubi_log.close()
        logs.event("stopped", pid=os.getpid())
        end_soon()
        await send({"type": "lifespan.shutdown.complete"})

    async def _watch(self) -> None:
        """Load a newer snapshot whenever the files of the workspace change."""
        while True:
            await asyncio.sleep(_INTERVAL)
            await asyncio.get_running_loop().run_in_executor(self._loader, self._refresh)

    def _refresh(self) -> None:
        settings = self.settings
        newer = self._newer
        try:
            source = self.snapshot.pipeline.engine.hook_source()
            if source is not None:
                source.refresh()
            if signature(settings) == self.snapshot.signature:
                return
            if newer is None or signature(settings) != newer.signature:
                newer = Snapshot(settings)
            incomplete_ranker = newer.waits_for(self.snapshot)
        except Exception as error:  # the snapshot in use continues to serve
            self._report("reload failed", error=str(error), kind=type(error).__name__)
            return
        self._newer = newer if incomplete_ranker is not None else None
        if incomplete_ranker is not None:
            self._report("reload waits", reason=f"features of {incomplete_ranker} are not all stored yet")
            return
        self.snapshot = newer  # one assignment: a request has the old one or the new one
        self._reported = ""
        metrics.RELOADS.labels("done").inc()
        logs.event("reloaded", **newer.describe())

    def _report(self, name: str, **fields: str) -> None:
        text = " ".join(fields.values())
        if text != self._reported:
            self._reported = text
            failed = name == "reload failed"
            metrics.RELOADS.labels("failed" if failed else "waiting").inc()
            (logs.problem if failed else logs.event)(name, **fields)

    def _context(self) -> RequestContext:
        settings = self.settings
        deadline = time.monotonic() + settings.deadline
        limits = (settings.max_candidates, settings.max_encoded)
        return RequestContext(deadline, *limits, self._costs, logs_searches=self._ubi_log is not None)

    async def _answer(self, scope: Scope, receive: Receive, notes: Notes) -> Answer:
        path = str(scope["path"])
        is_judge_page = path in JUDGE_PAGES and scope["method"] in ("GET", "HEAD")
        if self._judging is not None and is_judge_page:
            return await self._judge(self._judging, scope, receive, notes)
        trusted = self._admit(path, scope["headers"])
        endpoint = self._endpoints.get(path)
        if endpoint is None and path not in PAGES:
            raise RefusedError(404, "Not Found", "request")
        allowed = ("GET", "HEAD") if endpoint is None else ("POST",)
        if scope["method"] not in allowed:
            raise RefusedError(405, "Method Not Allowed", "request", ("Allow", ", ".join(allowed)))
        if endpoint is None:
            return self._page(path, trusted)
        if endpoint.permitted_as in self._withheld:
            raise RefusedError(404, f"this service was started without {endpoint.permitted_as}", "request")
        notes.endpoint = endpoint.name
        if not has_kind(scope["headers"], endpoint.kind):
            message = f"another kind of body: send Content-Type: {endpoint.kind}"
            raise RefusedError(415, message, "content type")
        encoding = content_encoding(scope["headers"])
        with self._bodies.reserve() as reservation:
            data = await _read(receive, self.settings.max_body, reservation)
            return await self._run(endpoint, data, encoding, receive, notes)

    async def _judge(self, judging: Judging, scope: Scope, receive: Receive, notes: Notes) -> Answer:
        """Answer the page to judge hits, or its next query."""
        notes.endpoint = JUDGE
        path = str(scope["path"])
        # The page contains no data, and the browser cannot send the token for it.
        self._admit(path, scope["headers"], public=path == PAGE)
        if path == PAGE:
            return Answer(judging.page, kind=HTML, headers=HEADERS)
        with self._bodies.reserve() as reservation:
            await _read(receive, self.settings.max_body, reservation)
        work = partial(judging.next, scope["query_string"])
        return Answer(await self._pool.run(work, self._context(), receive), headers=HEADERS)

    async def _run(
        self, endpoint: Endpoint, data: bytes, encoding: str | None, receive: Receive, notes: Notes
    ) -> Answer:
        """Answer a complete request in a thread."""
        # Documents of requests take long to encode: they must not occupy the threads of searches.
        pool = self._documents_pool if endpoint.function is endpoints.rerank else self._pool
        if len(pool) >= self.settings.max_requests:
            raise RefusedError(503, "too many requests at once; try again", "busy", _RETRY_HEADER)
        context = self._context()
        notes.context = context
        body = Body(data, encoding, self.settings.max_body)
        work = partial(_run, endpoint, self.snapshot, body, context)
        return Answer(await pool.run(work, context, receive), kind=endpoint.kind)

    def _admit(self, path: str, headers: list[tuple[bytes, bytes]], *, public: bool = False) -> bool:
        """Check the token of a request, or its origin; return whether the client may see the stack.

        public: the path needs no token.

        Raises RefusedError without a valid token, or for a request that may come from a foreign page.
        """
        if path == "/healthz":
            return False
        if self._access.open:
            self._refuse_foreign(headers)
            return True
        token = self._access.token(headers)
        if path in OPEN or public:
            return token is not None
        if token is None:
            raise RefusedError(401, "a valid bearer token is needed", "token", _TOKEN_HEADER)
        if not token.opens(self._permission(path)):
            raise RefusedError(403, f"this token is not valid for {path}", "token")
        return True

    def _refuse_foreign(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Raise RefusedError for a request that may come from a foreign page."""
        foreign = self._access.foreign(headers)
        if foreign is not None:
            raise RefusedError(421, foreign, "host")

    def _permission(self, path: str) -> str:
        """Return the permission that a token needs for a path."""
        endpoint = self._endpoints.get(PAGE if path == NEXT else path)
        return path.strip("/") if endpoint is None else endpoint.permitted_as

    def _page(self, path: str, trusted: bool) -> Answer:
        if path == "/metrics":
            return Answer(metrics.text(), kind=metrics.CONTENT_TYPE)
        if path == "/openapi.json":
            return Answer(self._description)
        if path == "/healthz":
            return Answer(b'{"ok":true}')
        if path == "/":
            paths = [endpoint.path for endpoint in self._served]
            return Answer(msgspec.json.encode(openapi.home(paths, self._pages)))
        if path == "/v1/models":
            return Answer(msgspec.json.encode(self.snapshot.models()))
        shown: dict[str, Any] = {"ready": True}
        if trusted:
            shown |= {"max_candidates": self.settings.max_candidates, "deadline": self.settings.deadline}
            shown |= {"max_body": self.settings.max_body, "stored_bytes": self.snapshot.stored_bytes()}
            shown |= {**self.snapshot.describe(), "definition": self.snapshot.default.to_json()}
        return Answer(msgspec.json.encode(shown))

    @cached_property
    def _served(self) -> list[Endpoint]:
        endpoints = self._endpoints.values()
        return [endpoint for endpoint in endpoints if endpoint.permitted_as not in self._withheld]

    @cached_property
    def _pages(self) -> Mapping[str, str]:
        return PAGES if self._judging is None else {**PAGES, **JUDGE_PAGES}

    @cached_property
    def _description(self) -> bytes:
        return msgspec.json.encode(openapi.describe(self._served, bool(self.settings.tokens), self._pages))

    def _log(self, scope: Scope, notes: Notes, status: int, seconds: float) -> None:
        endpoint = notes.endpoint
        context = notes.context
        metrics.REQUESTS.labels(endpoint, status).inc()
        if notes.error:
            metrics.ERRORS.labels(endpoint, notes.error).inc()
        if scope["path"] in PAGES and status < 400:
            return
        fields = {"method": scope["method"], "path": scope["path"], "status": status}
        fields["ms"] = round(1000 * seconds, 2)
        if context is not None:
            metrics.SECONDS.labels(endpoint).observe(seconds)
            metrics.observe(endpoint, context)
            fields |= context.to_log(self.settings.log_queries)
            if self._ubi_log is not None and context.record is not None and status == 200:
                self._ubi_log.add(context.record)
        if notes.error:
            fields["error"] = notes.error
        logs.event("request", **fields)


def judge_endpoint(save: Callable[..., dict[str, Any]]) -> Endpoint:
    """Return the endpoint that saves the grade of a hit. save: the function that answers a request."""
    return Endpoint(PAGE, save, schemas.JudgeBody, _JUDGED)


def _run(endpoint: Endpoint, snapshot: Snapshot, sent: Body, context: RequestContext) -> bytes:
    with context.stage("parse"):
        body = endpoint.read(sent.decoded())
    answer = endpoint.function(snapshot, body, context)
    return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


async def _read(receive: Receive, limit: int, reservation: Reservation) -> bytes:
    """Read a body; drop the excess, so that the client gets the answer."""
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunk = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(chunk)
        if size <= limit:
            reservation.add(len(chunk))
            chunks.append(chunk)
        if size > limit + _DISCARDED:
            break
    if size > limit:
        raise BodyTooLongError(limit)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _refusal(error: Exception, path: str, settings: Settings) -> RefusedError:
    if isinstance(error, ModuleNotFoundError):
        error = NotInstalledError.of(error) or error
    match error:
        case RefusedError():
            return error
        case BodyError():
            return RefusedError(error.status, str(error), error.kind, error.header)
        case DisconnectedError():
            return RefusedError(400, "the connection was closed", "disconnected")
        case asyncio.TimeoutError() | TimeoutError() | DeadlineError():
            return RefusedError(504, f"not done within {settings.deadline:g} seconds", "deadline")
        case msgspec.ValidationError():
            return RefusedError(422, str(error)[:300], "body")
        case msgspec.DecodeError():
            return RefusedError(400, f"the body is not JSON: {error}"[:300], "body")
        case UsageError() | InputError() | NotTrainedError():
            return RefusedError(422, str(error), "request")
        case NotSavedError():
            return RefusedError(507, str(error), "disk")
        case BusyError():
            return RefusedError(503, str(error), "busy", _RETRY_HEADER)
        case NotInstalledError():
            return RefusedError(503, str(error), "not installed")
    # The text may contain a query, unless it is an error of our own.
    shown = str(error) if settings.log_queries or isinstance(error, RerankError) else "not shown"
    if isinstance(error, EngineError):
        logs.problem("engine failed", path=path, error=shown)
        return RefusedError(502, "the engine cannot answer; see the log of the service", "engine")
    kind = type(error).__name__
    logs.problem("failed", path=path, kind=kind, error=shown, places=logs.places(error))
    return RefusedError(500, f"the service failed ({kind}); see its log", "internal")
