"""Paired randomization tests with Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.evaluation.measures import Evaluation

Array = NDArray[np.float64]

_EXACT = 16  # most differing queries for which all signs are enumerated
_CELLS = 2_000_000  # signs drawn at a time


@dataclass(frozen=True, slots=True)
class Comparison:
    """One stack compared with the baseline.

    delta:  stack mean minus baseline mean.
    p:      two-sided, of :func:`randomization_test`.
    p_holm: corrected for all comparisons.
    wins, losses: numbers of queries.
    low, high: 95 % interval of delta. smallest: see :class:`Gain`.
    """

    stack: str
    baseline: str
    measure: str
    delta: float
    p: float
    p_holm: float
    wins: int
    losses: int
    protocol: str = ""
    low: float = 0.0
    high: float = 0.0
    smallest: float = 0.0


BOOTSTRAPS = 10_000
"""Samples of the queries, with replacement, for an interval."""


class Gain(NamedTuple):
    """Mean of paired differences, its 95 % interval, and the smallest mean that n queries can show.

    smallest: 1.96 standard errors, from which a mean differs from 0 with p < 0.05; infinite for one query.
    """

    mean: float
    low: float
    high: float
    smallest: float


def gain_of(differences: ArrayLike, seed: int = 0) -> Gain:
    """Return the mean of n differences with its interval, by the paired bootstrap.

    >>> gain_of([0.5, 0.5, 0.5])
    Gain(mean=0.5, low=0.5, high=0.5, smallest=0.0)
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    samples = _samples_of_few(n, seed) if n * BOOTSTRAPS <= _CELLS else _samples(n, seed)
    means = [counts @ values / n for counts in samples]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975)).round(12).tolist()
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Gain(math.fsum(values.tolist()) / n, low, high, round(1.96 * error, 12))


def _samples(n: int, seed: int) -> Iterator[Array]:
    """Yield parts of ``BOOTSTRAPS`` samples of n queries: (samples, n) how often a sample has each query."""
    rng = np.random.default_rng(seed)
    chunk = max(1, _CELLS // n)
    for start in range(0, BOOTSTRAPS, chunk):
        counts = rng.multinomial(n, np.full(n, 1 / n), size=min(chunk, BOOTSTRAPS - start))
        yield counts.astype(np.float64)


@lru_cache(maxsize=2)  # several stacks and measures have the same queries
def _samples_of_few(n: int, seed: int) -> list[Array]:
    return list(_samples(n, seed))


def compare(
    evaluation: Evaluation,
    baseline: str,
    *,
    measures: Sequence[str] | None = None,
    permutations: int = 100_000,
    seed: int = 0,
) -> list[Comparison]:
    """Compare runs with ``baseline``; Holm's correction is over all comparisons.

    measures: names as in ``evaluation``; default: all of them.
    """
    names = evaluation.measures if measures is None else measures
    compared: list[tuple[str, str]] = []
    differences: list[Array] = []
    for run, values in evaluation.values.items():
        if run == baseline:
            continue
        for name in names:
            compared.append((run, name))
            differences.append(values[name] - evaluation.values[baseline][name])
    p_values = randomization_tests(differences, permutations=permutations, seed=seed)
    comparisons: list[Comparison] = []
    for (run, name), difference, p, p_holm in zip(compared, differences, p_values, holm(p_values)):
        gain = gain_of(difference, seed)
        comparisons.append(
            Comparison(
                stack=run,
                baseline=baseline,
                measure=name,
                delta=math.fsum(difference.tolist()) / len(difference),
                p=p,
                p_holm=p_holm,
                wins=int((difference > 0).sum()),
                losses=int((difference < 0).sum()),
                low=gain.low,
                high=gain.high,
                smallest=gain.smallest,
            )
        )
    return comparisons


def randomization_test(differences: ArrayLike, *, permutations: int = 100_000, seed: int = 0) -> float:
    """Return the two-sided p of the mean of n per-query differences (Smucker et al. 2007).

    p is the share of sign assignments with a mean at least as far from 0. For at most 16 nonzero differences
    it is exact; otherwise ``permutations`` are drawn and p = (count + 1) / (permutations + 1).

    >>> randomization_test([0.1, 0.2, 0.3])
    0.25
    """
    return randomization_tests([differences], permutations=permutations, seed=seed)[0]


def randomization_tests(
    differences: Sequence[ArrayLike], *, permutations: int = 100_000, seed: int = 0
) -> list[float]:
    """Return the p-value of each of K rows, as :func:`randomization_test` does, with the same drawn signs.

    differences: K rows of n differences per query, for example one row per run and measure.

    Raises ValueError for numbers that are not finite, or rows of different lengths.
    """
    rows = np.array([np.asarray(row, dtype=np.float64) for row in differences])
    if rows.size == 0:
        return [1.0] * len(rows)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError("differences must be rows of finite numbers, of one length")
    p_values = [0.0] * len(rows)
    differing = (rows != 0).sum(axis=1)  # equal queries add 0 under either sign
    for index in np.flatnonzero(differing <= _EXACT).tolist():
        p_values[index] = _exact(rows[index][rows[index] != 0])
    sampled = np.flatnonzero(differing > _EXACT)
    if len(sampled):
        sampled_rows = rows[sampled]
        has_difference = (sampled_rows != 0).any(axis=0)
        counts = _draw(sampled_rows[:, has_difference], permutations, seed)
        for index, count in zip(sampled.tolist(), counts.tolist()):
            p_values[index] = (count + 1) / (permutations + 1)
    return p_values


def _count(rows: Array, flips: NDArray[Any]) -> NDArray[np.int64]:
    """Count sums at least as far from 0 as the observed one: (K, n) rows, (m, n) flipped signs -> (K,)."""
    observed = rows.sum(axis=1)
    sums = observed - 2.0 * (flips.astype(np.float64) @ rows.T)
    reach = np.abs(observed) - 1e-12 * np.abs(rows).sum(axis=1)  # with tolerance for rounding
    return np.asarray((np.abs(sums) >= reach).sum(axis=0))


def _exact(values: Array) -> float:
    n = len(values)
    if n == 0:
        return 1.0
    # The sign of the last difference is fixed: flipping all signs gives the same distance from 0.
    patterns = np.arange(2 ** (n - 1), dtype=np.uint32)
    flips = (patterns[:, None] >> np.arange(n, dtype=np.uint32)) & 1
    return int(_count(values[None], flips)[0]) / len(patterns)


def _draw(rows: Array, permutations: int, seed: int) -> NDArray[np.int64]:
    """Count drawn sums at least as far from 0, per row."""
    generator = np.random.default_rng(seed)
    n = rows.shape[1]
    counts = np.zeros(len(rows), dtype=np.int64)
    chunk = max(1, _CELLS // n)
    for start in range(0, permutations, chunk):
        size = min(chunk, permutations - start)
        drawn = np.frombuffer(generator.bytes(-(-size * n // 8)), dtype=np.uint8)
        counts += _count(rows, np.unpackbits(drawn, count=size * n).reshape(size, n))
    return counts


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple comparisons (Holm 1979), in input order.

    The k-th smallest of m is multiplied by m - k + 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    ascending = sorted(range(len(p_values)), key=p_values.__getitem__)
    for position, index in enumerate(ascending):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        corrected[index] = largest
    return corrected
