"""Rankers without weights, for tests that only need scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rerank import Workspace
from rerank.rankers.base import Ranker


class Plain(Ranker):
    """A ranker without files. Its scores are inner products."""

    version, bounds = "v1", (0.0, 1.0)

    def score(self, query: np.ndarray, features: np.ndarray) -> np.ndarray:
        return features.astype(np.float64) @ query

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    @classmethod
    def load(cls, folder: Path) -> Any:
        return cls()


def put(workspace: Workspace, ranker: Ranker) -> None:
    """Install a ranker whose family is not registered."""
    workspace.install(ranker)
    workspace._rankers[ranker.name, None] = workspace._rankers[ranker.name, ranker.version] = ranker
