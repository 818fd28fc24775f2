"""Run an encoder with sentence-transformers: rerank BM25, retrieve, and fuse with BM25 by ranx.

With ``--train``, run the same with a fine-tuned encoder.

    python benchmarks/quality/peers/encoder.py OUT/cf MODEL_FOLDER [--train [--rows 3200]]

The prompts for queries and documents are those of the model's ``config_sentence_transformers.json``.

Without train queries, it learns from the dev queries. Two more models, each fine-tuned on one half of them,
search for the other half. This dev run selects the weights of the fusion.

Run ``bm25.py`` first. pip install "sentence-transformers[train]" ranx
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from collection import Collection, Costs, Run, arguments, best, ndcg, settings_of, time_queries, write

RERANKED = 100
NO_DOCUMENT = "none"
"""The only id of a run that is empty: ranx needs one."""


def tuned_bm25(collection: Collection) -> Callable[[str], dict[str, float]]:
    """Return the search of BM25 with tuned settings."""
    from bm25 import Index

    return Index(collection, **settings_of(collection, "bm25-tuned")).search


def bm25_runs(collection: Collection) -> tuple[Run, Run]:
    """Return the dev and test runs of BM25 with tuned settings."""
    search = tuned_bm25(collection)
    return tuple({q: search(t) for q, t in collection.of(split).items()} for split in ("dev", "test"))


def fuse(dev: tuple[Run, Run], test: tuple[Run, Run], qrels: dict[str, dict[str, int]]) -> tuple[Run, Any]:
    """Return the weighted sum of min-max scores by ranx, and the weights. They are tuned on dev."""
    import ranx

    # user: +
    dev_runs, test_runs = ([ranx.Run(run) for run in runs] for runs in (dev, test))
    params = ranx.optimize_fusion(
        qrels=ranx.Qrels(qrels),
        runs=dev_runs,
        norm="min-max",
        method="wsum",
        metric="ndcg@10",
        show_progress=False,
    )
    fused = ranx.fuse(runs=test_runs, norm="min-max", method="wsum", params=params)
    # end
    return fused.to_dict(), params


def time_fused(collection: Collection, peer: str, vector_search: Callable[[str], dict[str, float]]) -> None:
    """Measure the latency of BM25, vector search and fusion together, per query.

    ranx compiles its functions again when the length of the longest id in a run is new, which takes seconds.
    Therefore all ids get the same length.
    """
    import ranx

    lexical_search = tuned_bm25(collection)
    params = {"weights": settings_of(collection, peer)["weights"]}
    short = {id: f"{i:06}" for i, id in enumerate((*collection.ids, NO_DOCUMENT))}

    def search(text: str) -> Any:
        results = [find(text) or {NO_DOCUMENT: 0.0} for find in (lexical_search, vector_search)]
        runs = [ranx.Run({"q": {short[d]: score for d, score in scores.items()}}) for scores in results]
        return ranx.fuse(runs=runs, norm="min-max", method="wsum", params=params)

    time_queries(collection, peer, search)


def fine_tuned(folder: str, collection: Collection, negatives: Run, most: int) -> Any:
    """Train on at most ``most`` judged pairs, with in-batch negatives and one hard negative of BM25.

    negatives: the results of BM25 for the queries to learn from.
    """
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    texts = dict(zip(collection.ids, collection.texts))
    rows: list[tuple[str, str, str]] = []
    judged, each = collection.qrels["dev"] | collection.qrels["train"], max(4, most // len(negatives))
    for query, candidates in negatives.items():
        grades = judged[query]
        wrong = [d for d in list(candidates)[5:50] if grades.get(d, 0) == 0]
        relevant = [d for d, grade in grades.items() if grade > 0 and d in texts]
        for document in relevant[:each] if wrong else ():
            negative = wrong[len(rows) % len(wrong)]
            rows.append((collection.queries[query], texts[document], texts[negative]))
    rows = random.Random(0).sample(rows, min(most, len(rows)))
    # user: encoder-tuned
    model = SentenceTransformer(folder, device="cpu")
    length, model.max_seq_length = model.max_seq_length, 128
    data = Dataset.from_dict(
        {n: [row[i] for row in rows] for i, n in enumerate(("anchor", "positive", "negative"))}
    )
    arguments = SentenceTransformerTrainingArguments(
        "/tmp/fine-tuned",
        num_train_epochs=1,
        per_device_train_batch_size=32,
        learning_rate=2e-5,
        warmup_ratio=0.1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        prompts={
            "anchor": model.prompts["query"],
            "positive": model.prompts["document"],
            "negative": model.prompts["document"],
        },
        batch_sampler="batch_sampler" if collection.qrels["train"] else "no_duplicates",
    )
    SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
    ).train()
    model.max_seq_length = length
    # end
    return model


def cross_fitted(folder: str, collection: Collection, negatives: Run, most: int) -> Run:
    """Return the dev run of two models, each fine-tuned on one half of the queries, for the other half."""
    run, queries = {}, list(negatives)
    for half in (0, 1):
        learned = {query: negatives[query] for query in queries[half::2]}
        model = fine_tuned(folder, collection, learned, most)
        vectors = model.encode_document(collection.texts, normalize_embeddings=True, batch_size=64)
        for query in queries[1 - half :: 2]:
            vector = model.encode_query(collection.queries[query], normalize_embeddings=True)
            run[query] = best(collection.ids, vectors @ vector)
    return run


def runs_of(
    model: Any,
    collection: Collection,
    name: str,
    costs: Costs,
    encoder: str,
    answer: bool = False,
    dev: Run | None = None,
) -> None:
    """Write the reranked, retrieved and fused runs of an encoder, or only their latencies.

    encoder: name of the pretrained model, for the tables.
    dev: the dev run that selects the weights of the fusion. Default: the run of this encoder.
    """
    path = collection.folder / f"{name}.npz"
    if not path.exists():
        with costs.time("indexing"):
            # user: encoder
            vectors = model.encode_document(collection.texts, normalize_embeddings=True, batch_size=64)
            # end
        np.savez(path, vectors=vectors, seconds=costs.indexing)
    stored = np.load(path)
    vectors, costs.indexing = stored["vectors"], float(stored["seconds"])
    costs.bytes = vectors.nbytes
    place = {id: i for i, id in enumerate(collection.ids)}

    def search(text: str) -> dict[str, float]:
        # user: encoder
        return best(collection.ids, vectors @ model.encode_query(text, normalize_embeddings=True))
        # end

    def rerank(text: str, candidates: dict[str, float]) -> dict[str, float]:
        vector = model.encode_query(text, normalize_embeddings=True)
        top = list(candidates)[:RERANKED]
        cosines = vectors[[place[d] for d in top]] @ vector if top else np.empty(0)
        remaining = {d: -1.0 - i for i, d in enumerate(list(candidates)[RERANKED:])}
        return dict(zip(top, map(float, cosines))) | remaining

    if answer:
        lexical_search = tuned_bm25(collection)
        time_queries(collection, f"{name}-retrieve", search)
        time_queries(collection, f"{name}-rerank", lambda text: rerank(text, lexical_search(text)))
        time_fused(collection, f"bm25+{name}", search)
        return
    test = costs.answer(collection.of("test"), search)
    write(collection, f"{name}-retrieve", test, costs)
    dev = dev or {query: search(text) for query, text in collection.of("dev").items()}
    bm25_dev, bm25_test = bm25_runs(collection)
    reranked = Costs(costs.training, costs.indexing, costs.bytes)
    by_text = {text: query for query, text in collection.of("test").items()}
    run = reranked.answer(collection.of("test"), lambda text: rerank(text, bm25_test[by_text[text]]))
    write(collection, f"{name}-rerank", run, reranked)
    fused, params = fuse((bm25_dev, dev), (bm25_test, test), collection.qrels["dev"])
    write(collection, f"bm25+{name}", fused, costs, weights=params["weights"], encoder=encoder)
    print(name, "dev", ndcg(dev, collection.qrels["dev"]))


def main() -> None:
    from sentence_transformers import SentenceTransformer

    options = arguments(__doc__)
    options.add_argument("model", help="folder of the encoder")
    options.add_argument("--train", action="store_true", help="fine-tune the model first")
    options.add_argument("--rows", type=int, default=3200, help="most training pairs. Default: %(default)s")
    args = options.parse_args()
    collection = Collection.load(args.folder)
    encoder, tuned_folder = Path(args.model).name, collection.folder / "encoder-tuned"
    if args.answer or not args.train:
        model = SentenceTransformer(args.model, device="cpu")
        runs_of(model, collection, "encoder", Costs(), encoder, args.answer)
        if args.answer and tuned_folder.exists():
            tuned = SentenceTransformer(str(tuned_folder), device="cpu")
            runs_of(tuned, collection, "encoder-tuned", Costs(), encoder, True)
        return
    from bm25 import Index

    index, costs, dev = Index(collection), Costs(), None
    with costs.time("training"):
        learned = collection.of("train") or collection.of("dev")
        negatives = {query: index.search(text) for query, text in learned.items()}
        if not collection.qrels["train"]:
            dev = cross_fitted(args.model, collection, negatives, args.rows)
        model = fine_tuned(args.model, collection, negatives, args.rows)
    model.save(str(tuned_folder))
    tuned_folder.with_suffix(".npz").unlink(missing_ok=True)
    runs_of(model, collection, "encoder-tuned", costs, encoder, dev=dev)


if __name__ == "__main__":
    main()
