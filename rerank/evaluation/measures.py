"""Measuring runs: measures by name, significance, protocols, and how far categories overlap."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.errors import InputError, UsageError
from rerank.records import Qrels

Array = NDArray[np.float64]

MEASURES = ("nDCG", "nDCG@10", "RR", "R@1000")
"""What is reported by default, in ir_measures' names; nDCG has no cut-off, as in Kuwa et al. (2020)."""

PROTOCOLS = ("retrieved", "pool-random", "pool-first")

_EXACT = 16  # with this many differing queries or fewer, all sign flips are enumerated
_CELLS = 2_000_000  # signs drawn at a time


# ----------------------------------------------------------------------------------------------- measures


@dataclass(frozen=True)
class Evaluation:
    """Per-query values of each run: the input of every table and every comparison.

    measures:      names, as ir_measures writes them.
    query_ids:     Q judged queries that have a relevant document, ascending; means are over all of them.
    values:        run -> measure -> (Q,).
    empty:         run -> how many of these queries retrieved nothing; they count as 0.
    unjudged:      run -> how many of its queries have no judgement; they are left out.
    none_relevant: judged queries without any relevant document; they are left out of every mean.
    """

    measures: tuple[str, ...]
    query_ids: tuple[str, ...]
    values: Mapping[str, Mapping[str, Array]]
    empty: Mapping[str, int]
    unjudged: Mapping[str, int]
    none_relevant: tuple[str, ...]

    def mean(self, run: str, measure: str) -> float:
        """Return the mean over all queries of ``query_ids``."""
        return math.fsum(self.values[run][measure].tolist()) / len(self.query_ids)


