"""Measure the costs of the ranker `dense`, and the nDCG with lower precision.

    python benchmarks/speed/encoder.py DATA/cf        encoding and storage: speed, bytes, nDCG
    python benchmarks/speed/encoder.py DATA/cf --ways bf16,fp32,onnx    only these ways to encode
    python benchmarks/speed/encoder.py --scoring      1,000 candidates with 8 passages each
    python benchmarks/speed/encoder.py DATA/cf --training   compare with a bare loop over the same tokens

All times are CPU times of one thread. The ways to encode take turns, ``--repeats`` times, and use the same
batches. The result of each way is its best time. The ONNX ways need the packages onnx and onnxruntime. If a
way returns the fp32 vectors to five digits, its nDCG is not computed again. nDCG is computed on all judged
queries. It uses only the dense score and ranks the whole collection. The encoder is ``--start``, untrained.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "papers"))

import numpy as np
import torch
from dense import documents
from pagerank import peak

from rerank.formats import read_qrels, read_queries
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask
from rerank.rankers.dense.ranker import DenseRanker, decayed_sum, quantized, windows
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.bert import Bert
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.trainer import Trainer, TrainerOptions


def best_of(repeats: int, *ways) -> list[float]:
    """CPU seconds of each way: the best of ``repeats`` turns."""
    seconds = np.full(len(ways), np.inf)
    for _ in range(repeats):
        for i, way in enumerate(ways):
            begin = time.process_time()
            way()
            seconds[i] = min(seconds[i], time.process_time() - begin)
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


def encoders(encoder: TextEncoder, names: list[str]) -> dict[str, Callable[[list], np.ndarray]]:
    """Map each name to a function that encodes token sequences in the batches of TextEncoder.encode."""
    encoder.precision = "fp32"

    def other(model, precision: str = "fp32") -> Callable[[list], np.ndarray]:
        return replace(encoder, model=model, precision=precision).encode

    def int8(**how) -> Callable[[list], np.ndarray]:
        kind = how.get("per_channel")
        spec = torch.ao.quantization.per_channel_dynamic_qconfig if kind else None
        layers = {torch.nn.Linear: spec} if spec else {torch.nn.Linear}
        return other(torch.ao.quantization.quantize_dynamic(deepcopy(encoder.model), layers, torch.qint8))

    known = {
        "fp32": lambda: encoder.encode,
        "bf16": lambda: other(encoder.model, "bf16"),
        "bf16-weights": lambda: other(deepcopy(encoder.model).to(torch.bfloat16)),
        "int8": lambda: int8(),
        "int8-channels": lambda: int8(per_channel=True),
        "compiled": lambda: other(Compiled(deepcopy(encoder.model))),
        "compiled-bf16": lambda: other(Compiled(deepcopy(encoder.model).to(torch.bfloat16))),
        "onnx": lambda: other(Onnx(encoder, fused=False)),
        "onnx-fused": lambda: other(Onnx(encoder, fused=True)),
        "onnx-int8-channels": lambda: other(Onnx(encoder, fused=True, int8=True)),
        "numpy": lambda: partial(by_numpy, encoder),
    }
    return {name: known[name]() for name in names}


class Compiled(torch.nn.Module):
    """A model compiled by torch.compile for batches of any shape, with the attributes an encoder needs."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.config, self.model = model.config, torch.compile(model, dynamic=True)

    def forward(self, **batch: torch.Tensor):
        return self.model(**batch)


