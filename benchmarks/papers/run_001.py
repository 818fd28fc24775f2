"""Ding, Zhang, Chen, Cao (CCHT): train an encoder on co-citations in the full texts of eLife.

    python benchmarks/papers/run_001.py DATA

Runs ``benchmarks/papers/cocitation.py`` and stores the means of each seed and the tests of the claims.
DATA contains ``elife-jats.tar.xz``. Training uses the title and abstract of articles, and the title of
references. The negatives of the ranking task are references of other test articles. ``direct`` is the
control: an article, a reference that it cites and a reference that it does not cite. ``specter`` also
has hard negatives. ``preset`` has the settings of ``rerank train dense --preset cocitation``, except for
--layers and --steps. With --equal-anchors, all strategies have as many anchors as there are articles
with hard negatives. p: paired randomization test over the queries, on the means over the seeds, without
a correction.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cocitation
import numpy as np
from running import Step, arguments, carry_out

MEASURES = ("MAP sentence", "MAP paragraph", "MAP section", "sentence > paragraph", "section > document")


def trained(options: argparse.Namespace) -> dict[str, Any]:
    """Run the missing runs. Return the means per seed and the tests."""
    size = [f"--{name}={getattr(options, name)}" for name in ("layers", "tokens", "steps", "batch", "rate")]
    if options.articles:
        size.append(f"--articles={options.articles}")
    if options.equal_anchors:
        size.append("--equal-anchors")
    out = options.work / f"elife-{options.articles or 'all'}"
    given = cocitation.arguments().parse_args(
        [str(options.data / "elife-jats.tar.xz"), "--out", str(out), *size]
        + ["--abstracts", "--test-negatives", "--seeds", str(options.seeds)]
        + ["--strategies", options.strategies, "--train-layers", str(options.train_layers)]
    )
    path = given.out / "runs.jsonl"
    shape = cocitation.run(given, path)
    wanted = {"tf-idf", "untrained", *options.strategies.split(",")}
    wanted |= {"untrained cls"} if "preset" in wanted else set()
    by = _runs(path, shape, wanted)
    first = next(iter(by.values()))[0]
    anchors = {how: of[0]["told"]["anchors"] for how, of in by.items() if of[0].get("told")}
    few = f", {anchors[next(iter(anchors))]} anchors" if options.equal_anchors else ""
    names = {"untrained": "start", "untrained cls": "start, first token"}
    return {
        "collection": "eLife",
        "setting": f"MiniLM, {_settings(options)}{few}",
        "note": f"{options.articles or 'All'} articles. {len(first['MAP sentence'])} queries per level.",
        "values": {
            names.get(how, how): {
                name: [round(float(np.mean(one[name])), 4) for one in of]
                for name in (*MEASURES, "cited", "subjects")
            }
            for how, of in by.items()
        },
        "tests": [
            [names.get(high, high), names.get(low, low), name, p]
            for high, low, name, _, p in cocitation.compared(by, list(MEASURES))
        ],
        "n": {how: count for how, count in anchors.items() if count},
    }


def _runs(path: Path, shape: list[Any], wanted: set[str]) -> dict[str, list[dict[str, Any]]]:
    """Return strategy -> runs of all seeds."""
    by: dict[str, list[dict[str, Any]]] = {}
    for run in (json.loads(line) for line in path.read_text("utf-8").splitlines()):
        if run["shape"] == shape and run["how"] in wanted:
            by.setdefault(run["how"], []).append(run)
    return by


def _settings(options: argparse.Namespace) -> str:
    """Return the settings of the training as text."""
    if options.strategies == "preset":
        return f"{options.layers} layers, `--preset cocitation` cut to {options.steps} steps"
    learn = f"last {options.train_layers} of " if options.train_layers else ""
    return (
        f"{learn}{options.layers} layers, {options.steps} steps of {options.batch} triplets, rate"
        f" {options.rate:g}, {options.tokens} tokens of title and abstract"
    )


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the only step. The work folder stores each run separately."""
    name = f"elife-{options.articles or 'all'}-minilm_{options.layers}-{options.tokens}-{options.steps}"
    name += "-equal-anchors" * options.equal_anchors + "-preset" * (options.strategies == "preset")
    yield Step(name, "co-cited references", partial(trained, options))


def main() -> None:
    """Run the missing runs."""
    parser = arguments(__doc__)
    parser.add_argument("--strategies", default="sentence,direct,paragraph,section,hard 1.0,contrastive")
    for name, default in (("layers", 2), ("train-layers", 1), ("tokens", 32), ("steps", 60), ("batch", 48)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--articles", type=int, help="use the first N articles of the archive. Default: all")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--equal-anchors", action="store_true", help="as many anchors as `specter` has")
    options = parser.parse_args()
    carry_out("001", steps(options), options)


if __name__ == "__main__":
    main()
