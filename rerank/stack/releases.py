"""Stack versions of a workspace: releases/N.json (immutable), releases.json (activations)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rerank.errors import InputError, RerankError, UsageError, WorkspaceError
from rerank.files import trouble, write_text
from rerank.stack.stack import Stack

FILE = "releases.json"
KEPT = 3
"""Earlier releases whose features are kept, so that rollbacks need no encoding."""

_HISTORY = 100  # activations kept
_CHOOSE = "`rerank stack use STACK`"


@dataclass(frozen=True)
class Release:
    """A stack version that is or was active. Numbers count from 1."""

    number: int
    stack: Stack

    @property
    def name(self) -> str:
        """The stack name."""
        return self.stack.name


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


@dataclass(frozen=True)
class Releases:
    """Stack versions in a workspace. history: activations, oldest first; the last not undone is active.

    >>> import tempfile
    >>> releases = Releases.load(Path(tempfile.mkdtemp()))
    >>> for text in ("bm25", "tfidf"):
    ...     releases = releases.activate(Stack.parse(text))
    >>> releases.name, releases.previous().name, releases.roll_back().name
    ('tfidf', 'bm25', 'bm25')
    >>> [(one.number, one.name) for one in releases.all()]
    [(2, 'tfidf'), (1, 'bm25')]
    """

    folder: Path
    history: tuple[Activation, ...] = ()

    @cached_property
    def active(self) -> Release | None:
        """The active version, or None. Raises WorkspaceError if missing or damaged."""
        return None if self.number is None else self._release(self.number)

    @property
    def rolled_back(self) -> bool:
        """Whether the last change was a rollback."""
        return bool(self.history) and self.history[-1].undone

    @property
    def _live(self) -> list[Activation]:
        return [one for one in self.history if not one.undone]

    @property
    def stack(self) -> Stack | None:
        """The active stack."""
        return self.active.stack if self.active else None

    @property
    def name(self) -> str | None:
        """The name of the active stack."""
        return self.active.name if self.active else None

    @property
    def number(self) -> int | None:
        """The active version number."""
        return self._live[-1].number if self._live else None

    @property
    def numbers(self) -> list[int]:
        """All version numbers, newest first."""
        stems = (path.stem for path in (self.folder / "releases").glob("*.json"))
        return sorted((int(stem) for stem in stems if stem.isdecimal()), reverse=True)

    def all(self) -> list[Release]:
        """Read all versions, newest first. Raises WorkspaceError for a damaged one."""
        return [self._release(number) for number in self.numbers]

    def recent(self, count: int) -> list[Release]:
        """Read up to ``count`` versions, active first, then by last activation."""
        there = set(self.numbers)
        latest = [one.number for one in (*self._live[-1:], *reversed(self.history)) if one.number in there]
        return [self._release(number) for number in list(dict.fromkeys(latest))[:count]]

    def find(self, number: int) -> Release:
        """Return a version. Raises UsageError for an unknown number."""
        if number not in self.numbers:
            raise UsageError(
                f"{self.folder}: no stack has the version {number}; `rerank stack list` shows them"
            )
        return self._release(number)

    def activate(self, stack: Stack, gate: Mapping[str, Any] | None = None) -> Releases:
        """Activate a stack; an equal one keeps its number. The caller must hold a lock."""
        number = next((one for one in self.numbers if self._equal(one, stack)), None)
        if number is None:
            known = (*self.numbers, *(one.number for one in self.history), 0)
            number = max(known) + 1
            self._path(number).parent.mkdir(exist_ok=True)
            stack.save(self._path(number))
        elif number == self.number:
            return self
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        history = (*self.history, Activation(number, now, dict(gate or {})))
        return Releases(self.folder, history[-_HISTORY:])._saved()

    def previous(self) -> Release:
        """Return the previously active version. Raises UsageError if there is none."""
        return self._release(self.history[self._before()].number)

    def roll_back(self) -> Releases:
        """Activate the previous version. Raises UsageError if there is none."""
        end = self._before() + 1
        undone = (msgspec.structs.replace(one, undone=True) for one in self.history[end:])
        return Releases(self.folder, (*self.history[:end], *undone))._saved()

    def _before(self) -> int:
        others = set(self.numbers) - {self.number}
        for place in range(len(self.history) - 1, -1, -1):
            if not self.history[place].undone and self.history[place].number in others:
                return place
        raise UsageError(f"no other stack was in use before this one; choose one with {_CHOOSE}")

    @classmethod
    def load(cls, folder: Path) -> Releases:
        """Read a workspace's history. Raises WorkspaceError for a damaged file."""
        path = folder / FILE
        try:
            return cls(folder, msgspec.json.decode(path.read_bytes(), type=_File).history)
        except FileNotFoundError:
            return cls(folder)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            known: RerankError | None = trouble(error, path)
            raise (
                known or WorkspaceError(f"{path}: damaged ({error}); remove it and choose a stack: {_CHOOSE}")
            ) from error

    def _saved(self) -> Releases:
        text = msgspec.json.format(msgspec.json.encode(_File(self.history)), indent=2)
        write_text(self.folder / FILE, f"{text.decode()}\n")
        return self

    def _path(self, number: int) -> Path:
        return self.folder / "releases" / f"{number}.json"

    def _release(self, number: int) -> Release:
        try:
            return Release(number, Stack.load(self._path(number)))
        except InputError as error:
            raise WorkspaceError(f"{error}; choose another stack: {_CHOOSE}") from error

    def _equal(self, number: int, stack: Stack) -> bool:
        try:
            return self._release(number).stack == stack
        except RerankError:
            return False


def tuned_versions(folder: Path, recent: int | None = None) -> dict[str, list[str]] | None:
    """Return ranker -> versions in tuned stacks; None if a stack is unreadable.

    recent: number of active stacks to read; None: all. Candidates are always read.
    """
    found: dict[str, dict[str, None]] = {}
    try:
        releases = Releases.load(folder)
        last = releases.all() if recent is None else releases.recent(recent)
        stacks = [release.stack for release in last]
        stacks += [Stack.load(path) for path in sorted((folder / "stacks").glob("*.json"))]
    except RerankError:
        return None
    for stack in stacks:
        for name, version in stack.versions.items():
            found.setdefault(name, {})[version] = None
    return {name: list(versions) for name, versions in found.items()}
