"""The collection as ``dense`` reads it: token numbers of every document, and the links between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rerank.formats import read_qrels
from rerank.progress import Progress
from rerank.rankers.cnn.towers import Ragged
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.encoder.passages import windows
from rerank.rankers.encoder.tokens import document_tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citation_graph import CitationGraph
from rerank.rankers.graphs.links import LinkGraph, judged_together
from rerank.rankers.graphs.relations import Relation, relation_graph
from rerank.records import Document

BATCH = 256
"""Documents that are tokenized at once."""


@dataclass(frozen=True)
class Texts:
    """N texts: tokens without special ones, titles, and the links. The collection's documents come first.

    graph: the links, or what else relates them. categorised: how many documents have categories.
    outside: references that are no documents of the collection, each its title: the last ones.
    """

    tokens: Ragged
    titles: list[str]
    graph: LinkGraph
    categorised: int = 0
    outside: int = 0

    @classmethod
    def read(
        cls,
        documents: Iterable[Document],
        tokenize: Callable[[list[str]], list[list[int]]],
        progress: Callable[[int], object] | None = None,
        *,
        structure_from: Relation = "links",
        separator: Sequence[int] | None = None,
    ) -> Texts:
        """Tokenize documents as they stream by; 4 bytes a token are kept.

        separator: between title and text.
        """
        flat: list[NDArray[np.int32]] = []
        lengths = [0]
        titles: list[str] = []
        categorised = 0

        def streamed() -> Iterator[Document]:
            nonlocal categorised
            stream = iter(documents)
            while batch := list(islice(stream, BATCH)):
                for document, tokens in zip(batch, document_tokens(batch, tokenize, separator)):
                    flat.append(np.array(tokens, dtype=np.int32))
                    lengths.append(len(tokens))
                    titles.append(document.title or document.text[:60])
                    categorised += bool(document.categories)
                    yield document
                if progress is not None:
                    progress(len(batch))

        graph = relation_graph(streamed(), structure_from)
        inside = len(titles)
        known = graph.citations.titles if isinstance(graph, CitationGraph) else {}
        for begin in range(inside, len(graph.ids), BATCH):
            names = [known[key] for key in graph.ids[begin : begin + BATCH]]
            for tokens in tokenize(names):
                flat.append(np.array(tokens, dtype=np.int32))
                lengths.append(len(tokens))
            titles += names
        joined = np.concatenate(flat) if flat else np.zeros(0, dtype=np.int32)
        offsets = np.cumsum(np.array(lengths, dtype=np.int64))
        return cls(Ragged(joined, offsets), titles, graph, categorised, len(titles) - inside)

    def without_judged(self, files: Sequence[str]) -> Texts:
        """Drop the links between documents that the judgments in ``files`` give the same query."""
        if not files:
            return self
        judgments = [read_qrels(file) for file in files]
        pairs = judged_together(self.graph, judgments)
        graph = self.graph.without(pairs)
        assert not len(judged_together(graph, judgments))
        return replace(self, graph=replace(graph, counts=replace(graph.counts, judged=len(pairs))))

    def longest(self, encoder: TextEncoder, most: int) -> int:
        """Count the passages of the longest document, ``most`` at most: so many are stored for each."""
        return max(1, len(windows(int(self.tokens.lengths.max(initial=0)), encoder.room, most)))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """(N,) whether a document has any text."""
        return self.tokens.lengths > 0


def read_texts(
    documents: Iterable[Document],
    tokenize: Callable[[list[str]], list[list[int]]],
    config: DenseConfig,
    progress: Progress,
    total: int | None = None,
    separator: Sequence[int] | None = None,
) -> Texts:
    """Read documents as the settings have it: what relates them, and which links are left out.

    separator: where the settings ask for one.
    """
    progress.start("read documents", total, "doc")
    try:
        texts = Texts.read(
            documents,
            tokenize,
            progress.advance,
            structure_from=config.structure_from,
            separator=separator if config.separator else None,
        )
    finally:
        progress.finish()
    return texts.without_judged(config.leave_out)


@dataclass(frozen=True)
class Passages:
    """The passages of documents, cut from their tokens when asked for.

    size: tokens of a passage; most: passages of a document.
    """

    tokens: Ragged
    size: int
    most: int | None

    @classmethod
    def of(cls, texts: Texts, encoder: TextEncoder, most: int | None) -> Passages:
        """Cut as the encoder reads them."""
        return cls(texts.tokens, encoder.room, most)

    def starts(self, document: int) -> list[int]:
        """Where the passages of a document begin in its text."""
        return windows(int(self.tokens.lengths[document]), self.size, self.most)

    def get(self, document: int, start: int = 0) -> NDArray[np.int32]:
        """Tokens of one passage."""
        begin = int(self.tokens.offsets[document]) + start
        end = min(begin + self.size, int(self.tokens.offsets[document + 1]))
        return self.tokens.flat[begin:end]

    def draw(self, document: int, rng: np.random.Generator) -> NDArray[np.int32]:
        """Draw a passage, each alike."""
        starts = self.starts(document)
        return self.get(document, starts[int(rng.integers(len(starts)))])


class Words:
    """Words as tokens, where there is no tokenizer: numbers from 1 in order of appearance; 0 is ``[MASK]``.

    >>> words = Words()
    >>> words.tokens(["to be or", "not to"]), words.decode([1, 0])
    ([[1, 2, 3], [4, 1]], 'to [MASK]')
    """

    def __init__(self) -> None:
        self.number: dict[str, int] = {"[MASK]": 0}

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Number the words of texts."""
        return [[self.number.setdefault(word, len(self.number)) for word in text.split()] for text in texts]

    def decode(self, numbers: list[int]) -> str:
        """Give the words back."""
        names = list(self.number)
        return " ".join(names[number] for number in numbers)
