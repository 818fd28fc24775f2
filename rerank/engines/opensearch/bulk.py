"""Bulk writing in parallel; rejected actions are repeated."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import msgspec
from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError
from rerank.engines.opensearch.errors import describe_block, explain, root_cause
from rerank.engines.opensearch.index import Index

SENDERS = 4
"""Concurrent requests. More only fill the cluster's queue."""

PATIENCE = 120.0
"""Seconds that a cluster may be unreachable or too busy (429) before writing stops."""

_ACTIVITY = "writing documents"
_ANSWER = "items.*._id,items.*.status,items.*.result,items.*.error"

Action = tuple[str, str | None]
"""The lines of ``_bulk`` for one document: what to do, and the document, if there is one."""

Label = TypeVar("Label")


@dataclass
class Written:
    """The results of actions: counts, and the ids of the others.

    missing:   ids to delete or update that the index does not have.
    conflicts: ids that another client has changed since they were read (``if_seq_no``).
    refused:   ids of documents that the cluster does not accept, with the reasons.
    """

    created: int = 0
    updated: int = 0
    deleted: int = 0
    missing: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def add(self, written: Written) -> None:
        """Add the counts and ids of further actions to these."""
        self.created += written.created
        self.updated += written.updated
        self.deleted += written.deleted
        self.missing += written.missing
        self.conflicts += written.conflicts
        self.refused += written.refused

    def count(self, item: Mapping[str, Any]) -> str:
        """Count the result of an action. Return the reason to repeat it, or "" if it is done.

        item: the part of the cluster's answer for the action.

        Raises EngineError if the cluster refuses all actions, for example because a user has no rights.
        """
        ((kind, answer),) = item.items()
        status = answer["status"]
        id = answer["_id"]
        result = answer.get("result")
        is_lost_update = status == 404 and kind == "update"
        if result == "not_found" or is_lost_update:
            self.missing.append(id)
        elif "error" in answer:
            return self._count_error(id, status, root_cause(answer)[1])
        elif result == "created":
            self.created += 1
        elif result == "deleted":
            self.deleted += 1
        else:
            self.updated += 1
        return ""

    def _count_error(self, id: str, status: int, reason: str) -> str:
        """Count an action that failed. Return the reason to repeat it, or "". Raises EngineError."""
        block = describe_block(reason)
        if block:
            raise EngineError(f"{_ACTIVITY}: {block}")
        if status in (429, 503):
            return f"{status}: {reason}"
        if status in (401, 403, 404):
            raise EngineError(f"{_ACTIVITY}: {reason} ({status})")
        if status == 409:
            self.conflicts.append(id)
        else:
            self.refused.append((id, reason))
        return ""


def action(kind: str, id: str, source: object = None, **meta: object) -> Action:
    """Return the lines of ``_bulk`` for one document.

    kind:   ``index``, ``update`` or ``delete``.
    source: second line, as a JSON value; None: the action has only one line.
    meta:   further entries of the first line, such as ``if_seq_no``.
    """
    meta_line = msgspec.json.encode({kind: {"_id": id, **meta}}).decode()
    return meta_line, None if source is None else msgspec.json.encode(source).decode()


def send(
    index: Index, target: str, batches: Iterable[tuple[Label, list[Action]]]
) -> Iterator[tuple[Label, Written]]:
    """Send batches from several threads; yield their labels and results in order.

    Raises EngineError if the cluster is unreachable for PATIENCE seconds or refuses all writes.
    """
    stop = threading.Event()
    under_way: deque[tuple[Label, Any]] = deque()
    with ThreadPoolExecutor(SENDERS) as pool:
        try:
            for label, actions in batches:
                under_way.append((label, pool.submit(_send, index, target, actions, stop)))
                if len(under_way) > SENDERS:
                    first, job = under_way.popleft()
                    yield first, job.result()
            for first, job in under_way:
                yield first, job.result()
        finally:
            stop.set()  # failed requests are not repeated


def _send(index: Index, target: str, actions: list[Action], stop: threading.Event) -> Written:
    """Send a batch; repeat rejected actions with growing pauses."""
    written = Written()
    pause = 0.25
    deadline = time.monotonic() + PATIENCE
    while True:
        lines = filter(None, chain.from_iterable(actions))
        body = "".join(f"{line}\n" for line in lines)
        try:
            answer = index.client.bulk(body=body, index=target, params={"filter_path": _ANSWER})
        except client_errors.OpenSearchException as problem:
            error = explain(problem, index.settings, _ACTIVITY)
            if getattr(problem, "status_code", None) == 413:
                written.add(_halves(index, target, actions, stop))
                return written
            if not _is_temporary(problem):
                raise error from problem
        else:
            reasons = list(map(written.count, answer["items"]))
            actions = [action for action, reason in zip(actions, reasons, strict=True) if reason]
            if not actions:
                return written
            reason = next(filter(None, reasons))
            nodes = index.settings.where
            error = EngineError(f"{_ACTIVITY}: {nodes} is too busy now ({reason}); try again later")
        if time.monotonic() > deadline or stop.wait(pause * random.uniform(0.5, 1.5)):
            raise error
        pause = min(2 * pause, 10.0)


def _halves(index: Index, target: str, actions: list[Action], stop: threading.Event) -> Written:
    """Send a batch that is too large for one request (413) in two requests."""
    half = len(actions) // 2
    if half:
        written = _send(index, target, actions[:half], stop)
        written.add(_send(index, target, actions[half:], stop))
        return written
    ((meta, source),) = actions
    id = next(iter(msgspec.json.decode(meta).values()))["_id"]
    size = len(meta) + len(source or "")
    return Written(refused=[(id, f"{size:,} characters are too large for a request (413)")])


def _is_temporary(problem: client_errors.OpenSearchException) -> bool:
    if isinstance(problem, client_errors.SSLError):
        return False
    if isinstance(problem, client_errors.ConnectionError):  # refused, reset, timed out
        return True
    status = getattr(problem, "status_code", None)
    return status in (429, 502, 503, 504) and not describe_block(str(getattr(problem, "info", "")))
