"""An extension of griffe for mkdocs.yml that converts the docstrings of this project to Markdown.

A line ``name: meaning`` becomes a list item, and an example with ``>>>`` becomes a code block.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_NAMED = re.compile(r"(`{0,2}[a-z][\w*]*(?:(?:, |`{2}, `{2})[\w*]+)*`{0,2}):\s+(.*)")


class Docstrings(griffe.Extension):
    """Rewrites every docstring when its object is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


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
        named = _NAMED.match(line)
        if named:
            items.append(f"- `{named[1].replace('`', '')}`: {named[2]}")
        elif items:
            items[-1] += f" {line.strip()}"
        else:
            plain.append(line.strip())
    texts = (" ".join(plain), "\n".join(items))
    return [re.sub(r":\w+:`~?([^`]+)`", r"`\1`", one).replace("``", "`") for one in texts if one]
