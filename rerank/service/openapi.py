"""The OpenAPI description, made from the schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from rerank import __version__
from rerank.service.schemas import EXAMPLES, Problem, TextDocument, decode

STATUSES = {
    400: "The body is not JSON",
    401: "The token is missing or wrong",
    403: "The token is not valid for this endpoint",
    408: "The request did not come in time",
    413: "The body is too long",
    415: "The content type is not JSON",
    421: "Another host's name, or a web page of another origin",
    422: "A field of the body is wrong",
    431: "The headers are too long",
    502: "The engine cannot answer",
    503: "Too many requests at once",
    504: "Not done in time",
}

_SCHEMAS = "#/components/schemas/{name}"


class Endpoint(NamedTuple):
    """A path that accepts a body. kinds: additional content types."""

    path: str
    function: Callable[..., dict[str, Any] | bytes]
    body: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    kinds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in tokens and settings."""
        return self.function.__name__

    def read(self, data: bytes) -> Any:
        """Read a body. Raises msgspec.DecodeError, InputError."""
        read = getattr(self.body, "read", None)
        return decode(data, self.body) if read is None else read(data)


def describe(endpoints: Sequence[Endpoint], open_paths: Iterable[str], token: bool) -> dict[str, Any]:
    """Describe all paths. token: all but ``open_paths`` need one."""
    structs = [Problem, TextDocument, *(kind for one in endpoints for kind in (one.body, one.answer))]
    kinds = dict.fromkeys(structs)
    schemas = msgspec.json.schema_components(kinds, ref_template=_SCHEMAS)[1]
    for kind in EXAMPLES.keys() & kinds.keys():
        schemas[kind.__name__]["examples"] = [EXAMPLES[kind]]
    if "RerankBody" in schemas:
        document = {"anyOf": [{"type": "string"}, _reference(TextDocument)]}
        schemas["RerankBody"]["properties"]["documents"]["items"] = document
    paths: dict[str, Any] = {}
    for one in endpoints:
        summary = (one.function.__doc__ or "").splitlines()[0].split(": ", 1)[-1]
        paths[one.path] = {"post": _operation(one.path, summary, _json(one.answer), *STATUSES)}
        paths[one.path]["post"]["requestBody"] = {"required": True, "content": _json(one.body)}
    anything = {"application/json": {"schema": {"type": "object"}}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths["/healthz"] = {"get": _operation("healthz", "Whether the process answers", anything)}
    paths["/readyz"] = {"get": _operation("readyz", "The stack and rankers that are served", anything)}
    paths["/metrics"] = {"get": _operation("metrics", "Counters for Prometheus", text, 401)}
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


def _operation(path: str, summary: str, content: dict[str, Any], *statuses: int) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": "An answer", "content": content}}
    for status in statuses:
        answers[str(status)] = {"description": STATUSES[status], "content": _json(Problem)}
    return {"summary": summary, "operationId": path.strip("/").replace("/", "_"), "responses": answers}


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(kind)}}


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _SCHEMAS.format(name=kind.__name__)}
