"""Weights of their own for short and long queries, or for each language, where that is shown to help."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.evaluation.significance import holm
from rerank.records import Qrels, Query
from rerank.scoring.table import ScoreTable
from rerank.stack.cases import by_lang, by_words, kind, words_of
from rerank.tuning.measuring import sum_values
from rerank.tuning.search import Tuned, problem_of

ENOUGH = 50
"""Queries that a kind needs to have weights of its own."""

LEVEL = 0.05
"""A gain counts where p, corrected for all that was tried, is below this."""

FOLDS = 5


@dataclass(frozen=True)
class Gain:
    """What cross-validation says of weights of their own for the kinds of a case's queries.

    case:     the case, of ``rerank.stack.cases``; empty for a stack that tells none apart.
    by:       ``words`` or ``lang``.
    kinds:    name of each kind -> how many judged queries it has.
    value:    the measure with weights of each kind, on queries that they were not tuned on.
    together: the same with one set of weights for all.
    p:        of :func:`corrected_p`; Holm-corrected by :func:`worth`.
    kept:     whether the stack has them.
    """

    case: str
    by: str
    kinds: Mapping[str, int]
    value: float
    together: float
    p: float
    kept: bool = False


def candidates(queries: Sequence[Query]) -> dict[str, tuple[str, ...]]:
    """How queries can be told apart, in kinds with enough of them: by -> names of the kinds.

    By words: as near to the middle as their number allows. By language: those that have enough.

    >>> queries = [Query("", "wolf" + " wolf" * (i % 4)) for i in range(120)]
    >>> candidates(queries)
    {'words': ('words<3', 'words>=3')}
    """
    found: dict[str, tuple[str, ...]] = {}
    lengths = np.array([words_of(query) for query in queries], np.int64)
    if len(lengths):
        middle = int(np.median(lengths))
        sizes = [
            (min(n := int((lengths < least).sum()), len(lengths) - n), -least)
            for least in (middle, middle + 1)
        ]
        size, least = max(sizes)
        if size >= ENOUGH:
            found["words"] = by_words(-least)
    spoken = Counter(query.lang for query in queries if query.lang)
    langs = sorted(lang for lang, count in spoken.items() if count >= ENOUGH)
    if len(langs) > 1:
        found["lang"] = tuple(map(by_lang, langs))
    return found


def tune_kinds(
    table: ScoreTable,
    qrels: Qrels,
    queries: Mapping[str, Query],
    *,
    case: str = "",
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    **settings: Any,
) -> tuple[Tuned, list[Gain]]:
    """Tune one case, as :func:`rerank.tuning.search.tune`, and try weights of their own for its kinds.

    Each setting is measured once for each query, so that the trial costs little more. A query of no kind, as
    one in a language with few queries, has the weights for all in both.

    queries: id -> query; where a judged one is not there, nothing is tried.
    """
    problem = problem_of(table, qrels, **settings)
    judged, n = problem.judged, len(problem.judged)
    asked = [queries[one.query] for one in judged if one.query in queries]
    tried = candidates(asked) if len(asked) == n else {}
    folds = np.empty(n, np.int64)
    folds[np.random.default_rng(seed).permutation(n)] = np.arange(n) % FOLDS
    # (n, 1 + tried): the fold, and its kind in each way to tell queries apart, -1 for none.
    rows = np.stack([folds, *(_places(names, asked) for names in tried.values())], axis=1)
    kinds, group = np.unique(rows if tried else np.zeros((n, 1), np.int64), axis=0, return_inverse=True)
    group = group.reshape(-1)
    counts = np.bincount(group)
    sums = sum_values(
        problem.table, judged, problem.grids, problem.measure, problem.ranges, group.tolist(), progress
    )

    def chosen(where: NDArray[np.bool_]) -> tuple[int, int]:
        return problem.choose([total[where].sum(axis=0) / counts[where].sum() for total in sums])

    held_out = np.zeros((1 + len(tried), n))  # together, and by each way to tell queries apart
    for fold in range(FOLDS if tried else 0):
        train, test = kinds[:, 0] != fold, folds == fold
        held_out[:, test] = problem.values(chosen(train), np.flatnonzero(test))
        for way, names in enumerate(tried.values(), 1):
            for place in range(len(names)):
                inside = np.flatnonzero(test & (rows[:, way] == place))
                held_out[way, inside] = problem.values(chosen(train & (kinds[:, way] == place)), inside)
    together = math.fsum(held_out[0].tolist()) / n
    gains = [
        Gain(
            case,
            by,
            {name: int((rows[:, way] == place).sum()) for place, name in enumerate(names)},
            math.fsum(held_out[way].tolist()) / n,
            together,
            corrected_p(held_out[way] - held_out[0]),
        )
        for way, (by, names) in enumerate(tried.items(), 1)
    ]
    return problem.tuned([total.sum(axis=0) / n for total in sums]), gains


def corrected_p(differences: NDArray[np.float64], folds: int = FOLDS) -> float:
    """Two-sided p of the mean of n paired differences out of cross-validation.

    Folds share most of what they were tuned on, so that their results go together, and a test that takes
    queries as independent finds gains in noise. Nadeau and Bengio (2003, section 3) widen the variance by
    the share of the held-out: here by 1 + folds / (folds - 1). n is ``2 * ENOUGH`` or more: the mean is as
    good as normal.

    >>> round(corrected_p(np.array([0.1, 0.3] * 50)), 3), corrected_p(np.zeros(100))
    (0.0, 1.0)
    """
    n = len(differences)
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    if mean == 0.0 or spread == 0.0:
        return float(mean == 0.0)
    return math.erfc(abs(mean) / (spread * math.sqrt((1 + folds / (folds - 1)) / n)) / math.sqrt(2))


def worth(gains: Iterable[Gain]) -> list[Gain]:
    """Correct p for all that was tried, and say what is kept: the best of each case that shows a gain.

    >>> one = Gain("", "words", {"words<3": 60, "words>=3": 60}, value=0.6, together=0.5, p=0.02)
    >>> [(found.by, found.p, found.kept) for found in worth([one, replace(one, by="lang", p=0.4)])]
    [('words', 0.04, True), ('lang', 0.4, False)]
    """
    tried = list(gains)
    tried = [replace(one, p=p) for one, p in zip(tried, holm([one.p for one in tried]))]
    best: dict[str, Gain] = {}
    for one in sorted(tried, key=lambda one: one.value):
        if one.p < LEVEL and one.value > one.together:
            best[one.case] = one
    return [replace(one, kept=best.get(one.case) is one) for one in tried]


def of_kind(name: str, qrels: Qrels, queries: Mapping[str, Query]) -> Qrels:
    """Judgements of the queries of a kind."""
    holds = kind(name)
    assert holds is not None
    return Qrels((q, d, grade) for q in qrels if holds(queries[q]) for d, grade in qrels[q].items())


def _places(names: Sequence[str], queries: Sequence[Query]) -> NDArray[np.int64]:
    """(n,) which of the kinds each query is in; -1: none."""
    found = np.full(len(queries), -1, np.int64)
    for place, name in enumerate(names):
        holds = kind(name)
        assert holds is not None
        found[[holds(query) for query in queries]] = place
    return found
