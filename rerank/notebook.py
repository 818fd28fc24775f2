"""Progress bars for notebooks."""

from __future__ import annotations

from typing import Any

from rerank.progress import Progress


class NotebookProgress(Progress):
    """Progress bars of tqdm.

    >>> list(NotebookProgress().over("ab", "letters", 2, "letter"))
    ['a', 'b']
    """

    _bar: Any = None

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a bar."""
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, desc=title, unit=f" {unit}", leave=False)

    def advance(self, count: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def show(self, **values: str) -> None:
        """Show values after the bar."""
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)

    def finish(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        from tqdm.auto import tqdm

        tqdm.write(line)
