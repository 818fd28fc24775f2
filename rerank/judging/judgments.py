"""Judgments that people make by hand, in a file of JSON lines.

Lines are only appended. The last line of a judge for a document decides; ``null`` takes a grade back.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Annotated

import msgspec

from rerank.common.errors import InputError, RerankError
from rerank.common.files import DISK_ERRORS, as_system_error, sync_folder
from rerank.documents.records import Qrels
from rerank.documents.text import count_of
from rerank.formats.lines import check_fields, decode
from rerank.formats.opening import name_of, reading_error

HIGHEST_GRADE = 3
LONGEST_NAME = 100
LONGEST_NOTE = 1000

Grade = Annotated[int, msgspec.Meta(ge=0, le=HIGHEST_GRADE)]
JudgeName = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
Note = Annotated[str, msgspec.Meta(max_length=LONGEST_NOTE)]
File = str | os.PathLike[str]


class NotSavedError(RerankError):
    """A judgment could not be written to disk, so it does not count."""


class HandJudgment(msgspec.Struct, frozen=True):
    """One line of the file: the grade of a document for a query by one judge.

    query_id: id of the query.
    id:       id of the document.
    grade:    0 to 3; None takes the earlier grade of this judge back.
    by:       name of the judge.
    note:     remark of the judge.
    at:       time in UTC, ISO 8601.
    """

    query_id: str
    id: str
    grade: Grade | None
    by: JudgeName
    note: Note = ""
    at: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Query, document and judge: a later line with the same key replaces this one."""
        return self.query_id, self.id, self.by


@dataclass(frozen=True)
class Disagreement:
    """Grades of several judges for the same document. grades: judge -> grade."""

    query_id: str
    id: str
    grades: dict[str, int]

    @property
    def difference(self) -> int:
        """The largest grade minus the smallest one; 0 if the judges agree."""
        return max(self.grades.values()) - min(self.grades.values())


@dataclass(frozen=True)
class JudgmentSummary:
    """The judgments of all judges together.

    qrels: the median of the grades of each document; of two middle grades, the lower one.
    judges: name -> number of graded documents.
    shared: number of documents with several judges.
    disagreements: the documents whose grades differ, the largest difference first.
    """

    qrels: Qrels
    judges: dict[str, int]
    shared: int
    disagreements: list[Disagreement]

    def describe(self) -> str:
        """Return the agreement of the judges in one line; empty with one judge.

        >>> lines = [HandJudgment("q1", "a", 3, by="ann"), HandJudgment("q1", "a", 1, by="ben")]
        >>> summarize_judgments(lines).describe()
        '1 document with several judges; 1 with different grades, 1 of these by 2 or more; the median counts'
        """
        if not self.shared:
            return ""
        far = sum(disagreement.difference >= 2 for disagreement in self.disagreements)
        return (
            f"{count_of(self.shared, 'document')} with several judges;"
            f" {len(self.disagreements)} with different grades, {far} of these by 2 or more;"
            " the median counts"
        )


