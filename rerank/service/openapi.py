"""What the service answers, as an OpenAPI description, and the page that shows it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rerank import __version__
from rerank.service.bodies import Problem

STATUSES = {
    400: "The body is no JSON",
    401: "The token is missing or wrong",
    403: "The token is good for other endpoints",
    408: "The request did not come in time",
    413: "The body is too long",
    415: "The body is said to be no JSON",
    421: "Another host's name, or a web page of another origin",
    422: "The body says what cannot be",
    431: "The headers are too many or too long",
    502: "The engine cannot answer",
    503: "Too many requests at once",
    504: "Not done in time",
}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none';"
    " base-uri 'none'; form-action 'none'"
}
"""Of the page, which may load and run nothing."""

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "h2{font-size:1.15rem;margin-top:2.5rem}code,pre{font:14px/1.5 ui-monospace,monospace}"
    "pre{background:#f4f4f4;padding:.75rem;overflow-x:auto}table{border-collapse:collapse;width:100%}"
    "th,td{text-align:left;vertical-align:top;border-bottom:1px solid #ddd;padding:.3rem .8rem .3rem 0}"
)
_SCHEMAS = "#/components/schemas/{model}"


class Endpoint(NamedTuple):
    """What is posted to a path, and who answers what."""

    path: str
    function: Callable[..., dict[str, Any] | bytes]
    body: type[BaseModel]
    answer: type[BaseModel]
    kinds: tuple[str, ...] = ()  # of bodies that are taken, beside JSON

    @property
    def name(self) -> str:
        """As tokens and the service's settings say it."""
        return self.function.__name__

    def read(self, data: bytes) -> Any:
        """Read a body."""
        return getattr(self.body, "read", self.body.model_validate_json)(data)


def describe(endpoints: Sequence[Endpoint], open_paths: Iterable[str], token: bool) -> dict[str, Any]:
    """Describe endpoints, and what can be got. token: all but ``open_paths`` need one."""
    models: list[Any] = [Problem, *(one.body for one in endpoints), *(one.answer for one in endpoints)]
    inputs: list[Any] = [(model, "validation") for model in dict.fromkeys(models)]
    components = {"schemas": models_json_schema(inputs, ref_template=_SCHEMAS)[1]["$defs"]}
    paths: dict[str, Any] = {}
    for one in endpoints:
        summary = (one.function.__doc__ or "").splitlines()[0].split(": ", 1)[-1]
        paths[one.path] = {"post": _operation(one.path, summary, _json(one.answer), *STATUSES)}
        paths[one.path]["post"]["requestBody"] = {"required": True, "content": _json(one.body)}
    anything = {"application/json": {"schema": {"type": "object"}}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths["/healthz"] = {"get": _operation("healthz", "Whether the process answers", anything)}
    paths["/readyz"] = {"get": _operation("readyz", "What is served", anything, 503)}
    paths["/metrics"] = {"get": _operation("metrics", "Counters for Prometheus", text, 401)}
    made = {"openapi": "3.1.0", "info": {"title": "rerank", "version": __version__}, "paths": paths}
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


def page(about: dict[str, Any]) -> str:
    """The description as a page, which needs nothing from elsewhere and runs nothing."""
    parts = [f"<h1>{_html(about['info']['title'])} {_html(about['info']['version'])}</h1>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a>.</p>')
    models = about["components"]["schemas"]
    for path, methods in about["paths"].items():
        for method, told in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {_html(path)}</code></h2><p>{_html(told['summary'])}</p>"
            )
            if "requestBody" in told:
                name = _model(told["requestBody"]["content"])
                parts += ["<h3>Request</h3>", *_tables(name, models), _example_call(path, models[name])]
                name = _model(told["responses"]["200"]["content"])
                parts += ["<h3>Answer</h3>", *_tables(name, models)]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>rerank</title><style>{_STYLE}</style>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _model(content: dict[str, Any]) -> str:
    return str(content["application/json"]["schema"]["$ref"]).rpartition("/")[2]


def _tables(name: str, models: dict[str, Any]) -> list[str]:
    """The fields of a model, and of those that it names."""
    found = [name]
    for one in found:
        named = re.findall(r"#/components/schemas/(\w+)", json.dumps(models[one]))
        found += [other for other in dict.fromkeys(named) if other not in found]
    heads = ["", *(f"<h4>{_html(one)}</h4>" for one in found[1:])]
    return [head + _fields(models[one]) for head, one in zip(heads, found)]


def _fields(model: dict[str, Any]) -> str:
    needed = model.get("required", ())
    rows = []
    for name, about in model.get("properties", {}).items():
        default = "required" if name in needed else json.dumps(about.get("default"))
        told = about.get("description", "")
        cells = (f"<code>{_html(name)}</code>", _html(_kind(about)), _html(default), _html(told))
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "<tr><th>field</th><th>type</th><th>default</th><th></th></tr>"
    return f"<p>{_html(model.get('description', ''))}</p><table>{head}{''.join(rows)}</table>"


def _kind(about: dict[str, Any]) -> str:
    """A type in words.

    >>> _kind({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'list of string, or null'
    """
    if "anyOf" in about:
        return ", or ".join(_kind(one) for one in about["anyOf"])
    if "$ref" in about:
        return str(about["$ref"]).rpartition("/")[2]
    if about.get("type") == "array":
        return f"list of {_kind(about.get('items', {}))}"
    return str(about.get("type", "anything"))


def _example_call(path: str, model: dict[str, Any]) -> str:
    if not model.get("examples"):
        return ""
    body = json.dumps(model["examples"][0])
    call = f"curl -X POST http://127.0.0.1:8765{path} -H 'Content-Type: application/json' -d '{body}'"
    return f"<pre>{_html(call)}</pre>"


def _html(text: str) -> str:
    return html.escape(text)
