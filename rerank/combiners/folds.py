"""Cross-validation of stack weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rerank.combiners.score_table import ScoreTable
from rerank.combiners.tune import TuneOptions, TuningProblem, TuningResult
from rerank.errors import UsageError
from rerank.records import Qrels
from rerank.text import plural


@dataclass(frozen=True)
class Fold:
    """A stack tuned on the other folds: ``value`` there, ``held_out`` here."""

    stack: str
    normalization: str
    value: float
    held_out: float
    queries: int


@dataclass(frozen=True)
class CrossValidated:
    """Tuning measured on held-out queries.

    value:             mean of ``per_query``.
    first_stage_value: on the same queries.
    per_query:         query id -> out-of-fold value.
    folds:             per fold.
    final:             tuned on all queries; its value is optimistic.
    """

    value: float
    first_stage_value: float
    folds: tuple[Fold, ...]
    per_query: Mapping[str, float] = field(repr=False)
    final: TuningResult = field(repr=False)


def cross_validate(
    table: ScoreTable,
    qrels: Qrels,
    *,
    folds: int = 5,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> CrossValidated:
    """Measure random folds with weights tuned on the others, then tune on all queries.

    Options, errors and running time are close to :func:`rerank.combiners.tune.tune`. Raises UsageError also
    for fewer than 2 folds or more folds than queries.
    """
    problem = TuningProblem.of(table, qrels, TuneOptions(**options))
    n = len(problem.judged)
    if not 2 <= folds <= n:
        raise UsageError(
            f"{plural(n, 'judged quer[y|ies]')} cannot be dealt to {plural(folds, 'fold[|s]')}; take 2 to {n}"
        )
    groups = np.empty(n, dtype=np.int64)
    groups[np.random.default_rng(seed).permutation(n)] = np.arange(n) % folds
    sums = problem.sums(groups.tolist(), progress)
    per_query = np.empty(n)
    results = []
    for fold in range(folds):
        inside = np.flatnonzero(groups == fold)
        means = [np.delete(total, fold, axis=0).sum(axis=0) / (n - len(inside)) for total in sums]
        which, setting = problem.choose(means, n - len(inside))
        per_query[inside] = held_out = problem.values((which, setting), inside.tolist())
        results.append(
            Fold(
                stack=str(problem.linear(which, setting)),
                normalization=problem.grids[which].normalization,
                value=float(means[which][setting]),
                held_out=math.fsum(held_out.tolist()) / len(inside),
                queries=len(inside),
            )
        )
    final = problem.result([total.sum(axis=0) / n for total in sums])
    return CrossValidated(
        value=math.fsum(per_query.tolist()) / n,
        first_stage_value=final.first_stage_value,
        per_query=dict(zip((query.query for query in problem.judged), per_query.tolist())),
        folds=tuple(results),
        final=final,
    )
