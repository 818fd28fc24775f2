"""Embeddings and token numbers for the CNN rankers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
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


class Inputs:
    """Embeddings and tokens of both sides, made on first use.

    embeddings: (side, part) -> vectors, possibly shared.
    tokens: (side, part) -> token numbers.
    """

    def __init__(self, data: TrainingData, config: CnnConfig, progress: Progress) -> None:
        self.data, self.config, self.progress = data, config, progress
        self.embeddings: dict[tuple[str, Part], Embedding] = {}
        self.tokens: dict[tuple[str, Part], Ragged] = {}

    def prepare(self, part: Part) -> None:
        """Make a part. Raises TrainingError without words or categories."""
        if ("document", part) in self.embeddings:
            return
        document, query = self._words() if part == "text" else self._categories()
        tokens = _word_tokens if part == "text" else _category_tokens
        for side, embedding, corpus in (
            ("query", query, self.data.queries),
            ("document", document, self.data.documents),
        ):
            self.embeddings[side, part] = embedding
            self.tokens[side, part] = tokens(embedding.names, corpus)

    def _words(self) -> tuple[Embedding, Embedding]:
        data, config = self.data, self.config

        def embedded(*corpora: Corpus) -> Embedding:
            return word2vec(
                lambda: chain.from_iterable(corpus.sentences() for corpus in corpora),
                sum(len(corpus.tokens) for corpus in corpora),
                size=config.word_size,
                epochs=config.word_epochs,
                seed=config.seed + 1,
                progress=self.progress,
            )

        of_queries = data.query_text or data.queries
        if data.same_language:
            document = query = embedded(data.documents, of_queries)
        else:
            document, query = embedded(data.documents), embedded(of_queries)
        if not document.names:
            raise TrainingError("the documents have no words; `text` and `joint` need titles or texts")
        if not query.names:
            raise TrainingError("the queries have no words; `text` and `joint` need query texts")
        return document, query

    def _categories(self) -> tuple[Embedding, Embedding]:
        data, config = self.data, self.config
        if not any(data.documents.categories):
            raise TrainingError(
                "no document has categories; train `text` only, or ingest documents with a `categories` field"
            )

        def embedded(categories: Sequence[tuple[str, ...]], edges: Any) -> Embedding:
            graph = CategoryGraph.build(categories, edges)
            options: dict[str, Any] = {"size": config.category_size, "per_node": config.walks}
            return deepwalk(graph, seed=config.seed + 2, progress=self.progress, **options)

        of_documents, of_queries = data.documents.categories, data.queries.categories
        if data.query_category_edges is None:
            shared = embedded([*of_documents, *of_queries], data.category_edges)
            return shared, shared
        return embedded(of_documents, data.category_edges), embedded(of_queries, data.query_category_edges)


def _word_tokens(names: Sequence[str], corpus: Corpus) -> Ragged:
    row = {name: i for i, name in enumerate(names, 1)}
    rows = np.array([row.get(word, 0) for word in corpus.words] or [0], dtype=np.int32)
    flat = rows[corpus.tokens.flat]
    known = flat > 0
    counts = np.concatenate(([0], np.cumsum(known)))
    return Ragged(flat[known], counts[corpus.tokens.offsets].astype(np.int64))


def _category_tokens(names: list[str], corpus: Corpus) -> Ragged:
    vocabulary = Vocabulary("meta", names, LONGEST_CATEGORIES)
    known = {one: vocabulary.tokens(Query("", "", one)) for one in set(corpus.categories)}
    return Ragged.of([known[one] for one in corpus.categories])
