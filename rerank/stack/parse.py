"""Parse stacks and retrievers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rerank.errors import UsageError
from rerank.stack.linear import NAME, SIGNAL
from rerank.stack.signals import first_stages

_WEIGHT = r"\d{1,6}(?:\.\d{0,9})?|\.\d{1,9}"
_TERM = re.compile(rf"\s*({SIGNAL})\s*(?:\*\s*({_WEIGHT})\s*)?")
_RETRIEVE = "name retrievers as bm25,s2net or bm25,s2net:200"
_HOW = "write it as tfidf*0.35 + text*0.40 + meta*0.25, or only names: tfidf,text,meta"


def parse_stack(text: str) -> tuple[tuple[str, ...], tuple[float, ...] | None]:
    """Return signal names and weights; None without weights.

    ``+`` or ``,`` joins terms. Weights are decimals and need not sum to 1.
    Raises UsageError for other text, duplicates, or some weights missing.

    >>> parse_stack("tfidf*0.5 + text*0.5")
    (('tfidf', 'text'), (0.5, 0.5))
    >>> parse_stack("tfidf,text")
    (('tfidf', 'text'), None)
    """
    pairs = []
    for term in re.split(r"[+,]", text):
        match = _TERM.fullmatch(term)
        if match is None:
            raise UsageError(f"stack {text!r}: {term.strip()!r} is not a signal with a weight; {_HOW}")
        pairs.append(match.groups())
    names = tuple(name for name, _ in pairs)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"stack {text!r}: {name} is named twice; {_HOW}")
    texts = [weight for _, weight in pairs if weight is not None]
    if not texts:
        return names, None
    if len(texts) < len(names):
        raise UsageError(f"stack {text!r}: some signals have a weight and some have none; {_HOW}")
    weights = tuple(map(float, texts))
    if not any(weights):
        raise UsageError(f"stack {text!r}: every weight is 0; give one of them some weight")
    return names, weights


def retriever_depths(retrievers: Iterable[str]) -> dict[str, int | None]:
    """Return retriever -> separate depth, or None.

    Raises UsageError for invalid text, duplicates, or a first stage with depth.

    >>> retriever_depths(["bm25", "s2net:200"])
    {'bm25': None, 's2net': 200}
    """
    depths: dict[str, int | None] = {}
    for text in retrievers:
        match = re.fullmatch(rf"({NAME})(?::([1-9]\d{{0,8}}))?", text)
        if match is None:
            raise UsageError(f"{text!r} cannot be a retriever; {_RETRIEVE}")
        name, depth = match.groups()
        if name in depths:
            raise UsageError(f"{name} is named twice; {_RETRIEVE}")
        if depth is not None and first_stages([name]):
            raise UsageError(
                f"the depth of {name} is --depth; only a ranker can have a separate depth; {_RETRIEVE}"
            )
        depths[name] = None if depth is None else int(depth)
    return depths
