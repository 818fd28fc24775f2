"""Reports whose sentences hold hints."""

from __future__ import annotations

from typing import Any

from rerank.errors import render
from rerank.results import Report

_SENTENCES = ("problems", "warnings", "rest")


class Told(Report):
    """A report on a hook: its sentences are marked for who words them, and plain in JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        told = super().to_json()
        return told | {name: [render(line) for line in told[name]] for name in _SENTENCES if name in told}
