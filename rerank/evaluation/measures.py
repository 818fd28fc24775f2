"""Measures of runs, from ir_measures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import InputError, UsageError
from rerank.records import Qrels

Array = NDArray[np.float64]

MEASURES = ("nDCG", "nDCG@10", "RR", "R@1000")
"""Default measures; nDCG has no cut-off, as in Kuwa et al. (2020)."""


@dataclass(frozen=True, slots=True)
class RankingAUC:
    """Share of a query's (relevant, irrelevant) document pairs in the right order.

    Grades from ``rel`` up are relevant. Unjudged documents are ignored; documents not retrieved share the
    last place. Ties count half. Unlike Yih et al. 2011, section 4.2, each query has its own curve.

    >>> auc = RankingAUC.parse("AUC")
    >>> auc.value(["a", "x", "b"], {"a": 2, "b": 0, "c": 1})  # c is not ranked, x not judged
    0.5
    """

    rel: int = 1

    @classmethod
    def parse(cls, text: str) -> RankingAUC | None:
        """Parse ``AUC`` or ``AUC(rel=2)``; None for other text.

        >>> str(RankingAUC.parse("AUC(rel=2)")), RankingAUC.parse("AP")
        ('AUC(rel=2)', None)
        """
        match = re.fullmatch(r"AUC(?:\(rel=([1-9][0-9]{0,8})\))?", text.strip())
        return cls(int(match[1] or 1)) if match else None

    def __str__(self) -> str:
        return "AUC" if self.rel == 1 else f"AUC(rel={self.rel})"

    def value(self, ids: Sequence[str], judged: Mapping[str, int]) -> float:
        """Return the AUC of a ranking, best first; NaN without relevant or irrelevant documents."""
        place = {id: rank for rank, id in enumerate(ids)}
        ranks = np.array([place.get(id, len(ids)) for id in judged])
        relevant = np.array([grade >= self.rel for grade in judged.values()], np.bool_)
        if relevant.all() or not relevant.any():
            return float("nan")
        above, below = ranks[relevant][:, None], ranks[~relevant]
        return float(((above < below) + 0.5 * (above == below)).mean())


@dataclass(frozen=True)
class Evaluation:
    """Values per run and query.

    measures:      ir_measures names.
    query_ids:     Q judged queries with a relevant document, ascending.
    values:        run -> measure -> (Q,). NaN if undefined (AUC).
    empty:         run -> number of queries without results.
    none_relevant: ignored judged queries.
    """

    measures: tuple[str, ...]
    query_ids: tuple[str, ...]
    values: Mapping[str, Mapping[str, Array]]
    empty: Mapping[str, int]
    none_relevant: tuple[str, ...]

    def mean(self, run: str, measure: str) -> float:
        """Return the mean, ignoring NaN."""
        return mean_of(self.values[run][measure])

    def means(self, run: str) -> dict[str, float]:
        """Return measure -> mean."""
        return {measure: self.mean(run, measure) for measure in self.measures}


def mean_of(values: Array) -> float:
    """Return the mean, ignoring NaN; NaN if all are.

    >>> mean_of(np.array([0.5, np.nan, 1.0]))
    0.75
    """
    there = values[~np.isnan(values)]
    return math.fsum(there.tolist()) / len(there) if len(there) else math.nan


def check_measures(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as in ir_measures, or ``AUC``. Raises UsageError for an unknown measure.

    >>> check_measures(["nDCG@10", "Recall@100", "AUC(rel=2)"])
    ('nDCG@10', 'R@100', 'AUC(rel=2)')
    """
    return tuple(str(measure) for measure in _parse(names))


