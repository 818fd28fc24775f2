"""Grow a collection: copies of its documents with other words, and queries that ask for one document."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from rerank import Document, Qrels, Query
from rerank.formats import read_corpus

REPLACED_SHARE = 0.3  # of the words of a copy
VOCABULARY_DOCUMENTS = 20_000
QUERY_WORDS = 8
PAIRS_PER_QUERY = 2  # the document of the query, and the document before it


def grow(corpus: Path, count: int, *, categories: bool = False) -> Iterator[Document]:
    """Yield ``count`` documents: the ones of the corpus, then copies with replaced words.

    The same corpus and count give the same documents.

    categories: keep the categories and the language of the documents.
    """
    rng = random.Random(0)
    documents = list(read_corpus(corpus))
    vocabulary = [word for document in documents[:VOCABULARY_DOCUMENTS] for word in document.text.split()]
    for number in range(count):
        copy, position = divmod(number, len(documents))
        document = documents[position]
        words = document.text.split()
        if copy:
            words = [rng.choice(vocabulary) if rng.random() < REPLACED_SHARE else word for word in words]
        grown = Document(f"{document.id}-{copy}", title=document.title, text=" ".join(words))
        if categories:
            grown = replace(grown, categories=document.categories, lang=document.lang)
        yield grown


def grow_judgments(documents: Iterable[Document], count: int, pairs: int) -> tuple[list[Query], Qrels]:
    """Return queries for some of ``count`` documents, and ``pairs`` judgments.

    A query has random words and the categories of its document, which has grade 2. The document before it
    has grade 1. The documents of the queries are evenly spaced.
    """
    rng = random.Random(1)
    query_count = pairs // PAIRS_PER_QUERY
    step = max(1, count // query_count)
    queries: list[Query] = []
    judgments: list[tuple[str, str, int]] = []
    previous = ""
    for number, document in enumerate(documents):
        if number % step == 1 % step and len(queries) < query_count and previous:
            words = document.text.split()
            text = " ".join(rng.sample(words, min(QUERY_WORDS, len(words))))
            query = Query(f"q-{document.id}", text, document.categories, document.lang)
            queries.append(query)
            judgments.append((query.id, document.id, 2))
            judgments.append((query.id, previous, 1))
        previous = document.id
    return queries, Qrels(judgments)