def read_judgments(path: File) -> list[HandJudgment]:
    """Return the judgments of a file that count, by their order in it: the last line of each judge.

    An incomplete last line, of a service that was killed, is ignored. Raises InputError for other bad lines.

    >>> path = folder / "pool.judged.jsonl"
    >>> line = '{"query_id": "q1", "id": "a", "grade": 2, "by": "ann", "at": "2026-01-31T09:30:00Z"}'
    >>> _ = path.write_text(line + "\\n" + line[:40])
    >>> [(judgment.id, judgment.grade) for judgment in read_judgments(path)]
    [('a', 2)]
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise as_system_error(error, path) or reading_error(os.fspath(path), 1, error) from error
    return current_judgments(parse_judgments(name_of(path), data))


def current_judgments(lines: Sequence[HandJudgment]) -> list[HandJudgment]:
    """Return the last line of each query, document and judge, without lines that take a grade back."""
    latest: dict[tuple[str, str, str], HandJudgment] = {}
    for line in lines:
        latest.pop(line.key, None)
        latest[line.key] = line
    return [line for line in latest.values() if line.grade is not None]


def parse_judgments(name: str, data: bytes, first: int = 1) -> list[HandJudgment]:
    """Return all lines of the file ``name``, except for an incomplete last one. Raises InputError.

    first: number of the first line, for errors.
    """
    parts = data.split(b"\n")
    if not is_complete(parts[-1]):
        parts.pop()
    lines = []
    for number, line in enumerate(parts, first):
        if line.strip():
            lines.append(_parse_line(f"{name}:{number}", line))
    return lines


def is_complete(line: bytes) -> bool:
    """Return whether a line without its end is a JSON object, not a part of one."""
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _parse_line(location: str, line: bytes) -> HandJudgment:
    try:
        fields = msgspec.json.decode(decode(location, line))
    except msgspec.DecodeError as error:
        raise InputError(
            f"{location}: not a judgment in JSON ({error}); remove the line, or name a file that"
            " `rerank serve --judge` wrote"
        ) from error
    if not isinstance(fields, dict):
        raise InputError(f"{location}: not a JSON object; name a file that `rerank serve --judge` wrote")
    return check_fields(location, fields, HandJudgment)


def summarize_judgments(judgments: Sequence[HandJudgment]) -> JudgmentSummary:
    """Return the judgments of all judges as one grade per document, and where the judges differ.

    judgments: of :func:`read_judgments`.

    >>> lines = [HandJudgment("q1", "a", 3, by="ann"), HandJudgment("q1", "a", 1, by="ben")]
    >>> summary = summarize_judgments([*lines, HandJudgment("q1", "b", 0, by="ann")])
    >>> dict(summary.qrels["q1"]), summary.judges, summary.shared
    ({'a': 1, 'b': 0}, {'ann': 2, 'ben': 1}, 1)
    """
    grades: dict[tuple[str, str], dict[str, int]] = {}
    for judgment in judgments:
        if judgment.grade is not None:
            grades.setdefault((judgment.query_id, judgment.id), {})[judgment.by] = judgment.grade
    judges: Counter[str] = Counter()
    medians: list[tuple[str, str, int]] = []
    shared = 0
    disagreements: list[Disagreement] = []
    for (query, id), grade_by_judge in grades.items():
        judges.update(grade_by_judge.keys())
        medians.append((query, id, median_low(grade_by_judge.values())))
        shared += len(grade_by_judge) > 1
        disagreement = Disagreement(query, id, grade_by_judge)
        if disagreement.difference:
            disagreements.append(disagreement)
    disagreements.sort(key=lambda document: (-document.difference, document.query_id, document.id))
    return JudgmentSummary(Qrels(medians), dict(judges), shared, disagreements)


class JudgmentFile:
    """A file of judgments that several processes append to.

    lines: all lines that were read so far. Each line is on disk before :meth:`append` returns.
    """

    def __init__(self, path: File) -> None:
        self.path = Path(path)
        self.lines: list[HandJudgment] = []
        self._read_to = 0
        self._newlines = 0
        with self._locked() as descriptor:
            self._read_new_lines(descriptor)
        sync_folder(self.path.parent)

    def refresh(self) -> None:
        """Read the lines that other processes have appended. Raises InputError for damaged lines."""
        if not self.path.exists() or self.path.stat().st_size != self._read_to:
            with self._locked() as descriptor:
                self._read_new_lines(descriptor)

    def append(self, judgment: HandJudgment) -> None:
        """Append a line and flush it to disk. Raises NotSavedError; then the file is as before."""
        data = msgspec.json.encode(judgment) + b"\n"
        with self._locked() as descriptor:
            self._read_new_lines(descriptor)
            end = self._end_last_line(descriptor)
            try:
                written = os.write(descriptor, data)
                if written < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, end)
                raise self._not_saved(error) from error
            self._read_new_lines(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending, and lock it."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._not_saved(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _read_new_lines(self, descriptor: int) -> None:
        """Read the complete lines after the last position."""
        size = os.fstat(descriptor).st_size
        if size < self._read_to:  # another program has replaced the file
            self._read_to = 0
            self._newlines = 0
            self.lines.clear()
        data = os.pread(descriptor, size - self._read_to, self._read_to)
        complete = data[: data.rfind(b"\n") + 1]
        self.lines += parse_judgments(str(self.path), complete, self._newlines + 1)
        self._read_to += len(complete)
        self._newlines += complete.count(b"\n")

    def _end_last_line(self, descriptor: int) -> int:
        """End the last line, or remove a part of one that was never confirmed. Return the size."""
        size = os.fstat(descriptor).st_size
        last_line = os.pread(descriptor, size - self._read_to, self._read_to)
        if not last_line:
            return size
        try:
            if is_complete(last_line):
                os.write(descriptor, b"\n")
                self._read_new_lines(descriptor)
            else:
                os.ftruncate(descriptor, self._read_to)
        except OSError as error:
            raise self._not_saved(error) from error
        return self._read_to

    def _not_saved(self, error: OSError) -> NotSavedError:
        advice = "free space, then grade again" if error.errno in DISK_ERRORS else "check the file"
        return NotSavedError(f"not saved: {self.path}: {error.strerror or error}; {advice}")
