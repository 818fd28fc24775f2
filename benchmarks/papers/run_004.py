"""Ma et al. (GCCL): compare training on the graph of labeled pairs with a plain classifier.

    python benchmarks/papers/run_004.py DATA --base train_layers=0,steps=200,every=20,rate=5e-5 --seeds 5
    python benchmarks/papers/run_004.py DATA --hows paper+objective=classifier,paper

Reads ``pairs.train.tsv``, ``pairs.dev.tsv`` and ``pairs.test.tsv`` of ``ecbplus``. The step with the best AUC
on dev and the threshold with the best accuracy on dev are used.

--hows: ``start``, the cosine of the encoder; ``tfidf``; and objectives, which can change settings:
    ``classifier``, ``graph-component``, ``graph-component+gc_nce=false``, ``graph-component+moco=false``,
    ``paper`` (its preset), ``paper+objective=classifier``. ``+hops=2+ratio=3`` adds pairs that are sampled
    from the graph (``expansion.py``).
--base: settings of every training, for example ``layers=4,epochs=10``.
--keep: share of the related pairs to train on. Each seed drops different pairs.

p: the larger p-value of a paired t-test over seeds and a paired randomization test over test pairs, against
the first of ``--hows`` that is a classifier.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from expansion import expand
from numpy.typing import NDArray
from running import Say, Step, arguments, carry_out, comma_separated
from scipy.stats import ttest_rel

from benchmarks.common.collection import Collection
from rerank import LocalEngine
from rerank.documents.records import Document, LabeledPair
from rerank.evaluation.pair_measures import accuracy, auc, best_threshold, f1, paired_test
from rerank.formats import read_labeled_pairs
from rerank.pairs.score import score_pairs
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.fit import ConceptTask
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.losses import ConceptLoss
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.stack.signals import LexicalSignal

NAMES = ("accuracy", "F1", "AUC")
BASELINES = ("tfidf", "start")
HOWS = (*BASELINES, "classifier", "graph-component")
MEASURED = ("dev", "test")

Run = Mapping[str, Any]
"""Scores of the dev and test pairs."""


@dataclass(frozen=True)
class Data:
    """Documents by id, and the pairs of ``train``, ``dev`` and ``test``."""

    documents: dict[str, Document]
    pairs: dict[str, list[LabeledPair]]

    @classmethod
    def read(cls, folder: Path) -> Data:
        documents = {document.id: document for document in Collection(folder).documents()}
        parts = ("train", *MEASURED)
        return cls(documents, {part: read_labeled_pairs(str(folder / f"pairs.{part}.tsv")) for part in parts})

    def labels(self, part: str) -> NDArray[np.bool_]:
        """Return (n,) bool: whether each pair is related."""
        return np.array([pair.related for pair in self.pairs[part]])

    def training(self, keep: float, seed: int) -> list[LabeledPair]:
        """Return the unrelated training pairs, and the share ``keep`` of the related ones."""
        rng = np.random.default_rng([seed, 7])
        test = {pair.key for pair in self.pairs["test"]}
        drawn = [pair for pair in self.pairs["train"] if not pair.related or rng.random() < keep]
        return [pair for pair in drawn if pair.key not in test]

    def measures(self, run: Run) -> list[float]:
        """Return accuracy, F1 and AUC on test. The threshold is from dev."""
        labels = self.labels("test")
        threshold = best_threshold(run["dev"], self.labels("dev"))
        scores = run["test"]
        return [accuracy(scores, labels, threshold), f1(scores, labels, threshold), auc(scores, labels)]

    def compare(self, first: Sequence[Run], second: Sequence[Run]) -> dict[str, float]:
        """Return measure -> p, the larger p-value of both tests."""
        dev = self.labels("dev")
        sides = [[(run["test"], best_threshold(run["dev"], dev)) for run in runs] for runs in (first, second)]
        p = paired_test(sides[0], sides[1], self.labels("test"), permutations=1000)
        if len(first) == len(second) > 1:
            tables = [np.array([self.measures(run) for run in runs]) for runs in (first, second)]
            over_seeds = ttest_rel(*tables).pvalue
            p = {name: max(p[name], np.nan_to_num(value)) for name, value in zip(NAMES, over_seeds)}
        return p


def vectors_of_pairs(data: Data, encoder: TextEncoder) -> dict[str, list[NDArray[np.float32]]]:
    """Return the vectors of the first and the second documents of dev and test pairs, (n, E) each."""
    ids = sorted({id for part in MEASURED for pair in data.pairs[part] for id in pair[:2]})
    tokens = encoder.tokens([data.documents[id].content for id in ids])
    vectors = encoder.encode([text[: encoder.room] for text in tokens])
    row = {id: i for i, id in enumerate(ids)}
    rows = {part: [[row[a], row[b]] for a, b, _ in data.pairs[part]] for part in MEASURED}
    return {part: [vectors[list(side)] for side in zip(*rows[part])] for part in MEASURED}


def baseline(data: Data, how: str, options: argparse.Namespace) -> Run:
    """Return the scores of ``tfidf``, or of the encoder before the training."""
    if how == "start":
        base = {name: value for name, value in options.base.items() if name in ("layers", "passage_tokens")}
        sides = vectors_of_pairs(data, ConceptConfig.of(**base).load())
        return {part: np.einsum("ij,ij->i", *sides[part]) for part in MEASURED}
    engine = LocalEngine.create(options.work / "ecbplus-engine", "en")
    engine.write(data.documents.values())
    signal = LexicalSignal("tfidf")
    return {part: score_pairs(engine, signal, [pair[:2] for pair in data.pairs[part]]) for part in MEASURED}


class Variant(ConceptTask):
    """A training without some contrasts: of components (``gc_nce``) or of texts (``moco``)."""

    def __init__(self, left_out: set[str], *training: Any) -> None:
        self.left_out = left_out
        super().__init__(*training)

    def make_loss(self) -> ConceptLoss:
        """Return the loss with the other contrasts."""
        contrasts = zip(("gc_nce", "moco"), super().make_loss().contrasts)
        remaining = [loss for name, loss in contrasts if name not in self.left_out]
        return ConceptLoss(self.encoder.width, remaining)


def trained(data: Data, how: str, seed: int, options: argparse.Namespace) -> Run:
    """Train in one way with one seed. Return the scores of dev and test pairs."""
    objective, *changes = how.split("+")
    settings = {**options.base, **dict(change.split("=") for change in changes)}
    preset = "default"
    if objective == "paper":
        preset = "paper"
        objective = settings.pop("objective", "graph-component")
    hops = int(settings.pop("hops", 1))
    ratio = float(settings.pop("ratio", 2.0))
    left_out = {name for name in ("gc_nce", "moco") if settings.pop(name, "true") == "false"}
    config = ConceptConfig.of(preset, objective=objective, seed=seed, **settings)
    encoder = config.load()
    graph = ConceptGraph.from_pairs(data.training(options.keep, seed), data.pairs["dev"])
    if hops > 1:
        graph = expand(graph, [*data.pairs["dev"], *data.pairs["test"]], hops, ratio, seed)
    tokens = encoder.tokens([data.documents[id].content for id in graph.ids])
    texts = [np.array(text[: encoder.room], dtype=np.int32) for text in tokens]
    task = Variant(left_out, graph, texts, encoder, config, Say())
    task.fit()
    sides = vectors_of_pairs(data, encoder)
    head = task.head()
    return {part: head.relatedness(*sides[part]) for part in MEASURED}


def stored_run(data: Data, how: str, seed: int, options: argparse.Namespace) -> Run:
    """Return the scores of one way and seed. The work folder stores them."""
    sizes = "-".join(f"{name}{value}" for name, value in options.base.items())
    path = options.work / f"ecbplus-{how}-{seed}-{options.keep}-{sizes}.json"
    if not path.exists():
        run = baseline(data, how, options) if how in BASELINES else trained(data, how, seed, options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({part: run[part].round(6).tolist() for part in MEASURED}), "utf-8")
    run = json.loads(path.read_text("utf-8"))
    print(f"    {how}, seed {seed}: {data.measures(run)}", flush=True)
    return run


def compared(options: argparse.Namespace) -> dict[str, Any]:
    """Train each way with each seed. Return measures and p-values."""
    data = Data.read(options.data / "ecbplus")
    runs = {}
    for how in options.hows:
        seeds = 1 if how in BASELINES else options.seeds
        runs[how] = [stored_run(data, how, seed, options) for seed in range(seeds)]
    names = {"paper+objective=classifier": "classifier", "paper": "graph-component"}
    classifier = next((how for how in options.hows if how.endswith("classifier")), options.hows[0])
    values = {}
    tests = []
    for how, of_seeds in runs.items():
        name = names.get(how, how)
        table = np.array([data.measures(run) for run in of_seeds]).T.round(6).tolist()
        values[name] = dict(zip(NAMES, table))
        if how != classifier:
            other = names.get(classifier, classifier)
            p_values = data.compare(of_seeds, runs[classifier])
            tests += [[name, other, measure, p] for measure, p in p_values.items()]
    settings = ["`--preset paper`"] if "paper" in options.hows else []
    settings += [f"{name} {value}" for name, value in options.base.items()] or ["defaults"]
    settings += [f"{options.keep:g} of the related pairs"] if options.keep < 1 else []
    result = {"collection": "ecbplus", "setting": ", ".join(settings), "seeds": options.seeds}
    return {**result, "values": values, "tests": tests}


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the only step. The work folder stores each run separately."""
    words = [*options.hows, *(f"{name}{value}" for name, value in options.base.items()), f"{options.keep:g}"]
    yield Step(f"ecbplus-{'-'.join(words)}", "table 2", partial(compared, options))


def settings_of(text: str) -> dict[str, str]:
    return dict(setting.split("=") for setting in comma_separated(text))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--hows", type=comma_separated, default=HOWS, help="Default: %(default)s")
    parser.add_argument("--base", type=settings_of, default={}, help="settings of every training")
    parser.add_argument("--keep", type=float, default=1.0, help="Default: %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    carry_out("004", steps(options), options)


if __name__ == "__main__":
    main()
