"""Measure the time, memory and storage of the ranker `concept`.

    python benchmarks/speed/relatedness.py                          1,000 candidates
    python benchmarks/speed/relatedness.py DATA/ecbplus --training  time of a step and memory, by objective
    python benchmarks/speed/relatedness.py DATA/ecbplus --storage   AUC on dev: vector lengths, fp16, int8

Times are CPU seconds of one thread, the minimum of ``--repeats`` repetitions.

--training: all objectives use the same batch, so their labeled pairs are the same. The centroids of all texts
are computed once per epoch. Their time is estimated from the texts of the batch and divided by the number of
steps per epoch.
--storage: heads are logistic regressions on the vectors of the untrained encoder. The l2 penalty of each is
chosen on dev.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from rerank.evaluation.pair_measures import auc
from rerank.formats import read_corpus, read_labeled_pairs
from rerank.progress import Progress
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.fit import ConceptTask
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.ranker import ConceptRanker, Head
from rerank.rankers.dense.ranker import SCALE, quantized
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.trainer import Trainer, TrainerOptions


def best_of(repeats: int, *ways: Callable[[], object]) -> list[float]:
    """Return the CPU seconds of each function, the minimum of ``repeats`` calls."""
    seconds = np.full(len(ways), np.inf)
    for _ in range(repeats):
        for i, way in enumerate(ways):
            begin = time.process_time()
            way()
            seconds[i] = min(seconds[i], time.process_time() - begin)
    return seconds.tolist()


def scoring(repeats: int, count: int = 1000, width: int = 384) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(count + 1, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query, stored = vectors[0], vectors[1:].astype(np.float16)
    parts = {name: rng.normal(size=width).astype(np.float32) for name in ("first", "second", "apart")}
    ranker = ConceptRanker(
        name="concept", source=Path(), width=width, head=Head(**parts, bias=np.zeros(1, np.float32))
    )
    (seconds,) = best_of(repeats, lambda: ranker.score(query, stored))
    print(f"{count} candidates: {seconds * 1e3:.2f} ms, {2 * width} bytes each")


def concepts(data: Path, encoder: TextEncoder) -> tuple[ConceptGraph, list[np.ndarray]]:
    documents = {one.id: one for one in read_corpus(data / "corpus.jsonl.gz")}
    train, dev = (read_labeled_pairs(data / f"pairs.{part}.tsv") for part in ("train", "dev"))
    graph = ConceptGraph.from_pairs(train, dev)
    tokens = encoder.tokens([documents[one].content for one in graph.ids])
    return graph, [np.array(one[: encoder.room], dtype=np.int32) for one in tokens]


def training(data: Path, repeats: int, tokens: int) -> None:
    ways = ({"objective": "classifier"}, {})
    trainers: list[ConceptTask] = []
    for changes in ways:
        config = ConceptConfig.of(passage_tokens=tokens, **changes)
        encoder = config.load()
        trainers.append(ConceptTask(*concepts(data, encoder), encoder, config, Progress()))
    drawn = next(trainers[0].sampler.epoch(0))
    steps, texts = trainers[0].sampler.steps(), len(trainers[0].graph.component)
    for one in trainers:
        one.encoding.fill(drawn.anchor)
    loops = [Trainer(one, TrainerOptions(steps=repeats)) for one in trainers]

    def step(loop: Trainer) -> None:
        loop.step(drawn, 0)
        loop.task.on_step_end()

    first = trainers[0]
    (centroids,) = best_of(repeats, lambda: first.vectors(drawn.documents))
    centroids *= texts / len(drawn.documents) / steps
    found = best_of(repeats, *(partial(step, loop) for loop in loops))
    for changes, one, seconds in zip(ways, trainers, found):
        name = ", ".join(f"{key} {value}" for key, value in changes.items()) or "graph-component"
        seconds += centroids if one.objective.contrasts else 0
        print(
            f"{name}: {seconds:.3f} s a step of {len(drawn.documents)} texts with {len(drawn.related)} pairs,"
            f" {seconds / found[0]:.2f} of the classifier's"
        )


def storage(data: Path, tokens: int) -> None:
    encoder = TextEncoder.load("minilm", longest=tokens)
    graph, found = concepts(data, encoder)
    raw = np.zeros((len(found), encoder.width), np.float32)
    with torch.inference_mode():
        for at in range(0, len(raw), 32):
            block = [one.tolist() for one in found[at : at + 32]]
            raw[at : at + 32] = encoder.forward(*encoder.batch(block)).numpy()
    lengths = np.linalg.norm(raw, axis=1)
    print(f"lengths of vectors: mean {lengths.mean():.3f}, standard deviation {lengths.std():.3f}")
    unit = raw / lengths[:, None]
    whole = quantized(unit).astype(np.float32) / SCALE
    train = np.concatenate((graph.related, graph.unrelated))
    train_labels = np.repeat([True, False], [len(graph.related), len(graph.unrelated)])
    dev, labels = graph.dev, graph.dev_labels

    def features(vectors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        u, v = vectors[pairs[:, 0]], vectors[pairs[:, 1]]
        return np.concatenate((u, v, np.abs(u - v)), axis=1)

    def scores(vectors: np.ndarray, head: LogisticRegression) -> np.ndarray:
        both = [head.predict_proba(features(vectors, p))[:, 1] for p in (dev, dev[:, ::-1])]
        return (both[0] + both[1]) / 2

    def fitted(vectors: np.ndarray) -> tuple[float, LogisticRegression]:
        heads = [
            LogisticRegression(C=c, max_iter=2000).fit(features(vectors, train), train_labels)
            for c in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
        ]
        return max(((auc(scores(vectors, head), labels), head) for head in heads), key=lambda one: one[0])

    root = np.sqrt(encoder.width)
    raw_auc, _ = fitted(raw * root / lengths.mean())
    unit_auc, head = fitted(unit * root)
    print(f"AUC on dev of heads on vectors with their lengths {raw_auc:.4f}, of length 1 {unit_auc:.4f}")
    exact = scores(unit * root, head)
    halves = unit.astype(np.float16).astype(np.float32)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    for name, stored, size in (("fp16", halves, 2), ("int8", whole, 1)):
        mine = scores(stored * root, head)
        print(
            f"{name}, {size * encoder.width} bytes a document: AUC {auc(mine, labels):.4f}, probabilities off"
            f" by {np.abs(mine - exact).max():.5f} at most"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?", help="Folder of a collection with labeled pairs.")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--storage", action="store_true")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.training:
        training(args.data, args.repeats, args.tokens)
    elif args.storage:
        storage(args.data, args.tokens)
    else:
        scoring(20 * args.repeats)


if __name__ == "__main__":
    main()
