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
    """Rankers trained on the same files.

    known: from an auto run. other: from other files. cut: ranker -> time limit that ended its training.
    """

    path: Path
    key: str
    known: bool = False
    other: bool = False
    rankers: dict[str, str] = field(default_factory=dict)
    cut: dict[str, float] = field(default_factory=dict)

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
                record.rankers, record.cut = dict(found["rankers"]), dict(found["cut"])
        return record

    def save(self) -> None:
        """Write the record."""
        self.known = True
        values = {"key": self.key, "rankers": self.rankers, "cut": self.cut}
        write_text(self.path, json.dumps(values, indent=1) + "\n")

    def done(self, workspace: Workspace, name: str, minutes: float) -> bool:
        """Whether an unchanged ranker was trained completely or for these minutes."""
        with suppress(RerankError):
            if name in self.rankers and self.cut.get(name, minutes) >= minutes:
                return workspace.ranker(name).version == self.rankers[name]
        return False

    def add(self, workspace: Workspace, name: str, cut: float | None = None) -> None:
        """Record a ranker. cut: time limit that ended its training."""
        self.rankers[name] = workspace.ranker(name).version
        self.cut.pop(name, None)
        if cut is not None:
            self.cut[name] = cut
        self.save()
