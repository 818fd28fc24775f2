"""Run BM25 of bm25s with default settings, and with k1, b and title boost tuned on dev.

pip install bm25s PyStemmer

python benchmarks/quality/peers/bm25.py OUT/cf
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import bm25s
import Stemmer
from collection import DEPTH, Collection, Costs, arguments, ndcg, settings_of, time_queries, write

GRID = list(product((0.6, 0.9, 1.2, 1.6, 2.0, 3.0), (0.0, 0.25, 0.5, 0.75, 0.9)))
"""Values of k1 and b to try."""
TUNED = 200
"""Number of dev queries for the grid."""
TITLES = (1, 2)
"""Numbers of additional title repetitions to try with the best k1 and b."""


@cache
def tokens(collection: Collection, titles: int) -> Any:
    """Return the stemmed tokens of all documents."""
    # user: bm25 rerank lambdamart
    stem = Stemmer.Stemmer(collection.languages[0])
    texts = [
        f"{title} " * titles + text
        for (title, _), text in zip(collection.documents.values(), collection.texts)
    ]
    return bm25s.tokenize(texts, stopwords=None, stemmer=stem, show_progress=False)
    # end


class Index:
    def __init__(self, collection: Collection, k1: float = 1.2, b: float = 0.75, titles: int = 0) -> None:
        self.ids = collection.ids
        self.stem = Stemmer.Stemmer(collection.languages[0])
        # user: bm25 rerank lambdamart
        self.bm25 = bm25s.BM25(k1=k1, b=b, method="lucene")
        self.bm25.index(tokens(collection, titles), show_progress=False)
        self.stop = collection.languages[1]

    def search(self, text: str) -> dict[str, float]:
        """Return the best documents and their scores."""
        query = bm25s.tokenize([text], stopwords=self.stop, stemmer=self.stem, show_progress=False)
        if not query.vocab:
            return {}
        found, scores = self.bm25.retrieve(query, k=min(DEPTH, len(self.ids)), show_progress=False)
        return {self.ids[i]: float(s) for i, s in zip(found[0], scores[0]) if s > 0}
        # end


def main() -> None:
    args = arguments(__doc__).parse_args()
    collection = Collection.load(args.folder)
    if args.answer:
        for peer in ("bm25", "bm25-tuned"):
            time_queries(collection, peer, Index(collection, **settings_of(collection, peer)).search)
        return
    costs = Costs()
    with costs.time("indexing"):
        plain = Index(collection)
    costs.bytes = sum(a.nbytes for a in plain.bm25.scores.values() if hasattr(a, "nbytes"))
    write(collection, "bm25", costs.answer(collection.of("test"), plain.search), costs)
    dev = dict(list(collection.of("dev").items())[:TUNED])
    qrels = {query: collection.qrels["dev"][query] for query in dev}
    tuned = Costs(indexing=costs.indexing, bytes=costs.bytes)
    with tuned.time("training"):

        def on_dev(k1: float, b: float, titles: int) -> float:
            index = Index(collection, k1, b, titles)
            return ndcg({q: index.search(text) for q, text in dev.items()}, qrels)

        reached = {(k1, b, 0): on_dev(k1, b, 0) for k1, b in GRID}
        k1, b, _ = max(reached, key=reached.__getitem__)
        if any(title for title, _ in collection.documents.values()):
            reached |= {(k1, b, titles): on_dev(k1, b, titles) for titles in TITLES}
    chosen = max(reached, key=reached.__getitem__)
    index = Index(collection, *chosen)
    run = tuned.answer(collection.of("test"), index.search)
    settings = dict(zip(("k1", "b", "titles"), chosen))
    write(collection, "bm25-tuned", run, tuned, **settings, dev=reached[chosen])


if __name__ == "__main__":
    main()
