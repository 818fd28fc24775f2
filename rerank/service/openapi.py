"""The OpenAPI description, made from the schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from rerank import __version__
from rerank.service.schemas import (
    BINARY,
    EXAMPLE_OF_HOOK,
    EXAMPLES,
    JSON,
    HookCall,
    Problem,
    TextDocument,
    decode,
)

STATUSES = {
    400: "The body is not JSON",
    401: "The token is missing or wrong",
    403: "The token is not valid for this endpoint",
    408: "The request did not come in time",
    413: "The body is too long",
    415: "The body has another content type",
    421: "Another host's name, or a web page of another origin",
    422: "A field of the body is wrong",
    431: "The headers are too long",
    502: "The engine cannot answer",
    503: "Too many requests at once",
    504: "Not done in time",
}

_PAGES = {
    "healthz": "Whether the process answers",
    "readyz": "The stack and rankers that are served",
    "metrics": "Counters for Prometheus",
}

_SCHEMAS = "#/components/schemas/{name}"


class Endpoint(NamedTuple):
    """A path that accepts a body. answer: its description."""

    path: str
    function: Callable[..., dict[str, Any] | bytes]
    body: type[msgspec.Struct] | type[HookCall]
    answer: str

    @property
    def name(self) -> str:
        """Its name in tokens and settings."""
        return self.function.__name__

    @property
    def kind(self) -> str:
        """The content type of body and answer."""
        return BINARY if self.body is HookCall else JSON

    def read(self, data: bytes) -> Any:
        """Read a body. Raises msgspec.DecodeError, InputError."""
        return HookCall.read(data) if self.body is HookCall else decode(data, self.body)


def describe(endpoints: Sequence[Endpoint], open_paths: Iterable[str], token: bool) -> dict[str, Any]:
    """Describe all paths. token: all but ``open_paths`` need one."""
    bodies = [one.body for one in endpoints if one.kind == JSON]
    schemas = msgspec.json.schema_components([Problem, TextDocument, *bodies], ref_template=_SCHEMAS)[1]
    for kind in EXAMPLES.keys() & {*bodies}:
        schemas[kind.__name__]["examples"] = [EXAMPLES[kind]]
    if "RerankBody" in schemas:
        document = {"anyOf": [{"type": "string"}, _reference(TextDocument)]}
        schemas["RerankBody"]["properties"]["documents"]["items"] = document
    binary = {BINARY: {"schema": {"type": "string", "format": "binary"}, "example": EXAMPLE_OF_HOOK}}
    paths: dict[str, Any] = {}
    for one in endpoints:
        summary = (one.function.__doc__ or "").splitlines()[0].split(": ", 1)[-1]
        paths[one.path] = {"post": _operation(one.path, summary, one.answer, *STATUSES)}
        content = _json(one.body) if one.kind == JSON else binary
        paths[one.path]["post"]["requestBody"] = {"required": True, "content": content}
    for name, summary in _PAGES.items():
        paths[f"/{name}"] = {"get": _operation(name, summary, "An answer", *[401] * (name == "metrics"))}
    components: dict[str, Any] = {"schemas": schemas}
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "rerank", "version": __version__},
        "paths": paths,
    }
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
        for path in paths.keys() & set(open_paths):
            paths[path]["get"]["security"] = []
    return {**described, "components": components}


def _operation(path: str, summary: str, answer: str, *statuses: int) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": answer}}
    for status in statuses:
        answers[str(status)] = {"description": STATUSES[status], "content": _json(Problem)}
    return {"summary": summary, "operationId": path.strip("/").replace("/", "_"), "responses": answers}


def _json(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(kind)}}


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": _SCHEMAS.format(name=kind.__name__)}
