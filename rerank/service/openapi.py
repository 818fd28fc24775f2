"""The OpenAPI description, made from the schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rerank import __version__
from rerank.service.schemas import BINARY, EXAMPLE_OF_HOOK, JSON, HookCall, Problem, decode

OPEN = {
    "/": "Name, version and paths of this service",
    "/healthz": "Whether the process answers",
    "/readyz": "The stack and rankers that are served",
    "/openapi.json": "The description of this service",
}
"""Pages that need no token."""
JUDGE_PAGES = {
    "/judge": "The page to judge hits by hand, HTML. It needs no token; its calls do",
    "/judge/next": "The next query with hits without a grade. Fields: by, after, query",
}
"""Pages of a service that was started with a pool to judge."""
PAGES = {**OPEN, "/v1/models": "The stacks that requests can name", "/metrics": "Counters for Prometheus"}

_SCHEMAS = "#/components/schemas/{name}"


def home(paths: Sequence[str], pages: Iterable[str]) -> dict[str, Any]:
    """Return the answer of ``/``."""
    return {"name": "rerank", "version": __version__, "post": list(paths), "get": [*pages]}


class Endpoint(NamedTuple):
    """A path that accepts a body.

    function: answers a request. body: the type of its body. answer: description of its answer.
    permission: name of the endpoint whose tokens and settings are valid for it; empty: its own.
    """

    path: str
    function: Callable[..., dict[str, Any] | bytes]
    body: type[msgspec.Struct] | type[HookCall]
    answer: str
    permission: str = ""

    @property
    def permitted_as(self) -> str:
        """The name of the endpoint in tokens and in the setting ``only``."""
        return self.permission or self.name

    @property
    def name(self) -> str:
        """The name of the endpoint in the counters and the log."""
        return self.function.__name__

    @property
    def kind(self) -> str:
        """The content type of the body and of the answer."""
        return BINARY if self.body is HookCall else JSON

    def read(self, data: bytes) -> Any:
        """Read a body. Raises msgspec.DecodeError, InputError."""
        return HookCall.read(data) if self.body is HookCall else decode(data, self.body)


def describe(endpoints: Sequence[Endpoint], token: bool, pages: Mapping[str, str] = PAGES) -> dict[str, Any]:
    """Describe all paths. token: all but OPEN need one. pages: path -> summary."""
    json_endpoints = [endpoint for endpoint in endpoints if endpoint.kind == JSON]
    kinds = [Problem, *(endpoint.body for endpoint in json_endpoints)]
    references, schemas = msgspec.json.schema_components(kinds, ref_template=_SCHEMAS)
    schema_of: dict[type, dict[str, Any]] = dict(zip(kinds, references))
    error = {"description": "An error, in one line", "content": {JSON: {"schema": schema_of[Problem]}}}
    binary = {"schema": {"type": "string", "format": "binary"}, "example": EXAMPLE_OF_HOOK}

    def operation(path: str, summary: str, answer: str) -> dict[str, Any]:
        answers = {"200": {"description": answer}, "default": error}
        return {"summary": summary, "operationId": path.strip("/").replace("/", "_"), "responses": answers}

    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        summary = (endpoint.function.__doc__ or "").splitlines()[0].split(": ", 1)[-1]
        content = {"schema": schema_of[endpoint.body]} if endpoint.kind == JSON else binary
        body = {"required": True, "content": {endpoint.kind: content}}
        post = operation(endpoint.path, summary, endpoint.answer)
        paths[endpoint.path] = {"post": {**post, "requestBody": body}}
    for path, summary in pages.items():
        public: dict[str, Any] = {"security": []} if path in (*OPEN, "/judge") else {}
        page = operation(path, summary, "An answer")
        if path in paths:
            page["operationId"] += "_page"
        paths.setdefault(path, {})["get"] = {**page, **public}
    return {
        "openapi": "3.1.0",
        "info": {"title": "rerank", "version": __version__},
        "paths": paths,
        "security": [{"token": []}] if token else [],
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
