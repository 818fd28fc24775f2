"""The origin of a measurement: its date, commit and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from pathlib import Path


def measured_here() -> dict[str, str]:
    """Return date, commit and machine of a measurement that ends now."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {"date": date.today().isoformat(), "commit": commit.stdout.strip(), "machine": machine}
