"""Completed work of an auto run."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rerank.errors import RerankError
from rerank.files import parse_json, write_text
from rerank.workflows.collection_folder import Folder
from rerank.workspace import Workspace

NAME = "auto.json"


@dataclass
class Record:
    """Trainings of rankers on the same files.

    known: from an auto run. other: from other files. planned: ranker -> steps. trained:
    ranker -> (version, steps).
    """

    path: Path
    key: str
    known: bool = False
    other: bool = False
    planned: dict[str, int] = field(default_factory=dict)
    trained: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, workspace: Path, files: Folder, seed: int, conflicts: str = "refuse", model: str = ""
    ) -> Record:
        """Read the record. Other inputs start a new one."""
        digest = hashlib.sha256(f"{seed} {conflicts} {model}".encode())
        for path in files.files():
            known = path.stat()
            digest.update(f"{path.resolve()}\0{known.st_size}\0{known.st_mtime_ns}\n".encode())
        record = cls(workspace / NAME, digest.hexdigest())
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = parse_json(record.path.read_text("utf-8"))
            record.known = record.other = True
            if found["key"] == record.key:
                record.other = False
                record.planned = dict(found["planned"])
                record.trained = {
                    name: (version, steps) for name, (version, steps) in found["trained"].items()
                }
        return record

    def save(self) -> None:
        """Write the record."""
        self.known = True
        names = ("key", "planned", "trained")
        write_text(self.path, json.dumps({name: getattr(self, name) for name in names}, indent=1) + "\n")

    def steps(self, workspace: Workspace, name: str, planned: int) -> int | None:
        """Return the steps of an unchanged ranker of this plan, or None if it must be trained."""
        version, steps = self.trained.get(name, ("", 0))
        with suppress(RerankError):
            if planned == self.planned.get(name) and workspace.ranker(name).version == version:
                return steps
        return None

    def plan(self, name: str, planned: int) -> bool:
        """Record a plan. Returns whether an interrupted training of it can continue."""
        same = name not in self.planned or self.planned[name] == planned
        self.planned[name] = planned
        self.save()
        return same

    def add(self, workspace: Workspace, name: str, steps: int) -> None:
        """Record a complete training."""
        self.trained[name] = workspace.ranker(name).version, steps
        self.save()
