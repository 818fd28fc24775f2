"""A progress listener for tests of messages and interruptions."""

from __future__ import annotations

from rerank.common.progress import Progress


class Watch(Progress):
    """Stores messages, and interrupts once like ctrl-C.

    title: interrupts when a step with this title starts. at, unit: interrupts after this many units.
    line: interrupts at a message with these words.
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
