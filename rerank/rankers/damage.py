"""What is said of a ranker's folder that cannot be read."""

from __future__ import annotations

from pathlib import Path

from rerank.errors import RerankError, WorkspaceError
from rerank.files import trouble


def unreadable(folder: Path, error: BaseException) -> RerankError:
    """The error for a ranker's folder: what the machine has against it, or that it is damaged."""
    return trouble(error, folder) or WorkspaceError(
        f"{folder}: the ranker cannot be read ({error}); train it again with `rerank train`"
    )
