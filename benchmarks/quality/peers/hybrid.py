"""Run the hybrid query of OpenSearch, BM25 and k-NN over an encoder, on a real node. Needs Java and Maven.

    python benchmarks/quality/peers/hybrid.py OUT/cf MODEL_FOLDER

Run ``encoder.py`` first. It encodes the documents. Normalization and weights are tuned on dev.
pip install sentence-transformers
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from collection import DEPTH, Collection, Costs, arguments, ndcg, settings_of, time_queries, write

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks.common.index import force_merge
from benchmarks.common.processes import memory
from tools.opensearch_node import Node, running, with_ml_commons

GRID = list(product(("min_max", "l2", "z_score"), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)))
"""Normalization and weight of BM25. The weight of k-NN is 1 minus the weight of BM25."""
PEER = "opensearch-hybrid"
TUNED = 100
"""Number of dev queries for the grid."""


def fill(node: Node, collection: Collection, vectors: Any) -> None:
    # user:
    vector = {
        "type": "knn_vector",
        "dimension": vectors.shape[1],
        "method": {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"},
    }
    fields = {"text": {"type": "text", "analyzer": collection.languages[0]}, "vector": vector}
    settings = {"index": {"knn": True, "number_of_shards": 1, "number_of_replicas": 0}}
    node.request("PUT", "/docs", {"settings": settings, "mappings": {"properties": fields}})
    for id, text, row in zip(collection.ids, collection.texts, vectors):
        document = {"text": text, "vector": [round(float(one), 6) for one in row]}
        node.request("PUT", f"/docs/_doc/{quote(id, safe='')}", document)
    # end
    force_merge(node, "docs")
    node.request("POST", "/docs/_refresh")


def search(node: Node, text: str, vector: list[float], technique: str, weight: float) -> dict[str, float]:
    # user:
    both = [{"match": {"text": text}}, {"knn": {"vector": {"vector": vector, "k": DEPTH}}}]
    parameters = {"weights": [weight, round(1 - weight, 1)]}
    processor = {
        "normalization": {"technique": technique},
        "combination": {"technique": "arithmetic_mean", "parameters": parameters},
    }
    body = {
        "size": DEPTH,
        "_source": False,
        "query": {"hybrid": {"queries": both}},
        "search_pipeline": {"phase_results_processors": [{"normalization-processor": processor}]},
    }
    hits = node.request("POST", "/docs/_search", body)["hits"]["hits"]
    return {hit["_id"]: hit["_score"] for hit in hits}
    # end


def main() -> None:
    from sentence_transformers import SentenceTransformer

    options = arguments(__doc__)
    options.add_argument("model", help="folder of the encoder")
    args = options.parse_args()
    collection = Collection.load(args.folder)
    kept = np.load(collection.folder / "encoder.npz")
    model = SentenceTransformer(args.model, device="cpu")

    def encode(text: str) -> list[float]:
        return list(map(float, model.encode_query(text, normalize_embeddings=True)))

    with running(home=with_ml_commons(), heap="1g") as node:

        def seconds() -> float:
            (stats,) = node.request("GET", "/_nodes/stats/process")["nodes"].values()
            return stats["process"]["cpu"]["total_in_millis"] / 1000

        costs, begin = Costs(indexing=float(kept["seconds"])), seconds()
        with costs.time("indexing"):
            fill(node, collection, kept["vectors"])
        costs.indexing += seconds() - begin
        costs.bytes = node.request("GET", "/docs/_stats/store")["_all"]["total"]["store"]["size_in_bytes"]
        if args.answer:
            best = json.loads(settings_of(collection, PEER)["best"])
            time_queries(collection, PEER, lambda text: search(node, text, encode(text), *best))
            return
        begin = seconds()
        with costs.time("training"):
            dev = {q: (t, encode(t)) for q, t in list(collection.of("dev").items())[:TUNED]}
            qrels = {query: collection.qrels["dev"][query] for query in dev}
            runs = {setting: {q: search(node, *dev[q], *setting) for q in dev} for setting in GRID}
            reached = {setting: ndcg(run, qrels) for setting, run in runs.items()}
        costs.training += seconds() - begin
        best = max(reached, key=reached.__getitem__)
        run = costs.answer(collection.of("test"), lambda text: search(node, text, encode(text), *best))
        assert node.process is not None
        costs.memory = int(memory(node.process.pid, "VmHWM"))
    write(collection, PEER, run, costs, best=json.dumps(best), dev=reached[best])


if __name__ == "__main__":
    main()
