"""Stack versions of a workspace, in one file: the versions and their activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rerank.common.errors import InputError, RerankError, UsageError, WorkspaceError
from rerank.common.files import as_system_error, write_text
from rerank.stack.stack import Stack

FILE = "releases.json"
KEPT_RELEASES = 3
"""Number of earlier releases whose features are kept, so that rollbacks need no encoding."""

_HISTORY = 100  # activations kept
_CHOOSE = "`rerank stack use STACK`"


class Activation(msgspec.Struct, frozen=True):
    """A version of the stack that became active.

    number: of the version.
    since:  time of the activation, UTC.
    gate:   comparison with the version before, which allowed the activation.
    undone: whether a rollback has ended it.
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
    """The stack versions of a workspace, and which of them is active.

    folder:  the workspace.
    history: activations, oldest first. The last one that is not undone is active.
    stacks:  number of a version -> JSON of its stack.
    """

    folder: Path
    history: tuple[Activation, ...] = ()
    stacks: Mapping[int, Any] = field(default_factory=dict)

    @cached_property
    def stack(self) -> Stack | None:
        """The active stack, or None if no stack was activated. Raises WorkspaceError if it is damaged."""
        return None if self.number is None else self.find(self.number)

    @property
    def name(self) -> str | None:
        """The name of the active stack, or None."""
        return self.stack.name if self.stack else None

    @property
    def number(self) -> int | None:
        """The number of the active version, or None."""
        for activation in reversed(self.history):
            if not activation.undone:
                return activation.number
        return None

    @property
    def rolled_back(self) -> bool:
        """Whether the last change was a rollback."""
        return bool(self.history) and self.history[-1].undone

    def all(self) -> dict[int, Stack]:
        """Return number -> stack of all versions, newest first. Raises WorkspaceError for a damaged one."""
        return {number: self.find(number) for number in sorted(self.stacks, reverse=True)}

    def recent(self, count: int) -> list[Stack]:
        """Read up to ``count`` versions: first the active one, then the others, last activated first.

        Raises WorkspaceError for a damaged one.
        """
        last_first = dict.fromkeys(activation.number for activation in reversed(self.history))
        active_first = sorted(last_first, key=lambda number: number != self.number)  # stable
        return list(map(self.find, active_first[:count]))

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
        """Activate a stack and save the history. Return the new state.

        A stack that is equal to an earlier version keeps its number; the active one changes nothing. The
        caller must hold the lock of the workspace.

        gate: comparison with the active version, for the history.
        """
        data = msgspec.json.decode(msgspec.json.encode(stack.to_json()))
        number = self._number_of(data)
        if number is None:
            number = max((*self.stacks, 0)) + 1
        elif number == self.number:
            return self
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        history = (*self.history, Activation(number, now, dict(gate or {})))
        return Releases(self.folder, history[-_HISTORY:], {**self.stacks, number: data}).save()

    def _number_of(self, data: object) -> int | None:
        """Return the number of the version with this JSON of a stack, or None."""
        for number, stored in self.stacks.items():
            if stored == data:
                return number
        return None

    def previous(self) -> Releases:
        """Return the state after a rollback to the last active version with another number.

        It is not saved. Raises UsageError without such a version.
        """
        for end in range(len(self.history), 0, -1):
            activation = self.history[end - 1]
            if not activation.undone and activation.number != self.number:
                undone = [msgspec.structs.replace(later, undone=True) for later in self.history[end:]]
                return Releases(self.folder, (*self.history[:end], *undone), self.stacks)
        raise UsageError(f"no other stack was in use before this one; choose one with {_CHOOSE}")

    @classmethod
    def load(cls, folder: Path) -> Releases:
        """Read the history of a workspace; it is empty if no stack was activated yet.

        Raises WorkspaceError for a damaged file, and the error of the system if it cannot be read.
        """
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
        """Write the history to the workspace, and return it. The caller must hold its lock."""
        text = msgspec.json.format(msgspec.json.encode(_File(self.history, dict(self.stacks))), indent=2)
        write_text(self.folder / FILE, f"{text.decode()}\n")
        return self


def tuned_versions(folder: Path, recent: int | None = None) -> dict[str, list[str]] | None:
    """Return ranker -> its versions in the stacks of a workspace, or None if a stack is unreadable.

    These are all tuned stacks that were not activated, and the activated ones.

    recent: number of activated stacks to read, as in :meth:`Releases.recent`. Default: all.
    """
    try:
        releases = Releases.load(folder)
        stacks = list(releases.all().values()) if recent is None else releases.recent(recent)
        stacks += map(Stack.load, sorted((folder / "stacks").glob("*.json")))
    except RerankError:
        return None

    versions = dict.fromkeys(chain.from_iterable(stack.versions.items() for stack in stacks))
    versions_by_ranker: dict[str, list[str]] = {}
    for name, version in versions:
        versions_by_ranker.setdefault(name, []).append(version)
    return versions_by_ranker
