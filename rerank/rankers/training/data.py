"""What the rankers are trained on: tokens of documents and queries, judgments, candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.cnn.towers import Ragged
from rerank.records import Document, Query
from rerank.text import words

LONGEST_TEXT = 400
"""Words of a document that are read; on the test collections the rest changed nothing but the time."""


@dataclass(frozen=True)
class Corpus:
    """A tokenized sequence of texts with their categories.

    words:      every distinct word, in order of first appearance; tokens are positions in it.
    tokens:     the first LONGEST_TEXT words of each text.
    categories: the categories of each text.
    """

    words: list[str]
    tokens: Ragged
    categories: list[tuple[str, ...]]

    @classmethod
    def read(
        cls, records: Iterable[Document | Query], progress: Callable[[int], object] | None = None
    ) -> Corpus:
        """Tokenize documents or queries as they stream by; about 4 bytes a word are kept."""
        index: dict[str, int] = {}
        flat: list[NDArray[np.int32]] = []
        lengths = [0]
        categories: list[tuple[str, ...]] = []
        interned: dict[tuple[str, ...], tuple[str, ...]] = {}
        for record in records:
            text = record.content if isinstance(record, Document) else record.text
            tokens = [index.setdefault(word, len(index)) for word in words(text)[:LONGEST_TEXT]]
            flat.append(np.array(tokens, dtype=np.int32))
            lengths.append(len(tokens))
            categories.append(interned.setdefault(record.categories, record.categories))
            if progress is not None:
                progress(1)
        offsets = np.cumsum(np.array(lengths, dtype=np.int64))
        joined = np.concatenate(flat) if flat else np.zeros(0, dtype=np.int32)
        return cls(list(index), Ragged(joined, offsets), categories)

    def sentences(self) -> Sentences:
        """The texts as lists of words, as often as they are asked for."""
        return Sentences(self)


@dataclass(frozen=True)
class Sentences:
    """A re-iterable view of a corpus as lists of words."""

    corpus: Corpus

    def __iter__(self):  # type: ignore[no-untyped-def]
        names = np.array(self.corpus.words, dtype=object)
        tokens = self.corpus.tokens
        for begin, end in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist()):
            yield names[tokens.flat[begin:end]].tolist()

    def __len__(self) -> int:
        return len(self.corpus.tokens)


@dataclass(frozen=True)
class Judged:
    """One query with its judgments and candidates, all as positions in the corpora.

    query:      position among the queries.
    documents, grades: the relevant documents (grade > 0) and their grades.
    candidates, scores: what the first stage returned, best first.
    unwanted: documents that were judged 0 or less.
    """

    query: int
    documents: NDArray[np.int64]
    grades: NDArray[np.int64]
    candidates: NDArray[np.int64]
    scores: NDArray[np.float64]
    unwanted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class TrainingData:
    """Everything a fit reads; ``train`` and ``dev`` are judged ``queries``.

    pairs: texts that belong together, from a file and not judged: two corpora, text i of one with text i of
        the other. dev_pairs: how many of them, the last ones, are kept for dev.
    """

    document_ids: Sequence[str]
    documents: Corpus
    queries: Corpus
    train: list[Judged]
    dev: list[Judged]
    first_stage: str
    same_language: bool
    category_edges: Sequence[tuple[str, str]] | None = None
    query_category_edges: Sequence[tuple[str, str]] | None = None
    query_text: Corpus | None = None
    pairs: tuple[Corpus, Corpus] | None = None
    dev_pairs: int = 0
