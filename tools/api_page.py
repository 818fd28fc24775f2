"""Writes docs/api.md from the public names, their signatures and docstrings; a test compares the two.

python tools/api_page.py
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"

INTRODUCTION = """\
# Python API

Made from the docstrings by `python tools/api_page.py`: change them, not this page. The examples assume
`from rerank import *`, and run as tests. All of it on one collection: [in a notebook](notebook.md).

What actions return are dataclasses with `to_json()`: what `--json` prints. Those that are tables have
`rows()`: dictionaries, as `pandas.DataFrame` takes them. Errors are below [`RerankError`](#rerankerror).
Names that are not on this page may change.
"""

GROUPS = {
    "Data": ("Document", "Query", "Qrels", "LabeledPair", "Candidates"),
    "Files": ("read_corpus", "read_queries", "read_qrels", "read_labeled_pairs", "read_run"),
    "Actions": (
        "auto",
        "ingest",
        "attach",
        "encode",
        "train",
        "tune",
        "evaluate",
        "compare",
        "promote",
        "rollback",
        "status",
        "compact",
        "report",
        "mine",
        "mine_cocitation",
        "mine_pairs",
        "predict_pairs",
        "evaluate_pairs",
    ),
    "Answers": ("Workspace", "Pipeline", "Answer", "Stack", "Ranking", "Hit", "NotebookProgress"),
    "Parts of your own": ("Ranker", "Engine", "SearchRequest", "LocalEngine", "OpenSearchEngine"),
    "Errors": ("RerankError",),
}


def page() -> str:
    """The whole page."""
    import rerank

    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(rerank.__all__), set(named) ^ set(rerank.__all__)
    parts = [INTRODUCTION]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [entry(name, getattr(rerank, name)) for name in names]
    testing = importlib.import_module("rerank.testing")
    parts.append("## rerank.testing\n")
    parts.append(prose(inspect.getdoc(testing) or ""))
    parts += [entry(name, getattr(testing, name)) for name in testing.__all__]
    return "\n".join(parts)


def entry(name: str, found: Any) -> str:
    """One name: signature, docstring, example, and what a class has."""
    lines = [
        f"### {name}\n",
        f"```python\n{signature(name, found)}\n```\n",
        prose(inspect.getdoc(found) or ""),
    ]
    if inspect.isclass(found):
        members = [
            f"- `{shown}`: {inline(summary)}" for shown, summary in methods(found) if summary is not None
        ]
        if members:
            lines.append("\n".join(members) + "\n")
    return "\n".join(lines)


def signature(name: str, found: Any) -> str:
    """As it is written in the source."""
    if dataclasses.is_dataclass(found):
        return wrapped(name, [field_(one) for one in dataclasses.fields(found) if one.init], "")
    if inspect.isclass(found) and "__init__" not in vars(found):
        return f"class {name}({', '.join(base.__name__ for base in found.__bases__)})"
    return called(name, definition(found))


def field_(one: dataclasses.Field[Any]) -> str:
    """A field of a dataclass as an argument."""
    text = f"{one.name}: {one.type}"
    if one.default is not dataclasses.MISSING:
        return f"{text} = {one.default!r}"
    return text if one.default_factory is dataclasses.MISSING else f"{text} = ..."


def definition(found: Any) -> ast.FunctionDef:
    """The source of a function, or of a class's ``__init__``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    node = tree.body[0]
    if isinstance(node, ast.ClassDef):
        node = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    assert isinstance(node, ast.FunctionDef)
    return node


def called(name: str, node: ast.FunctionDef) -> str:
    """A call's signature."""
    arguments = node.args
    first = [*arguments.posonlyargs, *arguments.args]
    shown = [ast.unparse(one) for one in first]
    for at, default in enumerate(reversed(arguments.defaults), 1):
        shown[-at] += f" = {ast.unparse(default)}"
    if first and first[0].arg in ("self", "cls"):
        shown = shown[1:]
    if arguments.vararg:
        shown.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults):
        shown.append(ast.unparse(argument) + (f" = {ast.unparse(value)}" if value is not None else ""))
    if arguments.kwarg:
        shown.append(f"**{ast.unparse(arguments.kwarg)}")
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return wrapped(name, shown, returned)


def wrapped(name: str, arguments: list[str], returned: str) -> str:
    """A signature in one line, or an argument a line."""
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {one}," for one in arguments), f"){returned}"])


def methods(found: type) -> Iterator[tuple[str, str | None]]:
    """Public methods and properties of a class itself, and the first line of what each does."""
    base = next((b for b in found.__mro__[1:] if b.__name__ in ("Engine", "Ranker")), object)
    for name, member in vars(found).items():
        if name.startswith("_") or hasattr(base, name):  # what it is for is said there
            continue
        inner = getattr(member, "func", None) or getattr(member, "fget", None)
        function = getattr(member, "__func__", member)
        if inner is not None:
            yield name, summary(inner)
        elif inspect.isfunction(function):
            yield f"{name}({', '.join(parameters(function))})", summary(function)


def parameters(function: Any) -> list[str]:
    """Names of the arguments, those with a default marked."""
    names = []
    for one in inspect.signature(function).parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        names.append(one.name if one.default is one.empty else f"{one.name}=")
    return names


def summary(function: Any) -> str | None:
    """The first paragraph of a docstring."""
    text = inspect.getdoc(function)
    return " ".join(text.split("\n\n")[0].split()) if text else None


def inline(text: str) -> str:
    """Marks of docstrings as Markdown's."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def prose(text: str) -> str:
    """A docstring as Markdown: paragraphs, a list of what is described by name, examples."""
    parts = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if any(line.lstrip().startswith(">>>") for line in lines):
            code = textwrap.dedent(block)
            if parts and parts[-1].startswith("```python"):
                parts[-1] = parts[-1].removesuffix("\n```") + f"\n\n{code}\n```"
            else:
                parts.append(f"```python\n{code}\n```")
            continue
        if all(line.startswith("    ") for line in lines):  # as it is laid out
            parts.append(f"```\n{textwrap.dedent(block)}\n```")
            continue
        plain: list[str] = []
        items: list[str] = []
        for line in lines:
            named = re.match(r"(`{0,2}[a-z][\w*]*(?:(?:, |`{2}, `{2})[\w*]+)*`{0,2}):\s+(.*)", line)
            if named:
                items.append(f"- `{named[1].replace('`', '')}`: {named[2]}")
            elif items:
                items[-1] += f" {line.strip()}"
            else:
                plain.append(line.strip())
        parts += [inline(text) for text in (" ".join(plain), "\n".join(items)) if text]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
