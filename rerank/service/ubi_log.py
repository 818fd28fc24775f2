"""The log of searches, as query records of User Behavior Insights (UBI).

A thread writes the records, so that a slow or full disk does not delay a search.
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

import msgspec

from rerank.common.errors import UsageError
from rerank.service import logs, metrics

MOST_HITS = 20
"""Hits of a search in its record."""

_MOST_WAITING = 10_000
"""Records that wait for the disk. Further ones are lost."""

_BATCH = 1000  # records that are written at once

_LAST_SECONDS = 0.8
"""Seconds to write the last records before the process ends."""


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """A search. ``hit_ids`` has an empty text for a hit whose id is not known.

    experiment:  name and teams, if the results are interleaved.
    searched_at: the time of the search. The record can wait for the disk.
    """

    query: str
    query_id: str | None
    client_id: str | None
    hit_ids: Sequence[str]
    experiment: Mapping[str, str] = field(default_factory=dict)
    searched_at: datetime = field(default_factory=partial(datetime.now, timezone.utc), compare=False)

    def to_json(self) -> dict[str, object]:
        """Return the record of the UBI schema 1.3. The attributes hold the experiment and the teams."""
        attributes: dict[str, str] = {}
        if self.experiment:
            teams = self.experiment["teams"][: len(self.hit_ids)]
            attributes = {"experiment": self.experiment["name"], "teams": teams}
        timestamp = self.searched_at.isoformat(timespec="milliseconds")
        return {
            "timestamp": timestamp.replace("+00:00", "Z"),
            "query_id": self.query_id,
            "client_id": self.client_id,
            "user_query": self.query,
            "query_response_hit_ids": list(self.hit_ids),
            "query_attributes": attributes,
        }


class UbiLog:
    """A file to which records are appended, one JSON object per line. Several processes can share it.

    The file is created again if it was renamed or removed, for rotation.
    Raises UsageError if it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        if path == "-":
            raise UsageError(
                "--ubi-log -: the log is not written to standard output; give the name of a file"
            )
        self._path = path
        self._records: queue.Queue[SearchRecord | None] = queue.Queue(_MOST_WAITING)
        self._has_failed = False
        self._is_line_cut = False
        self._has_unjoined = False
        try:
            self._file = self._open()
        except OSError as error:
            raise UsageError(
                f"--ubi-log {path}: cannot be written ({error.strerror}); name a file in a folder that exists"
            ) from error
        self._thread = threading.Thread(target=self._write_all, name="ubi-log", daemon=True)
        self._thread.start()

    def add(self, record: SearchRecord) -> None:
        """Queue a record. Never blocks; if the disk is too slow, the record is lost and counted."""
        if record.experiment:
            self._count_joinable(record)
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._fail(1, "the disk is too slow")

    def close(self) -> None:
        """Write the remaining records, for at most a second."""
        try:
            self._records.put(None, timeout=_LAST_SECONDS)
        except queue.Full:
            return
        self._thread.join(_LAST_SECONDS)

    def _count_joinable(self, record: SearchRecord) -> None:
        metrics.INTERLEAVED.labels("no" if record.query_id is None else "yes").inc()
        if record.query_id is None and not self._has_unjoined:
            self._has_unjoined = True
            logs.problem(
                "no query_id",
                note="clicks cannot be joined to an interleaved search without query_id; send ext.ubi",
            )

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _write_all(self) -> None:
        is_open = True
        while is_open:
            records, is_open = self._take_batch()
            try:
                lines = [msgspec.json.encode(record.to_json()) + b"\n" for record in records]
                self._write(b"".join(lines))
                metrics.UBI_RECORDS.labels("written").inc(len(records))
                self._has_failed = False
            except Exception as error:  # the thread must continue
                self._fail(len(records), getattr(error, "strerror", None) or type(error).__name__)

    def _take_batch(self) -> tuple[list[SearchRecord], bool]:
        """Wait for a record; return all waiting ones, and whether more can follow."""
        records: list[SearchRecord] = []
        record = self._records.get()
        while record is not None:
            records.append(record)
            if len(records) == _BATCH or self._records.empty():
                return records, True
            record = self._records.get_nowait()
        return records, False

    def _write(self, lines: bytes) -> None:
        self._reopen_if_renamed()
        if self._is_line_cut:
            lines = b"\n" + lines
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            while lines:
                count = os.write(self._file, lines)
                self._is_line_cut = lines[count - 1 : count] != b"\n"
                lines = lines[count:]
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _reopen_if_renamed(self) -> None:
        current = os.fstat(self._file)
        try:
            file_at_path = os.stat(self._path)
        except FileNotFoundError:
            file_at_path = None
        if file_at_path is None or (file_at_path.st_ino, file_at_path.st_dev) != (
            current.st_ino,
            current.st_dev,
        ):
            file = self._open()
            os.close(self._file)
            self._file = file
            self._is_line_cut = False

    def _fail(self, count: int, reason: str) -> None:
        metrics.UBI_RECORDS.labels("lost").inc(count)
        if not self._has_failed:
            self._has_failed = True
            logs.problem("ubi log failed", error=reason, note="searches continue; lost records are counted")
