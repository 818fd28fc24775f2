"""Status of a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerank.common.errors import RerankError, WorkspaceError
from rerank.common.results import Report
from rerank.common.values import items_not_in, without
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace, WorkspaceOrPath


@dataclass
class RankerState:
    """The newest version of a ranker.

    version:          None if the ranker cannot be loaded.
    features:         whether all documents have its features.
    missing_features: number of documents without them.
    error:            why the ranker cannot be loaded.
    older:            older versions that stacks use.
    """

    name: str
    version: str | None = None
    features: bool = False
    missing_features: int | None = None
    error: str | None = None
    older: list[str] = field(default_factory=list)


@dataclass
class StackState:
    """A candidate or a version of a stack.

    outdated: rankers that were trained after the stack was tuned.
    missing:  rankers that the workspace does not have, so that searches with the stack fail.
    version:  number of the version, or None for a candidate.
    since:    time of the last activation, in UTC.
    gate:     the comparison with the previous version when this one was promoted.
    """

    name: str
    stack: Stack
    in_use: bool
    outdated: list[str]
    file: str
    version: int | None = None
    since: str | None = None
    gate: Mapping[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the weights of each case, candidates and ranker versions."""
        fields = without(vars(self), ["stack"])
        return {
            **fields,
            **self.stack.combiner.summary(),
            "retrieve": list(self.stack.retrievers),
            "depth": self.stack.depth,
            "versions": dict(self.stack.versions),
        }


@dataclass
class StatusReport(Report):
    """The state of a workspace, its rankers and its stacks.

    stacks:    the candidates, which are the tuned stacks.
    releases:  the versions of stacks in use, newest first.
    workspace: folder of the workspace.
    location:  where the documents are: a folder, or an index and the nodes of its cluster.
    documents: number of documents. lang: their language; None if it is unknown or mixed.
    """

    stacks: list[StackState]
    releases: list[StackState]
    workspace: str
    location: str
    documents: int
    lang: str | None
    rankers: list[RankerState]


def status(workspace: WorkspaceOrPath) -> StatusReport:
    """Return the state of a workspace.

    >>> _ = workspace.use_stack("bm25*0.5 + tfidf*0.5")
    >>> state = status(workspace)
    >>> state.documents, state.lang, state.rankers
    (3, 'en', [])
    >>> [(row.version, str(row.stack), row.in_use) for row in state.releases]
    [(1, 'bm25*0.50 + tfidf*0.50', True)]
    """
    workspace = Workspace.open(workspace)
    rankers = {name: RankerState(name) for name in workspace.trained()}
    for name, row in rankers.items():
        try:
            row.version = workspace.ranker(name).version
        except WorkspaceError as error:
            row.error = str(error)
            continue
        row.missing_features = workspace.engine.missing_features(name, row.version)
        row.features = not row.missing_features
    for name, versions in workspace.versions_to_keep().items():
        if name in rankers and rankers[name].version is not None:
            rankers[name].older = items_not_in(versions, [rankers[name].version])
    candidates, releases = _stacks(workspace)
    return StatusReport(
        stacks=candidates,
        releases=releases,
        workspace=str(workspace.folder),
        location=workspace.location,
        documents=len(workspace.engine),
        lang=workspace.lang,
        rankers=list(rankers.values()),
    )


def _stacks(workspace: Workspace) -> tuple[list[StackState], list[StackState]]:
    """Return candidates and versions of stacks."""
    releases = workspace.releases
    since = {activation.number: activation.since for activation in releases.history}
    gates = {activation.number: activation.gate for activation in releases.history if activation.gate}
    candidates: list[StackState] = []
    for path in sorted((workspace.folder / "stacks").glob("*.json")):
        stack = Stack.load(path)
        candidates.append(_state(workspace, stack, path, stack == releases.stack))
    versions: list[StackState] = []
    for number, stack in releases.all().items():
        row = _state(workspace, stack, workspace.folder / "releases.json", number == releases.number)
        row.version = number
        row.since = since.get(number)
        row.gate = gates.get(number, {})
        versions.append(row)
    return candidates, versions


def _state(workspace: Workspace, stack: Stack, path: Path, in_use: bool) -> StackState:
    try:
        outdated = workspace.outdated(stack)
    except RerankError:  # the row of the ranker has the error
        outdated = []
    trained = workspace.trained()
    missing = items_not_in(stack.rankers, trained)
    return StackState(stack.name, stack, in_use, outdated, str(path), missing=missing)
