"""Which documents are ranked for a query."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rerank.errors import UsageError

PROTOCOLS = ("retrieved", "pool-random", "pool-first")


@dataclass(frozen=True, slots=True)
class Protocol:
    """Which documents are ranked for a query (Kuwa et al. 2020).

    retrieved:N    what the first stage returned, N at most: what a user gets
    pool-random:N  all relevant documents and N random irrelevant ones (their Tables 2 and 3)
    pool-first:N   all relevant documents and the first stage's N best irrelevant ones (their Table 4)
    """

    kind: str
    count: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


def parse_protocol(text: str) -> Protocol:
    """Parse ``retrieved:1000``, ``pool-random:40`` or ``pool-first:200``. Raises UsageError otherwise.

    >>> parse_protocol("pool-first:200")
    Protocol(kind='pool-first', count=200)
    """
    match = re.fullmatch(r"([a-z-]+):([0-9]{1,9})", text.strip())
    if match is None or match[1] not in PROTOCOLS or int(match[2]) < 1:
        kinds = ", ".join(f"{kind}:N" for kind in PROTOCOLS)
        raise UsageError(f"unknown protocol {text!r}; choose one of {kinds} with N of 1 or more")
    return Protocol(match[1], int(match[2]))
