"""Tokens of documents and queries; passages and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.records import Document


@dataclass
class Tokens:
    """Tokenizer of ``tokenizers``.

    longest: tokens per sequence, including special tokens and prompt.
    prompt: starts each sequence.
    """

    tokenizer: Any
    longest: int
    prompt: str = ""

    def __post_init__(self) -> None:
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    @classmethod
    def read(cls, folder: Path, longest: int, prompt: str = "") -> Tokens:
        """Read a model's ``tokenizer.json``."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), longest, prompt)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize without special tokens."""
        return self._ids(list(texts), False) if texts else []

    def _ids(self, texts: list[str], special: bool) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch(texts, add_special_tokens=special)]

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """Special tokens, with the prompt, before and after a sequence."""
        (plain,), (framed,) = self._ids(["a"], False), self._ids(["a"], True)
        start = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
        prompt = self([self.prompt.rstrip()])[0] if self.prompt else []
        return [*framed[:start], *prompt], framed[start + len(plain) :]

    @property
    def room(self) -> int:
        """Tokens per sequence, without :attr:`frame`."""
        return self.longest - sum(len(part) for part in self.frame)


def document_tokens(
    documents: Sequence[Document],
    tokenize: Callable[[list[str]], list[list[int]]],
    separator: Sequence[int] | None = None,
) -> list[list[int]]:
    """Tokenize contents, or titles and texts with separators.

    >>> from rerank.records import Document
    >>> documents = [Document("1", "a b", "c"), Document("2", "a"), Document("3", text="c")]
    >>> words = {"a": 5, "b": 6, "c": 7}
    >>> document_tokens(documents, lambda texts: [[words[w] for w in t.split()] for t in texts], [3])
    [[5, 6, 3, 7], [5], [7]]
    """
    if separator is None:
        return tokenize([document.content for document in documents])
    titles = tokenize([document.title for document in documents])
    texts = tokenize([document.text for document in documents])
    return [
        [*title, *separator, *text] if title and text else title or text for title, text in zip(titles, texts)
    ]


BEST = 2
"""Passages whose cosines make the score of a document; measurements: benchmarks/README.md."""
DECAY = 0.05
"""Omega (Raman et al. 2021, section 4.2)."""


def windows(length: int, size: int, most: int | None = None) -> list[int]:
    """Return starts of half-overlapping windows; the last ends with the text.

    At most ``most`` are kept, evenly spaced.

    >>> windows(100, 128), windows(128, 128), windows(200, 128), windows(1000, 128, most=3)
    ([0], [0], [0, 64, 72], [0, 436, 872])
    """
    if length <= size:
        return [0] if length > 0 else []
    last = length - size
    starts = [*range(0, last, max(1, size // 2)), last]
    if most is None or len(starts) <= most:
        return starts
    return [round(i * last / (most - 1)) for i in range(most)] if most > 1 else [0]


def decayed_sum(
    cosines: NDArray[np.float32], counts: NDArray[np.integer], *, best: int = BEST, normalize: bool = True
) -> NDArray[np.float64]:
    """Return document scores, (n,) (Raman et al. 2021, equation 6).

    cosines: (n, F), 0 after the last passage.
    counts: (n,) passages.
    best: number of cosines summed with weights exp(-DECAY k), k from 1; negative ones as 0.
    normalize: divide by the weights, for scores from 0 to 1.

    >>> decayed_sum(np.float32([[0.9, 0.5, 0.1]]), np.array([3]), best=2, normalize=False).round(6).tolist()
    [1.308525]
    """
    best = min(best, cosines.shape[1])
    ranked = -np.sort(-np.maximum(cosines, 0), axis=1)[:, :best]
    weights = np.exp(-DECAY * np.arange(1, best + 1)).astype(np.float32)
    scores: NDArray[np.float64] = (ranked @ weights).astype(np.float64)
    if normalize:
        sums = np.concatenate(([1.0], np.cumsum(weights, dtype=np.float64)))
        scores /= sums[np.minimum(counts, best)]
    return scores
