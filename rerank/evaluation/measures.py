"""Measures of runs, from ir_measures."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError, UsageError
from rerank.documents.records import LARGEST_GRADE, Qrels
from rerank.evaluation.pair_measures import auc

if TYPE_CHECKING:
    from ir_measures import Measure
    from ir_measures.providers import Evaluator, Provider

Array = NDArray[np.float64]

_UNSET = re.compile(r"invalid param (\w+)=<object object at \w+>")
"""The error of ir_measures for a measure without a required parameter."""

MEASURES = ("nDCG@10", "nDCG", "RR", "R@100")
"""Default measures. The first one compares stacks. nDCG has no cut-off, as in Kuwa et al. (2020)."""


@dataclass(frozen=True)
class Evaluation:
    """The values of measures for each run and query.

    measures:      their names in ir_measures.
    query_ids:     the Q judged queries with a relevant document, ascending.
    values:        run -> measure -> (Q,) values.
    empty:         run -> number of queries without results, which count as 0.
    none_relevant: the judged queries without a relevant document, which are ignored.
    """

    measures: tuple[str, ...]
    query_ids: tuple[str, ...]
    values: Mapping[str, Mapping[str, Array]]
    empty: Mapping[str, int]
    none_relevant: tuple[str, ...]

    def mean(self, run: str, measure: str) -> float:
        """Return the mean of a measure over the Q queries, for one run."""
        return math.fsum(self.values[run][measure].tolist()) / len(self.query_ids)

    def means(self, run: str) -> dict[str, float]:
        """Return measure -> its mean over the Q queries, for one run."""
        return {measure: self.mean(run, measure) for measure in self.measures}


@dataclass(frozen=True)
class Auc:
    """The area under the ROC curve of the judged documents of a query, as ``AUC`` or ``AUC(rel=2)``.

    It is the probability that a relevant document is ranked above an irrelevant one; ties count half.
    Documents that are not ranked share the last place. Use it with ``--protocol judged``.

    rel: the lowest grade of relevant documents.
    """

    rel: int = 1

    @property
    def params(self) -> dict[str, int]:
        """The parameters, as measures of ir_measures have them."""
        return {"rel": self.rel}

    def __str__(self) -> str:
        return "AUC" if self.rel == 1 else f"AUC(rel={self.rel})"

    def value(self, ranking: Sequence[str], judged: Mapping[str, int]) -> float:
        """Return the area for one query; 0.5 if all judged documents are relevant, or all irrelevant.

        ranking: document ids, best first. judged: document id -> grade.

        >>> Auc().value(["a", "b", "c"], {"a": 1, "b": 0, "c": 1, "d": 0})
        0.75
        """
        labels = [grade >= self.rel for grade in judged.values()]
        if len(set(labels)) < 2:
            return 0.5
        score_of = {document: -rank for rank, document in enumerate(ranking)}
        score_of_others = -len(ranking)
        scores = [score_of.get(document, score_of_others) for document in judged]
        return auc(scores, labels)


_AUC = re.compile(r"AUC(?:\(rel=(\d+)\))?")


def check_measures(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as in ir_measures. Raises UsageError for an unknown measure.

    >>> check_measures(["nDCG@10", "Recall@100"])
    ('nDCG@10', 'R@100')
    """
    return tuple(map(str, _parse(names)))


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
    parsed_measures = _parse(measures)
    grades: dict[str, Mapping[str, int]] = {}
    none_relevant: list[str] = []
    for query in sorted(qrels):
        if qrels.relevant(query):
            grades[query] = dict(qrels[query])
        else:
            none_relevant.append(query)
    if not grades:
        raise InputError("none of the judged queries has a relevant document; check the qrels")
    measurer = _Measurer(parsed_measures, grades)
    values: dict[str, dict[str, Array]] = {}
    empty: dict[str, int] = {}
    for name, run in runs.items():
        values[name] = measurer.measure(run)
        empty[name] = sum(not run.get(query) for query in grades)
    return Evaluation(measurer.names, tuple(grades), values, empty, tuple(none_relevant))


class _Measurer:
    """Measures runs on Q judged queries.

    measures: of ir_measures, or :class:`Auc`. grades: query -> document -> grade.
    """

    def __init__(self, measures: Sequence[Measure | Auc], grades: Mapping[str, Mapping[str, int]]) -> None:
        self.names = tuple(map(str, measures))
        self._grades = grades
        self._position_of = {query: position for position, query in enumerate(grades)}
        self._areas: list[Auc] = []
        self._standard: list[Measure] = []
        for measure in measures:
            if isinstance(measure, Auc):
                self._areas.append(measure)
            else:
                self._standard.append(measure)

    def measure(self, run: Mapping[str, Sequence[str]]) -> dict[str, Array]:
        """Return measure -> (Q,) values. A query without results has 0."""
        values = {name: np.zeros(len(self._grades)) for name in self.names}
        for measure, query, value in self._compute_standard(run):
            values[measure][self._position_of[query]] = value
        for area in self._areas:
            values_of_area = values[str(area)]
            for query, position in self._position_of.items():
                ranking = run.get(query, ())
                values_of_area[position] = area.value(ranking, self._grades[query])
        return values

    def _compute_standard(self, run: Mapping[str, Sequence[str]]) -> list[tuple[str, str, float]]:
        """Return measure, query id and value of the measures of ir_measures."""
        scores: dict[str, dict[str, float]] = {}
        for query in self._grades:
            ids = run.get(query)
            if ids:
                scores[query] = _rank_scores(query, ids)
        if not scores or not self._standard:
            return []
        return _compute(self._evaluator, self.names, scores)

    @cached_property
    def _evaluator(self) -> Evaluator:
        return _provider().evaluator(self._standard, self._grades)


