"""Documents to rank in an evaluation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rerank.common.errors import UsageError


@dataclass(frozen=True, slots=True)
class Protocol:
    """The documents to rank.

    cut:  at most so many documents per retriever (``retrieved:N``; Kuwa et al. 2020, figure 3). None: all
        judged documents (``judged``; Yih et al. 2011, section 4.2), or a pool.
    pool: the source of a pool: all relevant documents, and ``size`` other documents. They are ``random``, or
        the best ones by ``tfidf`` (``pool-random:N`` and ``pool-tfidf:N``; Kuwa et al. 2020, section 5.1).
    size: the number of other documents in a pool.
    """

    cut: int | None = None
    pool: Literal["random", "tfidf"] | None = None
    size: int = 0

    def __str__(self) -> str:
        if self.pool is not None:
            return f"pool-{self.pool}:{self.size}"
        return "judged" if self.cut is None else f"retrieved:{self.cut}"


def parse_protocol(text: str) -> Protocol:
    """Parse ``retrieved:1000``, ``judged``, ``pool-random:40`` or ``pool-tfidf:40``.

    Raises UsageError for other text.

    >>> parse_protocol("retrieved:200")
    Protocol(cut=200, pool=None, size=0)
    >>> str(parse_protocol("pool-random:40"))
    'pool-random:40'
    """
    match = re.fullmatch(r"judged|(retrieved|pool-random|pool-tfidf):0*([1-9][0-9]{0,8})", text.strip())
    if match is None:
        raise UsageError(
            f"unknown protocol {text!r}; use judged, retrieved:N, pool-random:N or pool-tfidf:N with N >= 1"
        )
    kind, number = match.groups()
    if kind is None:
        return Protocol()
    if kind == "retrieved":
        return Protocol(int(number))
    return Protocol(pool="random" if kind == "pool-random" else "tfidf", size=int(number))
