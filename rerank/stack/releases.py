"""Stack versions of a workspace, in one file: the versions and their activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rerank.errors import InputError, RerankError, UsageError, WorkspaceError
from rerank.files import as_system_error, write_text
from rerank.stack.stack import Stack

FILE = "releases.json"
KEPT = 3
"""Earlier releases whose features are kept, so that rollbacks need no encoding."""

_HISTORY = 100  # activations kept
_CHOOSE = "`rerank stack use STACK`"


class Activation(msgspec.Struct, frozen=True):
    """A version that became active.

    since: UTC. gate: comparison with the previous version. undone: by a rollback.
    """

    number: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="version")
    since: str
    gate: dict[str, Any] = {}
    undone: bool = False


class _File(msgspec.Struct, frozen=True):
    history: tuple[Activation, ...]
    stacks: dict[int, Any]


@dataclass(frozen=True)
class Releases:
    """Stack versions in a workspace.

    history: activations, oldest first; the last not undone is active. stacks: number -> JSON of a stack.
    """

    folder: Path
    history: tuple[Activation, ...] = ()
    stacks: Mapping[int, Any] = field(default_factory=dict)

    @cached_property
    def stack(self) -> Stack | None:
        """The active stack. Raises WorkspaceError if it is missing or damaged."""
        return None if self.number is None else self.find(self.number)

    @property
    def name(self) -> str | None:
        """The name of the active stack."""
        return self.stack.name if self.stack else None

    @property
    def number(self) -> int | None:
        """The number of the active version."""
        return self._live[-1].number if self._live else None

    @property
    def rolled_back(self) -> bool:
        """Whether the last change was a rollback."""
        return bool(self.history) and self.history[-1].undone

    @property
    def _live(self) -> list[Activation]:
        return [activation for activation in self.history if not activation.undone]

    def all(self) -> dict[int, Stack]:
        """Read all versions: number -> stack, newest first. Raises WorkspaceError for a damaged one."""
        return {number: self.find(number) for number in sorted(self.stacks, reverse=True)}

    def recent(self, count: int) -> list[Stack]:
        """Read up to ``count`` versions, active first, then by last activation."""
        activations = (*self._live[-1:], *reversed(self.history))
        numbers = list(dict.fromkeys(activation.number for activation in activations))
        return [self.find(number) for number in numbers[:count]]

    def find(self, number: int) -> Stack:
        """Return a version. Raises UsageError for an unknown number, WorkspaceError for a damaged version."""
        if number not in self.stacks:
            raise UsageError(f"{self.folder}: no stack has the version {number}; `rerank status` shows them")
        try:
            return Stack.from_json(self.stacks[number])
        except (InputError, WorkspaceError) as error:
            raise WorkspaceError(
                f"{self.folder / FILE}: version {number}: {error}; choose another stack: {_CHOOSE}"
            ) from error

    def activate(self, stack: Stack, gate: Mapping[str, Any] | None = None) -> Releases:
        """Activate a stack; an equal one keeps its number. The caller must hold a lock."""
        data = msgspec.json.decode(msgspec.json.encode(stack.to_json()))
        equal_stacks = [number for number, stored in self.stacks.items() if stored == data]
        number = equal_stacks[0] if equal_stacks else None
        if number is not None and number == self.number:
            return self
        number = number or max((*self.stacks, 0)) + 1
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        history = (*self.history, Activation(number, now, dict(gate or {})))
        return Releases(self.folder, history[-_HISTORY:], {**self.stacks, number: data}).save()

    def previous(self) -> Releases:
        """Return the state after a rollback, to be saved. Raises UsageError without another version."""
        earlier = [activation for activation in self._live if activation.number != self.number]
        if not earlier:
            raise UsageError(f"no other stack was in use before this one; choose one with {_CHOOSE}")
        end = max(i for i, activation in enumerate(self.history, 1) if activation is earlier[-1])
        undone = [msgspec.structs.replace(activation, undone=True) for activation in self.history[end:]]
        return Releases(self.folder, (*self.history[:end], *undone), self.stacks)

    @classmethod
    def load(cls, folder: Path) -> Releases:
        """Read a workspace's history. Raises WorkspaceError for a damaged file."""
        path = folder / FILE
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
            unknown = {activation.number for activation in file.history} - file.stacks.keys()
            if unknown:
                raise msgspec.ValidationError(f"version {min(unknown)} is missing")
            return cls(folder, file.history, file.stacks)
        except FileNotFoundError:
            return cls(folder)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            damaged = WorkspaceError(f"{path}: damaged ({error}); remove it and choose a stack: {_CHOOSE}")
            raise (as_system_error(error, path) or damaged) from error

    def save(self) -> Releases:
        """Write the history and return it. The caller must hold a lock."""
        text = msgspec.json.format(msgspec.json.encode(_File(self.history, dict(self.stacks))), indent=2)
        write_text(self.folder / FILE, f"{text.decode()}\n")
        return self


def tuned_versions(folder: Path, recent: int | None = None) -> dict[str, list[str]] | None:
    """Return ranker -> versions in tuned stacks; None if a stack is unreadable.

    recent: number of active stacks to read; None: all. Candidates are always read.
    """
    versions_by_ranker: dict[str, dict[str, None]] = {}
    try:
        releases = Releases.load(folder)
        stacks = [*releases.all().values()] if recent is None else releases.recent(recent)
        stacks += [Stack.load(path) for path in sorted((folder / "stacks").glob("*.json"))]
    except RerankError:
        return None
    for stack in stacks:
        for name, version in stack.versions.items():
            versions_by_ranker.setdefault(name, {})[version] = None
    return {name: list(versions) for name, versions in versions_by_ranker.items()}
