"""Write tables and sentences into pages, between comments of Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def page_options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with ``--check``."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="exit with 1 if a page is outdated")
    return options


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def filled(path: Path, parts: Mapping[str, str]) -> str:
    """Return the text of a page with each part between ``<!-- NAME -->`` and ``<!-- end -->``."""
    text = path.read_text("utf-8")
    for name, part in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->")
        old, end, after = rest.partition("<!-- end -->")
        if not end:
            raise SystemExit(f"{path.name}: missing `<!-- {name} -->` or `<!-- end -->`. Add both comments.")
        space = "\n\n" if old.startswith("\n") else ""
        text = f"{before}{begin}{space}{part}{space}{end}{after}"
    return text


def update(texts: Mapping[Path, str], command: str, *, check: bool) -> int:
    """Write the outdated pages or, with ``check``, name them. Return the exit code."""
    outdated = {path: text for path, text in texts.items() if path.read_text("utf-8") != text}
    for path, text in outdated.items():
        if check:
            print(f"{path.relative_to(ROOT)} is outdated; run {command}")
        else:
            path.write_text(text, "utf-8")
    return int(check and bool(outdated))