def evaluate_runs(
    runs: Mapping[str, Mapping[str, Sequence[str]]], qrels: Qrels, measures: Sequence[str] = MEASURES
) -> Evaluation:
    """Measure runs: name -> query id -> document ids, best first.

    Judged queries without results count as 0; those without relevant documents are ignored (0 in trec_eval).
    ``AUC`` is :class:`RankingAUC`.

    Raises UsageError for an unknown measure; InputError if no judged query has a relevant document (AUC: also
    an irrelevant one), or a query retrieves a document twice.

    >>> qrels = Qrels([("q1", "a", 2), ("q1", "b", 1)])
    >>> evaluation = evaluate_runs({"bm25": {"q1": ["b", "a"]}}, qrels, ["nDCG", "RR"])
    >>> round(evaluation.mean("bm25", "nDCG"), 4), evaluation.mean("bm25", "RR")
    (0.8597, 1.0)
    """
    import ir_measures

    parsed = _parse(measures)
    names = tuple(str(measure) for measure in parsed)
    query_ids = tuple(query for query in sorted(qrels) if qrels.relevant(query))
    if not query_ids:
        raise InputError("none of the judged queries has a relevant document; check the qrels")
    at = {query: index for index, query in enumerate(query_ids)}
    judged = {query: dict(qrels[query]) for query in query_ids}
    theirs = [measure for measure in parsed if not isinstance(measure, RankingAUC)]
    ours = [measure for measure in parsed if isinstance(measure, RankingAUC)]
    evaluator = ir_measures.evaluator(theirs, judged) if theirs else None
    short = all(measure.NAME in _ENDS_WITH_RELEVANT for measure in theirs)
    values: dict[str, dict[str, Array]] = {}
    for run_name, run in runs.items():
        columns = {name: np.zeros(len(query_ids)) for name in names}
        scored = {
            query: _rank_scores(query, run[query], judged[query] if short else None)
            for query in query_ids
            if run.get(query)
        }
        for metric in evaluator.iter_calc(scored) if scored and evaluator else ():
            columns[str(metric.measure)][at[metric.query_id]] = metric.value
        for one in ours:
            columns[str(one)][:] = [one.value(run.get(query) or (), judged[query]) for query in query_ids]
            if np.isnan(columns[str(one)]).all():
                raise InputError(
                    f"{one}: no query has judgments of {one.rel} or more and also lower ones; add such"
                    " judgments, or remove the measure"
                )
        values[run_name] = columns
    return Evaluation(
        measures=names,
        query_ids=query_ids,
        values=values,
        empty={name: sum(not run.get(query) for query in query_ids) for name, run in runs.items()},
        none_relevant=tuple(query for query in sorted(qrels) if query not in at),
    )


def _parse(names: Sequence[str]) -> list[Any]:
    import ir_measures

    pipeline: Any = ir_measures.DefaultPipeline
    parsed: list[Any] = []
    for name in names:
        own = RankingAUC.parse(name)
        if own is not None:
            parsed += [own] if own not in parsed else []
            continue
        try:
            measure = ir_measures.parse_measure(name)
            supported = pipeline.supports(measure)
        except Exception as error:  # its parser raises NameError, ValueError, SyntaxError, ...
            raise UsageError(
                f"unknown measure {name!r} ({error}); for example {', '.join(MEASURES)}"
            ) from error
        if not supported:
            raise UsageError(f"measure {name!r} cannot be computed here; for example {', '.join(MEASURES)}")
        if measure not in parsed:
            parsed.append(measure)
    if not parsed:
        raise UsageError(f"name at least one measure, for example {', '.join(MEASURES)}")
    return parsed


_ENDS_WITH_RELEVANT = {"nDCG", "RR", "R", "AP", "P", "Success", "Rprec"}
"""Measures that do not depend on the ranks after the last relevant document."""


def _rank_scores(query: str, ids: Sequence[str], judged: Mapping[str, int] | None) -> dict[str, float]:
    """Decreasing scores; with ``judged``, down to the last relevant document."""
    if len(set(ids)) < len(ids):
        raise InputError(f"query {query!r}: a document is retrieved twice; each may be ranked once")
    if judged is not None:
        found = [place for place, id in enumerate(ids, 1) if id in judged and judged[id] > 0]
        ids = ids[: found[-1] if found else 1]
    return dict(zip(ids, map(float, range(len(ids), 0, -1))))
