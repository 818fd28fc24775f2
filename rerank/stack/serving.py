"""Which stack is in use, and which were before it: one file, replaced at once.

The file holds the stacks whole, with the versions of the rankers that they were tuned with. So neither a
training nor a tuning changes what ranks: putting another stack in use does, and taking it back.
A stack of weights written by hand names no versions, and follows each training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rerank.errors import InputError, RerankError, UsageError, WorkspaceError, action_hint
from rerank.files import parse_json, trouble, write_text
from rerank.stack.stack import Stack

KEPT = 3
"""Stacks before the one in use that can be taken back."""


def called(signals: Iterable[str]) -> str:
    """What a stack of these signals is called, whatever their order.

    >>> called(["tfidf", "bm25"])
    'bm25,tfidf'
    """
    return ",".join(sorted(signals))


@dataclass(frozen=True)
class Release:
    """A stack that is or was in use. since: when it came into use, in UTC.

    name: what it is called, by its signals. gate: what its comparison with the one before has shown; empty
    where there was none.
    """

    name: str
    stack: Stack
    since: str
    gate: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Serving:
    """The stack in use, and up to KEPT before it, the newest first. taken_back: by a rollback.

    >>> one, two = Stack.parse("bm25"), Stack.parse("tfidf")
    >>> serving = Serving().then("bm25", one).then("tfidf", two)
    >>> serving.name, serving.back().name, serving.back().taken_back
    ('tfidf', 'bm25', True)
    """

    releases: tuple[Release, ...] = ()
    taken_back: bool = False

    @property
    def stack(self) -> Stack | None:
        """The one in use."""
        return self.releases[0].stack if self.releases else None

    @property
    def name(self) -> str | None:
        """What the one in use is called."""
        return self.releases[0].name if self.releases else None

    def then(self, name: str, stack: Stack, gate: Mapping[str, Any] | None = None) -> Serving:
        """What is in use when this stack is."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Serving((Release(name, stack, now, gate or {}), *self.releases[:KEPT]))

    def back(self) -> Serving:
        """What is in use when the last change is taken back. Raises UsageError where none was before."""
        if len(self.releases) < 2:
            raise UsageError(
                "no stack was in use before this one, so nothing can be taken back; choose one with"
                f" {action_hint('stack use', 'STACK')}"
            )
        return Serving(self.releases[1:], taken_back=True)

    @classmethod
    def load(cls, path: Path) -> Serving:
        """Read the file; nothing is in use where there is none. Raises WorkspaceError for a damaged one."""
        try:
            data = parse_json(path.read_bytes())
            releases = [
                Release(str(one["name"]), Stack.from_json(one["stack"]), str(one["since"]), dict(one["gate"]))
                for one in data["serving"]
            ]
            for one in releases:
                if one.name != called(one.stack.signals):
                    raise ValueError(f"{one.name!r} is not {one.stack}")
            return cls(tuple(releases), bool(data.get("taken_back")))
        except FileNotFoundError:
            return cls()
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            InputError,
        ) as error:
            known: RerankError | None = trouble(error, path)
            raise (
                known
                or WorkspaceError(
                    f"{path}: damaged ({error}); remove it and choose a stack with"
                    f" {action_hint('stack use', 'STACK')}"
                )
            ) from error

    def save(self, path: Path) -> None:
        """Write the file, at once."""
        releases = [
            {**vars(one), "gate": dict(one.gate), "stack": one.stack.to_json()} for one in self.releases
        ]
        write_text(path, json.dumps({"serving": releases, "taken_back": self.taken_back}, indent=2) + "\n")
