"""Tune: judged queries of a workspace -> a tuned stack and its file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rerank.actions.experiment import Experiment
from rerank.actions.leaks import Leak, leaks, seen_by
from rerank.errors import UsageError, setting_hint
from rerank.evaluation.protocols import Protocol, parse_protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.evaluation.seen import Seen
from rerank.files import check_output
from rerank.filters import filters_of
from rerank.inputs import Judgments, Queries, as_qrels, as_queries
from rerank.progress import Progress
from rerank.records import OwnSearch, Qrels
from rerank.results import Report, plain
from rerank.scoring.fill import ScoringReport
from rerank.scoring.table import ScoreTable
from rerank.stack.cases import CASES
from rerank.stack.normalise import PER_QUERY, TRIED
from rerank.stack.parse import parse_stack, retriever_depths
from rerank.stack.signals import SEARCH, first_stages, is_clause
from rerank.stack.stack import Stack
from rerank.tuning.search import CrossValidated, Tuned, cross_validate
from rerank.tuning.search import tune as tune_table
from rerank.workspace import Workspace

_TOLD = ("queries", "value", "first_stage_value")
"""Of a case, in the stack's record."""


@dataclass
class TuneReport(Report):
    """A tuned stack, where it was written, and what it was tuned on; cases: of other queries, tuned with it.

    rerank_only: the same signals tuned without the first stage's; None where that leaves less than two.
    protocol: which documents were candidates.
    leaks: rankers that were trained on some of the queries, so that their weights come out too large.
    """

    tuned: Tuned
    leaks: list[Leak]
    validated: CrossValidated | None
    path: Path
    scoring: ScoringReport
    cases: Mapping[str, Tuned] = field(default_factory=dict)
    rerank_only: Tuned | None = None
    protocol: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the stack file's values, and how they were found."""
        more = {"file": self.path, "leaks": self.leaks, "scoring": self.scoring}
        if self.validated is not None:
            more["cross_validated"] = self.validated
        return {**self.tuned.stack.to_json(), **plain(more)}

    def rows(self) -> list[dict[str, Any]]:
        """Return each signal's weight, what it reached alone, and what the others reached without it."""
        stack = self.tuned.stack
        return [
            {
                "signal": name,
                "weight": weight,
                "alone": self.tuned.alone[name],
                "left_out": self.tuned.left_out.get(name),
            }
            for name, weight in zip(stack.signals, stack.weight_values.tolist())
        ]


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
    normalisations: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> TuneReport:
    """Find the best weights and normalisation of a stack on judged queries and write the stack file.

    first_stage: what finds the candidates: a lexical signal, or a search of the user's own, whose score is
        the signal ``search`` (``template:FILE``, ``stored:ID``, ``run:FILE``). Where it is none of the
        signals it has no weight, and the stack may rank worse than it does alone.
    measure: what the weights are chosen by: ``nDCG``, ``RR`` or ``AP``, or one with a cut-off: ``nDCG@10``.
    retrieve: who retrieves the candidates, ``depth`` each or a depth of its own (``s2net:200``); nobody
        named: the first stage.
    protocol: another set of candidates than ``retrieved:DEPTH``: ``retrieved:N``, which is also the depth, or
        a pool (``pool-random:N``, ``pool-first:N``, ``judged``), which holds all relevant documents.
    filter: what every candidate must fulfil, as :meth:`Workspace.search`.
    folds: also cross-validate in this many. normalisations: those that are tried. Nobody named:
        min-max, z-score and none; where searches of others may find the candidates, rank instead of none.

    Raises UsageError for a stack that cannot be tuned and for another measure, InputError when no judged
    query is known or none has a relevant document.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.ingest(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> queries = [Query("q1", "hunts at night"), Query("q2", "mice")]
    >>> qrels = Qrels([("q1", "owl", 1), ("q2", "fox", 1)])
    >>> report = tune(workspace, "tfidf,bm25", queries=queries, qrels=qrels)
    >>> report.tuned.value, str(report.tuned.stack)
    (1.0, 'tfidf*0.00 + bm25*1.00')
    >>> workspace.stack("tfidf,bm25") == report.tuned.stack
    True
    """
    queries, qrels = as_queries(queries), as_qrels(qrels)
    signals, weights = parse_stack(stack)
    if weights is not None:
        raise UsageError(f"{stack!r} has weights already; name only the signals: {','.join(signals)}")
    if out is not None:
        check_output(out, '"rerank_stack"')
    first, search = _first_stage(workspace, signals, retrieve, first_stage)
    RankMeasure.parse(measure)  # refuses what is none, before the long work
    retrieve = () if tuple(retrieve) == (first,) else tuple(retrieve)
    filters = filters_of(filter)
    experiment = Experiment.prepare(
        workspace,
        signals,
        queries,
        qrels,
        retrieve,
        ignore_categories,
        infer,
        seed,
        progress,
        searches=[search] if search is not None else [],
        filters=filters,
    )
    if search is not None:
        search = workspace.engine.check_search(search, experiment.queries[0])
    asked = Protocol("retrieved", depth) if protocol is None else parse_protocol(protocol)
    depth = asked.count if asked.kind == "retrieved" else depth
    reads = any(signal.uses_categories for signal in experiment.pipeline.scorer(signals, first).signals)
    scored = list(dict.fromkeys((*signals, first)))
    whole, report = experiment.table(
        asked, scored, first, retrieve, search=search, every_case=reads, cached=True
    )
    main, others = _cases(whole, experiment.qrels, reads)
    table, judged = main
    rankers = experiment.pipeline.rankers
    versions = {name: ranker.version for name, ranker in rankers.items()}
    settings: dict[str, Any] = {
        "first_stage": first,
        "signals": signals,
        "measure": measure,
        "normalisations": normalisations or (PER_QUERY if search or workspace.engine.shared else TRIED),
        "depth": depth,
        "versions": versions,
        "bounds": {name: ranker.bounds for name, ranker in rankers.items()},
    }
    validated = None
    with (progress or Progress()).step("weights", unit="query") as settings["progress"]:
        if folds is not None:
            validated = cross_validate(table, judged, folds=folds, seed=seed, **settings)
        tuned = tune_table(table, judged, **settings)
        cases = {case: tune_table(*one, **settings) for case, one in others.items()}
        every = {"": main, **others}
        bare = {case: _rerank_only(one, judged, settings) for case, (one, judged) in every.items()}
    recall = {name: round(share, 6) for name, share in report.candidate_recall.items()}
    seen = Seen.of(experiment.qrels, tuned=[query.id for query in experiment.queries])
    record = {**tuned.stack.tuned, "protocol": str(asked), "candidate_recall": recall, "seen": seen.to_json()}
    alone = bare.pop("")
    if alone is not None:
        record["rerank_only"] = {name: alone.stack.tuned[name] for name in _TOLD[:2]}
    if filters:
        record["filters"] = [str(one) for one in filters]
    if reads:
        each = {table.cases[0]: tuned, **cases}
        record["cases"] = {
            case: {name: one.stack.tuned[name] for name in _TOLD} for case, one in each.items()
        }
    fields: dict[str, Any] = {"retrieve": retrieve, "versions": versions, "search": search}

    def whole_stack(one: Tuned, plain_one: Tuned | None, record: Mapping[str, Any]) -> Stack:
        rest = {**fields, "bounds": one.stack.bounds}
        bare = None if plain_one is None else replace(plain_one.stack, **rest, tuned={})
        return replace(one.stack, **fields, rerank_only=bare, tuned=record)

    stacks = {case: whole_stack(one, bare[case], {}) for case, one in cases.items()}
    chosen = replace(whole_stack(tuned, alone, record), cases=stacks)
    path = Path(out) if out is not None else workspace.stack_path(signals)
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen.save(path, follow=out is not None)
    better = tuned.value >= tuned.first_stage_value  # always, where the first stage has a weight
    if out is None and better and workspace.serving.stack is None:
        workspace.use_stack(path.stem)  # the first one that is tuned here
    trained = leaks(seen_by(workspace, chosen), "", (q.id for q in experiment.queries), ["trained"])
    tuned = replace(tuned, stack=chosen)
    return TuneReport(tuned, trained, validated, path, report, cases, alone, str(asked))


