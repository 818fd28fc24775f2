"""Compare encoders without training: nDCG@10 alone, and of BM25 and the encoder together.

    python benchmarks/quality/encoders.py DATA/cf DATA/cisi --model minilm --model MODELS/bge-small-en-v1.5

A document is one passage of 512 tokens. Scores are scaled to 0 to 1 over the best 1,000 of each, and summed
with a weight from 0 to 1. All judged queries are halved 60 times at random. The best weight of one half is
measured on the other half, in both directions. ``--cache`` keeps vectors. ``tools/encoder_package.py``
makes the folders of models.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ir_measures
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.collection import Collection
from rerank import Query
from rerank.rankers.encoder.transformer import TextEncoder

MEASURE = ir_measures.parse_measure("nDCG@10")
HALVES, DEPTH, TOKENS = 60, 1000, 512
WEIGHTS = np.linspace(0, 1, 11)

Run = dict[str, float]


def encoded(encoder: TextEncoder, texts: Sequence[str], cache: Path) -> NDArray[np.float32]:
    """Return unit vectors, (n, E); computed once."""
    key = hashlib.sha256("\0".join([encoder.version(), encoder.tokens.prompt, *texts]).encode()).hexdigest()
    path = cache / f"{key[:20]}.npy"
    if not path.is_file():
        begin = time.process_time()
        tokens = [text[: encoder.room] for text in encoder.tokens(list(texts))]
        cache.mkdir(parents=True, exist_ok=True)
        np.save(path, encoder.encode(tokens))
        print(f"  {len(texts)} texts in {time.process_time() - begin:.0f} s of processor time", flush=True)
    vectors: NDArray[np.float32] = np.load(path)
    return vectors


def scaled(scores: Run) -> Run:
    """Return scores from 0 to 1 of the best DEPTH."""
    best = dict(sorted(scores.items(), key=lambda item: -item[1])[:DEPTH])
    low, high = min(best.values(), default=0.0), max(best.values(), default=1.0)
    return {id: (score - low) / ((high - low) or 1.0) for id, score in best.items()}


def fused(lexical: Run, dense: Run, weight: float) -> Run:
    ids = {*lexical, *dense}
    return {id: (1 - weight) * lexical.get(id, 0.0) + weight * dense.get(id, 0.0) for id in ids}


def per_query(runs: dict[str, Run], qrels: dict[str, dict[str, int]]) -> list[float]:
    values = {metric.query_id: metric.value for metric in ir_measures.iter_calc([MEASURE], qrels, runs)}
    return [values.get(query, 0.0) for query in qrels]


def halves(table: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean, and the standard deviation over the halvings. table: (queries, weights)."""
    rng, values = np.random.default_rng(0), list[float]()
    for _ in range(HALVES):
        order = rng.permutation(len(table))
        parts = np.array_split(order, 2)
        best = [table[half].mean(axis=0).argmax() for half in parts]
        both = [table[half][:, weight].mean() for half, weight in zip(parts, reversed(best))]
        values.append(float(np.mean(both)))
    return float(np.mean(values)), float(np.std(values))


def lexical_runs(collection: Collection, queries: list[Query]) -> dict[str, Run]:
    with tempfile.TemporaryDirectory() as folder:
        workspace = collection.ingest(Path(folder) / "workspace")
        rankings = {
            query.id: workspace.search(query, DEPTH, stack="bm25").answer.ranking for query in queries
        }
        return {query: dict(zip(ranking.ids, ranking.scores.tolist())) for query, ranking in rankings.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--model", action="append", default=[], help="name or folder, repeated")
    options.add_argument("--cache", type=Path, default=Path("encoder_vectors"))
    args = options.parse_args()
    for folder in args.folders:
        collection = Collection(folder)
        documents = collection.documents()
        qrels = collection.all_judgments()
        qrels_by_id = {query: dict(qrels[query]) for query in qrels}
        queries = [query for query in collection.queries() if query.id in qrels_by_id]
        lexical = {query: scaled(run) for query, run in lexical_runs(collection, queries).items()}
        print(f"{folder.name}: {len(queries)} queries, {len(documents)} documents")
        bm25 = np.mean(per_query(lexical, qrels_by_id))
        print(f"  bm25: {bm25:.4f}", flush=True)
        ids = [document.id for document in documents]
        for model in args.model:
            encoder = TextEncoder.load(model, longest=TOKENS)
            vectors = encoded(encoder, [document.content for document in documents], args.cache)
            asked = encoded(encoder.of_queries, [query.text for query in queries], args.cache)
            cosines = asked @ vectors.T
            dense = {query.id: scaled(dict(zip(ids, row.tolist()))) for query, row in zip(queries, cosines)}
            columns: list[list[float]] = []
            for weight in WEIGHTS:
                runs = {query: fused(lexical[query], dense[query], weight) for query in qrels_by_id}
                columns.append(per_query(runs, qrels_by_id))
            table = np.array(columns).T
            mean, spread = halves(table)
            alone = table[:, -1].mean()
            print(f"  {Path(model).name}: alone {alone:.4f}, with bm25 {mean:.4f} ({spread:.4f})")


if __name__ == "__main__":
    main()
