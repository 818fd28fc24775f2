"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Progress:
    """Receives and ignores progress; subclasses show it."""

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a step of ``total`` units (None: unknown)."""

    def advance(self, count: int = 1) -> None:
        """Count more units as done."""

    def show(self, **values: str) -> None:
        """Show the latest values."""

    def finish(self) -> None:
        """Close the step."""

    def say(self, line: str) -> None:
        """Print a line."""

    @contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], object]]:
        """Open a step and yield its counting function."""
        self.start(title, total, unit)
        try:
            yield self.advance
        finally:
            self.finish()

    def over(
        self, items: Iterable[Item], title: str, total: int | None = None, unit: str = ""
    ) -> Iterator[Item]:
        """Yield the items, counting each."""
        with self.step(title, total, unit):
            for item in items:
                yield item
                self.advance()
