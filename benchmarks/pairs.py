"""Pairs of texts that belong together, taken from a collection itself, where few queries are judged.

    python benchmarks/pairs.py DATA/cacm/corpus.jsonl.gz > pairs.jsonl

A document's title with its text, and its title with each document that it links to.
"""

from __future__ import annotations

import json
import sys

from rerank.formats import read_corpus


def main(corpus: str) -> None:
    documents = {document.id: document for document in read_corpus(corpus)}
    for document in documents.values():
        if not document.title.strip():
            continue
        found = [document.text]
        found += [documents[id].content for id in document.links if id in documents and id != document.id]
        for text in found:
            if text.strip():
                print(json.dumps({"query": document.title, "document": text}, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
