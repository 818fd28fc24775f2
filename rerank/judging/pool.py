"""Queries and hits for people to judge: a pool of the best hits of several stacks."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from rerank.common.errors import InputError, UsageError
from rerank.common.files import as_system_error, write_text
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.common.values import items_not_in, without, without_none
from rerank.documents.records import Query
from rerank.documents.text import count_of, query_key
from rerank.formats.inputs import Queries, as_list, as_queries
from rerank.formats.opening import reading_error
from rerank.stack.linear import Linear
from rerank.stack.parse import parse_stack
from rerank.stack.signals import ranker_names
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

POOL_MARK = '"rerank_pool"'
"""Text near the start of every pool file. Other existing files are not replaced."""
FORMAT = 1
COUNT_FIELD = "count"
"""Field of a query with the number of its searches."""
SAMPLE = 1000
"""Most queries that are ranked to find those on which the stacks differ most."""
LONGEST_TEXT = 2000
"""Characters of a document in the pool."""
TRAFFIC = "traffic"
RANDOM = "random"
DIFFERENCE = "difference"

Rankings = Sequence[Sequence[str]]
"""The best hits of a query by each stack."""


@dataclass(frozen=True)
class PoolOptions:
    """Size of a pool.

    count: number of queries. top: best hits of each stack. seed: of the random choice and of the order.
    """

    count: int = 50
    top: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("count", "top"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; give a number of 1 or more")


class PoolHit(msgspec.Struct, frozen=True):
    """A document to judge. Nothing shows which stack has found it."""

    id: str
    title: str = ""
    text: str = ""


class PoolQuery(msgspec.Struct, frozen=True):
    """A query and its hits, in random order. reason: ``traffic``, ``random`` or ``difference``."""

    id: str
    text: str
    hits: tuple[PoolHit, ...]
    reason: str = RANDOM


class Pool(msgspec.Struct, frozen=True):
    """Queries and hits to judge. stacks: texts of the stacks whose best ``top`` hits are pooled."""

    queries: tuple[PoolQuery, ...]
    stacks: tuple[str, ...] = ()
    top: int = 0
    seed: int = 0
    rerank_pool: int = FORMAT

    @property
    def hits(self) -> int:
        """The number of hits to judge, of all queries together."""
        return sum(len(query.hits) for query in self.queries)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the pool as JSON, with the fields that identify it at the start."""
        fields = msgspec.to_builtins(self)
        record = {"rerank_pool": fields.pop("rerank_pool"), "stacks": fields.pop("stacks"), **fields}
        write_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n", follow=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Pool:
        """Read a pool. Raises InputError for another file, or one in which an id comes twice."""
        name = os.fspath(path)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise as_system_error(error, path) or reading_error(name, 1, error) from error
        if POOL_MARK.encode() not in data[:1000]:
            raise InputError(f"{name}: not a pool; `rerank judge pool` makes one")
        try:
            pool = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{name}: damaged pool ({error}); make it again by `rerank judge pool`"
            ) from error
        if pool.rerank_pool != FORMAT:
            raise InputError(
                f"{name}: pool format {pool.rerank_pool}, but this version reads {FORMAT}; make it again"
            )
        problem = pool.problem()
        if problem is not None:
            raise InputError(f"{name}: {problem}; make the pool again by `rerank judge pool`")
        return pool

    def problem(self) -> str | None:
        """Return why people cannot judge this pool, or None."""
        if not self.hits:
            return "nothing to judge"
        lists: list[Sequence[PoolQuery] | Sequence[PoolHit]] = [query.hits for query in self.queries]
        if any(map(_has_repeated_ids, [self.queries, *lists])):
            return "an id comes twice"
        return None


def _has_repeated_ids(records: Sequence[PoolQuery] | Sequence[PoolHit]) -> bool:
    return len({record.id for record in records}) < len(records)


@dataclass
class PoolReport(Report):
    """A pool that was made.

    reasons: why queries were chosen -> their number. without_hits: number of queries without any hit.
    repeated: number of queries that repeat another one, with the same words, categories and parameters.
    difference: mean difference of the stacks on the ranked queries, from 0 (equal lists) to 1 (no common
    hit).
    """

    pool: Pool
    reasons: dict[str, int]
    ranked: int
    without_hits: int
    difference: float
    repeated: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each query, with the reason of its choice and the number of its hits."""
        return [
            {"query": query.text, "reason": query.reason, "hits": len(query.hits)}
            for query in self.pool.queries
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the counts without the queries and hits, which are in the file of the pool."""
        return {
            "queries": len(self.pool.queries),
            "hits": self.pool.hits,
            "reasons": self.reasons,
            "ranked": self.ranked,
            "without_hits": self.without_hits,
            "difference": self.difference,
            "repeated": self.repeated,
            "stacks": list(self.pool.stacks),
            "top": self.pool.top,
        }


