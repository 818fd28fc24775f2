"""Sparse tf-idf vectors of words and letter sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rerank.text import words

REMEMBERED = 200_000
"""Words whose terms are cached."""


def terms_of(word: str, letters: int) -> Iterator[str]:
    """Yield a word and its sequences of ``letters`` letters (0: none); < and > mark its ends.

    >>> list(terms_of("cats", 4))
    ['cats', '<cat', 'cats', 'ats>']
    >>> list(terms_of("of", 4)), list(terms_of("cats", 0))
    (['of', '<of>'], ['cats'])
    """
    yield word
    if letters:
        marked = f"<{word}>"
        for begin in range(len(marked) - letters + 1):
            yield marked[begin : begin + letters]


@dataclass
class Terms:
    """V terms with their idf.

    letters: length of letter sequences; 0: only words.
    longest: words read per text.

    >>> terms = Terms(["cat", "dog"], np.array([1.0, 2.0], dtype=np.float32), letters=0, longest=400)
    >>> columns, weights = terms.vector("Cat, dog; an unknown bird")
    >>> columns.tolist(), [round(weight, 3) for weight in weights.tolist()]
    ([0, 1], [0.447, 0.894])
    """

    names: list[str]
    idf: NDArray[np.float32]
    letters: int
    longest: int
    _of: Callable[[str], list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index, letters = dict(zip(self.names, range(len(self.names)))), self.letters

        def columns(word: str) -> list[int]:
            return [index[term] for term in terms_of(word, letters) if term in index]

        self._of = lru_cache(REMEMBERED)(columns)

    def vector(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Columns of known terms, ascending, and weights (1 + ln tf) idf, of length 1."""
        columns, counts = np.unique(
            np.array([i for word in words(text)[: self.longest] for i in self._of(word)], dtype=np.int64),
            return_counts=True,
        )
        weights = ((1.0 + np.log(counts)) * self.idf[columns]).astype(np.float32)
        length = float(np.sqrt(weights @ weights))
        if not length:
            return columns[:0], weights[:0]
        return columns, weights / np.float32(length)
