"""Hooks of mkdocs.yml: pages from outside docs/, and the tables of the HTTP API."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PROJECT = {
    "benchmarks/README.md": "project/benchmarks.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
}
"""File of the repository -> page of the site."""

_MARK = "<!-- endpoints -->"
_LINK = re.compile(r"(\]\()([^()\s#:]+)(#[^()\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages of PROJECT."""
    for source, page in PROJECT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links between docs/ and PROJECT by links to pages of the site, and insert the HTTP API."""
    uri = page.file.src_uri
    source = next((name for name, made in PROJECT.items() if made == uri), f"docs/{uri}")

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        target = PROJECT.get(target, target.removeprefix("docs/"))
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(uri))}{match[3] or ''})"

    text = _LINK.sub(link, markdown)
    return text.replace(_MARK, endpoints()) if _MARK in text else text


def endpoints() -> str:
    """Describe the endpoints of the service, from its OpenAPI description."""
    from rerank.service.app import ENDPOINTS
    from rerank.service.openapi import describe

    description = describe(ENDPOINTS, token=False)
    schemas = description["components"]["schemas"]
    parts = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            summary = operation["summary"].rstrip(".")
            parts.append(f"## {method.upper()} {path}\n\n{summary[0].upper()}{summary[1:]}.\n")
            body = operation.get("requestBody")
            if body:
                parts.append(f"**Request**\n\n{_table(body['content'], schemas)}")
            parts.append(f"**Answer**: {operation['responses']['200']['description']}.\n")
    return "\n".join(parts)


def _table(content: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the fields of a body as a table."""
    kind, media = next(iter(content.items()))
    schema = media["schema"]
    if "$ref" not in schema:
        return f"`{kind}`\n"
    found = schemas[schema["$ref"].rpartition("/")[2]]
    required = found.get("required", ())
    rows = ["| field | type | default | |", "| --- | --- | --- | --- |"]
    for name, one in found["properties"].items():
        default = "required" if name in required else f"`{one['default']}`" if "default" in one else ""
        parts = (one, *one.get("anyOf", ()))
        about = next((part["description"] for part in parts if "description" in part), "")
        rows.append(f"| `{name}` | {_type(one)} | {default} | {about} |")
    return "\n".join(rows) + "\n"


def _type(schema: dict[str, Any]) -> str:
    """Name a JSON type."""
    if "$ref" in schema:
        return f"{schema['$ref'].rpartition('/')[2]}"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "any"))
