"""Calls of the hook that their connection has answered as soon as they are read, and others."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from rerank.records import Document
from rerank.service import metrics
from rerank.service.app import Service, create_app
from rerank.service.connection import protocol
from rerank.service.openapi import Endpoint
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.workspace import Workspace

BODY = {"query": {"match": {"text": "apple"}}, "ids": ["a", "b"], "scores": [1.0, 2.0], "stack": "tfidf"}
SLOW = 200 * "apple pear "  # more characters than are answered at once
COUNTED = ("hook", 200)

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    workspace = Workspace.create(tmp_path_factory.mktemp("connection") / "ws", lang="en")
    workspace.engine.write([Document("a", text="apple"), Document("b", text="apple pear")])
    workspace.engine.close()
    return str(workspace.folder)


class Counting(Service):
    """Counts what goes the way of all requests."""

    usual = 0

    async def answer(self, request: Request, one: Endpoint) -> Response:
        self.usual += 1
        return await super().answer(request, one)


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[int]:
    app = create_app(service)
    config = uvicorn.Config(app, log_config=None, access_log=False)
    config.load()
    made: Any = protocol(service.settings, app.state.entrance)
    state = ServerState()
    state.default_headers = [(b"x-of", b"all")]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: made(config, state, {}), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def talk(folder: str, conversation: Conversation, **settings: Any) -> Counting:
    """Have a conversation with a service on one connection."""

    async def whole() -> Counting:
        service = Counting(Settings(folder, **settings), Snapshot.load(Settings(folder, **settings)))
        async with listening(service) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.wait_for(conversation(reader, writer), 30)
            writer.close()
        return service

    return asyncio.run(whole())


def told(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def post(body: bytes, *headers: str, version: str = "1.1", length: bool = True) -> bytes:
    lines = [f"POST /v1/hook HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers]
    lines += [f"Content-Length: {len(body)}"] * length
    return "\r\n".join([*lines, "", ""]).encode() + body * length


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), headers, json.loads(body or b"null")


def good(answered: tuple[int, dict[str, str], Any]) -> bool:
    status, headers, body = answered
    assert (headers["content-type"], headers["x-of"]) == ("application/json", "all")
    return status == 200 and body["ids"] == ["b", "a"]


def counted() -> float:
    value: float = metrics.of(metrics.REQUESTS, *COUNTED)._value.get()
    return value


def test_a_uvicorn_that_is_too_old_is_reported(folder, monkeypatch, caplog):
    monkeypatch.delattr(HttpToolsProtocol, "_start_asgi_task")
    monkeypatch.setattr(logging.getLogger("rerank.service"), "propagate", True)

    with caplog.at_level(logging.ERROR, "rerank.service"):
        settings = Settings(folder)
        protocol(settings, create_app(Service(settings, Snapshot.load(settings))).state.entrance)
    assert "uvicorn" in str(caplog.records[0].__dict__["fields"])


def test_a_call_is_answered_at_once_and_counted_once(folder):
    async def conversation(reader, writer):
        before = counted()
        writer.write(post(told(BODY)))
        assert good(await answer(reader))
        await asyncio.sleep(0)
        assert counted() == before + 1

    assert talk(folder, conversation).usual == 0


@pytest.mark.parametrize("cut", [10, 60, 150, -1])
def test_a_call_in_pieces(folder, cut):
    async def conversation(reader, writer):
        whole = post(told(BODY))
        for part in (whole[:cut], whole[cut:]):
            writer.write(part)
            await asyncio.sleep(0.01)
        assert good(await answer(reader))

    assert talk(folder, conversation).usual == 0


def test_a_call_in_chunks_after_a_word_of_welcome(folder):
    body = told(BODY)

    async def conversation(reader, writer):
        writer.write(post(b"", "Transfer-Encoding: chunked", "Expect: 100-continue", length=False))
        assert (await answer(reader))[0] == 100
        for part in (body[:20], body[20:], b""):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        assert good(await answer(reader))

    assert talk(folder, conversation).usual == 1  # who waits for a word is not held


def test_calls_that_come_together_are_answered_in_turn(folder):
    other = {**BODY, "ids": ["b", "a"], "scores": [1.0, 2.0]}

    async def conversation(reader, writer):
        writer.write(post(told(BODY)) + post(told(other)) + post(told(BODY)))
        orders = [(await answer(reader))[2]["ids"] for _ in range(3)]
        assert orders == [["b", "a"], ["a", "b"], ["b", "a"]]
        writer.write(post(told(BODY)))
        assert good(await answer(reader))

    assert talk(folder, conversation).usual == 2  # one of them at once: others wait, too


def test_what_takes_long_goes_the_usual_way(folder):
    slow = {**BODY, "query": {"match": {"text": SLOW}}}
    large = {**BODY, "ids": [f"{i}" * 3 for i in range(30_000)], "scores": [1.0] * 30_000}

    async def conversation(reader, writer):
        for body, status in ((slow, 200), (large, 422), (BODY, 200)):
            writer.write(post(told(body)))
            assert (await answer(reader))[0] == status

    assert talk(folder, conversation).usual == 2


def test_what_is_wrong_is_said_and_the_connection_stays(folder):
    async def conversation(reader, writer):
        before = counted()
        for body, said in ((b"{", "JSON"), (told({**BODY, "scores": [1.0]}), "2 ids came with 1 scores")):
            writer.write(post(body))
            status, _, problem = await answer(reader)
            assert 400 <= status < 500
            assert said in problem["error"]
        assert counted() == before
        writer.write(post(told(BODY)))
        assert good(await answer(reader))

    assert talk(folder, conversation).usual == 2


@pytest.mark.parametrize(("version", "headers"), [("1.1", ["Connection: close"]), ("1.0", [])])
def test_a_client_that_asks_no_more(folder, version, headers):
    async def conversation(reader, writer):
        writer.write(post(told(BODY), *headers, version=version))
        answered = await answer(reader)
        assert good(answered)
        assert answered[1]["connection"] == "close"
        assert await reader.read() == b""

    assert talk(folder, conversation).usual == 0


def test_what_may_not_be_asked(folder):
    async def conversation(reader, writer):
        kinds = ["Content-Type: text/plain"]
        for headers, status in (
            (["Host: elsewhere.example"], 421),
            (kinds, 415),
            (["Origin: http://x.example"], 421),
        ):
            writer.write(post(told(BODY), *headers))
            assert (await answer(reader))[0] == status

    assert talk(folder, conversation).usual == 1  # the kind of content is looked at there


def test_a_body_longer_than_is_read(folder):
    async def conversation(reader, writer):
        writer.write(post(told({**BODY, "ids": ["a" * 2000, "b"]})))
        assert (await answer(reader))[0] == 413

    assert talk(folder, conversation, max_body=1024).usual == 1


def test_places_say_nothing_to_an_engine_that_knows_none(folder):
    """As when a service on a folder takes the place of one on a cluster, which had wished for them."""
    said = {"query": BODY["query"], "stack": "bm25*0.5 + tfidf*0.5", "hits": 2}
    head = json.dumps({**said, "places": {"uuids": ["u"], "follow": True}}).encode()
    numbers = struct.pack(">2d2i4q", 1.0, 2.0, 0, 0, 1, 2, 1, 1)

    async def conversation(reader, writer):
        writer.write(post(b"\1" + len(head).to_bytes(3, "big") + head + numbers))
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"200"
        assert b'"without_ids":false' in await reader.readuntil(b"numbers")

    talk(folder, conversation)
