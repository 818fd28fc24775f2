"""A weighted sum of normalized scores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError, UsageError
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
    """Signal weights and a normalization.

    signals:       S names.
    weights:       S numbers; they need not sum to 1.
    normalization: one of NORMALIZATIONS.
    moments:       of each signal, only for the normalization ``fitted``.
    cases:         case -> weights that replace the default.

    Raises UsageError for inconsistent values.
    """

    signals: tuple[str, ...]
    weights: tuple[float, ...]
    normalization: str = "min-max"
    moments: tuple[Moments, ...] = ()
    cases: Mapping[str, Linear] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.signals:
            check_name(name)
        if not self.signals or len(set(self.signals)) < len(self.signals):
            raise UsageError(f"a stack needs signals, each once, not {', '.join(self.signals) or 'none'}")
        if len(self.weights) != len(self.signals):
            raise UsageError(f"{len(self.signals)} signals need as many weights, not {len(self.weights)}")
        weights = tuple(round(float(weight), DECIMALS) for weight in self.weights)
        object.__setattr__(self, "weights", weights)
        if not any(weights) or not all(0 <= weight <= LARGEST for weight in weights):
            raise UsageError(f"weights must be numbers from 0 to {LARGEST:g}, and not all 0")
        check_normalization(self.normalization)
        if len(self.moments) != (len(self.signals) if self.normalization == FITTED else 0):
            raise UsageError(
                f"the normalization {FITTED!r} needs the statistics that `rerank tune` stores; tune the stack"
            )
        self._check_cases()

    def _check_cases(self) -> None:
        for case, weights in self.cases.items():
            if case not in CASES or weights.signals != self.signals or weights.cases:
                raise UsageError(
                    f"{case!r} is not a case with weights for {', '.join(self.signals)}; tune it again"
                )

    def __str__(self) -> str:
        digits = 2
        while digits < DECIMALS and any(round(weight, digits) != weight for weight in self.weights):
            digits += 1
        return " + ".join(f"{name}*{weight:.{digits}f}" for name, weight in self.weights_by_signal().items())

    def weights_by_signal(self) -> dict[str, float]:
        """Return signal -> weight. The weights need not sum to 1."""
        return dict(zip(self.signals, self.weights))

    def for_case(self, case: str) -> Linear:
        """Return the weights of a case, or the default ones."""
        return self.cases.get(case, self)

    def combine(self, scores: NDArray[Any]) -> tuple[Array, Array, Array]:
        """Return final (n,), normalized (n, S) and weighted (n, S) scores from raw (n, S) ones.

        Raises TrainingError for a non-finite score.
        """
        scores = np.asarray(scores, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[1] != len(self.signals):
            raise ValueError(f"raw scores must be (n, {len(self.signals)}), not {scores.shape}")
        if not np.isfinite(scores).all():
            name = self.signals[int((~np.isfinite(scores)).any(axis=0).argmax())]
            raise TrainingError(f"a score of {name} is not finite; train {name} again or leave it out")
        normalized = normalize(scores, self.normalization, self.moments, self.signals)
        parts = normalized * np.array(self.weights)
        # The tuner repeats these additions to get the same ties.
        return reduce(np.add, parts.T), normalized, parts

    def relevance(self, final: Array) -> Array:
        """Map final scores s to [0, 1].

        min-max, rank: s / sum of weights. z-score, fitted: 1 / (1 + exp(-s)). Raw: (1 + s / (1 + |s|)) / 2.
        """
        if self.normalization in ("min-max", "rank"):
            return np.clip(final / sum(self.weights), 0.0, 1.0)
        squashed: Array = np.tanh(final / 2)
        if self.normalization == "none":
            squashed = final / (1 + np.abs(final))
        return 0.5 + 0.5 * squashed

    def without_moments(self) -> Linear:
        """Return the weights with z-scores of each request instead of stored moments."""
        if self.normalization != FITTED:
            return self
        cases = {case: linear.without_moments() for case, linear in self.cases.items()}
        return replace(self, normalization="z-score", moments=(), cases=cases)

    def summary(self) -> dict[str, Any]:
        """Return the weights, also of each category case, as JSON values of a stack file."""
        cases = {case: weights._summary() for case, weights in self.cases.items()}
        return {**self._summary(), "cases": cases}

    def _summary(self) -> dict[str, Any]:
        values: dict[str, Any] = {"stack": str(self), "normalization": self.normalization}
        if self.moments:
            moments = zip(self.signals, self.moments)
            values["moments"] = {signal: stored._asdict() for signal, stored in moments}
        return values

    def renamed(self, names: Mapping[str, str]) -> Linear:
        """Return the weights with renamed signals: old -> new."""
        return replace(
            self,
            signals=tuple(names.get(name, name) for name in self.signals),
            cases={case: weights.renamed(names) for case, weights in self.cases.items()},
        )


def check_name(name: str) -> None:
    """Raise UsageError for an invalid signal name."""
    if not re.fullmatch(SIGNAL, name):
        raise UsageError(f"{name!r} cannot be a signal's name; use letters, digits, _ . and -")
