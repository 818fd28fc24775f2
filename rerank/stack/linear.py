"""A weighted sum of normalized scores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import TrainingError, UsageError
from rerank.stack.normalize import FITTED, LARGEST, Moments, check_normalization, normalize

Array = NDArray[np.float64]

CASES = ("given", "inferred", "none")
"""Sources of a query's categories: the query, its first candidates, or none."""

DECIMALS = 9
"""Weights are rounded to as many decimals, so that their text is exact."""

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
SIGNAL = rf"{NAME}|field:[\w.-]+|leg:[\w-]+"
"""Signal names: rankers, first stages, numeric fields, clauses of a search."""


@dataclass(frozen=True)
class Linear:
    """The combiner of a stack: a normalization and a weight for each of S signals.

    signals:       S different names.
    weights:       S numbers of 0 or more; they need not sum to 1.
    normalization: one of :data:`rerank.stack.normalize.NORMALIZATIONS`.
    moments:       S moments of the signals' scores, only for the normalization ``fitted``.
    cases:         case of a query's categories -> weights that replace these.

    Raises UsageError for inconsistent values.
    """

    signals: tuple[str, ...]
    weights: tuple[float, ...]
    normalization: str = "min-max"
    moments: tuple[Moments, ...] = ()
    cases: Mapping[str, Linear] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rounded = tuple(round(float(weight), DECIMALS) for weight in self.weights)
        object.__setattr__(self, "weights", rounded)
        self._check_signals()
        self._check_weights()
        check_normalization(self.normalization)
        needed_moments = len(self.signals) if self.normalization == FITTED else 0
        if len(self.moments) != needed_moments:
            raise UsageError(
                f"the normalization {FITTED!r} needs the statistics that `rerank tune` stores; tune the stack"
            )
        self._check_cases()

    def _check_signals(self) -> None:
        for name in self.signals:
            check_name(name)
        if not self.signals or len(set(self.signals)) < len(self.signals):
            raise UsageError(f"a stack needs signals, each once, not {', '.join(self.signals) or 'none'}")

    def _check_weights(self) -> None:
        if len(self.weights) != len(self.signals):
            raise UsageError(f"{len(self.signals)} signals need as many weights, not {len(self.weights)}")
        in_range = [0 <= weight <= LARGEST for weight in self.weights]  # False for NaN
        if not all(in_range) or not any(self.weights):
            raise UsageError(f"weights must be numbers from 0 to {LARGEST:g}, and not all 0")

    def _check_cases(self) -> None:
        for case, weights in self.cases.items():
            fits = weights.signals == self.signals and not weights.cases
            if case not in CASES or not fits:
                raise UsageError(
                    f"{case!r} is not a case with weights for {', '.join(self.signals)}; tune it again"
                )

    def __str__(self) -> str:
        digits = max(2, *map(_decimals, self.weights))
        return " + ".join(f"{name}*{weight:.{digits}f}" for name, weight in self.weights_by_signal().items())

    def weights_by_signal(self) -> dict[str, float]:
        """Return signal -> weight, in the order of the signals. The weights need not sum to 1."""
        return dict(zip(self.signals, self.weights))

    def for_case(self, case: str) -> Linear:
        """Return the weights for queries of a case: its separate ones, or else these."""
        return self.cases.get(case, self)

    def combine(self, scores: NDArray[Any]) -> tuple[Array, Array, Array]:
        """Combine the raw (n, S) scores of one query's n candidates.

        Returns the final (n,) scores, which are the sums of the weighted ones; the normalized (n, S) scores;
        and the weighted (n, S) scores, which are normalized score times weight.

        Raises TrainingError for a non-finite score, ValueError for another shape.
        """
        scores = np.asarray(scores, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[1] != len(self.signals):
            raise ValueError(f"raw scores must be (n, {len(self.signals)}), not {scores.shape}")
        is_finite = np.isfinite(scores)
        if not is_finite.all():
            name = self.signals[int(is_finite.all(axis=0).argmin())]
            raise TrainingError(f"a score of {name} is not finite; train {name} again or leave it out")
        normalized = normalize(scores, self.normalization, self.moments, self.signals)
        weighted = normalized * np.array(self.weights)
        # The tuner repeats these additions to get the same ties.
        return reduce(np.add, weighted.T), normalized, weighted

    def relevance(self, final: Array) -> Array:
        """Map final (n,) scores s to the range from 0 to 1, in the same order.

        min-max, rank     s / sum of the weights
        z-score, fitted   1 / (1 + exp(-s))
        none              (1 + s / (1 + |s|)) / 2
        """
        if self.normalization in ("min-max", "rank"):
            return np.clip(final / sum(self.weights), 0.0, 1.0)
        if self.normalization == "none":
            squashed: Array = final / (1 + np.abs(final))
        else:
            squashed = np.tanh(final / 2)  # the logistic function, without overflow
        return 0.5 + 0.5 * squashed

    def without_moments(self) -> Linear:
        """Return the same weights for z-scores over the candidates of each query, without stored moments."""
        if self.normalization != FITTED:
            return self
        cases = {case: linear.without_moments() for case, linear in self.cases.items()}
        return replace(self, normalization="z-score", moments=(), cases=cases)

    def summary(self) -> dict[str, Any]:
        """Return the weights and the weights of each case, as the JSON values of a stack file."""
        cases = {case: weights._summary() for case, weights in self.cases.items()}
        return {**self._summary(), "cases": cases}

    def _summary(self) -> dict[str, Any]:
        values: dict[str, Any] = {"stack": str(self), "normalization": self.normalization}
        if self.moments:
            moments = zip(self.signals, self.moments)
            values["moments"] = {signal: stored._asdict() for signal, stored in moments}
        return values

    def renamed(self, names: Mapping[str, str]) -> Linear:
        """Return the weights with renamed signals, also in each case.

        names: old name -> new name; a signal that is not among them keeps its name.
        """
        return replace(
            self,
            signals=tuple(names.get(name, name) for name in self.signals),
            cases={case: weights.renamed(names) for case, weights in self.cases.items()},
        )


def _decimals(weight: float) -> int:
    """Return the number of decimals that a rounded weight needs, at most DECIMALS."""
    digits = 0
    while digits < DECIMALS and round(weight, digits) != weight:
        digits += 1
    return digits


def check_name(name: str) -> None:
    """Raise UsageError for an invalid signal name."""
    if not re.fullmatch(SIGNAL, name):
        raise UsageError(f"{name!r} cannot be a signal's name; use letters, digits, _ . and -")
