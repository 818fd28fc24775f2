"""Numbers and names in sentences: one or many, the first of many. Imports nothing that takes time."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CHOICE = re.compile(r"\[([^][|]*)\|([^][|]*)\]")


def amount(count: int, words: str) -> str:
    """A number and what it counts; of ``[one|many]`` the words that go with it.

    >>> amount(1, "[query retrieves|queries retrieve] nothing"), amount(2000, "pair[|s]")
    ('1 query retrieves nothing', '2,000 pairs')
    """
    return f"{count:,} {_CHOICE.sub(lambda found: found[1 if count == 1 else 2], words)}"


def several(words: str) -> str:
    """The words of :func:`amount` for many, without the number.

    >>> several("quer[y|ies] without categories")
    'queries without categories'
    """
    return _CHOICE.sub(lambda found: found[2], words)


def many(word: str) -> str:
    """A noun for many.

    >>> many("query"), many("batch"), many("epoch"), many("")
    ('queries', 'batches', 'epochs', '')
    """
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}{'es' if word.endswith(('tch', 's', 'x')) else 's' if word else ''}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and how many more there are.

    >>> listed(["q1", "q2", "q3"], 2)
    'q1, q2 and 1 more'
    """
    shown = ", ".join(name if len(name) <= 80 else f"{name[:79]}…" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def duration(seconds: float) -> str:
    """Write a time the way people say it.

    >>> [duration(s) for s in (0.4, 50, 91, 3600, 9000)]
    ['0 s', '50 s', '2 min', '1 h', '2 h 30 min']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
