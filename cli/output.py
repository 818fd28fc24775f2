"""What commands print: tables and JSON on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from rerank.progress import Progress

from .hints import rendered

if TYPE_CHECKING:
    from rerank.scoring.fill import ScoringReport


# Controls but tab and newline, and what turns the direction of writing round.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """A text with its control characters shown as signs: what a document says must not steer a terminal.

    >>> harmless("wolf\\x1b[31m")
    'wolf␛[31m'
    """
    return _CONTROLS.sub(_sign, text)


def _sign(found: re.Match[str]) -> str:
    number = ord(found[0])
    return chr(0x2400 + number) if number < 32 else "␡" if number == 127 else f"\\u{number:04x}"


class Terminal:
    """A terminal that gets nothing but text."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, its control characters as signs."""
        return self._stream.write(harmless(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def protect() -> None:
    """Have nothing but text written to stdout, if that is a terminal."""
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = Terminal(sys.stdout)


def remark(line: str) -> None:
    """Print a line on stderr, as text alone where that is a terminal."""
    click.echo(harmless(line) if sys.stderr is not None and sys.stderr.isatty() else line, err=True)


class Bar(Progress):
    """Progress as a bar on stderr when that is a terminal; remarks as lines on stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._bar: Any = None

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a bar."""
        if self.quiet or not sys.stderr.isatty():
            return
        from tqdm import tqdm

        self._bar = tqdm(
            total=total,
            desc=title,
            unit=unit or "it",
            leave=False,
            file=sys.stderr,
            dynamic_ncols=True,
            unit_scale=True,
        )

    def advance(self, count: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def show(self, **values: str) -> None:
        """Show figures behind the bar."""
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.quiet:
            return
        line = rendered(line)
        if self._bar is not None:
            self._bar.write(harmless(line), file=sys.stderr)  # there is a bar on a terminal alone
        else:
            remark(line)


def note(line: str) -> None:
    """Print a remark on stderr."""
    remark(rendered(line))


def print_json(value: object) -> None:
    """Print a report, or other values, as one JSON object."""
    from rerank.results import plain

    click.echo(json.dumps(plain(value), ensure_ascii=False, indent=2))


def recall_line(recall: Mapping[str, float]) -> str:
    """What share of the relevant documents each retriever finds: the ceiling of any ranking."""
    return "candidate recall: " + ", ".join(f"{name} {share:.4f}" for name, share in recall.items())


def remarks(scoring: ScoringReport) -> None:
    """Say on stderr what was left out or done on the way."""
    for count, what in (
        (scoring.unknown_queries, "judged queries are not in the query file: they are left out"),
        (scoring.unknown_documents, "relevant documents are not in the workspace: they cannot be found"),
        (scoring.without_hits, "queries retrieve nothing: they count as 0"),
        (
            scoring.inferred_categories,
            "queries brought no categories and got them from their first candidates",
        ),
    ):
        if count:
            note(f"{count} {what}")
    for name, count in scoring.not_found.items():
        if count:
            note(f"{count} documents have no features of {name} and cannot be found by it")
    for name, count in scoring.recomputed.items():
        note(f"{count} features of {name} were missing and computed on the way: run `rerank encode`")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lay out columns: the first ``left`` ones to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def p_value(p: float) -> str:
    """Write a p-value the way tables do: ``0.0123``, or ``<0.0001``."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def short(text: str, width: int) -> str:
    """Cut a text to one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def whole() -> bool:
    """Whether stdout is read by a program, or kept: nothing is cut then."""
    return not sys.stdout.isatty()


def cut(text: str, width: int) -> str:
    """Make a text one line: of so many characters on a terminal, whole elsewhere."""
    return " ".join(text.split()) if whole() else short(text, width)


def indented(text: str, by: int) -> str:
    """Make a text one line that begins with spaces: as wide as a terminal, whole elsewhere."""
    return " " * by + cut(text, shutil.get_terminal_size().columns - by)
