"""A listener of long work, for tests of what is said and of interruptions."""

from __future__ import annotations

from rerank.progress import Progress


class Watch(Progress):
    """Keeps what is said. Interrupts as ctrl-C does, once.

    title: when a step of this title starts. at, unit: when so many units of this kind are done. line: when a
    line with these words is said.
    """

    def __init__(
        self,
        *,
        at: int | None = None,
        unit: str = "step",
        title: str | None = None,
        line: str | None = None,
    ) -> None:
        self.said: list[str] = []
        self._left, self._unit, self._title, self._line = at, unit, title, line
        self._counts = False

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        self._counts = unit == self._unit
        if title == self._title:
            raise KeyboardInterrupt

    def advance(self, count: int = 1) -> None:
        if self._left and self._counts:
            self._left = max(0, self._left - count)
            if not self._left:
                raise KeyboardInterrupt

    def say(self, line: str) -> None:
        self.said.append(line)
        if self._line and self._line in line:
            raise KeyboardInterrupt
