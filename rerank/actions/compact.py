"""Compact: the space of documents that are no more."""

from __future__ import annotations

from rerank.engines.base import CompactionResult
from rerank.workspace import Workspace


def compact(workspace: Workspace) -> CompactionResult:
    """Give back the space of documents that were deleted or replaced; readers notice nothing.

    Raises UsageError where the engine does that by itself.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> for text in ("a wolf", "a grey wolf"):
    ...     _ = workspace.engine.write([Document("wolf", text=text)])
    >>> compact(workspace).rows
    1
    """
    return workspace.engine.compact()
