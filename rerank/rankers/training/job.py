"""Input and result of a training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rerank.engines.base import Engine
from rerank.progress import Progress
from rerank.rankers.base import Ranker
from rerank.rankers.training.data import TrainingData
from rerank.records import LabeledPair
from rerank.results import plain


@dataclass(frozen=True)
class TrainingJob:
    """Input of a fitter.

    data:     judgments and pairs.
    folder:   checkpoints, one folder per ranker.
    restart:  discard checkpoints.
    labeled: training and dev pairs.
    """

    engine: Engine
    data: TrainingData | None
    folder: Path
    restart: bool = False
    progress: Progress = field(default_factory=Progress)
    labeled: tuple[Sequence[LabeledPair], Sequence[LabeledPair]] | None = None

    def checkpoint(self, name: str) -> Path:
        """Return the folder of a ranker's checkpoint, which a restart removes."""
        if self.restart:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.folder / name


@dataclass(frozen=True)
class TrainingResult:
    """A fitted ranker and its training.

    epoch, epochs: the kept one and their number, in ``unit``; 0: not iterative.
    dev, baseline: ``measure`` with the ranker, and ``without`` it.
    interrupted: stopped by the user; the best epoch is kept.
    remarks: lines on the data. details: the same and more, for JSON.
    curve: (step, loss, measure).
    cleanup: called after installation.
    """

    ranker: Ranker = field(repr=False)
    epoch: int
    epochs: int
    dev: float | None
    baseline: float | None
    interrupted: bool
    measure: str = "dev NDCG weighted with the first stage"
    without: str = "without it"
    unit: str = "epoch"
    remarks: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    curve: Sequence[tuple[int, float | None, float | None]] = field(default=(), repr=False)
    cleanup: Callable[[], object] = field(default=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the ranker's name and version and the training, without its curve."""
        ranker = self.ranker
        about = {"name": ranker.name, "family": ranker.family, "variant": ranker.variant or ranker.name}
        training = {one.name: plain(getattr(self, one.name)) for one in fields(self) if one.repr}
        return {**about, "version": ranker.version, **training}
