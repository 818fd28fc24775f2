"""Documents to rank in an evaluation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rerank.errors import UsageError

PROTOCOLS = ("retrieved", "pool-random", "pool-first")
JUDGED = "judged"


@dataclass(frozen=True, slots=True)
class Protocol:
    """The documents to rank (Kuwa et al. 2020).

    retrieved:N    at most N per retriever
    pool-random:N  all relevant documents and N random others (Tables 2 and 3)
    pool-first:N   all relevant documents and the first stage's N best others (Table 4)
    judged         all judged documents (Yih et al. 2011, section 4.2)
    """

    kind: str
    count: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == JUDGED else f"{self.kind}:{self.count}"

    @property
    def cut(self) -> int | None:
        """Number of ranked documents to measure; None: all."""
        return self.count if self.kind == "retrieved" else None


def parse_protocol(text: str) -> Protocol:
    """Parse ``retrieved:1000``, ``pool-random:40``, ``pool-first:200`` or ``judged``.

    Raises UsageError for other text.

    >>> parse_protocol("pool-first:200")
    Protocol(kind='pool-first', count=200)
    """
    if text.strip() == JUDGED:
        return Protocol(JUDGED)
    match = re.fullmatch(r"([a-z-]+):([0-9]{1,9})", text.strip())
    if match is None or match[1] not in PROTOCOLS or int(match[2]) < 1:
        kinds = ", ".join(f"{kind}:N" for kind in PROTOCOLS)
        raise UsageError(f"unknown protocol {text!r}; use {JUDGED}, or one of {kinds} with N of 1 or more")
    return Protocol(match[1], int(match[2]))
