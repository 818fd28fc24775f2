"""Training texts and their relation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import Ragged
from rerank.common.batches import batched
from rerank.common.progress import ignore_count
from rerank.documents.records import Document
from rerank.rankers.dense.ranker import windows
from rerank.rankers.encoder.modules import document_tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.links import LinkGraph

BATCH = 256
"""Documents that are tokenized at once."""


@dataclass(frozen=True)
class Texts:
    """N texts to learn from, and how they are related.

    tokens:  the tokens of each text without special tokens: of the documents, and then of the titles of
        references outside the collection.
    graph:   the links between documents, or the texts that are cited together.
    outside: the number of these references.
    """

    tokens: Ragged
    graph: LinkGraph | Citations
    outside: int = 0

    @classmethod
    def read(
        cls,
        documents: Iterable[Document],
        tokenize: Callable[[list[str]], list[list[int]]],
        progress: Callable[[int], object] = ignore_count,
        *,
        relation: Literal["links", "categories", "citations"] = "links",
        separator: Sequence[int] | None = None,
    ) -> Texts:
        """Tokenize a stream of documents, and read their relations.

        relation:  whether documents are related by links or by shared categories, or texts that are cited
            together.
        separator: tokens between a title and a text.
        """
        flat: list[NDArray[np.int32]] = []

        def stream() -> Iterator[Document]:
            for batch in batched(documents, BATCH):
                for tokens in document_tokens(batch, tokenize, separator):
                    flat.append(np.array(tokens, dtype=np.int32))
                yield from batch
                progress(len(batch))

        graph: LinkGraph | Citations
        if relation == "citations":
            graph = Citations.from_documents(stream())
        else:
            read_graph = LinkGraph.from_categories if relation == "categories" else LinkGraph.from_documents
            graph = read_graph(stream())
        outside = graph.ids[len(flat) :]
        if isinstance(graph, Citations):
            titles = [graph.titles[key] for key in outside]
            flat += [np.array(tokens, dtype=np.int32) for tokens in tokenize(titles)]
        return cls(Ragged.from_lists(flat), graph, len(outside))

    def max_passages(self, encoder: TextEncoder, limit: int) -> int:
        """Return the number of passages of the longest text, from 1 to ``limit``."""
        return max(1, len(windows(int(self.tokens.lengths.max(initial=0)), encoder.room, limit)))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which texts have tokens, (N,) bool."""
        return self.tokens.lengths > 0


@dataclass(frozen=True)
class Passages:
    """The passages of texts.

    size:  tokens per passage.
    limit: the maximum number of passages of a text; None sets no limit.
    """

    tokens: Ragged
    size: int
    limit: int | None

    def starts(self, document: int) -> list[int]:
        """Return the first token of each passage of a text."""
        return windows(int(self.tokens.lengths[document]), self.size, self.limit)

    def get(self, document: int, start: int = 0) -> NDArray[np.int32]:
        """Return the tokens of the passage that begins at the token ``start`` of a text."""
        begin = int(self.tokens.offsets[document]) + start
        end = min(begin + self.size, int(self.tokens.offsets[document + 1]))
        return self.tokens.flat[begin:end]

    def draw(self, document: int, rng: np.random.Generator) -> NDArray[np.int32]:
        """Draw a passage of a text, and return its tokens."""
        starts = self.starts(document)
        return self.get(document, starts[int(rng.integers(len(starts)))])