class Onnx(torch.nn.Module):
    """A model that runs in ONNX Runtime. ``fused`` optimizes the exported graph for transformers."""

    def __init__(self, encoder: TextEncoder, *, fused: bool, int8: bool = False) -> None:
        super().__init__()
        import onnxruntime

        self.config, self.zero = encoder.model.config, torch.nn.Parameter(torch.zeros(1))
        model = deepcopy(encoder.model)
        model.set_attn_implementation("eager")
        ids = torch.ones((2, 16), dtype=torch.long)
        names = ["input_ids", "attention_mask"]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.onnx"
            torch.onnx.export(
                States(model),
                (ids, ids),
                path,
                input_names=names,
                output_names=["states"],
                dynamic_axes={name: {0: "n", 1: "t"} for name in [*names, "states"]},
                opset_version=17,
                dynamo=False,
            )
            if fused:
                from onnxruntime.transformers.optimizer import optimize_model

                heads, width = self.config.num_attention_heads, self.config.hidden_size
                optimize_model(path, "bert", num_heads=heads, hidden_size=width).save_model_to_file(path)
            if int8:
                from onnxruntime.quantization import QuantType, quantize_dynamic

                how = {"DefaultTensorType": 1}  # float: no shape inference through fused operators
                quantize_dynamic(path, path, per_channel=True, weight_type=QuantType.QInt8, extra_options=how)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        given = {"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()}
        return SimpleNamespace(last_hidden_state=torch.from_numpy(self.session.run(None, given)[0]))


class States(torch.nn.Module):
    """A model that returns only the states of the last layer."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def by_numpy(encoder: TextEncoder, sequences: list) -> np.ndarray:
    """Encode one sequence at a time with rerank.rankers.encoder.bert, which also encodes queries."""
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        bert = Bert.load(Path(folder))
        before, after = encoder.tokens.frame
        vectors = np.array([bert.states([*before, *one, *after]).mean(axis=0) for one in sequences])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


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
    starts = [windows(len(t), room, args.passages) for t in tokens]
    pieces = [t[s : s + room] for t, where in zip(tokens, starts) for s in where]
    owner = np.repeat(np.arange(len(collection)), [len(w) for w in starts])
    slot = np.concatenate([np.arange(len(w)) for w in starts])
    counts = np.array([len(w) for w in starts])
    queries = [t[:room] for t in encoder.tokens([q.text for q in asked])]
    print(
        f"{len(collection)} documents, {len(pieces)} passages of at most {args.tokens} tokens,"
        f" {len(asked)} queries"
    )

    def rank(pieces_: np.ndarray, queries_: np.ndarray) -> np.ndarray:
        cosines = np.zeros((len(queries_), len(collection), counts.max()), np.float32)
        cosines[:, owner, slot] = queries_ @ pieces_.T
        return np.array([decayed_sum(one, counts) for one in cosines])

    ways = encoders(encoder, args.ways.split(","))
    every = max(1, len(pieces) // args.sample)
    some = pieces[::every]
    with torch.inference_mode():
        seconds = best_of(args.repeats, *(partial(way, some) for way in ways.values()))
    print("| encoded | passages/s | nDCG@10 | nDCG | least cosine with fp32 |")
    print("| --- | --- | --- | --- | --- |")
    exact, asked_vectors = encoder.encode(pieces), encoder.encode(queries)  # fp32
    for (name, way), spent in zip(ways.items(), seconds):
        same = (way(some) * exact[::every]).sum(axis=1).min() > 0.99999
        vectors = exact if same else way(pieces)
        scores = rank(vectors, asked_vectors)
        print(
            f"| {name} | {len(some) / spent:.1f} | {ndcg(scores, grades, 10):.4f} |"
            f" {ndcg(scores, grades, None):.4f} |"
            f" {'1.0000' if same else format((vectors * exact).sum(axis=1).min(), '.4f')} |",
            flush=True,
        )
    print("\n| stored as | bytes a passage | nDCG@10 | nDCG |\n| --- | --- | --- | --- |")
    stored = quantized(exact).astype(np.float32)
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
        "not divided": {"normalize": False},
        "best passage alone": {"best": 1},
    }
    print("\n| score | nDCG@10 | nDCG |\n| --- | --- | --- |")
    cosines = np.zeros((len(queries), len(collection), counts.max()), np.float32)
    cosines[:, owner, slot] = asked_vectors @ exact.T
    for name, how in ways.items():
        scores = np.array([decayed_sum(one, counts, **how) for one in cosines])
        print(f"| {name} | {ndcg(scores, grades, 10):.4f} | {ndcg(scores, grades, None):.4f} |")


def scoring(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    ranker = DenseRanker(name="dense", source=Path(), width=384, passages=8)
    vectors = rng.normal(size=(8000, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    features = np.full((1000, 8 * 384 + 1), 8, dtype=np.int8)
    features[:, :-1] = quantized(vectors).reshape(1000, -1)
    halves = vectors.astype(np.float16)
    query = vectors[0]
    mine, product, half = best_of(
        200,
        lambda: ranker.score(query, features),
        lambda: vectors @ query,
        lambda: halves.astype(np.float32) @ query,
    )
    print(
        f"1,000 candidates, 8 passages of 384: {mine * 1e3:.2f} ms (bare product in fp32"
        f" {product * 1e3:.2f} ms,"
    )
    print(f"from fp16 {half * 1e3:.2f} ms)")


def training(args: argparse.Namespace) -> None:
    encoder = load(args.start, args.tokens)
    texts = Texts.read(documents(args.data, args.documents), encoder.tokens)
    config = DenseConfig.of(
        passage_tokens=args.tokens, objective=args.objective, held_out=0.0, batch=args.batch
    )
    trainer = DenseTask(texts, encoder, config)
    loop = Trainer(trainer, TrainerOptions(steps=args.repeats))
    model = encoder.model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    batches = [batch for batch, _ in zip(trainer.sampler.epoch(0), range(args.repeats))]
    ready = [
        encoder.batch([text for name in trainer.objective.reads for text in getattr(one, name)])
        for one in batches
    ]
    drawn = trainer.sampler.epoch(0)

    def bare() -> None:
        ids, mask = ready[0]
        model.train()
        optimizer.zero_grad(set_to_none=True)
        from rerank.rankers.encoder.transformer import precision

        with precision(encoder.device):
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        (states * mask[:, :, None]).sum().backward()
        optimizer.step()

    def step() -> None:
        next(drawn)
        loop.step(batches[0], 0)

    base, mine = best_of(args.repeats, bare, step)
    count = len(batches[0].pairs) * len(trainer.objective.reads)
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
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--objective", default="contrastive")
    parser.add_argument("--batch", type=int, default=24)
    ways = "fp32,bf16,bf16-weights,int8,int8-channels,compiled,compiled-bf16,numpy"
    parser.add_argument("--ways", default=ways, help="Ways to encode; encoders() lists all.")
    parser.add_argument("--sample", type=int, default=200, help="Passages to time. Default: 200.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scoring", action="store_true")
    parser.add_argument("--training", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # deprecation warnings of torch
    if args.scoring:
        scoring(args)
    elif args.training:
        training(args)
    else:
        encoding(args)


if __name__ == "__main__":
    main()
