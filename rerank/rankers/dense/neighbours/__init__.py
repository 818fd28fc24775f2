"""Who is related to whom: each way of finding out is a file with its settings, and a line in NEIGHBOURS."""

from __future__ import annotations

from rerank.rankers.dense.neighbours.base import Neighbourhood, Neighbours
from rerank.rankers.dense.neighbours.cited import Cited
from rerank.rankers.dense.neighbours.hops import Hops
from rerank.rankers.dense.neighbours.intimacy import Intimacy
from rerank.rankers.dense.neighbours.linked import Linked

__all__ = ["NEIGHBOURS", "Cited", "Hops", "Intimacy", "Linked", "Neighbourhood", "Neighbours"]

NEIGHBOURS: dict[str, type[Neighbourhood]] = {
    "intimacy": Intimacy,
    "hops": Hops,
    "linked": Linked,
    "cited": Cited,
}
