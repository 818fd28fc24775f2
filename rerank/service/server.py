"""Socket, worker processes and signals. SIGTERM and SIGINT finish current requests and stop."""

from __future__ import annotations

import fcntl
import math
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import uvicorn
from uvicorn.supervisors import Multiprocess

from rerank.common.errors import RerankError, UsageError
from rerank.service import asgi, logs
from rerank.service.app import Application
from rerank.service.connection import Connection
from rerank.service.metrics import SHARED
from rerank.service.pool import end_soon
from rerank.service.settings import Settings

_BACKLOG = 2048
_KEEP_ALIVE = 75  # seconds; longer than clients keep idle connections, so that the client closes them
_PREFIX = "rerank-metrics-"  # of the folder with the counters of all workers
_LOCK = "lock"  # a file in this folder
_HUNG = 30  # seconds after which a worker that does not react is replaced


def serve(settings: Settings, listening: Callable[[str], object]) -> None:
    """Answer requests until the process receives SIGTERM or SIGINT.

    listening: called with the URL of the service when it accepts connections.

    Raises RerankError if the workspace or address cannot be used.
    """
    application = Application(settings)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    bound = _bind(settings.host, settings.port)
    host, port = bound.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    # A client may send a signal as soon as it reads the URL, so the handlers come before it.
    if settings.workers == 1:
        server = uvicorn.Server(_config(settings, application))
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again at the end
            signal.signal(number, server.handle_exit)
        listening(url)
        server.run(sockets=[bound])
        end_soon()
        return
    del application
    logs.start()
    remove_abandoned_folders(gettempdir())
    with TemporaryDirectory(prefix=_PREFIX) as folder, open(Path(folder) / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.environ[SHARED] = folder
        supervisor = _Supervisor(_config(settings, partial(_load_in_worker, settings), factory=True), [bound])
        listening(url)
        supervisor.run()


class _Supervisor(Multiprocess):
    """The parent of the workers. Ctrl-C in a terminal reaches all of them, also while they start."""

    def init_processes(self) -> None:
        """Start the workers. They inherit that SIGINT waits until :func:`_load_in_worker`."""
        resource_tracker.ensure_running()  # starting it unblocks SIGINT, so it starts first
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().init_processes()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _load_in_worker(settings: Settings) -> Application:
    """Return the application of a worker, whose handlers of signals are installed before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return Application(settings)


def remove_abandoned_folders(parent: str) -> None:
    """Remove folders with counters of services that were killed. A running service locks its folder."""
    for path in Path(parent).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), open(path, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.parent.is_symlink() and path.parent.stat().st_uid == os.getuid():
                shutil.rmtree(path.parent)


def _config(
    settings: Settings, app: asgi.Application | Callable[[], asgi.Application], *, factory: bool = False
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        workers=settings.workers,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.deadline) + 1,
        timeout_worker_healthcheck=_HUNG,
        factory=factory,
    )


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
            f"{host}:{port}: cannot listen ({error.strerror}); choose another --port, or stop its program"
        ) from error
    return bound
