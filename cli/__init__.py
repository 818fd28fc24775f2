"""The command ``rerank`` as a process."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """Run the command line. It is the entry point of the program ``rerank``, and ends the process."""
    try:
        from .program import run

        run()
    except KeyboardInterrupt:  # while modules are imported
        ignore_interrupts()
        sys.stderr.write("rerank: interrupted\n")
        sys.exit(INTERRUPTED)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on, so that the process can end after an interruption without a traceback."""
    with suppress(ValueError):  # only the main thread may do so
        signal.signal(signal.SIGINT, signal.SIG_IGN)
