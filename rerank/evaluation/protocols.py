"""Which documents are ranked for a query."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rerank.errors import UsageError

PROTOCOLS = ("retrieved", "pool-random", "pool-first")
JUDGED = "judged"


@dataclass(frozen=True, slots=True)
class Protocol:
    """Which documents are ranked for a query (Kuwa et al. 2020).

    retrieved:N    what the first stage returned, N at most: what a user gets
    pool-random:N  all relevant documents and N random irrelevant ones (their Tables 2 and 3)
    pool-first:N   all relevant documents and the first stage's N best irrelevant ones (their Table 4)
    judged         all judged documents, relevant or not, and no others (Yih et al. 2011, section 4.2)
    """

    kind: str
    count: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == JUDGED else f"{self.kind}:{self.count}"

    @property
    def cut(self) -> int | None:
        """How many documents of a ranking are measured; None: all, since a pool is the same for every stack.

        Several retrievers together find more than N documents, so rankings of them are cut at N, too.
        """
        return self.count if self.kind == "retrieved" else None


def parse_protocol(text: str) -> Protocol:
    """Parse ``retrieved:1000``, ``pool-random:40``, ``pool-first:200`` or ``judged``; else UsageError.

    >>> parse_protocol("pool-first:200")
    Protocol(kind='pool-first', count=200)
    """
    if text.strip() == JUDGED:
        return Protocol(JUDGED)
    match = re.fullmatch(r"([a-z-]+):([0-9]{1,9})", text.strip())
    if match is None or match[1] not in PROTOCOLS or int(match[2]) < 1:
        kinds = ", ".join(f"{kind}:N" for kind in PROTOCOLS)
        raise UsageError(f"unknown protocol {text!r}; choose {JUDGED}, or one of {kinds} with N of 1 or more")
    return Protocol(match[1], int(match[2]))
