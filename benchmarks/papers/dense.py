"""Compare training objectives of dense encoders by recall of held-out links.

    python benchmarks/papers/dense.py DATA/cf --starts minilm:6:top2 --objectives contrastive,quintuplet
    python benchmarks/papers/dense.py DATA/wikispeedia --starts minilm:6:top2 --epochs 4 --out runs.jsonl

The benchmark holds out a fifth of the links (``--test``) for the test, a different fifth for each seed. No
structure is computed before. A tenth of the remaining links is used to stop the training. Each document is
a query: the first passage of its text. The ranking contains the first passages of all other documents,
without the links in the training graph. ``--documents`` takes a random part of the collection and the links
inside it.

R@5 and R@10 are the shares of a document's test links among its first 5 and 10 results, averaged over
documents. p is a paired randomization test against the same untrained encoder. It uses the mean of each
document over the seeds. A start is MODEL:LAYERS and more, see ``encoder``. ``--out`` appends every run as a
line of JSON and skips runs that the file already contains.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from ablations import config_of, task_of

from rerank.evaluation.significance import randomization_test
from rerank.formats import read_corpus
from rerank.progress import Progress
from rerank.rankers.dense.fit import LinkEvaluation
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document

OBJECTIVES = "quintuplet,contrastive,structure,semantics,fixed-margin,triplet"
SPLIT = 2021
"""Seed of the first test split."""


class Say(Progress):
    def say(self, line: str) -> None:
        print(f"    {line}", flush=True)


def documents(folder: Path, count: int | None) -> list[Document]:
    found = list(read_corpus(str(next(folder.glob("corpus*.jsonl.gz")))))
    if count is None or count >= len(found):
        return found
    kept = np.sort(np.random.default_rng(SPLIT).permutation(len(found))[:count])
    return [found[i] for i in kept.tolist()]


def encoder(start: str, tokens: int, seed: int) -> tuple[TextEncoder, dict[str, object]]:
    """Load a start, ``MODEL:LAYERS`` with optional parts; return it with its options.

    ``:topN`` trains the last N layers. ``:random`` has random weights, which know no citations. ``:widthN``
    has random weights in vectors of N numbers, so that a CPU can train all layers.
    """
    model, layers, *rest = start.split(":")
    top = next((int(part.removeprefix("top")) for part in rest if part.startswith("top")), None)
    width = next((int(part.removeprefix("width")) for part in rest if part.startswith("width")), None)
    loaded = TextEncoder.load(model, layers=int(layers), longest=tokens)
    if width is not None:
        shape = loaded.model.config
        shape.hidden_size = width
        shape.intermediate_size = 4 * width
        shape.num_attention_heads = max(1, width // 32)
    if "random" in rest or width is not None:
        torch.manual_seed(seed)
        loaded.model = type(loaded.model)(loaded.model.config).eval()
    return loaded, {"model": model, "train_layers": top or 0, "layers": int(layers)}


def one(texts: Texts, graph: LinkGraph, test: LinkEvaluation, start: str, how: str, seed: int, args) -> dict:
    loaded, options = encoder(start, args.tokens, seed)
    passages = Passages(texts.tokens, loaded.room, 1)
    pool = [passages.get(d).tolist() for d in test.pool.tolist()]
    if how == "untrained":
        return {"recall": recall_of(test, loaded.encode(pool)).tolist()}
    config, variant = config_of(
        how,
        **options,
        passage_tokens=args.tokens,
        passages=args.passages,
        epochs=args.epochs,
        batch=args.batch,
        rate=args.rate,
        seed=seed,
    )
    begin, cpu = time.time(), time.process_time()
    task = task_of(Texts(texts.tokens, graph), loaded, config, variant, Say())
    fit = task.fit()
    return {
        "recall": recall_of(test, loaded.encode(pool)).tolist(),
        "best": fit.best,
        "share": fit.alpha,
        "steps": fit.steps,
        "seconds": time.time() - begin,
        "cpu": time.process_time() - cpu,
        "history": [asdict(m) for m in fit.history],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--starts", default="minilm:6,minilm:2")
    parser.add_argument("--objectives", default=OBJECTIVES, help="quintuplet+gamma=0.25 sets an option")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--test", type=float, default=0.2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    done: dict[str, dict] = {}
    if args.out and args.out.exists():
        done = {run["key"]: run for run in map(json.loads, args.out.read_text("utf-8").splitlines())}
    collection = documents(args.data, args.documents)
    texts = None
    for seed in range(args.seeds):
        test = None
        for start in args.starts.split(","):
            for how in ["untrained", *args.objectives.split(",")]:
                key = json.dumps([args.data.name, args.documents, start, how, seed, *settings(args)])
                if key in done:
                    continue
                if texts is None:
                    texts = Texts.read(collection, encoder(start, args.tokens, 0)[0].tokens)
                if test is None:
                    graph, test = apart(texts, args.test, SPLIT + seed)
                print(f"  {start} {how} seed {seed}", flush=True)
                run = {"key": key, "start": start, "how": how, "seed": seed}
                run["documents"] = test.pool[test.anchors].tolist()
                run |= one(texts, graph, test, start, how, seed, args)
                mean = np.mean(run["recall"], axis=0)
                print(f"  {start} {how} seed {seed}: test R@5 {mean[0]:.4f} R@10 {mean[1]:.4f}", flush=True)
                done[key] = run
                if args.out:
                    with args.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(run) + "\n")
    table(args, done)


def recall_of(test: LinkEvaluation, vectors: np.ndarray, cutoffs: tuple[int, ...] = (5, 10)) -> np.ndarray:
    """Recall of the held-out links: (anchors, cut-offs). vectors: unit length, of the pool."""
    return recall_at(test, test.ranked(vectors), cutoffs)


def recall_at(test: LinkEvaluation, ranked: np.ndarray, cutoffs: tuple[int, ...]) -> np.ndarray:
    """Recall of the held-out links: (anchors, cut-offs). ranked: (anchors, pool) bool, by rank."""
    hits = ranked.cumsum(axis=1)
    many = np.maximum(test.relevant.sum(axis=1), 1)
    return hits[:, [min(c, hits.shape[1]) - 1 for c in cutoffs]] / many[:, None]


def apart(texts: Texts, share: float, split: int) -> tuple[LinkGraph, LinkEvaluation]:
    """Hold out the test links. Asserts that the training graph contains none of them."""
    graph, held = texts.graph.hold_out(share, split)
    size = len(texts.tokens)
    test = LinkEvaluation.draw(graph, held, texts.usable, size=size, seed=split, anchors=size)
    overlap = len({*map(tuple, held.tolist())} & {*map(tuple, graph.pairs().tolist())})
    print(
        f"{size} documents, {len(held)} linked pairs held out for the test ({overlap}"
        f" of them in the training graph), looked for by {len(test.anchors)} documents",
        flush=True,
    )
    assert not overlap
    return graph, test


def differences(some: list[dict], base: list[dict]) -> np.ndarray:
    """Gain of each document in R@5 and R@10 over ``base``, averaged over the seeds: (documents, 2)."""
    untrained = {run["seed"]: np.array(run["recall"]) for run in base}
    gains: dict[int, list[np.ndarray]] = {}
    for run in some:
        for document, gain in zip(run["documents"], np.array(run["recall"]) - untrained[run["seed"]]):
            gains.setdefault(document, []).append(gain)
    return np.array([np.mean(found, axis=0) for found in gains.values()])


def settings(args: argparse.Namespace) -> list[float]:
    return [args.tokens, args.passages, args.epochs, args.batch, args.rate]


def table(args: argparse.Namespace, done: dict[str, dict]) -> None:
    runs = [
        run
        for key, run in done.items()
        if (k := json.loads(key))[:2] == [args.data.name, args.documents] and k[5:] == settings(args)
    ]
    print("\n| start | objective | seeds | R@5 | R@10 | p (R@5) | p (R@10) | share of step kept | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for start in dict.fromkeys(run["start"] for run in runs):
        mine = [run for run in runs if run["start"] == start]
        base = [run for run in mine if run["how"] == "untrained"]
        for how in dict.fromkeys(run["how"] for run in mine):
            some = [run for run in mine if run["how"] == how]
            each = np.array([np.mean(run["recall"], axis=0) for run in some])  # (seeds, 2)
            means, spread = each.mean(axis=0), each.std(axis=0)
            gains = differences(some, base)
            p = [randomization_test(gains[:, i]) for i in (0, 1)]
            kept = ", ".join(f"{run['share']:.2f} of {run['best']}" for run in some if run.get("best"))
            cpu = np.mean([run.get("cpu", 0) for run in some])
            line = [start, how, len(some), *(f"{m:.4f} ± {s:.4f}" for m, s in zip(means, spread))]
            line += ["", ""] if how == "untrained" else [f"{one:.4f}" for one in p]
            print("| " + " | ".join(map(str, [*line, kept, f"{cpu:.0f}"])) + " |", flush=True)


if __name__ == "__main__":
    main()
