"""How pairs are drawn from neighbours: each way is a file with its settings, and a line in DRAWS."""

from __future__ import annotations

from rerank.rankers.dense.draws.base import Draw, Draws
from rerank.rankers.dense.draws.hierarchical import Hierarchical
from rerank.rankers.dense.draws.row import Row
from rerank.rankers.dense.draws.triplets import Triplets

__all__ = ["DRAWS", "Draw", "Draws", "Hierarchical", "Row", "Triplets"]

DRAWS: dict[str, type[Draws]] = {"hierarchical": Hierarchical, "row": Row, "triplets": Triplets}
