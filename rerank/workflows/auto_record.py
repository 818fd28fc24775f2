"""Completed work of an auto run."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from rerank.errors import RerankError
from rerank.files import write_bytes
from rerank.workflows.collection_folder import Folder
from rerank.workspace import Workspace

NAME = "auto.json"


class _File(msgspec.Struct):
    key: str
    planned: dict[str, int] = {}
    trained: dict[str, tuple[str, int]] = {}


class Record:
    """Trainings of rankers on the same files.

    known: from an auto run. other: from other files. trained: ranker -> (version, steps).
    """

    def __init__(
        self, workspace: Path, files: Folder, seed: int, conflicts: str = "refuse", model: str = ""
    ) -> None:
        """Read the record. Other inputs start a new one."""
        digest = hashlib.sha256(f"{seed} {conflicts} {model}".encode())
        for path in files.files():
            known = path.stat()
            digest.update(f"{path.resolve()}\0{known.st_size}\0{known.st_mtime_ns}\n".encode())
        self._path, self._file = workspace / NAME, _File(digest.hexdigest())
        self.known = self.other = False
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            stored = msgspec.json.decode(self._path.read_bytes(), type=_File)
            self.known, self.other = True, stored.key != self._file.key
            self._file = self._file if self.other else stored
        self.trained = self._file.trained

    def save(self) -> None:
        """Write the record."""
        self.known = True
        write_bytes(self._path, msgspec.json.format(msgspec.json.encode(self._file), indent=1) + b"\n")

    def steps(self, workspace: Workspace, name: str, planned: int) -> int | None:
        """Return the steps of an unchanged ranker of this plan, or None if it must be trained."""
        version, steps = self.trained.get(name, ("", 0))
        with suppress(RerankError):
            if planned == self._file.planned.get(name) and workspace.ranker(name).version == version:
                return steps
        return None

    def plan(self, name: str, planned: int) -> bool:
        """Record a plan. Returns whether an interrupted training of it can continue."""
        same = self._file.planned.get(name, planned) == planned
        self._file.planned[name] = planned
        self.save()
        return same

    def add(self, workspace: Workspace, name: str, steps: int) -> None:
        """Record a complete training."""
        self.trained[name] = workspace.ranker(name).version, steps
        self.save()
