"""Cross-validation of stack weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from rerank.combiners.measure import judge, values_by_query
from rerank.combiners.score_table import ScoreTable
from rerank.combiners.tune import TuningResult, tune
from rerank.errors import UsageError
from rerank.evaluation.ranks import RankMeasure
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
    """

    value: float
    first_stage_value: float
    folds: tuple[Fold, ...]
    per_query: Mapping[str, float] = field(repr=False)


def cross_validate(
    table: ScoreTable, qrels: Qrels, final: TuningResult, *, folds: int = 5, seed: int = 0, **options: Any
) -> CrossValidated:
    """Measure random folds with weights tuned on the others.

    final: tuned on all queries, with the same options of :func:`rerank.combiners.tune.tune`.

    Raises the errors of ``tune``, and UsageError for fewer than 2 folds or more folds than queries.
    """
    n = final.queries
    if not 2 <= folds <= n:
        raise UsageError(
            f"{plural(n, 'judged quer[y|ies]')} cannot be dealt to {plural(folds, 'fold[|s]')};"
            " give at least 2 folds, and a query for each"
        )
    measure = RankMeasure.parse(final.measure, options.get("cut"))
    judged, _ = judge(table.only(options.get("signals") or table.signals), qrels, measure)
    dealt = [judged[index] for index in np.random.default_rng(seed).permutation(n).tolist()]
    results, per_query = [], dict.fromkeys(final.per_query, 0.0)
    for fold in range(folds):
        inside = dealt[fold::folds]
        held_out = {query.query for query in inside}
        tuned = tune(table, Qrels({q: qrels[q] for q in qrels if q not in held_out}), **options)
        found = values_by_query(inside, tuned.combiner, measure)
        per_query |= found
        results.append(
            Fold(
                stack=str(tuned.combiner),
                normalization=tuned.combiner.normalization,
                value=tuned.value,
                held_out=fmean(found.values()),
                queries=len(inside),
            )
        )
    return CrossValidated(
        value=fmean(per_query.values()),
        first_stage_value=final.first_stage_value,
        folds=tuple(results),
        per_query=per_query,
    )
