"""Tune stacks on judged queries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rerank.combiners.base import CASES
from rerank.combiners.folds import CrossValidated, cross_validate
from rerank.combiners.linear import Linear
from rerank.combiners.normalize import PER_QUERY, TRIED
from rerank.combiners.score_table import ScoreTable
from rerank.combiners.tune import TuningResult
from rerank.combiners.tune import tune as tune_table
from rerank.errors import UsageError
from rerank.evaluation.leakage import Leak, TrainingRecord, leakage
from rerank.evaluation.protocols import Protocol, parse_protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.files import check_output
from rerank.filters import filters_of
from rerank.inputs import Judgments, Queries, as_qrels, as_queries
from rerank.progress import Progress
from rerank.records import Qrels, SearchTemplate
from rerank.results import Report, plain
from rerank.search.build_table import ScoringReport
from rerank.stack.parse import parse_stack, retriever_depths
from rerank.stack.signals import DEFAULT_FIRST_STAGE, SEARCH, first_stages, is_clause, learned
from rerank.stack.stack import Stack
from rerank.workflows.experiment import Experiment, JudgedQueries
from rerank.workspace import Workspace

Judged = tuple[ScoreTable, Qrels]
"""Scores of candidates, and the judgments of the same queries."""

_OF_CASE = ("queries", "value", "first_stage_value")
"""Of a case, in the stack's record."""


@dataclass
class TuneReport(Report):
    """A tuned stack.

    case: queries of the main weights; empty for all. cases: other results. rerank_only: without the first
    stage's signal, or None. dropped: signal without weight -> its value. protocol: candidates. leaks: rankers
    trained on these queries.
    """

    stack: Stack
    tuned: TuningResult
    leaks: list[Leak]
    validated: CrossValidated | None
    path: Path
    scoring: ScoringReport
    case: str = ""
    cases: Mapping[str, TuningResult] = field(default_factory=dict)
    rerank_only: TuningResult | None = None
    dropped: Mapping[str, float] = field(default_factory=dict)
    protocol: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the stack file with details of the tuning."""
        more = {"file": self.path, "leaks": self.leaks, "scoring": self.scoring}
        if self.validated is not None:
            more["cross_validated"] = self.validated
        return {**self.stack.to_json(), **plain(more)}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per signal."""
        rows = [
            {
                "signal": name,
                "weight": weight,
                "single_signal": self.tuned.single_signal[name],
                "ablation": self.tuned.ablation.get(name),
            }
            for name, weight in self.tuned.combiner.shares().items()
        ]
        gone = (
            {"signal": name, "weight": 0.0, "single_signal": value} for name, value in self.dropped.items()
        )
        return rows + [{**row, "ablation": self.tuned.value} for row in gone]


@dataclass(frozen=True)
class _Search:
    first: str
    own: SearchTemplate | None
    retrieve: tuple[str, ...]
    protocol: Protocol

    def fields(self, depth: int) -> dict[str, Any]:
        count = self.protocol.count if self.protocol.kind == "retrieved" else depth
        return {"depth": count, "retrieve": self.retrieve, "search": self.own}


@dataclass
class _Weights:
    tuned: dict[str, TuningResult]
    rerank_only: dict[str, TuningResult]
    dropped: dict[str, float]
    tables: dict[str, Judged]
    signals: tuple[str, ...]