def split_measures(text: str) -> list[str]:
    """Split names at commas and white space outside of parentheses.

    >>> split_measures("nDCG@10, RBP(p=0.8,rel=1) RR")
    ['nDCG@10', 'RBP(p=0.8,rel=1)', 'RR']
    """
    return re.findall(r"(?:\([^)]*\)|[^\s,(])+|\(", text)


@cache
def _provider() -> Provider:
    """Return the measures of ir_measures, without the provider that starts a Perl script."""
    import ir_measures

    providers = [provider for provider in ir_measures.DefaultPipeline.providers if provider.NAME != "gdeval"]
    return ir_measures.providers.FallbackProvider(providers)  # type: ignore[no-untyped-call]


def _compute(
    evaluator: Evaluator, names: Sequence[str], scored: Mapping[str, Mapping[str, float]]
) -> list[tuple[str, str, float]]:
    """Return measure, query id and value. Raises UsageError for a measure that fails on these queries."""
    try:
        return [
            (str(metric.measure), metric.query_id, float(metric.value))
            for metric in evaluator.iter_calc(scored)
        ]
    except Exception as error:  # of any provider
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(
            f"ir_measures cannot compute {', '.join(names)} here ({reason}); leave the failing measure out"
        ) from error


def _check_parameters(measure: Measure | Auc) -> None:
    """Raise UsageError for parameters that abort trec_eval or raise its internal errors."""
    cutoff = measure.params.get("cutoff")
    if not _is_possible(cutoff, math.inf):
        raise UsageError(f"measure {str(measure)!r}: the cutoff must be 1 or more")
    relevant_grade = measure.params.get("rel")
    if not _is_possible(relevant_grade, LARGEST_GRADE):
        raise UsageError(f"measure {str(measure)!r}: rel must be from 1 to {LARGEST_GRADE:,}")


def _is_possible(parameter: object, largest: float) -> bool:
    """Return whether a parameter is a number from 1 to ``largest``. The class checks other types itself."""
    if not isinstance(parameter, int):
        return True
    return 1 <= parameter <= largest


def _parse(names: Sequence[str]) -> list[Measure | Auc]:
    """Return the measures with these names, each once. Raises UsageError for an unknown measure."""
    parsed: dict[Measure | Auc, None] = {}
    for name in names:
        area = _AUC.fullmatch(name.strip())
        measure = _parse_standard(name) if area is None else Auc(int(area[1] or 1))
        _check_parameters(measure)
        parsed[measure] = None
    return list(parsed)


def _read_measure(name: str, registry: Mapping[str, type[Measure]]) -> Measure:
    """Return the measure of ir_measures with this name, for example ``nDCG@10`` or ``R(rel=2)@100``.

    registry: name -> class of the measure.

    The parser of ir_measures 0.4.3 needs parts of the module ``ast`` that Python 3.14 has removed.
    """
    expression = ast.parse(name.strip(), mode="eval").body
    cutoff: object = None
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.MatMult):
        cutoff = ast.literal_eval(expression.right)
        expression = expression.left
    parameters: dict[str, object] = {}
    if isinstance(expression, ast.Call):
        parameters = _parameters_of(expression)
        expression = expression.func
    if not isinstance(expression, ast.Name):
        raise ValueError(f"not a measure: {name}")
    measure_class = registry[expression.id]
    if cutoff is not None:
        parameters[measure_class.AT_PARAM] = cutoff
    measure: Measure = measure_class(**parameters)
    return measure


def _parameters_of(call: ast.Call) -> dict[str, object]:
    """Return the parameters of a measure, such as ``rel=2``. Raises ValueError for one without name."""
    if call.args:
        raise ValueError("a parameter of a measure has a name")
    parameters: dict[str, object] = {}
    for keyword in call.keywords:
        name = keyword.arg or ""
        parameters[name] = ast.literal_eval(keyword.value)
    return parameters


def _parse_standard(name: str) -> Measure:
    """Return a measure of ir_measures. Raises UsageError if it does not know or cannot compute it."""
    from ir_measures.measures import registry

    examples = f"for example {', '.join(MEASURES)}"
    try:
        measure = _read_measure(name, registry)
        _check_parameters(measure)  # the providers may fail for wrong ones
        is_supported = _provider().supports(measure)
    except UsageError:
        raise
    except Exception as error:  # its parser raises NameError, ValueError, SyntaxError, ...
        unset = _UNSET.search(str(error))
        problem = f"measure {name!r} needs the parameter {unset[1]}" if unset else f"unknown measure {name!r}"
        raise UsageError(f"{problem}; {examples}") from error
    if not is_supported:
        raise UsageError(f"measure {name!r} cannot be computed here; {examples}")
    return measure


def _rank_scores(query: str, ids: Sequence[str]) -> dict[str, float]:
    """Return document id -> score, which decreases with the rank."""
    count = len(ids)
    if len(set(ids)) < count:
        raise InputError(f"query {query!r}: a document is retrieved twice; each may be ranked once")
    scores = np.arange(count, 0, -1, dtype=np.float64)
    return dict(zip(ids, scores.tolist()))
