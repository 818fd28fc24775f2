"""Run other programs to their end."""

from __future__ import annotations

import subprocess
from typing import Any


def run_program(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its exit code and output as text."""
    given = {"capture_output": True, "text": True, "check": False, "timeout": 600, **options}
    return subprocess.run([*map(str, command)], **given)


def output(*command: object, **options: Any) -> str:
    """Return the output of a program that must succeed."""
    done = run_program(*command, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
