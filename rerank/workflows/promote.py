"""Promote and rollback: put a stack in use after a comparison with the stack in use, and undo that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rerank.errors import BusyError, InputError, UsageError
from rerank.evaluation.leakage import Leak, leakage
from rerank.evaluation.measures import Evaluation, check_measures, evaluate_runs
from rerank.evaluation.significance import compare
from rerank.inputs import Judgments, Queries, as_qrels, as_queries
from rerank.progress import Progress
from rerank.results import Report, plain
from rerank.stack.releases import Release, Releases
from rerank.stack.stack import Stack
from rerank.text import join_names
from rerank.workflows.experiment import Experiment
from rerank.workflows.ingest import encode
from rerank.workflows.rankings import ranked_ids
from rerank.workspace import Workspace

_TOLD = ("measure", "queries", "value", "before_value", "p")
"""What of a comparison is kept with the stack in use."""


@dataclass
class Promotion(Report):
    """A candidate and the stack in use, compared on judged queries, and whether the candidate is in use now.

    stack, before: the candidate, and the one that was in use.
    value, before_value: their means of ``measure``.
    p: two-sided, by the randomization test. wins, losses: queries that the candidate ranks better, or worse.
    newer: rankers that were trained again since the candidate was tuned. leaks: what the candidate, or the
    one in use, has learned from some of these queries. version: of the candidate, if it was promoted.
    """

    promoted: bool
    name: str
    stack: Stack
    before: Stack
    measure: str
    queries: int
    value: float
    before_value: float
    p: float
    wins: int
    losses: int
    newer: list[str] = field(default_factory=list)
    leaks: list[Leak] = field(default_factory=list)
    version: int | None = None


@dataclass
class Rollback(Report):
    """The version of the stack that is in use again, and the one that was in use.

    dry_run: whether nothing was changed. encoded: ranker -> documents that were added since, and have its
    features now.
    """

    version: int
    stack: Stack
    rolled_back_version: int
    rolled_back: Stack
    dry_run: bool = False
    encoded: dict[str, int] = field(default_factory=dict)


def promote(
    workspace: Workspace,
    stack: str | None = None,
    *,
    queries: Queries,
    qrels: Judgments,
    measure: str | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    dry_run: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Promotion:
    """Compare a tuned stack with the one in use on judged queries, and put it in use if it is not worse.

    Each stack ranks the candidates that it finds itself, with the rankers that it was tuned with. Rankings
    are cut at the smaller depth of the two. A running service takes up the new stack within a second or so.

    stack: its signals, or a file; None: the candidate of the signals of the stack in use.
    measure: compares both; None: the measure that the candidate was tuned for.
    dry_run: only compare.

    Raises UsageError if no stack is in use, or the candidate ranks as the stack in use; InputError when
    no judged query is known; BusyError if one of the two was changed during the comparison.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> asked = {"queries": [Query("q", "hunts at night")], "qrels": Qrels([("q", "owl", 1)])}
    >>> str(workspace.use_stack("tfidf"))
    'tfidf*1.00'
    >>> found = promote(workspace, "bm25", measure="RR", **asked)
    >>> found.before_value, found.value, found.promoted, workspace.default_stack
    (0.5, 1.0, True, 'bm25')
    >>> str(rollback(workspace).stack)
    'tfidf*1.00'
    """
    queries, qrels = as_queries(queries), as_qrels(qrels)
    releases = workspace.releases
    active = _active(workspace, releases)
    named, tuned, candidate = _candidate(workspace, active, stack)
    before = active.stack
    measure = measure or str(candidate.tuned.get("measure", "nDCG"))
    (measure,) = check_measures([measure])
    runs = {}
    for label, one in (("before", before), ("candidate", candidate)):
        experiment = Experiment.prepare(
            workspace,
            one.signals,
            queries,
            qrels,
            one.retrieve,
            ignore_categories,
            infer,
            seed,
            progress,
            searches=[one.search] if one.search is not None else [],
            versions=workspace.versions(one),
        )
        runs[label] = ranked_ids(experiment, one, min(before.depth, candidate.depth))
    evaluation = evaluate_runs(runs, experiment.qrels, [measure])
    report = _promotion(workspace, before, candidate, evaluation, measure, seed)
    report.newer = workspace.outdated(tuned)
    if report.value >= report.before_value and not dry_run:
        if workspace.releases != releases or workspace.stack(named, latest=True) != tuned:
            raise BusyError(f"{workspace.folder}: a stack was tuned or put in use meanwhile; compare again")
        values: dict[str, Any] = plain(report)
        workspace.use_stack(candidate, gate={one: values[one] for one in _TOLD})
        report.promoted, report.version = True, workspace.releases.number
    return report


def _active(workspace: Workspace, releases: Releases) -> Release:
    """Return the stack in use. Raises UsageError if there is none."""
    if releases.active is None:
        raise UsageError(
            f"{workspace.folder}: no stack is in use, so there is nothing to compare with. The first stack"
            f" that is tuned is in use at once (`rerank tune`), and"
            f" `rerank stack use STACK` chooses one"
        )
    return releases.active


def _candidate(workspace: Workspace, active: Release, stack: str | None) -> tuple[str, Stack, Stack]:
    """Find the candidate: its name, the stack as it was tuned, and with the rankers that score it now.

    Raises UsageError if it ranks as the stack in use.
    """
    named = stack or (active.name if active.stack.tuned else ",".join(active.stack.signals))
    tuned = workspace.stack(named, latest=True)
    # Weights that a user wrote name no versions. The stack that is measured is the stack that will rank.
    candidate = replace(tuned, versions=workspace.versions(tuned))
    if candidate.ranks_like(active.stack):
        newer = workspace.outdated(tuned)
        why = f"{join_names(newer)} {'was' if len(newer) == 1 else 'were'} trained again: " if newer else ""
        raise UsageError(
            f"the candidate {candidate} ranks exactly as the stack in use (version {active.number}), so there"
            f" is nothing to promote; {why}tune it again, or name another stack:"
            f" `rerank tune --stack {','.join(candidate.tuned_for)} --queries QUERIES --qrels QRELS`"
        )
    return named, tuned, candidate


def _promotion(
    workspace: Workspace, before: Stack, candidate: Stack, evaluation: Evaluation, measure: str, seed: int
) -> Promotion:
    """Report on the comparison of the runs ``before`` and ``candidate``."""
    (found,) = compare(evaluation, "before", seed=seed)
    judged = evaluation.query_ids
    return Promotion(
        promoted=False,
        name=candidate.name,
        stack=candidate,
        before=before,
        measure=measure,
        queries=len(judged),
        value=evaluation.mean("candidate", measure),
        before_value=evaluation.mean("before", measure),
        p=found.p,
        wins=found.wins,
        losses=found.losses,
        leaks=leakage(workspace.training_records(candidate), "the candidate", judged)
        + leakage(workspace.training_records(before), "the stack in use", judged),
    )


def rollback(workspace: Workspace, *, dry_run: bool = False, progress: Progress | None = None) -> Rollback:
    """Put the stack in use that was in use before, and encode the documents that were added since.

    The first is done at once; an encoding that is interrupted, or impossible now, does not undo it. The
    version that was in use stays: ``workspace.use_stack("3")`` puts version 3 in use again.

    dry_run: only report the two versions.

    Raises UsageError if no stack was in use before.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> workspace.engine.write([Document("wolf", text="a wolf")]).added
    1
    >>> for stack in ("bm25*0.5 + tfidf*0.5", "bm25*0.8 + tfidf*0.2"):
    ...     _ = workspace.use_stack(stack)
    >>> str(rollback(workspace).stack)
    'bm25*0.50 + tfidf*0.50'
    >>> str(workspace.use_stack("2"))
    'bm25*0.80 + tfidf*0.20'
    """
    releases = workspace.releases
    before, active = releases.previous(), releases.active
    assert active is not None
    report = Rollback(before.number, before.stack, active.number, active.stack, dry_run)
    if dry_run:
        return report
    workspace.rollback()
    progress = progress or Progress()
    try:
        report.encoded = {name: n for name, n in encode(workspace, progress=progress).encoded.items() if n}
    except (BusyError, InputError) as error:
        progress.say(f"{error}: `rerank encode` stores the features of what has come since")
    return report
