"""Status: what a workspace holds, and what waits to be finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerank.errors import RerankError, WorkspaceError
from rerank.rankers.training.unfinished import Unfinished, unfinished
from rerank.results import Report
from rerank.stack.stack import Stack
from rerank.workspace import Workspace


@dataclass
class RankerState:
    """A ranker: its newest version, and how many documents lack its features.

    older: versions that stacks were tuned with. error: why it cannot be loaded.
    """

    name: str
    version: str | None = None
    features: bool = False
    missing_features: int | None = None
    error: str | None = None
    older: list[str] = field(default_factory=list)


@dataclass
class StackState:
    """A stack of a workspace: a candidate, which was tuned last for its signals, or a version.

    cases: case of queries -> its weights; empty if they are the same for all queries.
    outdated: rankers that were trained again since it was tuned.
    version: its number; None for a candidate. since: when it was last put in use, in UTC. gate: what the
    comparison with the stack in use showed when it was promoted.
    """

    name: str
    stack: str
    normalization: str
    cases: dict[str, dict[str, str]]
    retrieve: list[str]
    depth: int
    versions: Mapping[str, str]
    in_use: bool
    outdated: list[str]
    file: str
    of: Stack = field(repr=False)
    version: int | None = None
    since: str | None = None
    gate: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Stacks(Report):
    """The stacks of a workspace: the candidates, and the versions that are or were in use, newest first."""

    stacks: list[StackState]
    releases: list[StackState]


@dataclass
class StatusReport(Report):
    """What there is. stacks: the candidates. releases: the stacks that are or were in use, newest first.

    unfinished: interrupted trainings that can be resumed.
    """

    workspace: str
    place: str
    documents: int
    lang: str | None
    rankers: list[RankerState]
    stacks: list[StackState]
    releases: list[StackState]
    unfinished: list[Unfinished]


def status(workspace: Workspace) -> StatusReport:
    """Tell what a workspace holds.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> workspace.engine.write([Document("wolf", "Wolves")]).added
    1
    >>> found = status(workspace)
    >>> found.documents, found.lang, found.rankers, found.unfinished
    (1, 'en', [], [])
    """
    rankers = {name: RankerState(name) for name in workspace.trained()}
    for name, row in rankers.items():
        try:
            row.version = workspace.ranker(name).version
        except WorkspaceError as error:
            row.error = str(error)
            continue
        row.missing_features = workspace.engine.missing_features(name, row.version)
        row.features = not row.missing_features
    for name, versions in workspace.needed().items():
        if name in rankers and rankers[name].version is not None:
            rankers[name].older = [one for one in versions if one != rankers[name].version]
    found = stacks(workspace)
    return StatusReport(
        str(workspace.folder),
        workspace.place,
        len(workspace.engine),
        workspace.lang,
        list(rankers.values()),
        found.stacks,
        found.releases,
        unfinished(workspace.folder / "training"),
    )


def stacks(workspace: Workspace) -> Stacks:
    """Return the stacks of a workspace with their weights.

    >>> import tempfile
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> _ = workspace.use_stack("bm25*0.5 + tfidf*0.5")
    >>> [(one.version, one.stack, one.in_use) for one in stacks(workspace).releases]
    [(1, 'bm25*0.50 + tfidf*0.50', True)]
    """
    releases = workspace.releases
    active = releases.active
    since = {one.number: one.since for one in releases.history}
    gates = {one.number: one.gate for one in releases.history if one.gate}
    candidates = [
        _state(workspace, Stack.load(path), path, active is not None and Stack.load(path) == active.stack)
        for path in sorted((workspace.folder / "stacks").glob("*.json"))
    ]
    versions = []
    for one in releases.all():
        path = workspace.folder / "releases" / f"{one.number}.json"
        row = _state(workspace, one.stack, path, active is not None and one.number == active.number)
        row.version, row.since = one.number, since.get(one.number)
        row.gate = gates.get(one.number, {})
        versions.append(row)
    return Stacks(candidates, versions)


def _state(workspace: Workspace, stack: Stack, path: Path, in_use: bool) -> StackState:
    try:
        outdated = workspace.outdated(stack)
    except RerankError:  # a ranker is gone or damaged: its own row says so
        outdated = []
    return StackState(
        name=stack.name,
        **stack.combiner.summary(),
        retrieve=list(stack.retrievers),
        depth=stack.depth,
        versions=stack.versions,
        in_use=in_use,
        outdated=outdated,
        file=str(path),
        of=stack,
    )
