"""Raman, Shah, Veloso (2021): measure how many held-out links an encoder finds that learned from links.

    python benchmarks/papers/run_000.py DATA --collections cf --start minilm:6:width128 --epochs 8 --rate 1e-3
    python benchmarks/papers/run_000.py DATA --collections cf --start minilm:6 --hows paper
    python benchmarks/papers/run_000.py DATA --list

``--hows`` selects the ways of training:

quintuplet:      the loss of the paper.
structure:       only the structure half of the loss (gamma 0).
semantics:       only the semantics half of the loss (gamma 1).
fixed-margin:    one margin at all levels.
triplet:         triplet loss.
contrastive:     contrastive loss.
paper:           ``--preset paper``: trains all layers, does not select a step by held-out links.
+positives=row:  any neighbor can be the positive, the default of contrastive and triplet. ``levels``: by
                 PageRank.
+name=value:     change another setting: ``gamma``, ``structural_margin``, ``semantic_margin``,
                 ``temperature``, or a setting of ``DenseConfig``.

MiniLM has learned from citations; ``:widthN`` starts from random weights (``start_encoders.py``).

A fifth of the links is held out before any other computation. A document, by its first passage, is the query
for its held-out linked documents: success@1, R@5, R@10. p: paired randomization tests against the start, and
against ``quintuplet`` if it has run before with the same seed. Completed steps are skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from running import Say, Step, arguments, carry_out, comma_separated
from start_encoders import START, StoredValues, Values, encoder, setting_of
from torch import Tensor

from benchmarks.common.collection import Collection
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask, LinkEvaluation
from rerank.rankers.dense.losses import Contrastive, SemanticLoss, TripletLoss
from rerank.rankers.dense.neighbors import Structure, by_links, by_pagerank
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.links import LinkGraph

HOWS = (
    "quintuplet",
    "structure",
    "semantics",
    "fixed-margin",
    "triplet",
    "quintuplet+positives=row",
    "contrastive",
    "contrastive+positives=levels",
)
SPLIT = 2021
"""Seed of the first test split."""
TEST_LINKS = 0.2
"""Share of the links that is held out for the test."""


class Halves(Loss):
    """L = (1 - gamma) L_phi + gamma L_psi (Raman et al. 2021, equation 5)."""

    def __init__(self, gamma: float, structure: Loss, semantics: Loss) -> None:
        super().__init__()
        halves = ((1 - gamma, structure), (gamma, semantics))
        self.halves = [(weight, half) for weight, half in halves if weight]
        self.reads = tuple(dict.fromkeys(name for _, half in self.halves for name in half.reads))

    def forward(self, vectors: Any) -> Tensor:
        return sum(weight * half(vectors) for weight, half in self.halves)


@dataclass(frozen=True)
class Variant:
    """A way of training: the options, the loss, and whether any neighbor can be the positive.

    loss: None takes loss and neighbors from the options.
    """

    config: DenseConfig
    loss: Loss | None = None
    linked: bool = True

    @classmethod
    def parse(cls, how: str, settings: dict[str, Any]) -> Variant:
        """Return the variant ``objective+name=value+...``, as the top of this file describes."""
        objective, *changes = how.split("+")
        settings = {**settings, **dict(change.split("=", 1) for change in changes)}
        if objective == "paper":
            return cls(DenseConfig.of("paper", **settings))
        is_simple = objective in ("triplet", "contrastive")
        positives = settings.pop("positives", "row" if is_simple else "levels")
        gamma = float(settings.pop("gamma", {"structure": 0, "semantics": 1}.get(objective, 0.5)))
        margin = float(settings.pop("structural_margin", 2.0))
        semantics = SemanticLoss(float(settings.pop("semantic_margin", 0.5)))
        temperature = float(settings.pop("temperature", 0.05))
        loss: Loss
        if objective == "contrastive":
            loss = Contrastive(temperature)
        elif objective == "triplet":
            loss = TripletLoss(margin)
        else:
            loss = Halves(gamma, TripletLoss(margin, by_level=objective != "fixed-margin"), semantics)
        known = "contrastive" if objective == "contrastive" else "quintuplet"
        return cls(DenseConfig.of(**settings, objective=known), loss, positives == "row")

    def task(self, texts: Texts, loaded: TextEncoder) -> DenseTask:
        config = self.config
        if self.loss is None:
            return DenseTask(texts, loaded, config, Say())
        graph, held_out = texts.graph.hold_out(config.held_out, config.seed)
        if self.linked:
            neighbors = by_links(graph, texts.usable)
        else:
            neighbors = by_pagerank(graph, texts.usable, config.related, seed=config.seed)
        structure = Structure(graph, held_out, neighbors)
        return DenseTask(texts, loaded, config, Say(), structure=structure, loss=self.loss)


@dataclass(frozen=True)
class Prepared:
    """A collection without its test links, and the search for them."""

    texts: Texts
    test: LinkEvaluation

    @classmethod
    def read(cls, folder: Path, start: str, tokens: int, seed: int) -> Prepared:
        """Hold out the test links. Asserts that the training graph contains none of them."""
        documents = Collection(folder).documents()
        texts = Texts.read(documents, encoder(start, tokens, 0)[0].tokens)
        graph, held_out = texts.graph.hold_out(TEST_LINKS, SPLIT + seed)
        assert isinstance(graph, LinkGraph)
        size = len(texts.tokens)
        test = LinkEvaluation.draw(graph, held_out, texts.usable, size=size, seed=SPLIT + seed, anchors=size)
        assert not {*map(tuple, held_out.tolist())} & {*map(tuple, graph.pairs().tolist())}
        print(f"{size} documents, {len(held_out)} held-out pairs, {len(test.anchors)} queries", flush=True)
        return cls(Texts(texts.tokens, graph), test)

    def measure(self, loaded: TextEncoder) -> Values:
        """Return measure -> one value per query."""
        loaded.model.eval()
        passages = Passages(self.texts.tokens, loaded.room, 1)
        first = [passages.get(document).tolist() for document in self.test.pool.tolist()]
        hits = self.test.ranked(loaded.encode(first)).cumsum(axis=1)
        counts = np.maximum(self.test.relevant.sum(axis=1), 1)
        values = {"success@1": (hits[:, 0] > 0).astype(float)}
        return values | {f"R@{cutoff}": hits[:, cutoff - 1] / counts for cutoff in (5, 10)}


prepared = cache(Prepared.read)


def trained(options: argparse.Namespace, texts: Texts, how: str, seed: int) -> TextEncoder:
    start = options.start
    settings = {name: getattr(options, name) for name in ("passages", "epochs", "batch", "rate", "patience")}
    if how.startswith("paper"):  # it trains all layers
        start = ":".join(part for part in start.split(":") if not part.startswith("top"))
        settings = {}
    loaded, of_start = encoder(start, options.tokens, seed)
    settings |= {**of_start, "passage_tokens": options.tokens, "seed": seed}
    Variant.parse(how, settings).task(texts, loaded).fit()
    return loaded


def run(options: argparse.Namespace, name: str, how: str, seed: int) -> dict[str, Any]:
    links = prepared(options.data / name, options.start, options.tokens, seed)
    stored = StoredValues(options.work, f"000-{name}-{options.start}-{seed}")
    stored.of(START, lambda: links.measure(encoder(options.start, options.tokens, seed)[0]))
    values = stored.of(how, lambda: links.measure(trained(options, links.texts, how, seed)))
    result = stored.result(how, values, (START, "quintuplet"))
    return {"collection": name, "setting": setting_of(options.start), "seed": seed, **result}


def steps(options: argparse.Namespace) -> Iterator[Step]:
    for name, seed, how in product(options.collections, range(options.seeds), options.hows):
        label = f"{name}-{options.start}-{how}-{seed}".replace(":", "_").replace("+", "-")
        yield Step(label, "links", partial(run, options, name, how, seed))


def main() -> None:
    parser = arguments(__doc__, collections=["cf", "wikispeedia"])
    parser.add_argument("--hows", type=comma_separated, default=HOWS, help="Default: %(default)s")
    parser.add_argument("--start", default="minilm:6:top2", help="start encoder. Default: %(default)s")
    for option, default in (("tokens", 64), ("passages", 4), ("epochs", 3), ("batch", 64), ("patience", 6)):
        parser.add_argument(f"--{option}", type=int, default=default, help="Default: %(default)s")
    parser.add_argument("--rate", type=float, default=2e-4, help="learning rate. Default: %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    carry_out("000", steps(options), options)


if __name__ == "__main__":
    main()
