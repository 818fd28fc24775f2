"""Documents to rank in an evaluation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rerank.errors import UsageError


@dataclass(frozen=True, slots=True)
class Protocol:
    """The documents to rank.

    cut: at most so many documents per retriever (``retrieved:N``; Kuwa et al. 2020, figure 3). None: all
        judged documents (``judged``; Yih et al. 2011, section 4.2).
    """

    cut: int | None = None

    def __str__(self) -> str:
        return "judged" if self.cut is None else f"retrieved:{self.cut}"


def parse_protocol(text: str) -> Protocol:
    """Parse ``retrieved:1000`` or ``judged``. Raises UsageError for other text.

    >>> parse_protocol("retrieved:200")
    Protocol(cut=200)
    """
    match = re.fullmatch(r"judged|retrieved:0*([1-9][0-9]{0,8})", text.strip())
    if match is None:
        raise UsageError(f"unknown protocol {text!r}; use judged, or retrieved:N with N of 1 or more")
    return Protocol(int(match[1]) if match[1] else None)
