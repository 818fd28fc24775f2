"""Raman, Shah, Veloso (2021): held-out links, by what an encoder has learned.

    python benchmarks/papers/000.py DATA --collections cf --start minilm:2
    python benchmarks/papers/000.py DATA --list

Prints its table 2 beside ours. What is compared: the encoder untrained, the paper's loss (``quintuplet``),
its halves (gamma 0: ``structure``, gamma 1: ``semantics``), one margin at all levels (``fixed-margin``),
triplets, any neighbour as positive (``positives=row``), and the contrastive loss. As ``benchmarks/dense.py``
does, a fifth of the links is held out before anything is computed. Steps that are done are not done again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from dense import SPLIT, apart, documents, encoder, one
from page import show
from running import Step, arguments, carry_out

from rerank.evaluation.significance import randomization_test
from rerank.training.dense.texts import Texts

HOWS = (
    "contrastive",
    "quintuplet",
    "structure",
    "semantics",
    "fixed-margin",
    "triplet",
    "quintuplet+positives=row",
    "contrastive+positives=row",
)


@cache
def prepared(data: Path, name: str, start: str, tokens: int, seed: int) -> tuple[Any, Any, Any, np.ndarray]:
    """Texts, the graph without the test's links, the test, and what the untrained encoder finds."""
    texts = Texts.read(documents(data / name, None), encoder(start, tokens, 0)[0].tokens)
    graph, test = apart(texts, 0.2, SPLIT + seed)
    untrained = one(texts, graph, test, start, "untrained", seed, argparse.Namespace(tokens=tokens))
    return texts, graph, test, np.array(untrained["recall"])


def run(options: argparse.Namespace, name: str, how: str, seed: int) -> dict[str, Any]:
    """Train and look for the test's links."""
    texts, graph, test, before = prepared(options.data, name, options.start, options.tokens, seed)
    found = one(texts, graph, test, options.start, how, seed, options)
    after = np.array(found["recall"])
    told = {"collection": name, "start": options.start, "how": how, "seed": seed, "documents": len(after)}
    for place, measure in enumerate(("R@5", "R@10")):
        told[measure] = {
            "untrained": float(before[:, place].mean()),
            "trained": float(after[:, place].mean()),
            "p": randomization_test(after[:, place] - before[:, place]),
        }
    return told | {"steps": found["steps"], "kept": found["best"], "share": found["share"]}


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Every way of training, from one start."""
    for name in options.collections:
        for how in options.hows:
            for seed in range(options.seeds):
                label = f"{name}-{options.start}-{how}-{seed}".replace(":", "_").replace("+", "-")
                yield Step(label, "ablations", partial(run, options, name, how, seed))


def main() -> None:
    """Do what is left to do, and print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--collections", type=lambda text: text.split(","), default=["cf", "wikispeedia"])
    parser.add_argument("--hows", type=lambda text: text.split(","), default=list(HOWS))
    parser.add_argument("--start", default="minilm:6:top3", help="MODEL:LAYERS, as benchmarks/dense.py")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--pool", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    carry_out("000", steps(options), options)
    if not options.list:
        show("000")


if __name__ == "__main__":
    main()
