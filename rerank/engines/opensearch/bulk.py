"""Bulk writing: a plan of actions on disk, sent in parallel, that any later call can finish.

A plan is a folder: ``actions`` (bodies of ``_bulk``), ``plan.json`` (its chunks and what to do at the
end; written last, so a folder without it was never complete) and ``done`` (a line a chunk that the
cluster has taken). Every action can be sent twice with the same result, so a crash costs at most the
chunks that were on their way.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from opensearchpy import OpenSearch
from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch.connection import Settings
from rerank.engines.opensearch.errors import block, explain, one_line
from rerank.errors import EngineError, WorkspaceError
from rerank.files import DISK_ERRORS, parse_json, write_text

SENDERS = 4
"""Requests under way at once. More only fill the cluster's queue."""

PATIENCE = 120.0
"""Seconds that a cluster may be unreachable or too busy (429) before writing stops."""

_CHUNK_BYTES = 4_000_000
_CHUNK_ACTIONS = 2000


@dataclass
class Written:
    """Results of actions, as the cluster reports them."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    missing: list[str] = field(default_factory=list)
    """Ids to delete or update that were not there."""
    conflicts: list[str] = field(default_factory=list)
    """Ids that another client wrote at the same time (``if_seq_no``)."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Ids with the reason why the cluster does not take the document."""

    def add(self, other: Written) -> None:
        """Add up."""
        self.created += other.created
        self.updated += other.updated
        self.deleted += other.deleted
        self.missing += other.missing
        self.conflicts += other.conflicts
        self.refused += other.refused


def action(kind: str, id: str, source: object = None, **meta: Any) -> bytes:
    """Return the line or two of ``_bulk`` for one document."""
    line = msgspec.json.encode({kind: {"_id": id, **meta}})
    return line + b"\n" if source is None else b"%b\n%b\n" % (line, dumps(source))


