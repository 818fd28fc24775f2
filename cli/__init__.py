"""The command ``rerank``: the start and the end of its process. The module ``program`` has the rest."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

INTERRUPTED = 130
"""The exit code after ctrl-C."""


def main() -> None:
    """Run the command line as this process. Ctrl-C ends it with one line on stderr and exit code 130."""
    try:
        from .program import run

        run()
    except KeyboardInterrupt:  # while modules are imported
        ignore_interrupts()
        sys.stderr.write("rerank: interrupted\n")
        sys.exit(INTERRUPTED)


def ignore_interrupts() -> None:
    """Ignore ctrl-C from now on: the process is about to end."""
    with suppress(ValueError):  # only the main thread may do so
        signal.signal(signal.SIGINT, signal.SIG_IGN)
