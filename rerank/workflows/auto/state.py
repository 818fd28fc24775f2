"""The trainings of earlier auto runs in a workspace."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from rerank.common.files import write_bytes
from rerank.rankers.encoder.folder import installed_encoders
from rerank.workflows.auto.context import AutoContext


class RankerTraining(msgspec.Struct):
    """The training of a ranker.

    minutes:  time of the auto run.
    parts:    number of parts of a document that are encoded; 0 if the ranker does not read parts.
    steps:    steps of a training that the time limits; 0 if other things limit it.
    version:  of the ranker; empty until its training ends.
    complete: whether more time would not improve the ranker.
    """

    minutes: float
    parts: int = 0
    steps: int = 0
    version: str = ""
    complete: bool = False


class _File(msgspec.Struct):
    """The file ``auto.json``. key: hash of the inputs."""

    key: str
    rankers: dict[str, RankerTraining] = {}


class AutoState:
    """The trainings of rankers by auto runs on the same inputs, stored in ``auto.json``.

    exists:         an auto run has used this workspace.
    inputs_changed: the earlier run had other files, another seed or another model, so its trainings cannot
                    be used.
    rankers:        name -> training.
    """

    def __init__(self, workspace: Path, context: AutoContext) -> None:
        """Read the state. Other inputs start a new one."""
        self._path = workspace / "auto.json"
        self._file = _File(_hash_inputs(context))
        self.exists = False
        self.inputs_changed = False
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            stored = msgspec.json.decode(self._path.read_bytes(), type=_File)
            self.exists = True
            self.inputs_changed = stored.key != self._file.key
            if not self.inputs_changed:
                self._file = stored
        self.rankers = self._file.rankers

    @property
    def has_trained(self) -> bool:
        """Whether an earlier run finished a training, so that its rankers belong to this collection."""
        return any(training.version for training in self.rankers.values())

    def save(self) -> None:
        """Write the state, so that the next run continues after the trainings so far."""
        self.exists = True
        write_bytes(self._path, msgspec.json.format(msgspec.json.encode(self._file), indent=1) + b"\n")


def _hash_inputs(context: AutoContext) -> str:
    """Return a hash of the options and of the sizes and times of the files."""
    options = f"{context.seed} {context.model or ' '.join(installed_encoders())}"
    if context.ubi is not None:
        options += f" {context.ubi.where}"
    digest = hashlib.sha256(options.encode())
    for path in context.files.files():
        status = path.stat()
        digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
