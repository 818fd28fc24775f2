"""What the service answers, as an OpenAPI description, and the page that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rerank.service.bodies import Problem

STATUSES = {
    400: "The body is no JSON",
    401: "The token is missing or wrong",
    413: "The body is too long",
    422: "The body says what cannot be",
    502: "The engine cannot answer",
    503: "Too many requests at once",
    504: "Not done in time",
}

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>rerank</title>
<link rel="stylesheet" href="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui.css"></head>
<body><div id="page"></div>
<script src="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "openapi.json", dom_id: "#page"})</script></body></html>
"""
_SCHEMAS = "#/components/schemas/{model}"


class Endpoint(NamedTuple):
    """What is posted to a path, and who answers what."""

    path: str
    function: Callable[..., dict[str, Any]]
    body: type[BaseModel]
    answer: type[BaseModel]

    def read(self, data: bytes) -> Any:
        """Read a body."""
        return getattr(self.body, "read", self.body.model_validate_json)(data)


def describe(endpoints: Sequence[Endpoint], open_paths: Iterable[str], token: bool) -> dict[str, Any]:
    """Describe endpoints, and what can be got. token: all but ``open_paths`` need one."""
    models: list[Any] = [Problem, *(one.body for one in endpoints), *(one.answer for one in endpoints)]
    inputs: list[Any] = [(model, "validation") for model in dict.fromkeys(models)]
    components = {"schemas": models_json_schema(inputs, ref_template=_SCHEMAS)[1]["$defs"]}
    paths: dict[str, Any] = {}
    for path, function, body, answer in endpoints:
        summary = (function.__doc__ or "").splitlines()[0].split(": ", 1)[-1]
        paths[path] = {"post": _operation(path, summary, _json(answer), *STATUSES)}
        paths[path]["post"]["requestBody"] = {"required": True, "content": _json(body)}
    anything = {"application/json": {"schema": {"type": "object"}}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths["/healthz"] = {"get": _operation("healthz", "Whether the process answers", anything)}
    paths["/readyz"] = {"get": _operation("readyz", "What is served", anything, 503)}
    paths["/metrics"] = {"get": _operation("metrics", "Counters for Prometheus", text, 401)}
    made = {"openapi": "3.1.0", "info": {"title": "rerank", "version": version("rerank")}, "paths": paths}
    if not token:
        return {**made, "components": components}
    for path in paths.keys() & set(open_paths):
        paths[path]["get"]["security"] = []
    schemes = {"token": {"type": "http", "scheme": "bearer"}}
    return {**made, "components": {**components, "securitySchemes": schemes}, "security": [{"token": []}]}


def _operation(path: str, summary: str, content: dict[str, Any], *statuses: int) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": "An answer", "content": content}}
    for status in statuses:
        answers[str(status)] = {"description": STATUSES[status], "content": _json(Problem)}
    return {"summary": summary, "operationId": path.strip("/").replace("/", "_"), "responses": answers}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _SCHEMAS.format(model=model.__name__)}}}
