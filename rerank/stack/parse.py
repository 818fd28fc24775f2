"""Parse the texts of stacks (``tfidf*0.5 + text*0.5``) and of retrievers (``bm25,s2net:200``)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rerank.common.errors import UsageError
from rerank.stack.linear import NAME, SIGNAL
from rerank.stack.signals import first_stages

_WEIGHT = r"\d{1,6}(?:\.\d{0,9})?|\.\d{1,9}"
_TERM = re.compile(rf"\s*({SIGNAL})\s*(?:\*\s*({_WEIGHT})\s*)?")
_RETRIEVE = "name retrievers as bm25,s2net or bm25,s2net:200"
_HOW = "write it as tfidf*0.35 + text*0.40 + meta*0.25, or only names: tfidf,text,meta"


def parse_stack(text: str) -> tuple[tuple[str, ...], tuple[float, ...] | None]:
    """Return the S signal names of a stack, and their S weights, or None if the text has no weights.

    ``+`` or ``,`` joins terms. Weights are decimals and need not sum to 1.

    Raises UsageError for other text, for duplicates, if only some signals have a weight, or if all are 0.

    >>> parse_stack("tfidf*0.5 + text*0.5")
    (('tfidf', 'text'), (0.5, 0.5))
    >>> parse_stack("tfidf,text")
    (('tfidf', 'text'), None)
    """
    if not isinstance(text, str):
        raise UsageError(f"a stack is a text, not {text!r}; {_HOW}")
    names: list[str] = []
    weights: list[float] = []
    for term in re.split(r"[+,]", text):
        match = _TERM.fullmatch(term)
        if match is None:
            raise UsageError(f"stack {text!r}: {term.strip()!r} is not a signal with a weight; {_HOW}")
        name, weight = match.groups()
        if name in names:
            raise UsageError(f"stack {text!r}: {name} is named twice; {_HOW}")
        names.append(name)
        if weight is not None:
            weights.append(float(weight))
    if not weights:
        return tuple(names), None
    if len(weights) < len(names):
        raise UsageError(f"stack {text!r}: some signals have a weight and some have none; {_HOW}")
    if not any(weights):
        raise UsageError(f"stack {text!r}: every weight is 0; give one of them some weight")
    return tuple(names), tuple(weights)


def retriever_depths(retrievers: Iterable[str]) -> dict[str, int | None]:
    """Return retriever -> its separate depth, or None if it has the depth of the stack.

    retrievers: names. The name of a ranker may have a depth: ``s2net:200``.

    Raises UsageError for invalid text, for duplicates, or for a first stage with a depth.

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
