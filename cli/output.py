"""Results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from rerank.common.progress import Progress
from rerank.common.values import items_not_in, without_empty
from rerank.documents.text import count_of, join_names, plural_of

if TYPE_CHECKING:
    from tqdm import tqdm

    from rerank import Stack
    from rerank.evaluation.judged import JudgedHits
    from rerank.evaluation.significance import Gain
    from rerank.scoring.build_table import ScoringReport
    from rerank.stack.linear import Linear

Report = TypeVar("Report")

INTERVAL = 30.0
"""Seconds between two lines of progress if stderr is not a terminal."""
CASES = {
    "given": "queries with categories",
    "inferred": "queries with inferred categories",
    "none": "queries without categories",
}
"""The case of a stack -> its name in tables."""

_HIDDEN = (*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SIGNS = {n: chr(0x2400 + n) for n in range(32) if n not in (9, 10)} | {n: f"\\u{n:04x}" for n in _HIDDEN}
_SIGNS[127] = "␡"
"""Controls except tab and newline, and characters that change the direction of writing -> visible signs."""
_COMMAND = re.compile(r"`(rerank [^`]+)`")


@dataclass
class Session:
    """The choices of the user for all messages of one call of the command line.

    quiet:     print only results and errors.
    workspace: the folder that the user named with --workspace, or None.
    """

    quiet: bool = False
    workspace: str | None = None

    def with_workspace_option(self, message: str) -> str:
        """Add the user's workspace to the commands in a message, so that they can be pasted.

        Messages of the library write commands in backquotes. They contain no workspace, because a program in
        Python has named none.

        >>> Session(workspace="my folder").with_workspace_option("run `rerank encode`")
        "run `rerank encode -w 'my folder'`"
        >>> Session().with_workspace_option("run `rerank encode`")
        'run `rerank encode`'
        """
        if self.workspace is None:
            return message
        workspace_option = f"-w {shlex.quote(self.workspace)}"

        def complete(match: re.Match[str]) -> str:
            command = match[1]
            return match[0] if " -w " in command else f"`{command} {workspace_option}`"

        return _COMMAND.sub(complete, message)


def current_session() -> Session:
    """Return the session of the running command. Outside of commands, it has the defaults."""
    context = click.get_current_context(silent=True)
    return Session() if context is None else context.ensure_object(Session)


def escape_controls(text: str) -> str:
    """Replace control characters by visible signs, so that a text cannot send commands to a terminal.

    >>> escape_controls("wolf\\x1b[31m")
    'wolf␛[31m'
    """
    return text.translate(_SIGNS)


class Terminal:
    """A text stream that writes control characters as visible signs. Otherwise it is the wrapped stream."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text with visible signs in the place of control characters, and return the length."""
        return self._stream.write(escape_controls(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escape_terminal() -> None:
    """Write characters that stdout cannot encode as escapes, and no control characters to a terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = Terminal(sys.stdout)


def print_json(report: object) -> None:
    """Print a result as JSON on stdout: in UTF-8, or else in ASCII, which every encoding contains."""
    from rerank.common.results import to_json_value

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    click.echo(json.dumps(to_json_value(report), ensure_ascii=not is_utf8, indent=2))


def print_report(report: Report, show: Callable[[Report], object], *, as_json: bool) -> None:
    """Print a result: with --json as JSON, else as ``show`` prints it for people."""
    if as_json:
        print_json(report)
    else:
        show(report)


def remark(line: str) -> None:
    """Print a line on stderr, without control characters if it is a terminal."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    click.echo(escape_controls(line) if on_terminal else line, err=True)


def note(*lines: str) -> None:
    """Print remarks on stderr, one line each, unless --quiet.

    Commands in the remarks get the workspace of the user.
    """
    session = current_session()
    if session.quiet:
        return
    for line in lines:
        remark(session.with_workspace_option(line))


def suggested(*words: str) -> str:
    """Return a command in backquotes that the user can paste.

    >>> suggested("stack", "use", "my stack")
    "`rerank stack use 'my stack'`"
    """
    command = shlex.join(["rerank", *words])
    return current_session().with_workspace_option(f"`{command}`")


def gain(interval: Gain, measure: str, queries: int) -> str:
    """Format a gain with its interval, and the smallest gain that the queries can show.

    >>> from rerank.evaluation.significance import Gain
    >>> gain(Gain(0.5, 0.5, 0.5, math.inf), "nDCG@10", 1)
    '+0.5000 nDCG@10 (95 % interval +0.5000 to +0.5000); 1 query can show no gain'
    >>> gain(Gain(0.0, 0.0, 0.0, 0.0), "nDCG@10", 26)
    '+0.0000 nDCG@10 (95 % interval +0.0000 to +0.0000)'
    """
    text = f"{interval.mean:+.4f} {measure} (95 % interval {interval.low:+.4f} to {interval.high:+.4f})"
    if not interval.smallest:  # all queries have the same difference
        return text
    shown = f"a gain of {interval.smallest:.4f} or more" if math.isfinite(interval.smallest) else "no gain"
    return f"{text}; {count_of(queries, 'query')} can show {shown}"


class Bar(Progress):
    """Progress on stderr: a bar, or a line every half minute."""

    def __init__(self, *, hidden: bool = False) -> None:
        self._session = current_session()
        self._hidden = hidden or self._session.quiet
        self._bar: tqdm[Any] | None = None

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Begin a step, and show its bar on a terminal. Without a terminal, nothing is printed yet."""
        self._title = title
        self._total = total
        self._unit = unit
        self._done = 0
        self._begin = time.monotonic()
        self._reported = self._begin
        if self._hidden or not sys.stderr.isatty():
            return
        from tqdm import tqdm

        self._bar = tqdm(
            total=total,
            desc=escape_controls(title),
            unit=f" {unit}" if unit else "",
            leave=False,
            file=sys.stderr,
            dynamic_ncols=True,
            bar_format=None if unit else "{desc}{postfix}",
        )

    def advance(self, count: int = 1) -> None:
        """Move the bar. Without a terminal, print a line if the last one is half a minute old."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._reported >= INTERVAL:
            self._reported = time.monotonic()
            self._report()

    def _report(self) -> None:
        from tqdm import tqdm

        duration = tqdm.format_interval(time.monotonic() - self._begin)
        if self._done and self._unit:
            duration = f"{self._finished_units()} in {duration}"
        self.say(f"{self._title}: {duration}")

    def _finished_units(self) -> str:
        """Return the number of finished units, such as ``20 of 1,000 docs``, or ``1,000 docs`` at the end."""
        is_complete = not self._total or self._done >= self._total
        if is_complete:
            return count_of(self._done, self._unit)
        return f"{self._done:,} of {self._total:,} {plural_of(self._unit)}"

    def show(self, **values: str) -> None:
        """Show figures after the bar of a terminal: name -> formatted value."""
        if self._bar is not None:
            self._bar.set_postfix(
                {name: escape_controls(value) for name, value in values.items()}, refresh=False
            )

    def finish(self) -> None:
        """Remove the bar, so that results start at the beginning of a line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, line: str) -> None:
        """Print a line above the bar. Its commands get the workspace of the user."""
        if self._hidden:
            return
        line = self._session.with_workspace_option(line)
        if self._bar is not None:
            self._bar.write(escape_controls(line), file=sys.stderr)
        else:
            remark(line)


def weights_line(stack: str, details: str, *cases: str) -> str:
    """Return the weights of a stack in one line. cases: the queries that they are for; none: all queries."""
    queries = " and ".join(CASES[case] for case in cases)
    prefix = f"{queries}: " if cases else ""
    return f"{prefix}{stack}   ({details})"


def weights_of(combiner: Linear, *cases: str) -> str:
    """Return the weights and the normalization of a combiner in one line."""
    return weights_line(str(combiner), combiner.normalization, *cases)


def show_weights(stack: Stack) -> None:
    """Print the weights of a stack, one line for each case of queries, and its second phase."""
    combiner_by_case = stack.combiner.cases
    other_cases: list[str] = []
    if combiner_by_case:
        other_cases = items_not_in(CASES, combiner_by_case)
    click.echo("  " + weights_of(stack.combiner, *other_cases))
    for case, combiner in combiner_by_case.items():
        click.echo("  " + weights_of(combiner, case))
    show_second_phase(stack)


def show_second_phase(stack: Stack) -> None:
    """Print the model, the size and the weights of the second phase, if the stack has one."""
    phase = stack.second_phase
    if phase is not None:
        click.echo(f"then the best {phase.top}: {weights_of(phase.linear())}, {phase.model}")


def recall_line(recall: Mapping[str, float]) -> str:
    """Describe the share of the relevant documents that each retriever finds: name -> 0 to 1."""
    return "candidate recall: " + ", ".join(f"{name} {share:.4f}" for name, share in recall.items())


def warn_of_unjudged(hits: Mapping[str, JudgedHits], irrelevant_judged: bool) -> None:
    """Print how many of the best hits of the worst signal or stack are not judged, if more than half.

    irrelevant_judged: whether a judgment has grade 0, so that the protocol ``judged`` is useful.
    """
    if not hits:
        return
    worst = max(hits, key=lambda label: hits[label].unjudged_share)
    if hits[worst].unjudged_share <= 0.5:
        return
    advice = "--protocol judged leaves them out"
    if not irrelevant_judged:
        pool = suggested("judge", "pool")
        advice = (
            f"the judgments list only relevant documents; if these hits may be relevant, judge them: {pool}"
        )
    note(f"{hits[worst].describe_unjudged(worst)} and count as irrelevant; {advice}")


def print_scoring_notes(scoring: ScoringReport) -> None:
    """Print the records that a scoring left out, and the features that it computed again."""
    note(*_scoring_notes(scoring))


def notes_of(counts: Mapping[str, int]) -> list[str]:
    """Return sentences about counts, without the ones whose count is 0. counts: sentence -> its count.

    >>> notes_of({"2 queries not found": 2, "0 queries ignored": 0})
    ['2 queries not found']
    """
    return list(without_empty(counts))


def _scoring_notes(scoring: ScoringReport) -> Iterator[str]:
    left_out = f"{not_in_query_file(scoring.unknown_queries)}; left out"
    silent = f"{without_candidates(scoring.without_hits)}; counted as 0: {join_names(scoring.silent)}"
    unknown_categories = count_of(scoring.unknown_categories, "query")
    counts = {
        left_out: scoring.unknown_queries,
        not_in_workspace(scoring.unknown_documents): scoring.unknown_documents,
        silent: scoring.without_hits,
        f"{unknown_categories} with unknown categories, which are ignored": scoring.unknown_categories,
        inferred_categories(scoring.inferred_categories): scoring.inferred_categories,
    }
    yield from notes_of(counts)
    for ranker, count in without_empty(scoring.not_found).items():
        yield cannot_be_retrieved(count, ranker)
    for ranker, count in scoring.recomputed.items():
        yield computed_features(count, ranker)


def not_in_query_file(count: int) -> str:
    """Describe the number of judged queries that the query file does not have."""
    return f"{count_of(count, 'judged query')} not in the query file"


def not_in_workspace(count: int) -> str:
    """Describe the number of relevant documents that no stack can find, because they are not ingested."""
    return f"{count_of(count, 'relevant document')} not in the workspace"


def without_candidates(count: int) -> str:
    """Describe the number of queries for which the first stage finds nothing."""
    return f"{count_of(count, 'query')} without candidates"


def inferred_categories(count: int) -> str:
    """Describe the number of queries without categories, which were inferred instead."""
    return f"{count_of(count, 'query')} without categories: inferred from the first candidates"


def cannot_be_retrieved(count: int, ranker: str) -> str:
    """Describe the number of documents that a ranker cannot retrieve, because they have no features of it."""
    return f"{count_of(count, 'document')} without features of {ranker}, which cannot retrieve them"


def computed_features(count: int, ranker: str) -> str:
    """Describe the number of features that the command computed itself, and how to store them."""
    return f"computed {count_of(count, 'missing feature')} of {ranker}; {suggested('encode')} stores them"


def p_value(p: float) -> str:
    """Return a p-value with four decimals, or ``<0.0001`` for a smaller one, which would be printed as 0."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def cut(text: str, used_width: int) -> str:
    """Return the text in one line. On a terminal, it is cut to the remaining width, at least 16.

    used_width: characters that stand before it in the line.
    """
    line = " ".join(text.split())
    width = max(shutil.get_terminal_size().columns - used_width, 16)
    is_too_long = sys.stdout.isatty() and len(line) > width
    return f"{line[: width - 1]}…" if is_too_long else line