def judged_file(pool: str | os.PathLike[str]) -> Path:
    """Return the file of the judgments of a pool.

    >>> judged_file("work/pool.json")
    PosixPath('work/pool.judged.jsonl')
    """
    path = Path(pool)
    return path.with_name(f"{path.stem}.judged.jsonl")


def make_pool(
    workspace: WorkspaceOrPath,
    stacks: str | Stack | Sequence[str | Stack],
    queries: Queries,
    options: PoolOptions = PoolOptions(),
    progress: Progress = SILENT,
) -> PoolReport:
    """Choose queries, and pool the best hits of the stacks for them.

    Half of the queries are the most frequent ones, if queries have a field ``count``, else a random sample.
    For the other half, the lists of the stacks differ most. Queries without hits are left out, and so are
    queries that repeat another one. The order of the queries and of the hits is random, but the same for the
    same seed, so it does not show the stack.

    stacks: texts as for :meth:`Workspace.stack`, or stacks. Signals without tuned weights are pooled as two
    stacks, see :func:`separate_first_stage`. One stack is pooled with its first stage.

    Raises UsageError for an unknown stack, InputError if no query has a hit.

    >>> report = make_pool(workspace, ["bm25", "tfidf"], {"q1": "wolf", "q2": "night"}, PoolOptions(count=1))
    >>> [(query.text, sorted(hit.id for hit in query.hits)) for query in report.pool.queries]
    [('night', ['owl', 'wolf'])]
    """
    workspace = Workspace.open(workspace)
    loaded: list[Stack] = []
    for stack in itertools.chain.from_iterable(map(partial(_load_stacks, workspace), as_list(stacks))):
        if stack not in loaded:
            loaded.append(stack)
    if len(loaded) == 1 and loaded[0].signals != (loaded[0].first_stage,):
        loaded.insert(0, workspace.stack(loaded[0].first_stage, latest=True))
    if not loaded:
        raise UsageError("no stack is named; name the stacks whose hits are judged")
    all_queries = as_queries(queries)
    shuffled = sorted(_distinct(all_queries), key=lambda query: _hash(options.seed, query.id))
    chooser = _Chooser(_ranker(workspace, loaded, options.top), options.count, progress)
    choices = chooser.choose(shuffled)
    if not choices:
        raise InputError(
            f"no hit for {count_of(len(shuffled), 'query')}; check that the queries belong to the collection"
        )
    choices.sort(key=lambda choice: _hash(options.seed, choice[0].id))
    pooled = []
    for query, reason in choices:
        ids = {*itertools.chain(*chooser.rankings[query.id])}
        hits = tuple(_hits(workspace, sorted(ids, key=partial(_hash, options.seed, query.id))))
        if hits:
            pooled.append(PoolQuery(query.id, query.text, hits, reason))
    reasons = Counter(reason for _, reason in choices)
    return PoolReport(
        pool=Pool(tuple(pooled), tuple(map(str, loaded)), options.top, options.seed),
        reasons=dict(reasons),
        ranked=len(chooser.rankings),
        without_hits=chooser.without_hits,
        difference=fmean(difference(rankings) for rankings in chooser.rankings.values()),
        repeated=len(all_queries) - len(shuffled),
    )


def _distinct(queries: Sequence[Query]) -> list[Query]:
    """Return one of the queries with the same words, categories and parameters: the most frequent one.

    A log of searches repeats queries under other ids. Nobody should judge the same hits twice.
    """
    most_frequent: dict[tuple[object, ...], Query] = {}
    for query in sorted(queries, key=lambda query: (-_count_of(query), query.id)):
        params = without(query.params, [COUNT_FIELD])
        words = (query_key(query.text), query_key(query.lexical))
        key = (*words, query.categories, query.lang, repr(sorted(params.items())))
        most_frequent.setdefault(key, query)
    return list(most_frequent.values())


def _load_stacks(workspace: Workspace, text: str | Stack) -> list[Stack]:
    """Return the stack that a text names, or two stacks for signals without tuned weights."""
    if isinstance(text, Stack):
        return [text]
    is_file_or_number = text.endswith(".json") or text.isdecimal()
    if not is_file_or_number:
        names, weights = parse_stack(text)
        has_weights = weights is not None or len(names) == 1 or workspace.is_tuned(names)
        if not has_weights:
            return separate_first_stage(equal_weights(workspace, names))
    return [workspace.stack(text, latest=True)]


def equal_weights(workspace: Workspace, signals: Sequence[str]) -> Stack:
    """Return the stack of these signals with equal weights."""
    return workspace.stack("+".join(f"{name}*1" for name in signals))


