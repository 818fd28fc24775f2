"""Run BM25 and BM25 with RM3 of PyTerrier. Needs Java. pip install python-terrier

python benchmarks/quality/peers/rm3.py OUT/cf
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pandas
import pyterrier as pt
from collection import DEPTH, Collection, Costs, arguments, ndcg, settings_of, time_queries, write


def main() -> None:
    args = arguments(__doc__).parse_args()
    collection = Collection.load(args.folder)
    costs = Costs()
    with tempfile.TemporaryDirectory() as folder:
        with costs.time("indexing"):
            # user:
            stemmer = {
                "english": "porter",
                "italian": "ItalianSnowballStemmer",
                "german": "GermanSnowballStemmer",
            }
            indexer = pt.IterDictIndexer(folder, meta={"docno": 60}, stemmer=stemmer[collection.languages[0]])
            rows = ({"docno": id, "text": text} for id, text in zip(collection.ids, collection.texts))
            index = pt.IndexFactory.of(indexer.index(rows))
            bm25 = pt.terrier.Retriever(index, wmodel="BM25", num_results=DEPTH)
            expanded = {n: bm25 >> pt.rewrite.RM3(index, fb_terms=n, fb_docs=5) >> bm25 for n in (10, 20, 40)}
            # end
        costs.bytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())

        def search(by: pt.Transformer, text: str) -> dict[str, float]:
            hits = by(pandas.DataFrame([{"qid": "1", "query": " ".join(re.findall(r"\w+", text))}]))
            return dict(zip(hits.docno, map(float, hits.score)))

        if args.answer:
            terms = settings_of(collection, "pyterrier-rm3")["terms"]
            time_queries(collection, "pyterrier-bm25", lambda text: search(bm25, text))
            time_queries(collection, "pyterrier-rm3", lambda text: search(expanded[terms], text))
            return
        run = costs.answer(collection.of("test"), lambda text: search(bm25, text))
        write(collection, "pyterrier-bm25", run, costs)
        tuned = Costs(indexing=costs.indexing, bytes=costs.bytes)
        with tuned.time("training"):
            dev = dict(list(collection.of("dev").items())[:100])
            qrels = {query: collection.qrels["dev"][query] for query in dev}
            runs = {n: {q: search(by, t) for q, t in dev.items()} for n, by in expanded.items()}
            reached = {n: ndcg(run, qrels) for n, run in runs.items()}
        terms = max(reached, key=reached.__getitem__)
        run = tuned.answer(collection.of("test"), lambda text: search(expanded[terms], text))
        write(collection, "pyterrier-rm3", run, tuned, terms=terms)


if __name__ == "__main__":
    main()
