"""Ma et al. (GCCL): compare training on the graph of labeled pairs with a plain classifier.

    python benchmarks/papers/run_004.py DATA --seeds 5

Runs ``benchmarks/papers/concept.py`` on ``ecbplus`` with ``--preset paper`` and with a classifier that
has the same settings. Steps, layers and tokens are reduced for training on a CPU. p: the larger p-value
of a paired t-test over seeds and a paired randomization test over test pairs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import concept
import numpy as np
from running import Step, arguments, carry_out
from seeds import seeds_test

from rerank.evaluation.pair_measures import accuracy, auc, best_threshold, f1, paired_test

CLASSIFIER = "paper+objective=classifier"
HOWS = ("tfidf", "untrained", CLASSIFIER, "paper")
NAMES = ("accuracy", "F1", "AUC")


def run_one(data: concept.Data, how: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of dev and test pairs. The work folder stores them."""
    path = options.work / f"ecbplus-{how}-{seed}-{'-'.join(map(str, options.base.values()))}.json"
    if path.exists():
        return dict(json.loads(path.read_text("utf-8")))
    args = argparse.Namespace(base=options.base, keep=1.0)
    if how == "tfidf":
        run: dict[str, Any] = dict(concept.tfidf(data))
    elif how == "untrained":
        run = dict(concept.untrained(data, {n: options.base[n] for n in ("layers", "passage_tokens")}))
    else:
        run = concept.trained(data, how, seed, args)
    run = {name: np.asarray(run[name]).round(6).tolist() for name in ("dev", "test")} | {
        name: run[name] for name in ("best", "steps", "share") if name in run
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run), "utf-8")
    print(f"    {how}, seed {seed}: {measures(data, run)}", flush=True)
    return run


def measures(data: concept.Data, run: dict[str, Any]) -> list[float]:
    """Return accuracy, F1 and AUC on test. The threshold is from dev."""
    at, labels = best_threshold(run["dev"], data.labels("dev")), data.labels("test")
    return [accuracy(run["test"], labels, at), f1(run["test"], labels, at), auc(run["test"], labels)]


def compared(
    data: concept.Data, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> dict[str, float]:
    """Return measure -> p, the larger p-value of both tests."""
    sides = [
        [(run["test"], best_threshold(run["dev"], data.labels("dev"))) for run in of]
        for of in (first, second)
    ]
    p = paired_test(sides[0], sides[1], data.labels("test"), permutations=1000)
    each = [np.array([measures(data, run) for run in of]).T.tolist() for of in (first, second)]
    over = [seeds_test(a, b) for a, b in zip(*each)]
    return {name: max(p[name], one or 0.0) for name, one in zip(NAMES, over)}


def trained(options: argparse.Namespace) -> dict[str, Any]:
    """Train each way with each seed. Return measures and p-values."""
    data = concept.Data.read(options.data / "ecbplus", None)
    runs = {
        how: [run_one(data, how, seed, options) for seed in range(options.seeds if "paper" in how else 1)]
        for how in HOWS
    }
    against = {how: compared(data, of, runs[CLASSIFIER]) for how, of in runs.items() if how != CLASSIFIER}
    settings = ", ".join(f"{name} {value}" for name, value in options.base.items())
    names = {"untrained": "start", CLASSIFIER: "classifier", "paper": "graph-component"}
    values = {}
    for how, of in runs.items():
        table = np.array([measures(data, run) for run in of]).T.round(6).tolist()
        values[names.get(how, how)] = dict(zip(NAMES, table))
    return {
        "collection": "ecbplus",
        "setting": f"`--preset paper`, cut to {settings}",
        "seeds": options.seeds,
        "values": values,
        "tests": [
            [names.get(how, how), "classifier", name, p]
            for how, of in against.items()
            for name, p in of.items()
        ],
    }


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the only step. The work folder stores each run separately."""
    name = f"ecbplus-paper-{options.base['layers']}-{options.base['steps']}"
    yield Step(name, "table 2", partial(trained, options))


def main() -> None:
    """Run the missing runs."""
    parser = arguments(__doc__)
    for name, default in (("layers", 2), ("passage-tokens", 32), ("steps", 64), ("every", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.base = {name: getattr(options, name) for name in ("layers", "passage_tokens", "steps", "every")}
    carry_out("004", steps(options), options)


if __name__ == "__main__":
    main()