def check_measures(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as ir_measures writes them. Raises UsageError for one it does not know.

    >>> check_measures(["nDCG@10", "Recall@100"])
    ('nDCG@10', 'R@100')
    """
    return tuple(str(measure) for measure in _parse(names))


def evaluate_runs(
    runs: Mapping[str, Mapping[str, Sequence[str]]], qrels: Qrels, measures: Sequence[str] = MEASURES
) -> Evaluation:
    """Measure runs (name -> query id -> document ids, best first) against the judgements.

    ir_measures computes the values. It is handed scores made from the ranks, strictly decreasing, so that
    the order is the run's own and trec_eval's rule for ties never decides. A judged query that a run does not
    have, or that retrieved nothing, counts as 0. A judged query without a relevant document has no defined
    value: it is left out, and listed (trec_eval would count it as 0).

    Raises UsageError for an unknown measure, InputError when no judged query has a relevant document or when
    a document is retrieved twice for one query.

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
    evaluator = ir_measures.evaluator(parsed, judged)
    short = all(measure.NAME in _BLIND_BEHIND_THE_LAST for measure in parsed)
    values: dict[str, dict[str, Array]] = {}
    for run_name, run in runs.items():
        columns = {name: np.zeros(len(query_ids)) for name in names}
        scored = {
            query: _rank_scores(query, run[query], judged[query] if short else None)
            for query in query_ids
            if run.get(query)
        }
        for metric in evaluator.iter_calc(scored) if scored else ():
            columns[str(metric.measure)][at[metric.query_id]] = metric.value
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
    """Take every document of grade 2 and up out of the judgements and of the rankings.

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


# -------------------------------------------------------------------------------------------- comparisons


@dataclass(frozen=True, slots=True)
class Comparison:
    """One stack against the baseline on one measure.

    delta: mean of the stack minus mean of the baseline; p: two-sided, of :func:`randomization_test`;
    p_holm: p corrected for all comparisons that were made with it; wins, losses: queries.
    """

    stack: str
    baseline: str
    measure: str
    delta: float
    p: float
    p_holm: float
    wins: int
    losses: int


def compare(
    evaluation: Evaluation,
    baseline: str,
    *,
    measures: Sequence[str] | None = None,
    permutations: int = 100_000,
    seed: int = 0,
) -> list[Comparison]:
    """Compare every other run with ``baseline`` on each measure; Holm's correction is over all of them.

    Comparisons come in the order of the runs, then of the measures. The same seed gives the same p-values.

    Raises UsageError for a baseline or a measure that was not evaluated.
    """
    if baseline not in evaluation.values:
        raise UsageError(f"no run {baseline!r} to compare with; there are {', '.join(evaluation.values)}")
    names = evaluation.measures if measures is None else check_measures(measures)
    for name in names:
        if name not in evaluation.measures:
            raise UsageError(f"{name} was not measured; there are {', '.join(evaluation.measures)}")
    pairs = [(run, name) for run in evaluation.values for name in names if run != baseline]
    differences = [evaluation.values[run][name] - evaluation.values[baseline][name] for run, name in pairs]
    found = randomization_tests(differences, permutations=permutations, seed=seed)
    return [
        Comparison(
            stack=run,
            baseline=baseline,
            measure=name,
            delta=math.fsum(difference.tolist()) / len(difference),
            p=p,
            p_holm=p_holm,
            wins=int((difference > 0).sum()),
            losses=int((difference < 0).sum()),
        )
        for (run, name), difference, p, p_holm in zip(pairs, differences, found, holm(found))
    ]


def randomization_test(differences: ArrayLike, *, permutations: int = 100_000, seed: int = 0) -> float:
    """Paired randomization test (Smucker et al. 2007): two-sided p of the mean of n per-query differences.

    Under the null hypothesis the two runs' values are exchangeable within each query, so each difference may
    as well have the other sign. p is the share of sign assignments whose mean is at least as far from 0 as
    the observed one. With 16 differing queries or fewer all assignments are enumerated and p is exact;
    otherwise ``permutations`` of them are drawn and p = (count + 1) / (permutations + 1), never 0.

    >>> randomization_test([0.1, 0.2, 0.3])
    0.25
    """
    return randomization_tests([differences], permutations=permutations, seed=seed)[0]


def randomization_tests(
    differences: Sequence[ArrayLike], *, permutations: int = 100_000, seed: int = 0
) -> list[float]:
    """Test K rows of n differences over the same queries, each as :func:`randomization_test`.

    All share the drawn signs, so that K tests are one matrix product and little dearer than one.
    """
    rows = np.array([np.asarray(row, dtype=np.float64) for row in differences])
    if rows.size == 0:
        return [1.0] * len(rows)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError("differences must be rows of finite numbers, of one length")
    differing = (rows != 0).sum(axis=1)  # a query that does not differ adds 0 under either sign
    p = [_exact(row[row != 0]) if count <= _EXACT else 0.0 for row, count in zip(rows, differing.tolist())]
    drawn = np.flatnonzero(differing > _EXACT)
    if len(drawn):
        some = rows[drawn]
        counts = _draw(some[:, (some != 0).any(axis=0)], permutations, seed)
        for place, count in zip(drawn.tolist(), counts.tolist()):
            p[place] = (count + 1) / (permutations + 1)
    return p


def _reach(values: Array) -> Array:
    """How far from 0 a sum must be to count, per row: sums that are equal but for rounding do."""
    reach: Array = np.abs(values.sum(axis=-1)) - 1e-12 * np.abs(values).sum(axis=-1)
    return reach


def _exact(values: Array) -> float:
    """Enumerate all signs of a few differences."""
    n = len(values)
    if n == 0:
        return 1.0
    # The sign of the last difference is fixed: flipping all signs gives the same distance from 0.
    patterns = np.arange(2 ** (n - 1), dtype=np.uint32)
    flips: NDArray[Any] = (patterns[:, None] >> np.arange(n, dtype=np.uint32)) & 1
    sums = values.sum() - 2.0 * (flips.astype(np.float64) @ values)
    return float((np.abs(sums) >= _reach(values)).mean())


def _draw(rows: Array, permutations: int, seed: int) -> NDArray[np.int64]:
    """Count, for each of the K rows, the drawn sign assignments whose sum is far enough from 0."""
    generator = np.random.default_rng(seed)
    n = rows.shape[1]
    observed, reach, columns = rows.sum(axis=1), _reach(rows), np.ascontiguousarray(rows.T)
    counts = np.zeros(len(rows), dtype=np.int64)
    chunk = max(1, _CELLS // n)
    for start in range(0, permutations, chunk):
        size = min(chunk, permutations - start)
        drawn = np.frombuffer(generator.bytes(-(-size * n // 8)), dtype=np.uint8)
        flips = np.unpackbits(drawn, count=size * n).reshape(size, n)
        sums = observed - 2.0 * (flips.astype(np.float64) @ columns)
        counts += (np.abs(sums) >= reach).sum(axis=0)
    return counts


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for being several (Holm 1979): in the order given, each at least what it was.

    The k-th smallest of m is multiplied by m - k + 1; a larger one never ends below a smaller one.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    reached = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = reached
    return corrected


# ---------------------------------------------------------------------------------------------- protocols


@dataclass(frozen=True, slots=True)
class Protocol:
    """Which documents are ranked for a query (Kuwa et al. 2020).

    retrieved:N    what the first stage returned, N at most: what a user gets
    pool-random:N  all relevant documents and N random irrelevant ones (their Tables 2 and 3)
    pool-first:N   all relevant documents and the first stage's N best irrelevant ones (their Table 4)
    """

    kind: str
    count: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


def parse_protocol(text: str) -> Protocol:
    """Parse ``retrieved:1000``, ``pool-random:40`` or ``pool-first:200``. Raises UsageError otherwise.

    >>> parse_protocol("pool-first:200")
    Protocol(kind='pool-first', count=200)
    """
    match = re.fullmatch(r"([a-z-]+):([0-9]{1,9})", text.strip())
    if match is None or match[1] not in PROTOCOLS or int(match[2]) < 1:
        kinds = ", ".join(f"{kind}:N" for kind in PROTOCOLS)
        raise UsageError(f"unknown protocol {text!r}; choose one of {kinds} with N of 1 or more")
    return Protocol(match[1], int(match[2]))


# ------------------------------------------------------------------------------------------------ overlap


OVERLAP_BUCKETS = ("0%", *(f"{10 * tenth}-{10 * tenth + 10}%" for tenth in range(10)))
"""0 alone, then ten buckets that include their upper end: (0, 10], (10, 20], ... (90, 100]."""


@dataclass(frozen=True)
class CategoryOverlap:
    """Histogram over pairs of a query and a relevant document, as Figure 2 of Kuwa et al. (2020).

    counts:             pairs per bucket of OVERLAP_BUCKETS.
    without_categories: pairs whose document has no categories; they are in no bucket.
    """

    counts: tuple[int, ...]
    without_categories: int

    @property
    def shares(self) -> tuple[float, ...]:
        """Each bucket's part of all counted pairs; all 0 when there are none."""
        total = sum(self.counts)
        return tuple(count / total if total else 0.0 for count in self.counts)


def category_overlap(pairs: Iterable[tuple[Iterable[str], Iterable[str]]]) -> CategoryOverlap:
    """Count how much of a relevant document's categories the query has, over (query's, document's) pairs.

    Most pairs in the 0 bucket mean that matching categories exactly cannot find those documents, and that
    a signal has to learn which categories go together.

    >>> overlap = category_overlap([(["a", "b"], ["a", "c"]), (["a"], ["d"]), ([], [])])
    >>> overlap.counts[0], overlap.counts[5], overlap.without_categories
    (1, 1, 1)
    """
    counts = [0] * len(OVERLAP_BUCKETS)
    without = 0
    for query_categories, document_categories in pairs:
        document = set(document_categories)
        if document:
            shared = len(document.intersection(query_categories))
            counts[-(-10 * shared // len(document))] += 1  # rounded up; only 0 is in the first bucket
        else:
            without += 1
    return CategoryOverlap(tuple(counts), without)
