"""Status: what a workspace holds, and what waits to be finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rerank.errors import RerankError, WorkspaceError
from rerank.results import Report
from rerank.stack.stack import Stack
from rerank.training.unfinished import Unfinished, unfinished
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
    """A tuned stack. default: in use; candidate: tuned again since. stale: rankers trained again since."""

    stack: str
    normalisation: str
    retrieve: list[str]
    depth: int
    file: str
    default: bool
    candidate: bool
    stale: list[str]


@dataclass
class ReleaseState:
    """A stack that is in use or was, since when, and what it had to pass."""

    stack: str
    versions: Mapping[str, str]
    since: str
    gate: Mapping[str, Any] | None


@dataclass
class StatusReport(Report):
    """What there is. serving: the stack in use, and those before it.

    interrupted: whether an ingest waits to be finished; unfinished: trainings that do.
    """

    workspace: str
    place: str
    documents: int
    lang: str | None
    rankers: list[RankerState]
    stacks: list[StackState]
    serving: list[ReleaseState]
    interrupted: bool
    unfinished: list[Unfinished]


def status(workspace: Workspace) -> StatusReport:
    """Tell what a workspace holds.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> workspace.engine.ingest([Document("wolf", "Wolves")]).added
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
    serving, default = workspace.serving, workspace.default_stack
    stacks = []
    for path in sorted((workspace.folder / "stacks").glob("*.json")):
        stack = Stack.load(path)
        stacks.append(
            StackState(
                str(stack),
                stack.normalisation,
                list(stack.retrievers),
                stack.depth,
                str(path),
                stack == serving.stack,
                path.stem == default and stack != serving.stack,
                out_of_date(workspace, stack),
            )
        )
    return StatusReport(
        str(workspace.folder),
        workspace.place,
        len(workspace.engine),
        workspace.lang,
        list(rankers.values()),
        stacks,
        [ReleaseState(str(one.stack), one.stack.versions, one.since, one.gate) for one in serving.releases],
        workspace.engine.unfinished() is not None,
        unfinished(workspace.folder / "training"),
    )


def out_of_date(workspace: Workspace, stack: Stack) -> list[str]:
    """Signals that were trained again since the stack was tuned; none can be told without its rankers."""
    try:
        return workspace.stale(stack)
    except RerankError:
        return []
