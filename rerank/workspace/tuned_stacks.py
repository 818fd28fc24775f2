"""The files in which tuning stores the stacks of a workspace, one file for each set of signals."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from rerank.stack.releases import Releases
from rerank.stack.stack import Stack, stack_key

LONGEST_NAME = 200
"""Characters of the name of a stack in the name of its file."""


def stack_path(folder: Path, signals: Sequence[str]) -> Path:
    """Return the file of the stack of these signals, in the folder of a workspace."""
    name = stack_key(signals)
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return folder / "stacks" / f"{name}.json"


def find_tuned_stack(releases: Releases, signals: Sequence[str], *, latest: bool) -> Stack | None:
    """Return the tuned stack of these signals, or None.

    The active stack is preferred if it has their name.

    latest: prefer the last tuned stack.
    """
    key = stack_key(signals)
    path = stack_path(releases.folder, signals)
    is_active = key == releases.name
    if path.exists() and (latest or not is_active):
        return Stack.load(path)
    active = releases.stack
    if active is None:
        return None
    # A stack can also be named by only its signals with weight.
    keys_of_active = (releases.name, stack_key(active.signals))
    return active if key in keys_of_active else None
