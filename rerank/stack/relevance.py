"""Scores that do not depend on other candidates, and the probability that a document is relevant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.documents.records import Query
from rerank.documents.text import words
from rerank.stack.linear import Linear

Array = NDArray[np.float64]


def query_length(query: Query) -> float:
    """Return ln(1 + n) of a query with n different words. Long queries have larger lexical scores.

    >>> round(query_length(Query("q1", "Grey wolf, grey fox")), 3)
    1.386
    """
    return math.log1p(len(set(words(query.text))))


@dataclass(frozen=True)
class Calibration:
    """A logistic regression from the fitted score s of a document to the probability that it is relevant.

        p = 1 / (1 + exp(-(intercept + slope * s + length_slope * l)))

    l is :func:`query_length`. The slope is positive, so that a larger score never has a smaller probability.

    relevant: number of relevant candidates in the regression.
    auc:      probability that the best of a query's candidates gets a larger p than the best of another
        query's candidates. None without candidates of other queries.
    error:    expected calibration error of the first ten candidates: the mean difference of p and the share
        of relevant documents, in groups of equal size.

    Both are measured on queries that the regression did not see (cross-fitting).
    """

    intercept: float
    slope: float
    length_slope: float
    relevant: int
    auc: float | None
    error: float

    def probabilities(self, scores: Array, length: float) -> Array:
        """Return (n,) probabilities of relevance from (n,) fitted scores.

        length: of the query, as :func:`query_length` returns it.
        """
        logits = self.intercept + self.slope * scores + self.length_slope * length
        probabilities: Array = 0.5 + 0.5 * np.tanh(logits / 2)  # does not overflow
        return probabilities


@dataclass(frozen=True)
class RelevanceModel:
    """A combiner whose scores do not depend on the other candidates, and its calibration.

    combiner:    weights for the signals of a stack, with the normalization ``fitted``.
    calibration: None if the tuning had too few relevant documents.
    cases:       case of a query's categories -> model that replaces this one.
    """

    combiner: Linear
    calibration: Calibration | None = None
    cases: Mapping[str, RelevanceModel] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return the model with the models of its cases, as the JSON values of a stack file."""
        values = self.combiner.summary()
        del values["cases"]
        if self.calibration is not None:
            values["calibration"] = asdict(self.calibration)
        if self.cases:
            values["cases"] = {case: model.summary() for case, model in self.cases.items()}
        return values

    def for_case(self, case: str) -> RelevanceModel:
        """Return the model for queries of a case: its separate one, or else this one."""
        return self.cases.get(case, replace(self, cases={}))

    def relevance(self, raw: NDArray[Any], query: Query) -> Array | None:
        """Return (n,) probabilities of relevance from raw (n, S) scores, or None without a calibration."""
        if self.calibration is None:
            return None
        scores, _, _ = self.combiner.combine(raw)
        return self.calibration.probabilities(scores, query_length(query))


def check_min_score(min_score: float, model: RelevanceModel | None) -> None:
    """Raise UsageError for a probability outside of 0 to 1, or a stack without a calibration."""
    if not 0 <= min_score <= 1:
        raise UsageError(f"the minimum score {min_score:g} is not a probability; give a number from 0 to 1")
    if model is None or model.calibration is None:
        raise UsageError(
            "the stack has no probabilities, so it has no minimum score; tune it again with at least 30"
            " relevant documents among the candidates"
        )
