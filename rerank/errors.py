"""Every error rerank raises on purpose, as one tree.

Each message says what was wrong, where (file:line, field, id) and what to do, in one line.

    RerankError
    ├── InputError          a file or record the user gave is not usable        (exit 1)
    ├── UsageError          the call asks for something that cannot be          (exit 2)
    ├── WorkspaceError      the workspace is missing, of another version, or damaged
    │   └── BusyError       another process is writing to it
    ├── EngineError         the engine refused, or cannot be reached
    └── TrainingError       training cannot start, or went wrong
        └── NotTrainedError a signal was asked for that nobody trained
"""

from __future__ import annotations


class RerankError(Exception):
    """Base of the tree; catch this to catch everything rerank raises on purpose."""


class InputError(RerankError):
    """A file or a record is not usable: broken JSON, a missing ``_id``, wrong gzip, wrong encoding."""


class UsageError(RerankError):
    """The call asks for something that cannot be: an unknown option value, an unknown signal name."""


class WorkspaceError(RerankError):
    """The workspace is missing, damaged, or was written by another version."""


class BusyError(WorkspaceError):
    """Another process is writing to the workspace."""


class EngineError(RerankError):
    """The engine refused a request or cannot be reached."""


class TrainingError(RerankError):
    """Training cannot start (no pairs), or went wrong (a saturated loss)."""


class NotTrainedError(TrainingError):
    """A signal was asked for that has not been trained in this workspace."""
