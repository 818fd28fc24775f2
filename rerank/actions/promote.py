"""Promote and rollback: put a stack in use after a comparison with the one in use, and take that back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rerank.actions.experiment import Experiment
from rerank.actions.ingest import encode
from rerank.actions.leaks import Leak, leaks, seen_by
from rerank.actions.rankings import ranked_ids
from rerank.errors import BusyError, InputError, UsageError, action_hint
from rerank.evaluation.measures import check_measures, evaluate_runs
from rerank.evaluation.significance import compare
from rerank.inputs import Judgments, Queries, as_qrels, as_queries
from rerank.progress import Progress
from rerank.results import Report, plain
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

_TOLD = ("measure", "queries", "value", "before_value", "p")
"""What of a comparison is kept with the stack in use."""


@dataclass
class Promotion(Report):
    """A stack beside the one in use, on judged queries, and whether it has taken its place.

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

    Each ranks the candidates that it finds itself, by the rankers that it was tuned with; rankings are cut at
    the smaller depth of the two. What answers by
    the stack in use, a service too, has the new one within a second or so, and the one before otherwise.

    stack: by its signals, or a file; None: the signals of the one in use, as they were tuned last.
    measure: the one that both are compared by; None: the one that the candidate was tuned for.
    dry_run: only compare.

    Raises UsageError where no stack is in use, or there is nothing new to put in its place; InputError when
    no judged query is known; BusyError where one of the two was changed during the comparison.

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
    active = releases.active
    if active is None:
        raise UsageError(
            f"{workspace.folder}: no stack is in use, so there is nothing to compare with: the first one that"
            f" is tuned is in use at once ({action_hint('tune')}), and {action_hint('stack use', 'STACK')}"
            " chooses one"
        )
    before = active.stack
    named = stack or (active.name if before.tuned else ",".join(before.signals))
    tuned = workspace.stack(named, latest=True)
    newer = workspace.outdated(tuned)
    # Weights that somebody wrote name no versions: what is measured is what will rank.
    candidate = replace(tuned, versions=workspace.versions(tuned))
    if candidate.ranks_like(before):
        were = "was" if len(newer) == 1 else "were"
        why = f"{' and '.join(newer)} {were} trained again: " if newer else ""
        raise UsageError(
            f"the candidate {candidate} ranks exactly as the stack in use (version {active.number}), so there"
            f" is nothing to promote; {why}tune it again, or name another stack:"
            f" {action_hint('tune', stack=','.join(candidate.tuned_for), queries='QUERIES', qrels='QRELS')}"
        )
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
    (found,) = compare(evaluation, "before", seed=seed)
    judged = evaluation.query_ids
    report = Promotion(
        promoted=False,
        name=candidate.name,
        stack=candidate,
        before=before,
        measure=measure,
        queries=len(evaluation.query_ids),
        value=evaluation.mean("candidate", measure),
        before_value=evaluation.mean("before", measure),
        p=found.p,
        wins=found.wins,
        losses=found.losses,
        newer=newer,
        leaks=leaks(seen_by(workspace, candidate), "the candidate", judged)
        + leaks(seen_by(workspace, before), "the stack in use", judged),
    )
    if report.value >= report.before_value and not dry_run:
        if workspace.releases != releases or workspace.stack(named, latest=True) != tuned:
            raise BusyError(f"{workspace.folder}: a stack was tuned or put in use meanwhile; compare again")
        values: dict[str, Any] = plain(report)
        workspace.use_stack(candidate, gate={one: values[one] for one in _TOLD})
        report.promoted, report.version = True, workspace.releases.history[-1].number
    return report


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
        progress.say(f"{error}: {action_hint('encode')} stores the features of what has come since")
    return report