def dumps(value: object) -> bytes:
    """Encode JSON, also halves of surrogate pairs."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def send(client: OpenSearch, settings: Settings, index: str, body: bytes, stop: threading.Event) -> Written:
    """Send one body of ``_bulk``; actions that the cluster is too busy for are sent again, ever slower.

    Raises EngineError when the cluster cannot be reached for PATIENCE seconds, or writing is blocked.
    """
    written = Written()
    give_up, pause = time.monotonic() + PATIENCE, 0.25
    while True:
        error: EngineError | None = None
        try:
            answer = client.transport.perform_request(
                "POST",
                f"/{quote(index)}/_bulk",
                params={"filter_path": "errors,items.*._id,items.*.status,items.*.result,items.*.error"},
                body=body,
            )
            body, reason = _outcome(answer, body, written)
            if not body:
                return written
            error = EngineError(f"writing documents: {settings.where} does not take them now ({reason})")
        except client_errors.OpenSearchException as problem:
            error = explain(problem, settings, "writing documents")
            if getattr(problem, "status_code", None) == 413:
                return _send_parts(client, settings, index, body, stop, written)
            if not _passes(problem):
                raise error from problem
        if time.monotonic() > give_up or stop.wait(pause * random.uniform(0.5, 1.5)):
            raise error
        pause = min(2 * pause, 10.0)


def _send_parts(
    client: OpenSearch, settings: Settings, index: str, body: bytes, stop: threading.Event, written: Written
) -> Written:
    """Send a body that is too large (413) in two parts; one document that is too large is refused."""
    actions = list(_actions(body))
    if len(actions) == 1:
        ((_, about),) = parse_json(body.split(b"\n", 1)[0]).items()
        written.refused.append((about["_id"], f"{len(body):,} bytes are too many for a request (413)"))
        return written
    half = len(actions) // 2
    for part in (actions[:half], actions[half:]):
        written.add(send(client, settings, index, b"".join(part), stop))
    return written


def _passes(problem: client_errors.OpenSearchException) -> bool:
    """Whether trying again may help."""
    if isinstance(problem, client_errors.SSLError):
        return False
    if isinstance(problem, client_errors.ConnectionError):  # refused, reset, timed out
        return True
    status = getattr(problem, "status_code", None)
    return status in (429, 502, 503, 504) and not block(str(getattr(problem, "info", "")))


def _outcome(answer: object, body: bytes, written: Written) -> tuple[bytes, str]:
    """Count the results, and return the actions to send again, and the reason."""
    if not isinstance(answer, dict) or not {"errors", "items"} <= answer.keys():
        raise client_errors.SerializationError("no answer to _bulk")
    items = answer["items"]
    if not answer["errors"]:
        for item in items:
            ((kind, done),) = item.items()
            _count(written, kind, done)
        return b"", ""
    again: list[bytes] = []
    why = ""
    for item, lines in zip(items, _actions(body), strict=True):
        ((kind, done),) = item.items()
        status, reason = done["status"], _item_reason(done)
        if "error" not in done:
            _count(written, kind, done)
        elif blocked := block(reason):
            raise EngineError(f"writing documents: {blocked}")
        elif status in (429, 503):
            again.append(lines)
            why = f"{status}: {reason}"
        elif status == 409:
            written.conflicts.append(done["_id"])
        elif status == 404 and kind == "update":
            written.missing.append(done["_id"])
        elif status == 404:
            raise EngineError(f"writing documents: {reason}")
        elif status in (401, 403):
            raise EngineError(f"writing documents is not allowed ({status}): {reason}")
        else:
            written.refused.append((done["_id"], reason))
    return b"".join(again), why


def _count(written: Written, kind: str, done: dict[str, Any]) -> None:
    result = done.get("result")
    if result == "created":
        written.created += 1
    elif result == "deleted":
        written.deleted += 1
    elif result == "not_found":
        written.missing.append(done["_id"])
    else:
        written.updated += 1


def _item_reason(done: dict[str, Any]) -> str:
    reasons, found = [], done.get("error")
    while isinstance(found, dict):
        reasons.append(str(found.get("reason") or found.get("type")))
        found = found.get("caused_by")
    return one_line(": ".join(dict.fromkeys(reasons)))


def _actions(body: bytes) -> Iterator[bytes]:
    """Split a body into its actions, each with its source line."""
    lines = body.splitlines(keepends=True)
    i = 0
    while i < len(lines):
        size = 1 if lines[i].startswith(b'{"delete"') else 2
        yield b"".join(lines[i : i + size])
        i += size


class Sender:
    """Sends bodies from several threads; a full queue makes the caller wait.

    ``done`` is called in the caller's thread with the number that came with a body and what became of it.
    """

    def __init__(
        self, client: OpenSearch, settings: Settings, index: str, done: Callable[[int, Written], object]
    ) -> None:
        self._client, self._settings, self._index, self._done = client, settings, index, done
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(SENDERS)
        self._under_way: dict[Future[Written], int] = {}

    def put(self, number: int, body: bytes) -> None:
        """Send a body as soon as there is a place; raises what an earlier one has raised."""
        self._collect(SENDERS - 1)
        job = self._pool.submit(send, self._client, self._settings, self._index, body, self._stop)
        self._under_way[job] = number

    def _collect(self, most: int) -> None:
        while len(self._under_way) > most:
            finished, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
            for job in finished:
                self._done(self._under_way.pop(job), job.result())

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for open requests; after an error no failed request is repeated."""
        try:
            if kind is None:
                self._collect(0)
        finally:
            self._stop.set()
            self._pool.shutdown()
            for job, number in self._under_way.items():
                if job.exception() is None:
                    self._done(number, job.result())


