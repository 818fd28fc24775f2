"""Results of the experiments: values, differences with their tests, and verdicts on claims.

``results/PAPER.jsonl`` has one line per measurement of a collection and a setting:

    table, collection, setting  which measurements belong together
    seed, or seeds              the seed of a run, or the number of seeds in this line
    values                      system -> measure -> value, or the values of all seeds
    tests                       [system, other system, measure, p] of paired randomization tests
    command, date, commit       the origin; ``machine`` if it is known
    defaults                    a key of ``results/defaults.json``: the default options of the family
    older                       the reason why the result stays although default options have changed
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isinf
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from rerank.common.config import values_of
from rerank.rankers.cnn import embeddings
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.projection.config import ProjectionConfig

FOLDER = Path(__file__).parent / "results"
PAPERS = ("003", "002", "000", "001", "004")
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "not decided"
NO_GAIN = "no gain above 0.01 shown"
NO_DATA, NOT_RUN = "no data", "not run"
SIGNIFICANT = 0.05
MARGIN = 0.01

_NORMAL = NormalDist()
_ONE_SIDED = _NORMAL.inv_cdf(1 - SIGNIFICANT)


@cache
def results(paper: str) -> list[dict[str, Any]]:
    """Return the results of a paper, sorted by the names of the steps."""
    path = FOLDER / f"{paper}.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Difference:
    """The mean difference of two systems over seeds.

    The result files have no values per query. The standard error of a seed is its difference, divided by the
    normal quantile of its p-value. All seeds have the same queries, so the standard error of the mean is at
    most the mean of these standard errors, which is used here.

    error: an upper bound of the standard error; None if a seed has no test.
    """

    mean: float
    error: float | None

    @classmethod
    def over_seeds(cls, deltas: Sequence[float], ps: Sequence[float | None]) -> Difference:
        """Return the difference over seeds. A p-value of 1 takes the largest standard error of the others."""
        tested = [p for p in ps if p is not None]
        if len(tested) < len(ps) or not tested:
            return cls(fmean(deltas), None)
        errors: list[float | None] = []
        for delta, p in zip(deltas, tested):
            quantile = _NORMAL.inv_cdf(1 - p / 2)
            errors.append(abs(delta) / quantile if delta and quantile > 0 else None)
        largest = max((error for error in errors if error is not None), default=inf)
        return cls(fmean(deltas), fmean(largest if error is None else error for error in errors))

    @property
    def p(self) -> float | None:
        """The two-sided p-value of the mean."""
        if self.error is None:
            return None
        return 1.0 if isinf(self.error) or not self.mean else 2 * _NORMAL.cdf(-abs(self.mean) / self.error)

    def __neg__(self) -> Difference:
        return Difference(-self.mean, self.error)

    def above(self, p: float | None) -> str:
        """Return the verdict on the claim of a gain.

        p: the p-value after the correction for all claims.
        """
        if self.error is None or p is None:
            return untested(self.mean > 0)
        if p < SIGNIFICANT:
            return HOLDS if self.mean > 0 else FAILS
        return NO_GAIN if self.mean + _ONE_SIDED * self.error < MARGIN else UNDECIDED

    def equal(self, p: float | None) -> str:
        """Return the verdict on the claim of no difference above MARGIN."""
        if self.error is None or p is None:
            return untested(abs(self.mean) < MARGIN)
        if abs(self.mean) + _ONE_SIDED * self.error < MARGIN:
            return HOLDS
        return FAILS if p < SIGNIFICANT else UNDECIDED


def untested(same: bool) -> str:
    """Return the verdict without a p-value, from the direction only."""
    return f"not tested ({'same' if same else 'other'} direction)"


@dataclass(frozen=True)
class Group:
    """All results of a table, collection and setting, for example one per seed."""

    steps: Sequence[Mapping[str, Any]]

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(name for step in self.steps for name in step["values"]))

    @property
    def measures(self) -> list[str]:
        rows = [row for step in self.steps for row in step["values"].values()]
        return list(dict.fromkeys(name for row in rows for name in row))

    def by_seed(self, system: str, measure: str) -> dict[Any, float]:
        """Return seed -> value. A line with several seeds has the mean, under the name of its step."""
        values = {}
        for step in self.steps:
            value = step["values"].get(system, {}).get(measure)
            if value is not None:
                values[_seed_of(step)] = fmean(value) if isinstance(value, list) else value
        return values

    def values(self, system: str, measure: str) -> list[float]:
        for step in self.steps:
            value = step["values"].get(system, {}).get(measure)
            if isinstance(value, list):
                return value
        return list(self.by_seed(system, measure).values())

    def seeds(self, system: str, *measures: str) -> int:
        """Return the number of seeds of these measures."""
        rows = [step for step in self.steps if {*measures} & {*step["values"].get(system, {})}]
        seeds = {step["seed"] for step in rows if "seed" in step}  # several steps can have the same seed
        listed = [len(self.values(system, measure)) for measure in measures]
        return max(len(seeds) or rows[0].get("seeds", 1), *listed)

    def difference(self, system: str, other: str, measure: str) -> Difference | None:
        """Return the difference of two systems over the seeds that have both."""
        first, second = self.by_seed(system, measure), self.by_seed(other, measure)
        seeds = [seed for seed in first if seed in second]
        if not seeds:
            return None
        tests: dict[Any, float] = {}
        for step in self.steps:
            for a, b, name, p in step["tests"]:
                if name == measure and {a, b} == {system, other}:
                    tests[_seed_of(step)] = p
        deltas = [first[seed] - second[seed] for seed in seeds]
        return Difference.over_seeds(deltas, [tests.get(seed) for seed in seeds])

    def common_means(self, systems: Sequence[str], measure: str) -> list[float]:
        """Return the mean of each system over the seeds that all of them have; 0 without such a seed.

        Other seeds can have other test data, so the means would not be comparable.
        """
        values_by_system = [self.by_seed(system, measure) for system in systems]
        seeds = set.intersection(*(set(values) for values in values_by_system))
        return [fmean(values[seed] for seed in seeds) if seeds else 0.0 for values in values_by_system]

    def origin(self) -> str:
        """Return date, commit and machine of the results as text."""
        newest = max(self.steps, key=lambda step: step["date"])
        text = f"{newest['date']}, {newest['commit']}, {newest.get('machine', 'machine unknown')}"
        older = next((step["older"] for step in self.steps if "older" in step), None)
        return f"{text}; older: {older}" if older else text

    def command(self) -> str:
        """Return the command of the last result. A removed script has no folder."""
        command = str(self.steps[-1]["command"])
        for script in re.findall(r"benchmarks/papers/(\w+\.py)", command):
            if not (FOLDER.parent / script).exists():
                command = command.replace(f"benchmarks/papers/{script}", script)
        return command


def _seed_of(step: Mapping[str, Any]) -> Any:
    """Return the seed of a result or, of several seeds, their number."""
    return step.get("seed", f"{step.get('seeds', 1)} seeds")


def groups(paper: str) -> dict[tuple[str, str, str], Group]:
    """Return (table, collection, setting) -> results."""
    steps: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for step in results(paper):
        steps.setdefault((step["table"], step["collection"], step["setting"]), []).append(step)
    return {key: Group(of) for key, of in steps.items()}


def defaults_of(paper: str) -> dict[str, Any]:
    """Return the default options of the family of a paper, and constants that decide its results."""
    if paper == "003":
        return {**values_of(CnnConfig()), "words read": embeddings.WORDS_READ}
    config = {"002": ProjectionConfig, "004": ConceptConfig}.get(paper, DenseConfig)
    return dict(values_of(config()))


def outdated(paper: str) -> Iterable[str]:
    """Yield a line for each kind of results with other default options than the code, and no reason."""
    states = json.loads((FOLDER / "defaults.json").read_text("utf-8"))
    now = json.loads(json.dumps(defaults_of(paper)))
    reported = set()
    for step in results(paper):
        name = step["defaults"]
        differing = [(key, old, now.get(key, old)) for key, old in states[name].items()]
        changed = [f"{key} {old} -> {new}" for key, old, new in differing if old != new]
        if changed and "older" not in step and name not in reported:
            reported.add(name)
            yield (
                f"{paper}, {step['step']} of {step['commit']}: default options have changed since:"
                f" {', '.join(changed)}. Run {step['command']} again, or add `older` with a reason."
            )


def shown(values: Sequence[float]) -> str:
    """Return the mean as text, with the standard deviation if the seeds differ."""
    if not values:
        return ""
    if all(value == int(value) for value in values) and max(values) > 1:
        return f"{fmean(values):,.0f}"
    text = f"{fmean(values):.4f}"
    spread = f"{stdev(values):.4f}" if len(values) > 1 else "0"
    return f"{text} ± {spread}" if float(spread) else text


def p_text(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"
