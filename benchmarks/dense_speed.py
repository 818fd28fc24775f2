"""The ranker dense: what it costs, and what cheaper numbers cost in quality.

    python benchmarks/dense_speed.py DATA/cf        encoding and storage: speed, bytes, nDCG
    python benchmarks/dense_speed.py --scoring      1,000 candidates with 8 fragments each
    python benchmarks/dense_speed.py DATA/cf --training   beside a bare loop over the same tokens

Everything on one thread; the ways are measured in turn, ``--repeats`` times, and the best of each counts.
nDCG is that of the ranker alone over the whole collection, on all judged queries; the encoder is ``--start``,
untrained.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from dense import documents
from intimacy import peak

from rerank.formats import read_qrels, read_queries
from rerank.rankers.dense import DenseRanker, quantised
from rerank.rankers.fragments import decayed_sum, windows
from rerank.rankers.transformer import TextEncoder
from rerank.training.dense.config import DenseConfig
from rerank.training.dense.texts import Texts
from rerank.training.dense.trainer import DenseTrainer


def best_of(repeats: int, *ways) -> list[float]:
    """Seconds of each way, the smallest of so many turns."""
    seconds = np.full(len(ways), np.inf)
    for _ in range(repeats):
        for i, way in enumerate(ways):
            begin = time.perf_counter()
            way()
            seconds[i] = min(seconds[i], time.perf_counter() - begin)
    return seconds.tolist()


def ndcg(scores: np.ndarray, grades: list[np.ndarray], cut: int | None) -> float:
    found = []
    for row, grade in zip(scores, grades):
        order = np.argsort(-row, kind="stable")[:cut]
        discount = 1 / np.log2(np.arange(len(row)) + 2)
        gain = (grade[order] * discount[: len(order)]).sum()
        found.append(gain / (np.sort(grade)[::-1][:cut] * discount[: len(order)]).sum())
    return float(np.mean(found))


def load(start: str, tokens: int) -> TextEncoder:
    model, layers = start.split(":")
    return TextEncoder.load(model, layers=int(layers), longest=tokens)


def encoding(args: argparse.Namespace) -> None:
    collection = documents(args.data, args.documents)
    place = {d.id: i for i, d in enumerate(collection)}
    qrels = read_qrels(str(next((args.data / "qrels").glob(args.qrels))))
    asked = [q for q in read_queries(str(args.data / "queries.jsonl.gz")) if q.id in qrels]
    asked = [q for q in asked if any(d in place for d in qrels.relevant(q.id))]
    grades = []
    for query in asked:
        row = np.zeros(len(collection))
        for d, grade in qrels.relevant(query.id).items():
            if d in place:
                row[place[d]] = grade
        grades.append(row)
    encoder = load(args.start, args.tokens)
    room = encoder.room
    tokens = encoder.tokens([d.content for d in collection])
    starts = [windows(len(t), room, args.fragments) for t in tokens]
    pieces = [t[s : s + room] for t, where in zip(tokens, starts) for s in where]
    owner = np.repeat(np.arange(len(collection)), [len(w) for w in starts])
    slot = np.concatenate([np.arange(len(w)) for w in starts])
    counts = np.array([len(w) for w in starts])
    queries = [t[:room] for t in encoder.tokens([q.text for q in asked])]
    print(
        f"{len(collection)} documents, {len(pieces)} fragments of at most {args.tokens} tokens,"
        f" {len(asked)} queries"
    )

    def rank(pieces_: np.ndarray, queries_: np.ndarray) -> np.ndarray:
        cosines = np.zeros((len(queries_), len(collection), counts.max()), np.float32)
        cosines[:, owner, slot] = queries_ @ pieces_.T
        return np.array([decayed_sum(one, counts) for one in cosines])

    print("| encoded in | fragments/s | nDCG@10 | nDCG | largest difference of a cosine |")
    print("| --- | --- | --- | --- | --- |")
    exact = None
    for name in ("fp32", "bf16", "int8 (dynamic)"):
        encoder.precision = "bf16" if name == "bf16" else "fp32"
        if name.startswith("int8"):
            import warnings

            warnings.simplefilter("ignore")
            encoder.model = torch.ao.quantization.quantize_dynamic(
                encoder.model, {torch.nn.Linear}, dtype=torch.qint8
            )
        some = pieces[:: max(1, len(pieces) // 200)]
        (seconds,) = best_of(args.repeats, partial(encoder.encode, some))
        vectors = encoder.encode(pieces)
        if exact is None:
            exact, asked_vectors = vectors, encoder.encode(queries)
        scores = rank(vectors, asked_vectors)
        away = np.abs((vectors - exact) @ asked_vectors.T).max()
        print(
            f"| {name} | {len(some) / seconds:.0f} | {ndcg(scores, grades, 10):.4f} |"
            f" {ndcg(scores, grades, None):.4f} | {away:.1e} |",
            flush=True,
        )
    print("\n| stored as | bytes a fragment | nDCG@10 | nDCG |\n| --- | --- | --- | --- |")
    stored = quantised(exact).astype(np.float32)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    width = exact.shape[1]
    for name, size, vectors in (
        ("fp32", 4 * width, exact),
        ("fp16", 2 * width, exact.astype(np.float16).astype(np.float32)),
        ("int8", width, stored),
    ):
        scores = rank(vectors, asked_vectors)
        print(f"| {name} | {size} | {ndcg(scores, grades, 10):.4f} | {ndcg(scores, grades, None):.4f} |")
    ways = {
        "divided by the weights": {},
        "not divided": {"normalise": False},
        "best fragment alone": {"best": 1},
    }
    print("\n| score | nDCG@10 | nDCG |\n| --- | --- | --- |")
    cosines = np.zeros((len(queries), len(collection), counts.max()), np.float32)
    cosines[:, owner, slot] = asked_vectors @ exact.T
    for name, how in ways.items():
        scores = np.array([decayed_sum(one, counts, **how) for one in cosines])
        print(f"| {name} | {ndcg(scores, grades, 10):.4f} | {ndcg(scores, grades, None):.4f} |")


def scoring(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    ranker = DenseRanker("dense", 384, 8)
    vectors = rng.normal(size=(8000, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    features = np.full((1000, 8 * 384 + 1), 8, dtype=np.int8)
    features[:, :-1] = quantised(vectors).reshape(1000, -1)
    halves = vectors.astype(np.float16)
    query = vectors[0]
    mine, product, half = best_of(
        200,
        lambda: ranker.score(query, features),
        lambda: vectors @ query,
        lambda: halves.astype(np.float32) @ query,
    )
    print(
        f"1,000 candidates, 8 fragments of 384: {mine * 1e3:.2f} ms (bare product in fp32"
        f" {product * 1e3:.2f} ms,"
    )
    print(f"from fp16 {half * 1e3:.2f} ms)")


def training(args: argparse.Namespace) -> None:
    encoder = load(args.start, args.tokens)
    texts = Texts.read(documents(args.data, args.documents), encoder.tokens)
    config = DenseConfig(
        fragment_tokens=args.tokens, objective=args.objective, held_out=0.0, batch=args.batch, threads=1
    )
    trainer = DenseTrainer(texts, encoder, config)
    model = encoder.model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    batches = [batch for batch, _ in zip(trainer.sampler.epoch(0), range(args.repeats))]
    ready = [encoder.batch([t.tolist() for b in trainer.branches(one) for t in b]) for one in batches]
    drawn = trainer.sampler.epoch(0)

    def bare() -> None:
        ids, mask = ready[0]
        model.train()
        optimizer.zero_grad(set_to_none=True)
        from rerank.rankers.transformer import precision

        with precision(encoder.device):
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        (states * mask[:, :, None]).sum().backward()
        optimizer.step()

    def step() -> None:
        next(drawn)
        trainer._step(batches[0], 0, 10, optimizer)

    base, mine = best_of(args.repeats, bare, step)
    count = len(batches[0].draws) * trainer.objective.branches
    print(
        f"{args.objective}, {count} sequences a step: {count / mine:.1f}/s, bare loop {count / base:.1f}/s,"
        f" {mine / base:.2f} times as long; {peak():.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--documents", type=int)
    parser.add_argument("--qrels", default="*.tsv")
    parser.add_argument("--start", default="minilm:6")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--fragments", type=int, default=8)
    parser.add_argument("--objective", default="contrastive")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scoring", action="store_true")
    parser.add_argument("--training", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.scoring:
        scoring(args)
    elif args.training:
        training(args)
    else:
        encoding(args)


if __name__ == "__main__":
    main()
