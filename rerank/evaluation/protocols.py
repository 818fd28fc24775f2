"""Documents to rank in an evaluation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rerank.errors import UsageError

RETRIEVED, JUDGED = "retrieved", "judged"


@dataclass(frozen=True, slots=True)
class Protocol:
    """The documents to rank.

    retrieved:N  at most N per retriever (Kuwa et al. 2020, figure 3)
    judged       all judged documents (Yih et al. 2011, section 4.2)
    """

    kind: str
    count: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == JUDGED else f"{self.kind}:{self.count}"

    @property
    def cut(self) -> int | None:
        """Number of ranked documents to measure; None: all."""
        return self.count if self.kind == RETRIEVED else None


def parse_protocol(text: str) -> Protocol:
    """Parse ``retrieved:1000`` or ``judged``. Raises UsageError for other text.

    >>> parse_protocol("retrieved:200")
    Protocol(kind='retrieved', count=200)
    """
    if text.strip() == JUDGED:
        return Protocol(JUDGED)
    match = re.fullmatch(rf"{RETRIEVED}:([0-9]{{1,9}})", text.strip())
    if match is None or int(match[1]) < 1:
        raise UsageError(f"unknown protocol {text!r}; use {JUDGED}, or {RETRIEVED}:N with N of 1 or more")
    return Protocol(RETRIEVED, int(match[1]))
