"""Socket, worker processes and signals.

SIGTERM and SIGINT finish current requests and stop. SIGHUP reloads rankers and stacks.
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

import uvicorn

from rerank.errors import RerankError, UsageError
from rerank.service import logs
from rerank.service.settings import Settings, withheld
from rerank.service.snapshot import Snapshot

_BACKLOG = 2048
_KEEP_ALIVE = 75  # seconds; longer than clients keep idle connections, so that the client closes them


def serve(settings: Settings, listening: Callable[[str], object]) -> None:
    """Serve until a signal. listening: called with the URL.

    Raises RerankError if the workspace or address cannot be used.
    """
    loaded = [Snapshot.load(settings)]
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    bound = _bind(settings.host, settings.port)
    host, port = bound.getsockname()[:2]
    listening(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    if settings.workers > 1:
        loaded.clear()
        _supervise(settings, bound)
    else:
        _serve(settings, bound, loaded)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", error)
        raise UsageError(f"--host {host}: no such address ({reason})") from error
    # asyncio disables Nagle's delay only for a socket with a protocol; answers would wait 40 ms for an ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise RerankError(
            f"{host}:{port}: cannot listen on this address ({error.strerror}); choose another"
            f" --port, or stop the program that uses it"
        ) from error
    return bound


class _Server(uvicorn.Server):
    """Exits with 0 after a signal or without a parent."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop, service = asyncio.get_running_loop(), self.config.app.service  # type: ignore[union-attr]
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, service.reload)
        parent = multiprocessing.parent_process()
        if parent is not None:
            loop.add_reader(parent.sentinel, self.handle_exit, signal.SIGTERM, None)
        watching = loop.create_task(service.watch())
        yield
        service.stop()
        watching.cancel()


def _serve(settings: Settings, bound: socket.socket, loaded: list[Snapshot] | None = None) -> None:
    """Serve in this process. Empties ``loaded``, so that replaced snapshots close."""
    from rerank.service.app import Application, Service
    from rerank.service.connection import protocol

    logs.start()
    service = Service(settings, loaded.pop() if loaded else Snapshot.load(settings))
    logs.event("started", pid=os.getpid(), **service.snapshot.describe())
    if service.snapshot.is_shared:
        served = "is not served" if "search" in withheld(settings, True) else "is served"
        logs.event("note", note=f"/v1/search {served}: it returns every document that this service may read")
    config = uvicorn.Config(
        Application(service),
        http=protocol(settings),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.deadline) + 1,
    )
    _Server(config).run(sockets=[bound])
    logs.event("stopped", pid=os.getpid())


def _supervise(settings: Settings, bound: socket.socket) -> None:
    logs.start()
    context = multiprocessing.get_context("spawn")
    stopping = False
    workers: list[SpawnProcess] = []

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    def reload(*_: object) -> None:
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, signal.SIGHUP)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, reload)
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
                worker = context.Process(target=_serve, args=(settings, bound), daemon=True)
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
