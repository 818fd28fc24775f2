"""The command ``rerank``. The module ``program`` has all of it; here is how its process begins and ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Run the command line as this process, from the first import to the last flush.

    Ctrl-C while the program is imported ends it as later on: with a line, and 130. A process that was
    interrupted ends without taking down what it had imported, which is seconds on a busy machine.
    """
    with suppress(ValueError):  # no main thread, no signals
        signal.signal(signal.SIGINT, _leave_at_once)
    from .program import run

    try:
        run()
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or nobody reads it
                stream.flush()
        os._exit(INTERRUPTED)
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, and Python would end by the signal


INTERRUPTED = 130
"""The exit code after ctrl-C."""


def _leave_at_once(number: int, frame: object) -> None:
    """There is nothing yet that could be kept."""
    os.write(2, b"rerank: interrupted\n")
    os._exit(INTERRUPTED)