def tune(
    workspace: Workspace,
    stack: str,
    *,
    queries: Queries,
    qrels: Judgments,
    measure: str = "nDCG",
    first_stage: str | None = None,
    retrieve: Sequence[str] = (),
    filter: str | Sequence[str] = (),
    depth: int = 1000,
    protocol: str | None = None,
    folds: int | None = None,
    normalizations: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> TuneReport:
    """Find the weights and normalization of a stack on judged queries and write the stack file.

    first_stage: also ``template:FILE``, ``stored:ID`` or ``run:FILE``. Without a weight, it only retrieves.
    measure: ``nDCG``, ``RR`` or ``AP``, also with a cutoff (``nDCG@10``).
    retrieve: retrievers, to ``depth`` or their own depth (``s2net:200``). Default: the first stage.
    protocol: candidates: ``retrieved:N``, ``pool-random:N``, ``pool-first:N`` or ``judged``. Default:
        ``retrieved:DEPTH``.
    filter: see :meth:`Workspace.search`. folds: also cross-validate.
    normalizations: Default: min-max, z-score and none; for shared engines rank, not none.

    Raises UsageError for a stack that cannot be tuned or an unknown measure, InputError if no judged query
    has a text and a relevant document.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> queries = [Query("q1", "hunts at night"), Query("q2", "mice")]
    >>> qrels = Qrels([("q1", "owl", 1), ("q2", "fox", 1)])
    >>> report = tune(workspace, "tfidf,bm25", queries=queries, qrels=qrels)
    >>> report.tuned.value, str(report.stack)
    (1.0, 'tfidf*0.00 + bm25*1.00')
    >>> workspace.stack("tfidf,bm25") == report.stack
    True
    """
    signals = _signals(stack)
    if out is not None:
        check_output(out, '"rerank_stack"')
    RankMeasure.parse(measure)  # raises before the long work
    search = _search(workspace, signals, retrieve, first_stage, _protocol(protocol, depth))
    judged = JudgedQueries(
        queries=as_queries(queries),
        qrels=as_qrels(qrels),
        filters=filters_of(filter),
        ignore_categories=ignore_categories,
        infer=infer,
        seed=seed,
        progress=progress,
    )
    searches = [search.own] if search.own is not None else []
    experiment = Experiment.prepare(workspace, signals, judged, retrieve=search.retrieve, searches=searches)
    if search.own is not None:
        search = replace(search, own=workspace.engine.check_template(search.own, experiment.queries[0]))
    tuning = _Tuning(experiment, search, measure, tuple(normalizations), folds)
    found = tuning.run(signals)
    fields = {**search.fields(depth), "versions": tuning.versions, "first_stage": search.first}
    chosen = _stack(found, tuning.record(signals), fields)
    path = _saved(workspace, chosen, out)
    case, *others = found.tuned
    ids = [query.id for query in experiment.queries]
    return TuneReport(
        stack=chosen,
        tuned=found.tuned[case],
        leaks=leakage(workspace.training_records(chosen), "", ids, ["trained"]),
        validated=tuning.validated,
        path=path,
        scoring=tuning.scoring,
        case=case,
        cases={name: found.tuned[name] for name in others},
        rerank_only=found.rerank_only.get(case),
        dropped=found.dropped,
        protocol=str(search.protocol),
    )


class _Tuning:
    def __init__(
        self,
        experiment: Experiment,
        search: _Search,
        measure: str,
        normalizations: tuple[str, ...],
        folds: int | None,
    ) -> None:
        self.experiment, self.search, self.folds = experiment, search, folds
        rankers = experiment.pipeline.rankers
        self.versions = {name: ranker.version for name, ranker in rankers.items()}
        self.settings: dict[str, Any] = {
            "first_stage": search.first,
            "measure": measure,
            "cut": search.protocol.cut,
            "normalizations": normalizations or _normalizations(experiment.workspace, search),
            "bounds": {name: ranker.bounds for name, ranker in rankers.items()},
        }
        self.validated: CrossValidated | None = None
        self.scoring = ScoringReport()

    def run(self, signals: tuple[str, ...]) -> _Weights:
        experiment, search = self.experiment, self.search
        scorer = experiment.pipeline.scorer(signals, search.first)
        reading = {signal.name for signal in scorer.signals if signal.uses_categories}
        table, self.scoring = experiment.table(
            search.protocol,
            list(dict.fromkeys((*signals, search.first))),
            search.first,
            search.retrieve,
            search=search.own,
            every_case=bool(reading),
            cached=True,
        )
        with (experiment.progress or Progress()).step("weights", unit="query") as advance:
            settings = {**self.settings, "progress": advance}
            found = _weights((table, experiment.qrels), signals, reading, settings)
            if self.folds is not None:
                main = next(iter(found.tables.values()))
                self.validated = cross_validate(
                    *main, folds=self.folds, seed=experiment.seed, signals=signals, **settings
                )
        return found

    def record(self, signals: Sequence[str]) -> dict[str, Any]:
        experiment = self.experiment
        ids = [query.id for query in experiment.queries]
        recall = {name: round(share, 6) for name, share in self.scoring.candidate_recall.items()}
        return {
            "signals": list(signals),
            "protocol": str(self.search.protocol),
            "candidate_recall": recall,
            "seen": TrainingRecord.of(experiment.qrels, tuned=ids).to_json(),
            **({"filters": [str(one) for one in experiment.filters]} if experiment.filters else {}),
        }


def _signals(stack: str) -> tuple[str, ...]:
    signals, weights = parse_stack(stack)
    if weights is not None:
        raise UsageError(f"{stack!r} has weights already; name only the signals: {','.join(signals)}")
    if len(signals) == 1:
        other = "text" if first_stages(signals) else DEFAULT_FIRST_STAGE
        two = ",".join((*first_stages([other, *signals]), *learned([other, *signals])))
        raise UsageError(
            f"{stack!r} is one signal, so there is nothing to tune; name two or more: --stack {two}"
        )
    return signals


def _protocol(text: str | None, depth: int) -> Protocol:
    return Protocol("retrieved", depth) if text is None else parse_protocol(text)


def _search(
    workspace: Workspace,
    signals: Sequence[str],
    retrieve: Sequence[str],
    first_stage: str | None,
    protocol: Protocol,
) -> _Search:
    named = first_stages((*retriever_depths(retrieve), *signals))
    first = next((name for name in named if name in signals), next(iter(named), None))
    search = None
    if first_stage is not None or first is None or first == SEARCH:
        first, search = workspace.first_stage_of(first_stage)
    clauses = [name for name in signals if is_clause(name)]
    if clauses and (search is None or search.kind == "run"):
        raise UsageError(
            f"{clauses[0]} is the score of a clause of a search; give --first-stage template:FILE"
        )
    if first == SEARCH and retrieve:
        raise UsageError("your search finds all candidates; leave --retrieve out")
    return _Search(first, search, () if tuple(retrieve) == (first,) else tuple(retrieve), protocol)


def _normalizations(workspace: Workspace, search: _Search) -> Sequence[str]:
    """Return defaults; scores of shared engines depend on their scale."""
    return PER_QUERY if search.own is not None or workspace.engine.shared else TRIED


def _weights(
    scored: Judged, signals: tuple[str, ...], reading: set[str], settings: Mapping[str, Any]
) -> _Weights:
    """Find weights per case, without useless signals. reading: signals that read categories."""
    dropped: dict[str, float] = {}
    while True:
        tables = _cases(*scored, not reading.isdisjoint(signals))
        tuned = {case: tune_table(*one, signals=signals, **settings) for case, one in tables.items()}
        weighted = {settings["first_stage"]} | {
            name for one in tuned.values() for name, weight in one.combiner.shares().items() if weight
        }
        if weighted.issuperset(signals):
            break
        main = next(iter(tuned.values()))
        dropped |= {name: main.single_signal[name] for name in signals if name not in weighted}
        signals = tuple(name for name in signals if name in weighted)
    others = [name for name in signals if name != settings["first_stage"]]
    rerank_only: dict[str, TuningResult] = {}
    if 2 <= len(others) < len(signals):
        rerank_only = {case: tune_table(*one, signals=others, **settings) for case, one in tables.items()}
    return _Weights(tuned, rerank_only, dropped, tables, signals)


def _cases(table: ScoreTable, qrels: Qrels, reads: bool) -> dict[str, Judged]:
    if not reads:
        # The rows of all queries as if they had no categories.
        return {"": (table.of("none") if len(set(table.query_ids)) < len(table) else table, qrels)}
    cases = {}
    for case in CASES:
        rows = table.of(case)
        judged = Qrels((q, d, grade) for q in rows.query_ids for d, grade in qrels[q].items())
        if any(judged.relevant(query) for query in judged):
            cases[case] = rows, judged
    return cases or {"": (table, qrels)}


def _stack(found: _Weights, record: dict[str, Any], fields: Mapping[str, Any]) -> Stack:
    main = next(iter(found.tuned))
    combiner, plain_one = _joined(found.tuned), _joined(found.rerank_only)
    names = {*found.signals, *retriever_depths(fields["retrieve"])}
    versions = {name: version for name, version in fields["versions"].items() if name in names}
    if found.dropped:
        record["dropped"] = {name: round(value, 6) for name, value in found.dropped.items()}
    records = {case: one.record() for case, one in found.tuned.items()}
    if found.rerank_only:
        alone = found.rerank_only[main].record()
        record["rerank_only"] = {name: alone[name] for name in _OF_CASE[:2]}
    if main:
        record["cases"] = {case: {name: one[name] for name in _OF_CASE} for case, one in records.items()}
    assert combiner is not None
    tuned = {**records[main], **record}
    return Stack(combiner, **{**fields, "versions": versions}, rerank_only=plain_one, tuned=tuned)


def _joined(tuned: Mapping[str, TuningResult]) -> Linear | None:
    if not tuned:
        return None
    main, *others = (one.combiner for one in tuned.values())
    return replace(main, cases=dict(zip([*tuned][1:], others)))


def _saved(workspace: Workspace, stack: Stack, out: str | os.PathLike[str] | None) -> Path:
    """Write the stack; the first becomes active unless it loses."""
    path = workspace.stack_path(stack.tuned_for) if out is None else Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    stack.save(path, follow=out is not None)
    better = stack.tuned["value"] >= stack.tuned["first_stage_value"]
    if out is None and better and not workspace.releases.history:
        workspace.use_stack(stack)
    return path
