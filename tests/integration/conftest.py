"""The command and the small collection of the end-to-end tests, for tests on real nodes too."""

from __future__ import annotations

from tests.end_to_end.conftest import run, script, small, spawn, trained, write_lines

__all__ = ["run", "script", "small", "spawn", "trained", "write_lines"]