def _rerank_only(table: ScoreTable, qrels: Qrels, settings: Mapping[str, Any]) -> Tuned | None:
    """Tune the signals without the first stage's; None where less than two are left, or it is no signal."""
    others = [name for name in settings["signals"] if name != settings["first_stage"]]
    if len(others) < 2 or len(others) == len(settings["signals"]):
        return None
    return tune_table(table, qrels, **{**settings, "signals": others})


def _cases(
    table: ScoreTable, qrels: Qrels, reads: bool
) -> tuple[tuple[ScoreTable, Qrels], dict[str, tuple[ScoreTable, Qrels]]]:
    """The case that the stack's weights are of, and the others: each the rows and judgements of its queries.

    reads: whether a signal reads categories; otherwise there is one case.
    """
    if not reads:
        return (table, qrels), {}
    found = {}
    for case in CASES:
        rows = table.of(case)
        judged = Qrels((q, d, grade) for q in rows.query_ids for d, grade in qrels[q].items())
        if any(judged.relevant(query) for query in judged):
            found[case] = rows, judged
    if not found:
        return (table, qrels), {}
    main = next(iter(found))
    return found.pop(main), found


def _first_stage(
    workspace: Workspace, signals: Sequence[str], retrieve: Sequence[str], text: str | None
) -> tuple[str, OwnSearch | None]:
    """The signal that finds the candidates, and the search behind it where that is the user's own.

    Raises UsageError where there is nothing to weigh, or no such search.
    """
    named = first_stages((*retriever_depths(retrieve), *signals))
    first = next((name for name in named if name in signals), next(iter(named), None))
    search = None
    if text is not None or first is None or first == SEARCH:
        first, search = workspace.first_stage_of(text)
    clauses = [name for name in signals if is_clause(name)]
    if clauses and (search is None or search.kind == "run"):
        raise UsageError(
            f"{clauses[0]} is the score of a clause of a search; give"
            f" {setting_hint('first_stage', 'template:FILE')}"
        )
    if first == SEARCH and retrieve:
        raise UsageError(f"a search of your own finds all candidates; leave {setting_hint('retrieve')} out")
    if len(signals) == 1 and first not in signals:
        raise UsageError(
            f"one signal alone needs no weights: use {setting_hint('stack')} {first},{','.join(signals)}"
        )
    return first, search
