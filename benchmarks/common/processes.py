"""Processor time and memory of processes, and sizes of folders. Linux only."""

from __future__ import annotations

import os
import re
from pathlib import Path


def processor(*pids: int) -> float:
    """Return the CPU seconds of processes until now, over all threads."""
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pid: int | str, field: str = "VmRSS") -> float:
    """Return the memory of a process (or ``self``) in MiB.

    field: ``VmRSS`` (now), ``VmHWM`` (the most so far), ``RssAnon`` (without mapped files) or ``Pss`` (now;
        of a page that n processes share, each has 1/n).
    """
    file = "smaps_rollup" if field == "Pss" else "status"
    match = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.M)
    assert match is not None
    return int(match[1]) / 1024


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
