"""Measures of runs, from ir_measures."""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class Evaluation:
    """Values per run and query.

    measures:      ir_measures names.
    query_ids:     Q judged queries with a relevant document, ascending.
    values:        run -> measure -> (Q,).
    empty:         run -> number of queries without results.
    none_relevant: ignored judged queries.
    """

    measures: tuple[str, ...]
    query_ids: tuple[str, ...]
    values: Mapping[str, Mapping[str, Array]]
    empty: Mapping[str, int]
    none_relevant: tuple[str, ...]

    def mean(self, run: str, measure: str) -> float:
        """Return the mean."""
        return math.fsum(self.values[run][measure].tolist()) / len(self.query_ids)

    def means(self, run: str) -> dict[str, float]:
        """Return measure -> mean."""
        return {measure: self.mean(run, measure) for measure in self.measures}


def check_measures(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as in ir_measures. Raises UsageError for an unknown measure.

    >>> check_measures(["nDCG@10", "Recall@100"])
    ('nDCG@10', 'R@100')
    """
    return tuple(str(measure) for measure in _parse(names))


def evaluate_runs(
    runs: Mapping[str, Mapping[str, Sequence[str]]], qrels: Qrels, measures: Sequence[str] = MEASURES
) -> Evaluation:
    """Measure runs: name -> query id -> document ids, best first.

    Judged queries without results count as 0; those without relevant documents are ignored (0 in trec_eval).

    Raises UsageError for an unknown measure; InputError if no judged query has a relevant document, or a
    query retrieves a document twice.

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
    evaluator = ir_measures.evaluator(parsed, {query: dict(qrels[query]) for query in query_ids})
    values = {name: {measure: np.zeros(len(query_ids)) for measure in names} for name in runs}
    for name, run in runs.items():
        scored = {query: _rank_scores(query, run[query]) for query in query_ids if run.get(query)}
        for metric in evaluator.iter_calc(scored) if scored else ():
            values[name][str(metric.measure)][at[metric.query_id]] = metric.value
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
    examples = f"for example {', '.join(MEASURES)}"
    parsed: list[Any] = []
    for name in names:
        try:
            measure = ir_measures.parse_measure(name)
            supported = pipeline.supports(measure)
        except Exception as error:  # its parser raises NameError, ValueError, SyntaxError, ...
            raise UsageError(f"unknown measure {name!r} ({error}); {examples}") from error
        if not supported:
            raise UsageError(f"measure {name!r} cannot be computed here; {examples}")
        if measure not in parsed:
            parsed.append(measure)
    return parsed


def _rank_scores(query: str, ids: Sequence[str]) -> dict[str, float]:
    """Return decreasing scores."""
    if len(set(ids)) < len(ids):
        raise InputError(f"query {query!r}: a document is retrieved twice; each may be ranked once")
    return dict(zip(ids, map(float, range(len(ids), 0, -1))))
