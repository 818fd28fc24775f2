"""Runs measured by name, as ir_measures computes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import InputError, UsageError
from rerank.evaluation.auc import RankingAUC
from rerank.records import Qrels

Array = NDArray[np.float64]

MEASURES = ("nDCG", "nDCG@10", "RR", "R@1000")
"""What is reported by default, in ir_measures' names; nDCG has no cut-off, as in Kuwa et al. (2020)."""


@dataclass(frozen=True)
class Evaluation:
    """Per-query values of each run: the input of every table and every comparison.

    measures:      names, as ir_measures writes them.
    query_ids:     Q judged queries that have a relevant document, ascending; means are over all of them.
    values:        run -> measure -> (Q,). NaN where a query has none: AUC needs judged documents of both
        kinds.
    empty:         run -> how many of these queries retrieved nothing; they count as 0.
    unjudged:      run -> how many of its queries have no judgment; they are left out.
    none_relevant: judged queries without any relevant document; they are left out of every mean.
    """

    measures: tuple[str, ...]
    query_ids: tuple[str, ...]
    values: Mapping[str, Mapping[str, Array]]
    empty: Mapping[str, int]
    unjudged: Mapping[str, int]
    none_relevant: tuple[str, ...]

    def mean(self, run: str, measure: str) -> float:
        """Return the mean over all queries of ``query_ids`` that have a value."""
        return mean_of(self.values[run][measure])


def mean_of(values: Array) -> float:
    """Mean of those that are not NaN; NaN where all are.

    >>> mean_of(np.array([0.5, np.nan, 1.0]))
    0.75
    """
    there = values[~np.isnan(values)]
    return math.fsum(there.tolist()) / len(there) if len(there) else math.nan


def check_measures(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as ir_measures writes them; ``AUC`` is ours. Raises UsageError for an unknown one.

    >>> check_measures(["nDCG@10", "Recall@100", "AUC(rel=2)"])
    ('nDCG@10', 'R@100', 'AUC(rel=2)')
    """
    return tuple(str(measure) for measure in _parse(names))


def evaluate_runs(
    runs: Mapping[str, Mapping[str, Sequence[str]]], qrels: Qrels, measures: Sequence[str] = MEASURES
) -> Evaluation:
    """Measure runs (name -> query id -> document ids, best first) against the judgments.

    ir_measures computes the values. It is handed scores made from the ranks, strictly decreasing, so that
    the order is the run's own and trec_eval's rule for ties never decides. A judged query that a run does not
    have, or that retrieved nothing, counts as 0. A judged query without a relevant document has no defined
    value: it is left out, and listed (trec_eval would count it as 0). ``AUC`` is
    :class:`~rerank.evaluation.auc.RankingAUC`, a mean over the queries with judged documents of both kinds.

    Raises UsageError for an unknown measure, InputError when no judged query has a relevant document, or both
    kinds for AUC, or when a document is retrieved twice for one query.

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
    short = all(measure.NAME in _BLIND_BEHIND_THE_LAST for measure in theirs)
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
                    f"{one}: no query has both a document judged {one.rel} or more and one judged less; give"
                    " qrels with both, or leave the measure out"
                )
        values[run_name] = columns
    return Evaluation(
        measures=names,
        query_ids=query_ids,
        values=values,
        empty={name: sum(not run.get(query) for query in query_ids) for name, run in runs.items()},
        unjudged={name: sum(query not in qrels for query in run) for name, run in runs.items()},
        none_relevant=tuple(query for query in sorted(qrels) if query not in at),
    )


def grade_one_only(
    runs: Mapping[str, Mapping[str, Sequence[str]]], qrels: Qrels
) -> tuple[dict[str, dict[str, list[str]]], Qrels]:
    """Take every document of grade 2 and up out of the judgments and of the rankings.

    For collections whose query was made from one of the documents (the *wanted* one, grade 2): what is left
    tells how well the merely related documents (grade 1) are ranked. Evaluate it beside the headline:
    ``evaluate_runs(*grade_one_only(runs, qrels))``. Queries without a document of grade 1 are then listed in
    ``none_relevant``, so the two lines may be over different queries.

    >>> runs, qrels = grade_one_only({"r": {"q": ["a", "b"]}}, Qrels([("q", "a", 2), ("q", "b", 1)]))
    >>> runs, dict(qrels)
    ({'r': {'q': ['b']}}, {'q': {'b': 1}})
    """
    wanted = {query: {id for id, grade in qrels[query].items() if grade >= 2} for query in qrels}
    kept: list[tuple[str, str, int]] = []
    for query in qrels:
        left = [(query, id, grade) for id, grade in qrels[query].items() if grade < 2]
        # A query must stay judged to be counted as one without relevant documents.
        kept += left or [(query, next(iter(qrels[query])), 0)]
    filtered = {
        name: {query: [id for id in ids if id not in wanted.get(query, ())] for query, ids in run.items()}
        for name, run in runs.items()
    }
    return filtered, Qrels(kept)


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
        except Exception as error:  # whatever its parser meets: NameError, ValueError, SyntaxError, ...
            raise UsageError(
                f"unknown measure {name!r} ({error}); for instance {', '.join(MEASURES)}"
            ) from error
        if not supported:
            raise UsageError(f"measure {name!r} cannot be computed here; for instance {', '.join(MEASURES)}")
        if measure not in parsed:
            parsed.append(measure)
    if not parsed:
        raise UsageError(f"name one measure at least; for instance {', '.join(MEASURES)}")
    return parsed


_BLIND_BEHIND_THE_LAST = {"nDCG", "RR", "R", "AP", "P", "Success", "Rprec"}
"""Measures that do not see what is ranked behind the last relevant document, so that is not handed on."""


def _rank_scores(query: str, ids: Sequence[str], judged: Mapping[str, int] | None) -> dict[str, float]:
    """Strictly decreasing scores; with ``judged``, only down to the last relevant document."""
    if len(set(ids)) < len(ids):
        raise InputError(f"query {query!r}: a document is retrieved twice; each may be ranked once")
    if judged is not None:
        found = [place for place, id in enumerate(ids, 1) if id in judged and judged[id] > 0]
        ids = ids[: found[-1] if found else 1]
    return dict(zip(ids, map(float, range(len(ids), 0, -1))))
