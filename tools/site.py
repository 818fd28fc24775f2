"""Hooks of mkdocs.yml: pages from outside docs/, and a copy button that copies only commands."""

from __future__ import annotations

import html
import posixpath
import re
import shlex
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PROJECT = {
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/decisions.md": "project/decisions.md",
    "benchmarks/papers/RESULTS.md": "project/papers.md",
    "benchmarks/papers/DIFFERENCES.md": "project/differences.md",
    "benchmarks/quality/RESULTS.md": "project/quality.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
}
"""File of the repository -> page of the site."""

_HEADLINE = "<!-- the table of README.md -->"
_CODE = re.compile(r'<div class="highlight">(.*?)</div>', re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^()\s#:]+)(#[^()\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages of PROJECT."""
    for source, page in PROJECT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links between docs/ and PROJECT by links to pages of the site; insert README's table.

    A link to another file of the repository becomes its text.
    """
    uri = page.file.src_uri
    if _HEADLINE in markdown:
        readme = (ROOT / "README.md").read_text("utf-8")
        table = readme.partition("<!-- demo -->")[2].partition("<!-- end -->")[0]
        markdown = markdown.replace(_HEADLINE, table.replace("*", ""))
    source = next((name for name, made in PROJECT.items() if made == uri), f"docs/{uri}")

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not target.startswith("docs/") and target not in PROJECT:
            return text  # a file of the repository that is no page, for example a script
        page_path = PROJECT.get(target, target.removeprefix("docs/"))
        return f"[{text}]({posixpath.relpath(page_path, posixpath.dirname(uri))}{anchor})"

    return _LINK.sub(link, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Let the copy button of a console copy only its commands."""

    def with_commands(match: re.Match[str]) -> str:
        shown = html.unescape(re.sub(r"<[^>]*>", "", match[1]))
        if not shown.startswith("$ "):
            return match[0]
        commands = html.escape(commands_of(shown), quote=True).replace("\n", "&#10;")
        return f'<div class="highlight" data-copy="{commands}">{match[1]}</div>'

    return _CODE.sub(with_commands, content)


def commands_of(console: str) -> str:
    """Return the commands of a console without prompts and output.

    A command continues on the next line after a backslash and inside of quotes.
    """
    commands: list[str] = []
    unfinished = ""
    for line in console.splitlines():
        if unfinished:
            unfinished += f"\n{line}"
        elif line.startswith("$ "):
            unfinished = line.removeprefix("$ ")
        if unfinished and _is_complete(unfinished):
            commands.append(unfinished)
            unfinished = ""
    return "\n".join(commands)


def _is_complete(command: str) -> bool:
    if command.endswith("\\"):
        return False
    try:
        shlex.split(command)
    except ValueError:  # an open quote
        return False
    return True
