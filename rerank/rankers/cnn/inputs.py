"""Inputs of the CNN rankers: vectors of words and categories, and the collection as their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank.categories import CategoryGraph
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Embedding, deepwalk, word2vec
from rerank.rankers.cnn.towers import Part, Ragged, Vocabulary
from rerank.rankers.training.data import LONGEST_TEXT, Corpus, TrainingData
from rerank.records import Query

LONGEST_CATEGORIES = 64
LONGEST: dict[Part, int] = {"text": LONGEST_TEXT, "meta": LONGEST_CATEGORIES}
Sides = dict[str, Embedding]


class Inputs:
    """Embeddings and tokens of both sides, made for a part when it is first needed.

    embeddings: (side, part) -> vectors. If both sides share them, it is the same object.
    tokens: (side, part) -> row numbers in these vectors of each document or query.
    """

    def __init__(self, data: TrainingData, config: CnnConfig, progress: Progress) -> None:
        self.data, self.config, self.progress = data, config, progress
        self.embeddings: dict[tuple[str, Part], Embedding] = {}
        self.tokens: dict[tuple[str, Part], Ragged] = {}

    def prepare(self, part: Part) -> None:
        """Make embeddings and tokens of a part; TrainingError if the data have no words or categories."""
        if ("document", part) in self.embeddings:
            return
        sides = self._words() if part == "text" else self._categories()
        for side, corpus in (("query", self.data.queries), ("document", self.data.documents)):
            self.embeddings[side, part] = sides[side]
            tokens = _word_tokens if part == "text" else _category_tokens
            self.tokens[side, part] = tokens(sides[side].names, corpus)

    def _words(self) -> Sides:
        data, config = self.data, self.config
        of_queries = data.query_text or data.queries
        options: dict[str, Any] = {"size": config.word_size, "epochs": config.word_epochs}
        options |= {"seed": config.seed + 1, "progress": self.progress}
        if data.same_language:
            shared = word2vec(_Chain([data.documents, of_queries]), **options)
            sides = {"query": shared, "document": shared}
        else:
            corpora = {"document": data.documents, "query": of_queries}
            sides = {side: word2vec(corpus.sentences(), **options) for side, corpus in corpora.items()}
        if not sides["document"].names:
            raise TrainingError(
                "the documents have no words; `text` and `joint` need a title or a text in them"
            )
        if not sides["query"].names:
            raise TrainingError("the queries have no words; `text` and `joint` need query texts")
        return sides

    def _categories(self) -> Sides:
        data, config = self.data, self.config
        if not any(data.documents.categories):
            raise TrainingError(
                "no document has categories; train `text` only, or ingest documents with a `categories` field"
            )

        def embedded(categories: Sequence[tuple[str, ...]], edges: Any) -> Embedding:
            graph = CategoryGraph.build(categories, edges)
            options: dict[str, Any] = {"size": config.category_size, "per_node": config.walks}
            return deepwalk(graph, seed=config.seed + 2, progress=self.progress, **options)

        if data.query_category_edges is None:
            both = [*data.documents.categories, *data.queries.categories]
            shared = embedded(both, data.category_edges)
            return {"query": shared, "document": shared}
        return {
            "document": embedded(data.documents.categories, data.category_edges),
            "query": embedded(data.queries.categories, data.query_category_edges),
        }


def _word_tokens(names: Sequence[str], corpus: Corpus) -> Ragged:
    """Row numbers of the known words of each text."""
    row = {name: i for i, name in enumerate(names, 1)}
    rows = np.array([row.get(word, 0) for word in corpus.words] or [0], dtype=np.int32)
    flat = rows[corpus.tokens.flat]
    known = flat > 0
    counts = np.concatenate(([0], np.cumsum(known)))
    return Ragged(flat[known], counts[corpus.tokens.offsets].astype(np.int64))


def _category_tokens(names: list[str], corpus: Corpus) -> Ragged:
    """Row numbers of the categories of each document or query, by the vocabulary's rule for unknown ones."""
    vocabulary = Vocabulary("meta", names, LONGEST_CATEGORIES)
    known = {one: vocabulary.tokens(Query("", "", one)) for one in set(corpus.categories)}
    return Ragged.of([known[one] for one in corpus.categories])


@dataclass(frozen=True)
class _Chain:
    """The texts of several corpora, one after the other."""

    corpora: Sequence[Corpus]

    def __iter__(self) -> Iterator[list[str]]:
        for corpus in self.corpora:
            yield from corpus.sentences()

    def __len__(self) -> int:
        return sum(len(corpus.tokens) for corpus in self.corpora)
