"""What commands print: tables and JSON on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from rerank.progress import Progress
from rerank.text import duration, join_names, plural

from .hints import located, suggested

if TYPE_CHECKING:
    from rerank.combiners.linear import Linear
    from rerank.search.build_table import ScoringReport
    from rerank.stack.stack import Stack


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


loudness = "normal"
"""How much is said beside results: ``quiet``, ``normal`` or ``verbose``."""
INTERVAL = 30.0
"""Seconds between two lines of progress, if stderr is no terminal."""
CASES = {
    "given": "quer[y with|ies with] categories",
    "inferred": "quer[y|ies] whose categories are inferred",
    "none": "quer[y|ies] without categories",
}
"""What a case of a stack is called."""


def weights_line(stack: str, remark: str, *cases: str) -> str:
    """Describe weights, those of the queries of these cases; without a case, of all queries."""
    queries = f"{' and '.join(plural(2, CASES[case])[2:] for case in cases)}: " if cases else ""
    return f"{queries}{stack}   ({remark})"


def weights_of(combiner: Linear, *cases: str) -> str:
    """Describe the weights and the normalization of a combiner."""
    return weights_line(str(combiner), combiner.normalization, *cases)


def show_weights(stack: Stack) -> None:
    """Print the weights of a stack, a line for each case of queries."""
    rest = [case for case in CASES if case not in stack.combiner.cases]
    click.echo("  " + weights_of(stack.combiner, *(rest if stack.combiner.cases else ())))
    for case, one in stack.combiner.cases.items():
        click.echo("  " + weights_of(one, case))


class Bar(Progress):
    """Progress on stderr: a bar on a terminal, a line every half minute elsewhere; remarks as lines."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet or loudness == "quiet"
        self._bar: Any = None

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a step."""
        self._title, self._total, self._unit, self._done = title, total, unit, 0
        self._begun = self._reported = time.monotonic()
        if self.quiet or not sys.stderr.isatty():
            return
        from tqdm import tqdm

        self._bar = tqdm(
            total=total,
            desc=harmless(title),
            unit=f" {unit}" if unit else "",
            leave=False,
            file=sys.stderr,
            dynamic_ncols=True,
            bar_format=None if unit else "{desc}{postfix}",
        )

    def advance(self, count: int = 1) -> None:
        """Move the bar."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._reported >= INTERVAL:
            self._reported = time.monotonic()
            self.say(self._summary())

    def _summary(self) -> str:
        """Describe how far the step is, and the time since its start."""
        total = f" of {self._total:,}" if self._total and self._done < self._total else ""
        unit = self._unit if self._done == 1 and not total else _plural(self._unit)
        count = f"{self._done:,}{total} {unit} in " if self._done and unit else ""
        return f"{self._title}: {count}{duration(time.monotonic() - self._begun)}"

    def show(self, **values: str) -> None:
        """Show figures behind the bar."""
        if self._bar is not None:
            self._bar.set_postfix({name: harmless(value) for name, value in values.items()}, refresh=False)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if loudness == "verbose":
            self.say(self._summary())

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.quiet:
            return
        line = located(line)
        if self._bar is not None:
            self._bar.write(harmless(line), file=sys.stderr)  # there is a bar on a terminal alone
        else:
            remark(line)


def note(line: str) -> None:
    """Print a remark on stderr, unless nothing but results is asked for."""
    if loudness != "quiet":
        remark(located(line))


def counted(*counts: tuple[int, str] | tuple[int, str, str]) -> Iterator[str]:
    """Yield each number with its text, as ``amount`` writes it, and details; skip those that are 0."""
    for count, text, *details in counts:
        if count:
            yield ": ".join([plural(count, text), *details])


def print_json(value: object) -> None:
    """Print a report, or other values, as one JSON object."""
    from rerank.results import plain

    click.echo(json.dumps(plain(value), ensure_ascii=False, indent=2))


def recall_line(recall: Mapping[str, float]) -> str:
    """What share of the relevant documents each retriever finds: the ceiling of any ranking."""
    return "candidate recall: " + ", ".join(f"{name} {share:.4f}" for name, share in recall.items())


def remarks(scoring: ScoringReport) -> None:
    """Print on stderr what was left out or computed on the way."""
    for line in counted(
        (scoring.unknown_queries, "judged quer[y is|ies are] not in the query file and [is|are] left out"),
        (scoring.unknown_documents, "relevant document[ is|s are] not in the workspace"),
        (
            scoring.without_hits,
            "quer[y retrieves|ies retrieve] nothing and count[s|] as 0",
            join_names(scoring.silent),
        ),
        (scoring.unknown_categories, "quer[y has|ies have] unknown categories; they are ignored"),
        (scoring.inferred_categories, INFERRED),
    ):
        note(line)
    for name, count in scoring.not_found.items():
        if count:
            note(lacking(count, name))
    for name, count in scoring.recomputed.items():
        note(recomputed(count, name))


INFERRED = "quer[y|ies] without categories got them from [its|their] first candidates"


def lacking(count: int, name: str) -> str:
    """Say that a ranker cannot find some documents."""
    return plural(count, f"document[ has|s have] no features of {name} and cannot be found by it")


def recomputed(count: int, name: str) -> str:
    """Say that features were missing."""
    what = f"feature[|s] of {name} [was|were] missing and computed on the way: run "
    return plural(count, what) + suggested("encode")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lay out columns: the first ``left`` ones to the left, the others to the right."""
    from rerank.results import table

    return table(header, rows, left=range(left))


def p_value(p: float) -> str:
    """Write a p-value the way tables do: ``0.0123``, or ``<0.0001``."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def short(text: str, width: int) -> str:
    """Cut a text to one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def somebody_answers() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def whole() -> bool:
    """Whether stdout is read by a program, or kept: nothing is cut then."""
    return not sys.stdout.isatty()


def cut(text: str, width: int) -> str:
    """Make a text one line: of so many characters on a terminal, whole elsewhere."""
    return " ".join(text.split()) if whole() else short(text, width)


def room(taken: int) -> int:
    """How many characters are left of a terminal's line, a few at least."""
    return max(shutil.get_terminal_size().columns - taken, 16)


def indented(text: str, by: int) -> str:
    """Make a text one line that begins with spaces: as wide as a terminal, whole elsewhere."""
    return " " * by + cut(text, room(by))


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('tch', 's', 'x')) else 's' if noun else ''}"
