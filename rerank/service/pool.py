"""Threads that answer requests, and the end of a process whose threads still work."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from rerank.service import metrics
from rerank.service.asgi import Receive
from rerank.service.context import RequestContext

_LAST_SECONDS = 1.0  # for threads that end by themselves


class DisconnectedError(Exception):
    """The client closed the connection before the answer."""


class Pool:
    """Threads for one kind of requests, and its running and waiting requests."""

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self._contexts: dict[Future[bytes], RequestContext] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    async def run(self, work: Callable[[], bytes], context: RequestContext, receive: Receive) -> bytes:
        """Return the result of ``work``, which runs in a thread.

        If the deadline of ``context`` passes or the client disconnects, the thread stops at its next check,
        and a waiting request is never started. receive: the ``receive`` of ASGI, after the body.
        Raises TimeoutError, DisconnectedError.
        """
        future = self._executor.submit(work)
        self._contexts[future] = context
        metrics.BUSY.inc()
        future.add_done_callback(self._remove)
        answer = asyncio.wrap_future(future)
        disconnect = asyncio.ensure_future(receive())
        seconds = max(context.deadline - time.monotonic(), 0.001)
        try:
            finished, _ = await asyncio.wait(
                (answer, disconnect), timeout=seconds, return_when="FIRST_COMPLETED"
            )
        finally:
            disconnect.cancel()
            if not answer.done():
                context.cancelled = True
                answer.cancel()
        if answer in finished:
            return answer.result()
        raise DisconnectedError if finished else TimeoutError

    def _remove(self, future: Future[bytes]) -> None:
        self._contexts.pop(future, None)
        metrics.BUSY.dec()

    def stop(self) -> None:
        """Drop the waiting requests. The running ones stop at their next check of the deadline."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for context in list(self._contexts.values()):
            context.cancelled = True


def end_soon() -> None:
    """End the process within seconds, even if a thread still works.

    Otherwise Python waits for all threads of executors, and a service manager would have to kill the process.
    """
    timer = threading.Timer(_LAST_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
