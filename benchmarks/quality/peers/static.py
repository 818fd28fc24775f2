"""Run static word embeddings of wordllama, and fuse them with BM25 by ranx.

    pip install wordllama ranx bm25s PyStemmer

    python benchmarks/quality/peers/static.py OUT/cf

Run ``bm25.py`` first.
"""

from __future__ import annotations

from pathlib import Path

import wordllama
from collection import Collection, Costs, arguments, best, time_queries, write
from encoder import bm25_runs, fuse, time_fused
from wordllama import WordLlama


def main() -> None:
    args = arguments(__doc__).parse_args()
    collection = Collection.load(args.folder)
    costs = Costs()
    with costs.time("indexing"):
        # user:
        model = WordLlama.load(cache_dir=Path(wordllama.__file__).parent)  # weights and tokenizer are inside
        vectors = model.embed(collection.texts, norm=True)
        # end
    costs.bytes = vectors.nbytes

    def search(text: str) -> dict[str, float]:
        return best(collection.ids, vectors @ model.embed([text], norm=True)[0])

    if args.answer:
        time_queries(collection, "static", search)
        time_fused(collection, "bm25+static", search)
        return
    test = costs.answer(collection.of("test"), search)
    write(collection, "static", test, costs)
    dev = {query: search(text) for query, text in collection.of("dev").items()}
    bm25_dev, bm25_test = bm25_runs(collection)
    fused, params = fuse((bm25_dev, dev), (bm25_test, test), collection.qrels["dev"])
    write(collection, "bm25+static", fused, costs, weights=params["weights"])


if __name__ == "__main__":
    main()
