"""Queries that a stack has weights of their own for: cases, and kinds of queries within a case.

A case is where a query's categories come from. A kind is told by the query itself: ``words<4`` and
``words>=4`` hold those with fewer than 4 words and the others, ``lang=de`` those in that language.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from rerank.records import Query

CASES = ("brought", "inferred", "none")
"""Where a query's categories come from: with it, from its first candidates, or from nowhere."""

_KIND = re.compile(r"words(?P<side><|>=)(?P<words>[1-9]\d{0,8})|lang=(?P<lang>\S.*)")


def words_of(query: Query) -> int:
    """How many words a query has, with blanks between them."""
    return len(query.text.split())


def by_words(least: int) -> tuple[str, str]:
    """Names of the kinds: queries with fewer words than these, and of the others.

    >>> by_words(4)
    ('words<4', 'words>=4')
    """
    return f"words<{least}", f"words>={least}"


def by_lang(lang: str) -> str:
    """Name of the kind: queries in a language."""
    return f"lang={lang}"


@lru_cache(maxsize=256)
def kind(name: str) -> Callable[[Query], bool] | None:
    """What holds of the queries of a kind; None where the name is none of a kind.

    >>> kind("words<3")(Query("", "grey wolf")), kind("lang=de")(Query("", "Wolf", lang="de")), kind("none")
    (True, True, None)
    """
    found = _KIND.fullmatch(name)
    if found is None:
        return None
    if lang := found["lang"]:
        return lambda query: query.lang == lang
    least, short = int(found["words"]), found["side"] == "<"
    return lambda query: (words_of(query) < least) == short
