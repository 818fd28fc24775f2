"""Training texts and their relation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import Ragged
from rerank.rankers.dense.ranker import windows
from rerank.rankers.encoder.modules import document_tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document

BATCH = 256
"""Documents that are tokenized at once."""


@dataclass(frozen=True)
class Texts:
    """N texts: documents, then titles of outside references.

    tokens:  without special tokens.
    graph:   relation.
    outside: number of references.
    """

    tokens: Ragged
    graph: LinkGraph | Citations
    outside: int = 0

    @classmethod
    def read(
        cls,
        documents: Iterable[Document],
        tokenize: Callable[[list[str]], list[list[int]]],
        progress: Callable[[int], object] | None = None,
        *,
        cited: bool = False,
        separator: Sequence[int] | None = None,
    ) -> Texts:
        """Tokenize streamed documents. cited: relate by citations. separator: tokens after titles."""
        flat: list[NDArray[np.int32]] = []

        def stream() -> Iterator[Document]:
            rest = iter(documents)
            while batch := list(islice(rest, BATCH)):
                found = document_tokens(batch, tokenize, separator)
                flat.extend(np.array(tokens, dtype=np.int32) for tokens in found)
                yield from batch
                if progress is not None:
                    progress(len(batch))

        graph = Citations.of(stream()) if cited else LinkGraph.of(stream())
        outside = graph.ids[len(flat) :]
        if isinstance(graph, Citations):
            names = [graph.titles[key] for key in outside]
            flat += [np.array(tokens, dtype=np.int32) for tokens in tokenize(names)]
        return cls(Ragged.from_lists(flat), graph, len(outside))

    def longest(self, encoder: TextEncoder, most: int) -> int:
        """Return the maximum passage count, from 1 to ``most``."""
        return max(1, len(windows(int(self.tokens.lengths.max(initial=0)), encoder.room, most)))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Texts with tokens, (N,) bool."""
        return self.tokens.lengths > 0


@dataclass(frozen=True)
class Passages:
    """Passages of documents. size: tokens per passage; most: passages per document."""

    tokens: Ragged
    size: int
    most: int | None

    def starts(self, document: int) -> list[int]:
        """Return passage starts."""
        return windows(int(self.tokens.lengths[document]), self.size, self.most)

    def get(self, document: int, start: int = 0) -> NDArray[np.int32]:
        """Return a passage's tokens."""
        begin = int(self.tokens.offsets[document]) + start
        end = min(begin + self.size, int(self.tokens.offsets[document + 1]))
        return self.tokens.flat[begin:end]

    def draw(self, document: int, rng: np.random.Generator) -> NDArray[np.int32]:
        """Draw a passage."""
        starts = self.starts(document)
        return self.get(document, starts[int(rng.integers(len(starts)))])
