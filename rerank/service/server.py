"""Sockets, worker processes and signals.

SIGTERM and SIGINT finish what is in hand and stop, SIGHUP takes up changed rankers and stacks at once. The
first process holds the socket; with several workers it only looks after them.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import uvicorn

from rerank.errors import RerankError, UsageError
from rerank.service import logs
from rerank.service.settings import Settings, withheld
from rerank.service.snapshot import Snapshot

if TYPE_CHECKING:
    from rerank.service.app import Service

_BACKLOG = 2048
_KEEP_ALIVE = 75  # seconds; longer than clients keep idle connections, so that it is they who close them


def serve(settings: Settings, listening: Callable[[str], object]) -> None:
    """Serve until a signal says stop. listening: called with the URL.

    Raises RerankError when the workspace cannot be served, or the address cannot be had.
    """
    snapshot = Snapshot.load(settings)
    _more_files()
    bound = _bind(settings.host, settings.port)
    host, port = bound.getsockname()[:2]
    listening(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    if settings.workers > 1:
        del snapshot
        _supervise(settings, bound)
    else:
        from rerank.service.app import Service

        service = Service(settings, snapshot)
        del snapshot  # else it would stay open for ever, beside those that take its place
        _work(settings, bound, service)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", error)
        raise UsageError(f"--host {host}: no such address ({reason})") from error
    # Named, for asyncio turns Nagle's delay off only where it is: else answers would wait 40 ms for an ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise RerankError(
            f"{host}:{port} cannot be listened on ({error.strerror}); choose another --port,"
            " or stop what listens there"
        ) from error
    return bound


def _more_files() -> None:
    """Allow as many connections as the system does."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Server(uvicorn.Server):
    """Ends well after SIGTERM (uvicorn's own ends by the signal), and ends when its parent has died."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self.config.app.state.service.reload)  # type: ignore[union-attr]
        parent = multiprocessing.parent_process()
        if parent is not None:
            loop.add_reader(parent.sentinel, self.handle_exit, signal.SIGTERM, None)
        yield


def _work(settings: Settings, bound: socket.socket, service: Service | None = None) -> None:
    """Serve in this process."""
    from rerank.service.app import Service, create_app, describe
    from rerank.service.connection import protocol

    logs.start()
    service = service or Service(settings, Snapshot.load(settings))
    app = create_app(service)
    logs.event("started", pid=os.getpid(), **describe(service.snapshot))
    if service.snapshot.is_shared:
        away = "search" in withheld(settings, True)
        served = "is not served: the nodes of the cluster have this token, and it" if away else ""
        logs.event(
            "note", note=f"/v1/search {served or 'is served, and'} returns all that this service may see"
        )
    config = uvicorn.Config(
        app,
        http=protocol(settings, app.state.entrance),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,  # nothing here asks who is behind a proxy
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.deadline) + 1,
    )
    _Server(config).run(sockets=[bound])
    logs.event("stopped", pid=os.getpid())


def _supervise(settings: Settings, bound: socket.socket) -> None:
    """Keep the workers running."""
    logs.start()
    context = multiprocessing.get_context("spawn")
    stopping = False
    workers: list[SpawnProcess] = []

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    def hang_up(*_: object) -> None:
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, hang_up)
    with TemporaryDirectory(prefix="rerank-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        from rerank.service import metrics

        while not stopping:
            for worker in [w for w in workers if not w.is_alive()]:
                workers.remove(worker)
                metrics.forget(worker.pid or 0)
                logs.problem("worker ended", pid=worker.pid, code=worker.exitcode)
                time.sleep(1)
            while len(workers) < settings.workers and not stopping:
                worker = context.Process(target=_work, args=(settings, bound), daemon=True)
                worker.start()
                workers.append(worker)
            wait([worker.sentinel for worker in workers], timeout=0.2)
        bound.close()
        for worker in workers:
            worker.terminate()
        until = time.monotonic() + settings.deadline + 3
        for worker in workers:
            worker.join(max(until - time.monotonic(), 0))
            if worker.is_alive():
                worker.kill()
                worker.join()
