"""Compact: reclaim the disk space of deleted documents."""

from __future__ import annotations

from rerank.engines.base import CompactionResult
from rerank.workspace import Workspace


def compact(workspace: Workspace) -> CompactionResult:
    """Reclaim the disk space of documents that were deleted or replaced; readers are not disturbed.

    Raises UsageError if the engine does that by itself.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> for text in ("a wolf", "a grey wolf"):
    ...     _ = workspace.engine.write([Document("wolf", text=text)])
    >>> compact(workspace).rows
    1
    """
    return workspace.engine.compact()
