"""Sparse tf-idf term vectors over a fixed vocabulary of words and letter sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.text import words

REMEMBERED = 200_000
"""Words whose terms are kept at hand; a service that runs for months forgets them and begins anew."""


def terms_of(word: str, letters: int) -> Iterator[str]:
    """Yield a word, then its sequences of ``letters`` letters (0: none), the word's ends marked < and >.

    Letter sequences let inflected forms and compounds share terms, and names written alike in two languages.

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
    """A vocabulary: V terms and their idf, and how texts are read.

    letters: length of the letter sequences beside words, 0 for words only.
    longest: words of a text that are read.
    tf: what a term's count becomes: ``log``: 1 + ln tf, ``raw``: tf.

    >>> terms = Terms(["cat", "dog"], np.array([1.0, 2.0], dtype=np.float32), letters=0, longest=400)
    >>> columns, weights = terms.vector("Cat, dog; an unknown bird")
    >>> columns.tolist(), [round(weight, 3) for weight in weights.tolist()]
    ([0, 1], [0.447, 0.894])
    """

    names: list[str]
    idf: NDArray[np.float32]
    letters: int
    longest: int
    tf: str = "log"
    _index: dict[str, int] = field(init=False, repr=False)
    _known: dict[str, list[int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._index = dict(zip(self.names, range(len(self.names))))

    def vector(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Columns of the text's terms, ascending, and their weights (1 + ln tf) idf or tf idf, of length 1.

        A text without known terms gives two empty arrays.
        """
        columns, counts = np.unique(
            np.array([i for word in words(text)[: self.longest] for i in self._of(word)], dtype=np.int64),
            return_counts=True,
        )
        weights = (self.counted(counts) * self.idf[columns]).astype(np.float32)
        length = float(np.sqrt(weights @ weights))
        if not length:
            return columns[:0], weights[:0]
        return columns, weights / np.float32(length)

    def counted(self, counts: NDArray[Any]) -> NDArray[Any]:
        """What counts become before they are multiplied by the idf."""
        return counts if self.tf == "raw" else 1.0 + np.log(counts)

    def _of(self, word: str) -> list[int]:
        found = self._known.get(word)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            index = self._index
            found = [index[term] for term in terms_of(word, self.letters) if term in index]
            self._known[word] = found
        return found
