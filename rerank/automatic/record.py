"""What a run has done already, in a file of the workspace."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rerank.automatic.folder import Folder
from rerank.errors import RerankError
from rerank.files import write_text
from rerank.workspace import Workspace

NAME = "auto.json"


@dataclass
class Record:
    """Rankers that were trained on the very files, with their versions.

    known: whether the workspace was made by such a run, of whatever files.
    """

    path: Path
    key: str
    known: bool = False
    rankers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, workspace: Path, files: Folder, seed: int) -> Record:
        """Read what is there; of other files, or another seed, nothing counts."""
        digest = hashlib.sha256(f"{seed}".encode())
        for path in files.files():
            known = path.stat()
            digest.update(f"{path.resolve()}\0{known.st_size}\0{known.st_mtime_ns}\n".encode())
        record = cls(workspace / NAME, digest.hexdigest())
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(record.path.read_text("utf-8"))
            record.known = True
            if found["key"] == record.key:
                record.rankers = dict(found["rankers"])
        return record

    def save(self) -> None:
        """Write it."""
        self.known = True
        write_text(self.path, json.dumps({"key": self.key, "rankers": self.rankers}, indent=1) + "\n")

    def done(self, workspace: Workspace, name: str) -> bool:
        """Whether a ranker was trained to its end, and is in use as it was."""
        with suppress(RerankError):
            return name in self.rankers and workspace.ranker(name).version == self.rankers[name]
        return False

    def add(self, workspace: Workspace, name: str) -> None:
        """Remember a ranker that was trained to its end."""
        self.rankers[name] = workspace.ranker(name).version
        self.save()
