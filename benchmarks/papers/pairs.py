"""Write pairs of related texts of a collection, for training with few judged queries; read its judgments.

    python benchmarks/papers/pairs.py DATA/cacm/corpus.jsonl.gz > pairs.jsonl

A pair is the title of a document with its text, or with the content of a linked document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rerank.formats import read_corpus, read_qrels
from rerank.records import Qrels


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


def judgments(folder: Path, lang: str | None, parts: int | None) -> dict[str, Qrels]:
    """Train, dev and test judgments. With ``parts``, all judgments are split by query into three parts."""
    prefix = f"{lang}." if lang else ""
    files = {split: folder / "qrels" / f"{prefix}{split}.tsv" for split in ("train", "dev", "test")}
    if parts is None:
        return {split: read_qrels(str(path)) for split, path in files.items()}
    rows = [
        (q, d, grade)
        for path in files.values()
        if path.exists()
        for q, found in read_qrels(str(path)).items()
        for d, grade in found.items()
    ]
    ids = sorted({q for q, _, _ in rows})
    dealt = dict(zip(np.random.default_rng(0).permutation(ids).tolist(), range(len(ids))))
    chosen = {"train": {0}, "dev": {1}, "test": {2}}
    return {s: Qrels(row for row in rows if dealt[row[0]] % 3 in kept) for s, kept in chosen.items()}


def main(corpus: str) -> None:
    for query, document in text_pairs(corpus):
        print(json.dumps({"query": query, "document": document}, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])
