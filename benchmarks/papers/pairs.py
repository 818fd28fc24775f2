"""Write pairs of related texts from a collection, for training with few judged queries.

    python benchmarks/papers/pairs.py DATA/cacm/corpus.jsonl.gz > pairs.jsonl

A pair is the title of a document with its text, or with the content of a linked document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from rerank.formats import read_corpus


def text_pairs(corpus: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of a title and a text."""
    documents = {document.id: document for document in read_corpus(corpus)}
    for document in documents.values():
        if not document.title.strip():
            continue
        found = [document.text]
        found += [documents[id].content for id in document.links if id in documents and id != document.id]
        for text in found:
            if text.strip():
                yield document.title, text


def main(corpus: str) -> None:
    for query, document in text_pairs(corpus):
        print(json.dumps({"query": query, "document": document}, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