def separate_first_stage(stack: Stack) -> list[Stack]:
    """Return the first stage of a stack, and a stack of its rankers with equal weights.

    Weights between both are tuned later, on the judged hits of both. The stack itself has many hits of its
    first stage, so fewer hits of the rankers would be judged (benchmarks/decisions.md). Without rankers, the
    second stack has the remaining signals. A stack of only its first stage, or without it, is returned
    unchanged.

    >>> list(map(str, separate_first_stage(Stack.parse("bm25*1 + tfidf*1 + text*1 + meta*1"))))
    ['bm25*1.00', 'text*1.00 + meta*1.00']
    """
    remaining = tuple(items_not_in(stack.signals, [stack.first_stage]))
    second_signals = ranker_names(remaining) or remaining
    if not second_signals or stack.first_stage not in stack.signals:
        return [stack]
    normalization = stack.combiner.normalization if len(second_signals) > 1 else "none"
    first = Linear((stack.first_stage,), (1.0,), "none")
    second = Linear(second_signals, (1.0,) * len(second_signals), normalization)
    return [replace(stack, combiner=first, versions={}), replace(stack, combiner=second)]


class _Chooser:
    """Ranks queries, and chooses those to judge.

    rankings: query id -> lists of the ranked queries with hits.
    """

    def __init__(self, rank: Callable[[Query], Rankings], count: int, progress: Progress) -> None:
        self.rankings: dict[str, Rankings] = {}
        self.without_hits = 0
        self._rank = rank
        self._count = count
        self._progress = progress

    def choose(self, shuffled: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return queries with the reason of their choice. shuffled: all queries in random order."""
        frequent = sorted(shuffled, key=_count_of, reverse=True)  # stable: ties stay random
        reason = TRAFFIC if any(map(_count_of, shuffled)) else RANDOM
        half = (self._count + 1) // 2
        with self._progress.step("rank queries", unit="query") as advance:
            first_half = list(itertools.islice(self._with_hits(frequent, advance), half))
            unranked = [query for query in shuffled if query.id not in self.rankings]
            sample = list(self._with_hits(unranked[:SAMPLE], advance))
        sample.sort(key=lambda query: -difference(self.rankings[query.id]))  # stable: ties stay random
        second_half = sample[: self._count - len(first_half)]
        return [*zip(first_half, itertools.repeat(reason)), *zip(second_half, itertools.repeat(DIFFERENCE))]

    def _with_hits(self, queries: Sequence[Query], advance: Callable[[int], object]) -> Iterator[Query]:
        """Rank queries and yield the ones with a hit."""
        for query in queries:
            rankings = self._rank(query)
            advance(1)
            if any(rankings):
                self.rankings[query.id] = rankings
                yield query
            else:
                self.without_hits += 1


def difference(rankings: Rankings) -> float:
    """Return how much the lists of a query differ: 1 minus their average overlap, mean over all pairs.

    The overlap at depth d is the share of the first d hits that both lists have. It is averaged over the
    depths up to the longer list (Webber, Moffat, Zobel 2010, section 3.2).

    >>> difference([["a", "b"], ["a", "b"]]), difference([["a", "b"], ["b", "a"]]), difference([["a"], ["c"]])
    (0.0, 0.5, 1.0)
    """
    pairs = itertools.combinations(rankings, 2)
    return fmean([_pair_difference(first, second) for first, second in pairs] or [0.0])


def _pair_difference(first: Sequence[str], second: Sequence[str]) -> float:
    depth = max(len(first), len(second))
    if not depth:
        return 0.0
    return 1 - fmean(len(set(first[:d]) & set(second[:d])) / d for d in range(1, depth + 1))


def _ranker(workspace: Workspace, stacks: Sequence[Stack], top: int) -> Callable[[Query], Rankings]:
    """Return a function that ranks a query by each stack."""
    pipelines = list(map(workspace.pipeline_of, stacks))

    def rank(query: Query) -> Rankings:
        answers = [pipeline.answer(query, stack) for pipeline, stack in zip(pipelines, stacks)]
        return [list(answer.ranking.ids[:top]) for answer in answers]

    return rank


def _hits(workspace: Workspace, ids: Sequence[str]) -> list[PoolHit]:
    """Return the documents with these ids as hits, without deleted ones."""
    documents = without_none(dict(zip(ids, workspace.engine.get(ids))))
    return [PoolHit(id, document.title, document.text[:LONGEST_TEXT]) for id, document in documents.items()]


def _count_of(query: Query) -> float:
    """Return the number of searches of a query, or 0 if it is unknown."""
    fields: Mapping[str, Any] = query.params
    count = fields.get(COUNT_FIELD)
    return float(count) if isinstance(count, Real) else 0.0


def _hash(seed: int, *parts: str) -> bytes:
    return hashlib.sha256("\0".join((str(seed), *parts)).encode("utf-8", "surrogatepass")).digest()
