#!/usr/bin/env python3
"""Write the generated parts of docs/reference: commands, the Python API, and the HTTP API.

    python tools/reference.py            # write the pages
    python tools/reference.py --check    # exit code 1 if a page is outdated

A generated part stands between ``<!-- generated: WHAT -->`` and ``<!-- end -->``. WHAT is ``summary``,
``commands``, ``endpoints``, or ``python`` with the names of classes and functions of ``rerank``.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
_PART = re.compile(r"(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_ITEM = re.compile(r"(`{0,2}[a-z][\w*]*(?:(?:, |`{2}, `{2})[\w*]+)*`{0,2}):\s+(.*)")


def pages() -> dict[Path, str]:
    """Return path -> content of the pages with generated parts."""
    return {path: filled(path.read_text("utf-8")) for path in sorted(PAGES.glob("*.md"))}


def filled(page: str) -> str:
    """Return a page with new generated parts."""
    return _PART.sub(lambda match: f"{match[1]}\n{generated(match[2])}\n{match[3]}", page)


def generated(what: str) -> str:
    """Return one generated part as Markdown."""
    kind, *names = what.split()
    if kind == "commands":
        return "\n".join(commands())
    if kind == "summary":
        return summary()
    if kind == "endpoints":
        return endpoints()
    return "\n".join(python_section(name) for name in names)


def summary() -> str:
    """Return the table of all commands, with links to their options."""
    from rerank.cli.program import COMMANDS

    rows = [f"| [`rerank {name}`](#rerank-{name}) | {help_text} |" for name, help_text in COMMANDS.items()]
    return "\n".join(["| command | |", "| --- | --- |", *rows, ""])


def commands() -> Iterator[str]:
    """Describe all commands and subcommands by their help."""
    from rerank.cli.program import COMMANDS, cli

    top = click.Context(cli, info_name="rerank", terminal_width=100, max_content_width=100)
    for name in COMMANDS:
        command = cli.get_command(top, name)
        assert command is not None
        yield from _command(command, name, top)


def _command(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, parent=parent, info_name=name, terminal_width=100, max_content_width=100)
    yield f"### {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for subcommand_name in command.list_commands(context):
            subcommand = command.get_command(context, subcommand_name)
            assert subcommand is not None
            yield from _command(subcommand, subcommand_name, context)


def python_section(name: str) -> str:
    """Describe a class or a function by its signature and docstring, and the public methods of a class."""
    value = pkgutil.resolve_name(f"rerank.{name}")
    parts = [f"### {name}\n", _described(name.rpartition(".")[2], value)]
    if inspect.isclass(value):
        for method_name, method in vars(value).items():
            parts += [text for text in [_method(name, method_name, method)] if text]
    return "\n".join(parts)


def _described(name: str, value: Any) -> str:
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):
        signature = ""
    signature = re.sub(r"^\((?:self|cls)(?:, )?", "(", signature).removesuffix(" -> None")
    signature = re.sub(r"<function (\w+) at 0x\w+>", r"\1", signature)  # defaults by their names
    signature = re.sub(r"<[\w.]*\b(\w+) object at 0x\w+>", r"\1()", signature)
    signature = signature.replace("<factory>", "...")
    signature = re.sub(
        r"ForwardRef\('([^']*)'\)", r"\1", signature
    )  # fields of a NamedTuple before Python 3.14
    signature = re.sub(r"'([\w.\[\], |]+)'", r"\1", signature)  # annotations of later evaluation
    if len(name + signature) > 100:
        signature = re.sub(r"^\((.*)\)", lambda match: f"(\n    {match[1]}\n)", signature)
        signature = re.sub(r", (?=\*?\w+[:,=]|\*,)", ",\n    ", signature)
    doc = inspect.getdoc(value) or ""
    return f"```python\n{name}{signature}\n```\n\n{as_markdown(doc)}\n"


def _method(class_name: str, name: str, member: Any) -> str:
    """Describe a public method or property with a docstring of its own."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    if name.startswith("_") or not callable(function) or not function.__doc__ or inspect.isclass(function):
        return ""
    title = f"#### {class_name}.{name}\n"
    if isinstance(member, property):
        return f"{title}\nProperty. {as_markdown(inspect.getdoc(member) or '')}\n"
    return f"{title}\n{_described(name, function)}"


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown: paragraphs, lists of named things, examples."""
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if any(line.lstrip().startswith(">>>") for line in lines):
            code = textwrap.dedent(block)
            if parts and parts[-1].startswith("```pycon"):
                parts[-1] = parts[-1].removesuffix("\n```") + f"\n\n{code}\n```"
            else:
                parts.append(f"```pycon\n{code}\n```")
        elif all(line.startswith("    ") for line in lines):
            parts.append(f"```\n{textwrap.dedent(block)}\n```")
        else:
            parts += _paragraph(lines)
    return "\n\n".join(parts)


def _paragraph(lines: list[str]) -> list[str]:
    """Split a paragraph into plain text and a list."""
    plain: list[str] = []
    items: list[str] = []
    for line in lines:
        item = _ITEM.match(line)
        if item:
            items.append(f"- `{item[1].replace('`', '')}`: {item[2]}")
        elif items:
            items[-1] += f" {line.strip()}"
        else:
            plain.append(line.strip())
    texts = (" ".join(plain), "\n".join(items))
    return [re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`") for text in texts if text]


def endpoints() -> str:
    """Describe the endpoints of the service, from its OpenAPI description."""
    from rerank.service.app import ENDPOINTS, judge_endpoint
    from rerank.service.judging import Judging
    from rerank.service.openapi import JUDGE_PAGES, PAGES, describe

    served = (*ENDPOINTS, judge_endpoint(Judging.judge))
    description = describe(served, token=False, pages={**PAGES, **JUDGE_PAGES})
    schemas = description["components"]["schemas"]
    paths: dict[str, list[str]] = {}  # the text below the title -> its requests
    others = ["### Without a body\n", "| request | answer |", "| --- | --- |"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            summary = operation["summary"].rstrip(".")
            summary = f"{summary[0].upper()}{summary[1:]}."
            body = operation.get("requestBody")
            if body:
                answer = f"**Answer**: {operation['responses']['200']['description']}.\n"
                text = f"{summary}\n\n**Request**\n\n{_table(body['content'], schemas)}\n{answer}"
                paths.setdefault(text, []).append(path)
            else:
                others.append(f"| `{method.upper()} {path}` | {summary} |")
    parts = [f"### POST {', '.join(names)}\n\n{text}" for text, names in paths.items()]
    return "\n".join([*parts, *others, ""])


def _table(content: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the fields of a body as a table."""
    media_type, media = next(iter(content.items()))
    schema = media["schema"]
    if "$ref" not in schema:
        return f"`{media_type}`\n"
    fields = schemas[schema["$ref"].rpartition("/")[2]]
    required = fields.get("required", ())
    rows = ["| field | type | default | |", "| --- | --- | --- | --- |"]
    for name, field in fields["properties"].items():
        default = "required" if name in required else f"`{field['default']}`" if "default" in field else ""
        variants = (field, *field.get("anyOf", ()))
        meaning = next((variant["description"] for variant in variants if "description" in variant), "")
        rows.append(f"| `{name}` | {_type(field)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _type(schema: dict[str, Any]) -> str:
    """Name a JSON type."""
    if "$ref" in schema:
        return f"{schema['$ref'].rpartition('/')[2]}"
    if "anyOf" in schema:
        return " or ".join(_type(variant) for variant in schema["anyOf"])
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "any"))


def main() -> int:
    """Write the pages, or compare them."""
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    outdated = {path: text for path, text in pages().items() if path.read_text("utf-8") != text}
    for path, text in outdated.items():
        if check:
            print(f"docs/reference/{path.name} is outdated; run python tools/reference.py")
        else:
            path.write_text(text, "utf-8")
    return int(check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
