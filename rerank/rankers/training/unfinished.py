"""Interrupted trainings, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank.errors import TrainingError
from rerank.files import parse_json

STATE = "state.json"
"""State of a training; it is written last."""
ABOUT = "about"
"""Field of the state: the fields of :class:`Unfinished`, without its name."""


@dataclass(frozen=True)
class Unfinished:
    """An interrupted training.

    variant: of the ranker. done, of: finished and planned steps. settings: its options.
    """

    name: str
    variant: str
    done: int
    of: int
    settings: Mapping[str, Any]


def unfinished(folder: Path) -> list[Unfinished]:
    """Interrupted, undamaged trainings in a folder."""
    found = []
    for path in sorted(folder.glob(f"*/{STATE}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.append(Unfinished(path.parent.name, **parse_json(path.read_text("utf-8"))[ABOUT]))
    return found


def check_settings(folder: Path, name: str, variant: str, settings: Mapping[str, Any]) -> None:
    """Raise TrainingError if a training was interrupted with other options."""
    before = next((one for one in unfinished(folder) if one.name == name), None)
    if before is None:
        return
    now = json.loads(json.dumps({"ranker": variant, **settings}))
    then = {"ranker": before.variant, **before.settings}
    other = sorted(one for one in {*then, *now} if then.get(one) != now.get(one))
    if not other:
        return
    what = ", ".join(f"{one} {then.get(one)}, now {now.get(one)}" for one in other[:5])
    raise TrainingError(
        f"{folder / name}: a training with other settings was interrupted here ({what}); repeat its command"
        f" to continue it, or add --restart to drop it"
    )
