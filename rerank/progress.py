"""Progress of long work. The library itself shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Progress:
    """Receives progress, and ignores it; subclasses show it. One step is open at a time."""

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a step of ``total`` units (None: unknown)."""

    def advance(self, count: int = 1) -> None:
        """Count ``count`` more units as done."""

    def show(self, **values: str) -> None:
        """Show the latest values."""

    def finish(self) -> None:
        """Close the step."""

    def say(self, line: str) -> None:
        """Tell the user something that stays on the screen; :func:`rerank.errors.render` words its hints."""

    @contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], object]]:
        """Open a step, yield the function that counts its units, and close it."""
        self.start(title, total, unit)
        try:
            yield self.advance
        finally:
            self.finish()

    def over(
        self, items: Iterable[Item], title: str, total: int | None = None, unit: str = ""
    ) -> Iterator[Item]:
        """Yield the items, and advance by one for each."""
        self.start(title, total, unit)
        try:
            for item in items:
                yield item
                self.advance()
        finally:
            self.finish()
