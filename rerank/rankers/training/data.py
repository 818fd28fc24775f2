"""Training data: texts, judgments, candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.cnn.towers import Ragged
from rerank.records import Document, Query
from rerank.text import words

LONGEST_TEXT = 400
"""Maximum number of words of a document. On the test collections more words gained nothing."""


@dataclass(frozen=True)
class Corpus:
    """Tokenized texts with categories.

    words:      distinct words.
    tokens:     first LONGEST_TEXT words per text, as positions in ``words``.
    categories: of each text.
    """

    words: list[str]
    tokens: Ragged
    categories: list[tuple[str, ...]]

    @classmethod
    def read(cls, records: Iterable[Document | Query]) -> Corpus:
        """Tokenize documents or queries, about 4 bytes per word."""
        index: dict[str, int] = {}
        texts: list[NDArray[np.int32]] = []
        categories: list[tuple[str, ...]] = []
        interned: dict[tuple[str, ...], tuple[str, ...]] = {}
        for record in records:
            text = record.content if isinstance(record, Document) else record.text
            tokens = [index.setdefault(word, len(index)) for word in words(text)[:LONGEST_TEXT]]
            texts.append(np.array(tokens, dtype=np.int32))
            categories.append(interned.setdefault(record.categories, record.categories))
        return cls(list(index), Ragged.of(texts), categories)

    def sentences(self) -> Iterator[list[str]]:
        """Texts as lists of words."""
        names = np.array(self.words, dtype=object)
        for begin, end in pairwise(self.tokens.offsets.tolist()):
            yield names[self.tokens.flat[begin:end]].tolist()


@dataclass(frozen=True)
class Judged:
    """A judged query, as positions in the corpora.

    query:      its position.
    documents, grades: relevant documents (grade > 0).
    candidates, scores: of the first stage, best first.
    unwanted:   documents judged 0 or less.
    """

    query: int
    documents: NDArray[np.int64]
    grades: NDArray[np.int64]
    candidates: NDArray[np.int64]
    scores: NDArray[np.float64]
    unwanted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class TrainingData:
    """Data of CNN and projection rankers; ``train`` and ``dev``: judged ``queries``.

    query_texts: texts of ``queries``.
    pairs: two corpora of equal length. dev_pairs: number of the last pairs, held out for dev.
    """

    document_ids: Sequence[str]
    documents: Corpus
    queries: Corpus
    train: list[Judged]
    dev: list[Judged]
    first_stage: str
    same_language: bool
    category_edges: Sequence[tuple[str, str]] | None = None
    query_text: Corpus | None = None
    query_texts: Sequence[str] = ()
    pairs: tuple[Corpus, Corpus] | None = None
    dev_pairs: int = 0