class Plan:
    """Actions on their way from a folder to an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.about: dict[str, Any] = parse_json((folder / "plan.json").read_bytes())
            done = (folder / "done").read_bytes() if (folder / "done").exists() else b""
            size = (folder / "actions").stat().st_size
            if size != sum(size for size, _ in self.about["chunks"]):
                raise ValueError("its actions are cut short")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(
                f"{folder}: an unfinished ingest that cannot be read ({error}); remove it, and ingest again"
            ) from error
        self._done: dict[int, dict[str, Any]] = {}
        for line in done.split(b"\n"):
            with suppress(ValueError, KeyError):  # a crash may have cut a line short: that chunk goes again
                entry = parse_json(line)
                self._done[entry.pop("chunk")] = entry

    def check_own(self) -> None:
        """Raise WorkspaceError for a plan of another user: its actions may name any index."""
        owner = (self.folder / "plan.json").stat().st_uid
        if owner not in (0, os.geteuid()):
            raise WorkspaceError(
                f"{self.folder}: an unfinished ingest of another user (uid {owner}), which is not carried"
                " out; that user can finish it, or remove the folder and ingest again"
            )

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether a complete plan is waiting in the folder."""
        return (folder / "plan.json").exists()

    @staticmethod
    def write(folder: Path, actions: Iterable[bytes], about: Callable[[], dict[str, Any]]) -> Plan:
        """Write all actions to disk, then the plan. When ``actions`` raises, nothing is left.

        about: returns the description of the plan; called at the end.
        """
        shutil.rmtree(folder, ignore_errors=True)
        chunks: list[tuple[int, int]] = []  # bytes, actions
        try:
            folder.mkdir(parents=True)
            with (folder / "actions").open("wb") as file:
                size = count = 0
                for lines in actions:
                    if count and (size + len(lines) > _CHUNK_BYTES or count >= _CHUNK_ACTIONS):
                        chunks.append((size, count))
                        size = count = 0
                    file.write(lines)
                    size += len(lines)
                    count += 1
                if count:
                    chunks.append((size, count))
                file.flush()
                os.fsync(file.fileno())
            write_text(folder / "plan.json", json.dumps({**about(), "chunks": chunks}))
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise EngineError(
                    f"{folder}: cannot be written ({error.strerror}), nothing was ingested; free space and"
                    " run again"
                ) from error
            raise
        return Plan(folder)

    @property
    def actions(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.about["chunks"])

    @property
    def sent(self) -> int:
        """How many the cluster has taken."""
        return sum(self.about["chunks"][number][1] for number in self._done)

    def forget_sent(self) -> None:
        """Send everything again."""
        (self.folder / "done").unlink(missing_ok=True)
        self._done.clear()

    def send(
        self,
        client: OpenSearch,
        settings: Settings,
        index: str,
        progress: Callable[[int], object] | None = None,
    ) -> Written:
        """Send the rest of the plan; return the results of the whole plan.

        Raises EngineError when the cluster stops taking it; the plan then stays and can be sent again.
        """
        if progress is not None and self.sent:
            progress(self.sent)
        with (
            (self.folder / "done").open("ab", buffering=0) as log,
            (self.folder / "actions").open("rb") as file,
        ):
            # Each line starts and ends with a line break, so that one that was cut short spoils no other.
            def done(number: int, written: Written) -> None:
                self._done[number] = vars(written)
                try:
                    log.write(b"\n" + dumps({"chunk": number, **vars(written)}) + b"\n")
                except OSError as error:
                    raise EngineError(
                        f"{self.folder}: cannot be written ({error.strerror}); free space"
                    ) from error
                if progress is not None:
                    progress(self.about["chunks"][number][1])

            with Sender(client, settings, index, done) as sender:
                for number, (size, _) in enumerate(self.about["chunks"]):
                    if number in self._done:
                        file.seek(size, 1)
                    else:
                        sender.put(number, file.read(size))
        total = Written()
        for entry in self._done.values():
            total.add(Written(**entry))
        return total

    def remove(self) -> None:
        """Forget the plan: first what makes it one."""
        (self.folder / "plan.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
