"""Other programs, run to their end."""

from __future__ import annotations

import subprocess
from typing import Any


def finished(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """How a program has ended; what it has printed is text."""
    given = {"capture_output": True, "text": True, "check": False, "timeout": 600, **options}
    return subprocess.run([*map(str, command)], **given)


def output(*command: object, **options: Any) -> str:
    """What a program prints that must succeed."""
    done = finished(*command, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
