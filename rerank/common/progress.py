"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Progress:
    """Receives the progress of long work, and shows nothing. Subclasses show it.

    Functions that take long accept one as ``progress``. Without it, they show nothing. One step is open at a
    time.

    >>> class Titles(Progress):
    ...     def start(self, title: str, total: int | None = None, unit: str = "") -> None:
    ...         print(title)
    >>> with Titles().step("encode text", 2, "doc") as advance:
    ...     advance(2)
    encode text
    """

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a step.

        title: name of the work.
        total: number of its units; None: unknown.
        unit:  noun of a unit, such as ``doc``.
        """

    def advance(self, count: int = 1) -> None:
        """Count more units as done. It is called often, so it must return fast."""

    def show(self, **values: str) -> None:
        """Show figures of the work, such as the latest loss: name -> formatted value."""

    def finish(self) -> None:
        """Close the step, also after an error."""

    def say(self, line: str) -> None:
        """Print a remark on the work, such as a skipped ranker."""

    def without_deadline(self) -> Progress:
        """Return the progress for work that must not end early. Only a subclass with a deadline differs."""
        return self

    @contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], object]]:
        """Open a step for a block, and yield the function that counts units as done; see :meth:`start`."""
        self.start(title, total, unit)
        try:
            yield self.advance
        finally:
            self.finish()

    def over(
        self, items: Iterable[Item], title: str, total: int | None = None, unit: str = ""
    ) -> Iterator[Item]:
        """Yield the items, and count each one as done when the next one is asked for; see :meth:`start`."""
        with self.step(title, total, unit):
            for item in items:
                yield item
                self.advance()


SILENT = Progress()
"""The default of functions that accept a :class:`Progress`. It shows nothing."""


def ignore_count(count: int) -> None:
    """Show nothing. It is the default of functions that report counts of finished units."""
