"""Choose the first stage of an auto run, and tune its stack."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rerank.common.errors import EngineError
from rerank.common.values import items_not_in, with_keys, without
from rerank.documents.records import Qrels
from rerank.documents.text import count_of, join_names
from rerank.stack.parse import retriever_depths
from rerank.tuning.tune import TuningResult
from rerank.workflows.auto.context import AutoContext
from rerank.workflows.encode import encode
from rerank.workflows.evaluate import evaluate
from rerank.workflows.tune import TuneReport, tune

RETRIEVER_DEPTH = 200
"""Number of documents that a vector ranker retrieves."""
COMPARED_QUERIES = 500
"""Largest number of queries to compare first stages."""
SCORING_FACTOR = 3
"""Time to score a query with all rankers, divided by the time to score it with two first stages."""
LEAST_RESERVE = 0.1
"""Smallest share of the time that is kept to tune and evaluate."""
MOST_RESERVE = 0.2
"""Largest share of the time that is kept to tune and evaluate."""
FIRST_STAGE_SHARE = 0.3
"""Smallest share of the weight for the first stage, if only clicks tune."""
RETRIEVAL_FACTOR = 2.0
"""Time to tune with more retrievers and to evaluate, divided by the time of the first tuning."""
RETRIEVAL_OVERRUN = 0.15
"""Share of the time by which a run may be late to measure retrieval, which can gain more than a ranker."""

LEAST_IDLE_GAIN = 0.002
"""Smallest gain on dev for which a ranker without a weight stays: it encodes each query, which takes time."""


def choose_first_stage(context: AutoContext) -> tuple[str, list[str]]:
    """Return the best first stage, and the others."""
    names = context.workspace.engine.first_stages
    measure = context.measure
    if len(names) < 2:
        return names[0], []
    if not context.judgments.tested:
        context.say(
            "first stage", f"{names[0]}; clicks follow the search that was shown, so they cannot compare"
        )
        return names[0], list(names[1:])
    report = evaluate(
        context.workspace,
        names[1:],
        baseline=names[0],
        queries=context.queries,
        qrels=_queries_to_compare(context),
        measures=[measure],
        seed=context.seed,
        progress=context.progress,
    )
    values = {row.stack: row.measures[measure] for row in report.results}
    best = max(names, key=lambda name: values[name])
    comparison = ", ".join(f"{name} {values[name]:.4f}" for name in names)
    queries = count_of(report.queries, "query")
    splits = "dev" if context.judgments.from_clicks else "train and dev"
    context.say("first stage", f"{best}; {measure} on {queries} of {splits}: {comparison}")
    return best, items_not_in(names, [best])


def _queries_to_compare(context: AutoContext) -> Qrels:
    """Return the queries to compare first stages. Clicks follow the search that was shown, so they cannot."""
    judged = {**context.splits.dev}
    if not context.judgments.from_clicks:
        judged |= context.splits.train
    return Qrels(with_keys(judged, sorted(judged)[:COMPARED_QUERIES]))


def training_end(context: AutoContext, begin: float) -> float:
    """Return the moment that leaves time to tune and evaluate. begin: of comparing first stages."""
    now = time.monotonic()
    seconds_per_query = (now - begin) / max(len(_queries_to_compare(context)), 1)
    scorings = 2 * 3 * len(context.splits.dev) + 2 * len(context.splits.test)  # with and without retrieval
    remaining = context.end - now
    reserve = max(SCORING_FACTOR * seconds_per_query * scorings, LEAST_RESERVE * remaining)
    return context.end - min(reserve, MOST_RESERVE * remaining)


def tune_and_activate(context: AutoContext, signals: Sequence[str]) -> TuneReport:
    """Tune, and activate the stack."""
    begin = time.monotonic()
    report = _tune_signals(context, signals)
    seconds = RETRIEVAL_FACTOR * (time.monotonic() - begin)
    if context.is_late(seconds - RETRIEVAL_OVERRUN * 60 * context.minutes):
        context.say("retrieval", "no time is left to measure if vector rankers should also retrieve")
    else:
        report = _try_vector_retrieval(context, signals, report)
    stack = context.workspace.use_stack(report.stack)
    result = report.tuned
    context.say(
        "tune",
        f"{stack} ({stack.combiner.normalization}): {result.measure} {result.value:.4f} on"
        f" {count_of(result.queries, 'query')}, {result.first_stage_value:.4f} {signals[0]} alone",
    )
    if report.dropped:
        context.say("tune", f"{', '.join(report.dropped)} got no weight and left the stack")
    return report


def tune_on_clicks(context: AutoContext, signals: Sequence[str]) -> TuneReport:
    """Tune a careful stack on clicks. It is not activated, because clicks cannot test it."""
    report = _tune_signals(context, signals, protocol="judged", least_share=FIRST_STAGE_SHARE)
    stack = report.stack
    context.say("tune", f"{stack} ({stack.combiner.normalization}), tuned on clicks and not tested")
    return report


def _tune_signals(
    context: AutoContext,
    signals: Sequence[str],
    *,
    retrieve: Sequence[str] = (),
    protocol: str | None = None,
    least_share: float = 0.0,
) -> TuneReport:
    """Tune the signals on the dev queries, and write the stack. The first signal is the first stage.

    retrieve, protocol, least_share: see :func:`rerank.tune`.
    """
    return tune(
        context.workspace,
        ",".join(signals),
        queries=context.queries,
        qrels=context.splits.dev,
        measure=context.measure,
        first_stage=signals[0],
        retrieve=retrieve,
        protocol=protocol,
        least_share=least_share,
        normalizations=context.normalizations,
        out=context.workspace.stack_path(signals),
        seed=context.seed,
        progress=context.progress,
    )


def _try_vector_retrieval(context: AutoContext, signals: Sequence[str], report: TuneReport) -> TuneReport:
    """Let vector rankers also retrieve, if dev gains. report: the tuning without them."""
    workspace = context.workspace
    rankers = [name for name in report.stack.rankers if workspace.ranker(name).retrieves]
    if not rankers:
        return report
    try:
        encode(workspace, rankers, retrieve=rankers, progress=context.progress)
    except EngineError as error:  # no k-NN plugin
        context.say("retrieval", str(error))
        return report
    vector_retrievers = [f"{name}:{RETRIEVER_DEPTH}" for name in rankers]
    with_retrieval = _tune_signals(context, signals, retrieve=[signals[0], *vector_retrievers])
    result = with_retrieval.tuned
    context.say(
        "retrieval",
        f"dev {result.measure} {result.value:.4f} if {join_names(rankers)} also"
        f" {'retrieve' if len(rankers) > 1 else 'retrieves'}, {report.tuned.value:.4f} if not",
    )
    if result.value > report.tuned.value:
        return _drop_idle_rankers(context, with_retrieval)
    report.stack.save(report.path)
    return report


def _drop_idle_rankers(context: AutoContext, report: TuneReport) -> TuneReport:
    """Tune without the rankers that have no weight, and keep the result if dev hardly loses.

    Such a ranker only retrieves, or has a weight for the few queries without categories. A ranker of
    categories stays: it costs little, and queries with other cases need it.

    report: the tuning with all retrievers.
    """
    stack = report.stack
    weights = stack.combiner.weights_by_signal()
    idle: list[str] = []
    for name in stack.rankers:
        if not weights.get(name) and not context.workspace.ranker(name).uses_categories:
            idle.append(name)
    if not idle:
        return report
    signals = [stack.first_stage, *items_not_in(stack.signals, (stack.first_stage, *idle))]
    text_of_retriever = dict(zip(retriever_depths(stack.retrieve), stack.retrieve))
    retrievers = list(without(text_of_retriever, idle).values())
    without_idle = _tune_signals(context, signals, retrieve=retrievers)
    losses: list[float] = []
    for case, result in report.cases.items():
        # If no signal uses categories any more, all queries have the same weights.
        losses.append(_loss(result, without_idle.cases.get(case, without_idle.tuned)))
    loss = max(losses)
    if loss > LEAST_IDLE_GAIN:
        without_idle.path.unlink()
        stack.save(report.path)  # it can be the same file
        return report
    if report.path != without_idle.path:
        report.path.unlink()
    context.say(
        "retrieval", f"{join_names(idle)} left the stack: no weight, and dev loses {max(loss, 0):.4f} without"
    )
    return replace(without_idle, dropped={**without_idle.dropped, **report.dropped})


def _loss(result: TuningResult, other: TuningResult) -> float:
    """Return by how much the mean of a result is above another one, over the queries of both."""
    differences: list[float] = []
    for query, value in result.per_query.items():
        if query in other.per_query:
            differences.append(value - other.per_query[query])
    return fmean(differences) if differences else math.inf
