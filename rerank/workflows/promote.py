"""Promote and roll back stacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rerank.common.errors import BusyError, InputError, UsageError
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report, to_json_value
from rerank.documents.text import join_names
from rerank.evaluation.leakage import Leak, leakage
from rerank.evaluation.measures import MEASURES, check_measures, evaluate_runs
from rerank.evaluation.significance import compare
from rerank.formats.inputs import Judgments, Queries
from rerank.stack.stack import Stack
from rerank.workflows.encode import encode
from rerank.workflows.experiment import Experiment, JudgedQueries
from rerank.workflows.rankings import ranked_ids
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

SIGNIFICANT = 0.05
"""Largest p of a gain that is shown."""


@dataclass
class Promotion(Report):
    """A candidate (``stack``) compared with the active stack (``before``).

    value, before_value: means of ``measure``. p: two-sided randomization test. wins, losses: of queries.
    newer: rankers trained after the tuning. leaks: training on these queries. version: of the candidate.
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

    @property
    def shown(self) -> bool:
        """Whether the candidate is better with p < 0.05."""
        return self.value > self.before_value and self.p < SIGNIFICANT

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with ``shown``."""
        return {**super().to_json(), "shown": self.shown}


@dataclass
class Rollback(Report):
    """The stack that is active after a rollback, and the one that was active before.

    encoded: ranker -> number of documents that were encoded because they are newer than the stack.
    """

    version: int
    stack: Stack
    rolled_back_version: int
    rolled_back: Stack
    dry_run: bool = False
    encoded: dict[str, int] = field(default_factory=dict)


def promote(
    workspace: WorkspaceOrPath,
    stack: str | None = None,
    *,
    queries: Queries,
    qrels: Judgments,
    measure: str | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    force: bool = False,
    dry_run: bool = False,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Promotion:
    """Compare a tuned stack with the active one on judged queries. Activate it if its gain is shown.

    A gain is shown if it is above 0 with p < 0.05.

    Each stack uses its tuned ranker versions and its own candidates, to the smaller depth.

    stack: signals or a file. Default: the newest with the signals of the active stack.
    measure: Default: the measure of the tuning. force: activate it without a gain that is shown.
    dry_run: only compare.

    Raises UsageError without an active stack or if both rank the same, InputError if no judged query has a
    text, BusyError if a stack changes during the comparison.

    >>> _ = workspace.use_stack("tfidf")
    >>> report = promote(workspace, "bm25", queries=queries, qrels=qrels, measure="RR", force=True)
    >>> report.before_value, report.value, report.promoted, workspace.default_stack
    (0.75, 1.0, True, 'bm25')
    >>> str(rollback(workspace).stack)
    'tfidf*1.00'
    """
    workspace = Workspace.open(workspace)
    judged = JudgedQueries.of(
        queries, qrels, ignore_categories=ignore_categories, infer=infer, seed=seed, progress=progress
    )
    releases = workspace.releases
    active = releases.stack
    if active is None:
        raise UsageError(
            f"{workspace.folder}: no stack is in use, so there is nothing to compare with; `rerank tune` or"
            " `rerank stack use STACK` chooses one"
        )
    name, tuned, candidate = _candidate(workspace, active, stack)
    (measure,) = check_measures([measure or str(candidate.tuned.get("measure", MEASURES[0]))])
    report = _compare(workspace, judged, active, candidate, measure)
    report.newer = workspace.outdated(tuned)
    may_activate = report.shown or force
    if may_activate and not dry_run:
        if workspace.releases != releases or workspace.stack(name, latest=True) != tuned:
            raise BusyError(f"{workspace.folder}: a stack changed during the comparison; compare again")
        values: dict[str, Any] = to_json_value(report)
        stored = ("measure", "queries", "value", "before_value", "p")
        workspace.use_stack(candidate, gate={key: values[key] for key in stored})
        report.promoted = True
        report.version = workspace.releases.number
    return report


def _candidate(workspace: Workspace, active: Stack, stack: str | None) -> tuple[str, Stack, Stack]:
    """Return the candidate's name, the stack as tuned, and the stack with the ranker versions to measure."""
    active_name = active.name if active.tuned else ",".join(active.signals)
    name = stack or active_name
    tuned = workspace.stack(name, latest=True)
    # Weights typed by a user have no versions. The measured versions become active.
    candidate = replace(tuned, versions=workspace.versions(tuned))
    if replace(candidate, tuned={}) == replace(active, tuned={}):
        newer = workspace.outdated(tuned)
        reason = (
            f"{join_names(newer)} {'was' if len(newer) == 1 else 'were'} trained again: " if newer else ""
        )
        raise UsageError(
            f"the candidate {candidate} ranks exactly as the stack in use (version"
            f" {workspace.releases.number}), so there is nothing to promote; {reason}tune it again, or name"
            f" another stack:"
            f" `rerank tune --stack {','.join(candidate.tuned_for)} --queries QUERIES --qrels QRELS`"
        )
    return name, tuned, candidate


def _compare(
    workspace: Workspace, judged: JudgedQueries, before: Stack, candidate: Stack, measure: str
) -> Promotion:
    runs = {}
    for label, stack in (("before", before), ("candidate", candidate)):
        experiment = Experiment.of_stacks(workspace, [stack], judged, workspace.versions(stack))
        runs[label] = ranked_ids(experiment, stack, min(before.depth, candidate.depth))
    evaluation = evaluate_runs(runs, experiment.qrels, [measure])
    (comparison,) = compare(evaluation, "before", seed=judged.seed)
    ids = evaluation.query_ids
    return Promotion(
        promoted=False,
        name=candidate.name,
        stack=candidate,
        before=before,
        measure=measure,
        queries=len(ids),
        value=evaluation.mean("candidate", measure),
        before_value=evaluation.mean("before", measure),
        p=comparison.p,
        wins=comparison.wins,
        losses=comparison.losses,
        leaks=leakage(workspace.training_records(candidate), "the candidate", ids)
        + leakage(workspace.training_records(before), "the stack in use", ids),
    )


def rollback(workspace: WorkspaceOrPath, *, dry_run: bool = False, progress: Progress = SILENT) -> Rollback:
    """Activate the previous stack and encode newer documents. A failed encoding does not undo this.

    dry_run: only report. Raises UsageError without a previous stack.

    >>> for stack in ("bm25*0.5 + tfidf*0.5", "bm25*0.8 + tfidf*0.2"):
    ...     _ = workspace.use_stack(stack)
    >>> str(rollback(workspace).stack)
    'bm25*0.50 + tfidf*0.50'
    """
    workspace = Workspace.open(workspace)
    releases = workspace.releases
    before = releases.previous()
    assert before.number is not None
    assert before.stack is not None
    assert releases.number is not None
    assert releases.stack is not None
    report = Rollback(before.number, before.stack, releases.number, releases.stack, dry_run)
    if dry_run:
        return report
    workspace.rollback()
    try:
        report.encoded = {name: n for name, n in encode(workspace, progress=progress).encoded.items() if n}
    except (BusyError, InputError) as error:
        progress.say(f"{error}: `rerank encode` stores the features of the new documents")
    return report
