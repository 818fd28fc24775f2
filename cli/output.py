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
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from rerank.progress import Progress
from rerank.text import join_names, plural

if TYPE_CHECKING:
    from rerank import Stack
    from rerank.evaluation.judged import JudgedHits
    from rerank.evaluation.significance import Gain
    from rerank.scoring.build_table import ScoringReport
    from rerank.stack.linear import Linear


quiet = False
"""Whether only results and errors are printed."""
workspace: str | None = None
"""The workspace that the user named; suggested commands contain it."""
INTERVAL = 30.0
"""Seconds between two lines of progress if stderr is not a terminal."""
QUERIES = "quer[y|ies]"
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
_COMMAND = re.compile(r"`rerank [^`]+`")


def escape_controls(text: str) -> str:
    """Replace control characters by visible signs.

    >>> escape_controls("wolf\\x1b[31m")
    'wolf␛[31m'
    """
    return text.translate(_SIGNS)


class Terminal:
    """A terminal without control characters."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a harmless text."""
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


def print_json(value: Any) -> None:
    """Print a JSON value on stdout: in UTF-8, otherwise in ASCII, so that it is valid in every encoding."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    click.echo(json.dumps(value, ensure_ascii=encoding != "utf8", indent=2))


def remark(line: str) -> None:
    """Print on stderr."""
    click.echo(escape_controls(line) if sys.stderr is not None and sys.stderr.isatty() else line, err=True)


def note(line: str) -> None:
    """Print on stderr, unless --quiet."""
    if not quiet:
        remark(with_workspace_option(line))


def with_workspace_option(message: str) -> str:
    """Add the user's workspace to commands of a message.

    >>> with_workspace_option("run `rerank encode`")
    'run `rerank encode`'
    """
    if workspace is None:
        return message
    added = f" -w {shlex.quote(workspace)}`"
    return _COMMAND.sub(lambda match: match[0] if " -w " in match[0] else match[0][:-1] + added, message)


def suggested(*words: str) -> str:
    """A command to paste."""
    return with_workspace_option(f"`{' '.join(map(shlex.quote, ['rerank', *words]))}`")


def gain(interval: Gain, measure: str, queries: int) -> str:
    """Format a gain with its interval, and the smallest gain that the queries can show.

    >>> from rerank.evaluation.significance import Gain
    >>> gain(Gain(0.5, 0.5, 0.5, math.inf), "nDCG@10", 1)
    '+0.5000 nDCG@10 (95 % interval +0.5000 to +0.5000); 1 query can show no gain'
    """
    shown = f"a gain of {interval.smallest:.4f} or more" if math.isfinite(interval.smallest) else "no gain"
    return (
        f"{interval.mean:+.4f} {measure} (95 % interval {interval.low:+.4f} to {interval.high:+.4f});"
        f" {plural(queries, QUERIES)} can show {shown}"
    )


class Bar(Progress):
    """Progress on stderr: a bar, or a line every half minute."""

    def __init__(self, *, hidden: bool = False) -> None:
        self._hidden = hidden or quiet
        self._bar: Any = None

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a step."""
        self._title, self._total, self._unit, self._done = title, total, unit, 0
        self._begin = self._reported = time.monotonic()
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
        """Move the bar."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._reported >= INTERVAL:
            self._reported = time.monotonic()
            self._report()

    def _report(self) -> None:
        from tqdm import tqdm

        total = f" of {self._total:,}" if self._total and self._done < self._total else ""
        unit = self._unit if self._done == 1 and not total else _many(self._unit)
        count = f"{self._done:,}{total} {unit} in " if self._done and unit else ""
        self.say(f"{self._title}: {count}{tqdm.format_interval(time.monotonic() - self._begin)}")

    def show(self, **values: str) -> None:
        """Show figures after the bar."""
        if self._bar is not None:
            self._bar.set_postfix(
                {name: escape_controls(value) for name, value in values.items()}, refresh=False
            )

    def finish(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, line: str) -> None:
        """Print above the bar."""
        if self._hidden:
            return
        if self._bar is not None:
            self._bar.write(escape_controls(with_workspace_option(line)), file=sys.stderr)
        else:
            remark(with_workspace_option(line))


def weights_line(stack: str, remark: str, *cases: str) -> str:
    """Weights for queries of these cases; without cases, all."""
    queries = f"{' and '.join(CASES[case] for case in cases)}: " if cases else ""
    return f"{queries}{stack}   ({remark})"


def weights_of(combiner: Linear, *cases: str) -> str:
    """Weights and normalization of a combiner."""
    return weights_line(str(combiner), combiner.normalization, *cases)


def show_weights(stack: Stack) -> None:
    """Print a line of weights per case."""
    cases = stack.combiner.cases
    rest = [case for case in CASES if case not in cases]
    click.echo("  " + weights_of(stack.combiner, *(rest if cases else ())))
    for case, one in cases.items():
        click.echo("  " + weights_of(one, case))
    show_second_phase(stack)


def show_second_phase(stack: Stack) -> None:
    """Print a line of the second phase, if there is one."""
    if stack.then is not None:
        click.echo(f"then the best {stack.then.top}: {weights_of(stack.then.linear())}, {stack.then.model}")


def counted(*counts: tuple[int, str] | tuple[int, str, str]) -> Iterator[str]:
    """Nonzero numbers with texts (see ``plural``) and details."""
    for count, text, *details in counts:
        if count:
            yield ": ".join([plural(count, text), *details])


def recall_line(recall: Mapping[str, float]) -> str:
    """Describe the share of relevant documents per retriever."""
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
        advice = "the judgments list only relevant documents; judge these hits if some may be relevant"
    note(f"{hits[worst].describe_unjudged(worst)} and count as irrelevant; {advice}")


INFERRED = "quer[y|ies] without categories got them from [its|their] first candidates"


def remarks(scoring: ScoringReport) -> None:
    """Print omissions and recomputations of a scoring."""
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
        *((count, lacking(name)) for name, count in scoring.not_found.items()),
        *((count, recomputed(name)) for name, count in scoring.recomputed.items()),
    ):
        note(line)


def lacking(name: str) -> str:
    """Documents that a ranker cannot retrieve, for ``plural``."""
    return f"document[ has|s have] no features of {name} and cannot be retrieved by it"


def recomputed(name: str) -> str:
    """Missing features, for ``plural``."""
    return f"feature[|s] of {name} [was|were] missing and computed now: run {suggested('encode')}"


def p_value(p: float) -> str:
    """``0.0123``, or ``<0.0001``."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def cut(text: str, taken: int) -> str:
    """Cut to one line, on a terminal to the width that is left, at least 16."""
    line, width = " ".join(text.split()), max(shutil.get_terminal_size().columns - taken, 16)
    return f"{line[: width - 1]}…" if sys.stdout.isatty() and len(line) > width else line


def _many(noun: str) -> str:
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('tch', 's', 'x')) else 's' if noun else ''}"
