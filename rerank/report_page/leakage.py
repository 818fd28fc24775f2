"""Leaks: queries that a measurement shares with what was learned from, and documents that it shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rerank.evaluation.seen import Seen
from rerank.records import Qrels
from rerank.stack.stack import Stack
from rerank.wording import amount
from rerank.workspace import Workspace

HOW = {"trained": "trained on", "stopped": "stopped on", "tuned": "tuned on"}


@dataclass(frozen=True)
class Leak:
    """What was learned from queries that are measured on.

    of: a ranker, or a stack by the name in the table; how: ``trained``, ``stopped`` or ``tuned``; queries:
    how many of those measured.
    """

    of: str
    how: str
    queries: int


def seen_by(workspace: Workspace, stack: Stack) -> dict[str, Seen]:
    """Ranker of a stack -> what it has seen; under "": what the weights have."""
    try:
        own = Seen.from_json(stack.tuned.get("seen", {}))
    except (ValueError, TypeError, AttributeError):
        own = Seen({})
    versions = stack.versions
    return {name: workspace.seen(name, versions.get(name)) for name in stack.rankers} | {"": own}


def leaks(
    seen: dict[str, Seen], label: str, queries: Iterable[str], how: Sequence[str] = tuple(HOW)
) -> list[Leak]:
    """List what has learned from some of the queries, and how."""
    queries = list(queries)
    found = (
        Leak(name or label, one, len(known.among(one, queries)))
        for name, known in seen.items()
        for one in how
    )
    return list(dict.fromkeys(leak for leak in found if leak.queries))


def said(leaks: Iterable[Leak], queries: int) -> str:
    """Word leaks in one line.

    >>> said([Leak("text", "trained", 30), Leak("text", "stopped", 4)], 40)
    'text was trained on 30 and stopped on 4 of these 40 queries'
    >>> said([Leak("text", "trained", 1)], 1)
    'text was trained on 1 of this 1 query'
    """
    by: dict[str, list[str]] = {}
    for leak in dict.fromkeys(leaks):
        by.setdefault(leak.of, []).append(f"{HOW[leak.how]} {leak.queries}")
    each = "; ".join(f"{of} was {' and '.join(how)}" for of, how in by.items())
    return f"{each} of {'these' if queries != 1 else 'this'} {amount(queries, 'quer[y|ies]')}"


def unseen(seen: Iterable[Seen], qrels: Qrels) -> tuple[Qrels, list[tuple[str, str]]]:
    """Judgements without the documents that were relevant for what was learned from, and those pairs.

    A query stays judged, with grade 0, so that it is counted as one without relevant documents.
    """
    known = Seen({})
    for one in seen:
        known = known | one
    relevant = {d for query in qrels for d in qrels.relevant(query)}
    old = set(known.among("documents", relevant))
    dropped = [(query, d) for query in qrels for d in qrels.relevant(query) if d in old]
    gone = set(dropped)
    kept = ((q, d, 0 if (q, d) in gone else grade) for q in qrels for d, grade in qrels[q].items())
    return Qrels(kept), dropped
