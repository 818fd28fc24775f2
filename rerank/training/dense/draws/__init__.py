"""How pairs are drawn from neighbours: each way is a file with its settings, and a line in DRAWS."""

from __future__ import annotations

from rerank.training.dense.draws.base import Draw, Draws
from rerank.training.dense.draws.hierarchical import Hierarchical
from rerank.training.dense.draws.row import Row

__all__ = ["DRAWS", "Draw", "Draws", "Hierarchical", "Row"]

DRAWS: dict[str, type[Draws]] = {"hierarchical": Hierarchical, "row": Row}
