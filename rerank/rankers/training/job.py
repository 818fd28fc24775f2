"""Input and result of a training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerank.common.progress import SILENT, Progress
from rerank.common.results import to_json_value
from rerank.documents.records import LabeledPair
from rerank.engines.base import Engine
from rerank.rankers.base import Ranker
from rerank.rankers.training.data import TrainingData


@dataclass(frozen=True)
class TrainingJob:
    """The input of a fitter, and the folder of its checkpoints.

    engine:  the documents.
    data:    judged queries and pairs of texts; None for families that learn from neither.
    folder:  has the checkpoints, in one folder per ranker.
    restart: whether to discard checkpoints instead of continuing from them.
    labeled: the labeled pairs to learn from, and the dev pairs.
    """

    engine: Engine
    data: TrainingData | None
    folder: Path
    restart: bool = False
    progress: Progress = SILENT
    labeled: tuple[Sequence[LabeledPair], Sequence[LabeledPair]] | None = None

    def checkpoint(self, name: str) -> Path:
        """Return the folder of a ranker's checkpoint. A restart removes its content first."""
        if self.restart:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.folder / name


@dataclass(frozen=True)
class TrainingResult:
    """A fitted ranker, and how it was trained.

    epoch:          the epoch whose weights the ranker has, counted in ``unit``; 0 if it was not iterative.
    epochs:         the number of epochs that were trained.
    dev:            the value of ``measure`` on dev with the ranker; None if nothing is held out.
    baseline_value: the value without the ranker, or with what ``baseline_name`` says.
    interrupted:    whether the user stopped the training. The ranker has the best weights up to that moment.
    remarks:        lines about the data, for the user.
    details:        the same facts as JSON, and more.
    curve:          (step, loss, measure) for each measurement.
    discard_checkpoint: to call when the ranker is installed; None if the training can continue.
    """

    ranker: Ranker = field(repr=False)
    epoch: int
    epochs: int
    dev: float | None
    baseline_value: float | None
    interrupted: bool
    measure: str = "dev NDCG weighted with the first stage"
    baseline_name: str = "without it"
    unit: str = "epoch"
    remarks: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    curve: Sequence[tuple[int, float | None, float | None]] = field(default=(), repr=False)
    discard_checkpoint: Callable[[], object] | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the ranker's name and version and the training, without its curve."""
        ranker = self.ranker
        return {
            "name": ranker.name,
            "family": ranker.family,
            "variant": ranker.variant or ranker.name,
            "version": ranker.version,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "dev": self.dev,
            "baseline": self.baseline_value,
            "interrupted": self.interrupted,
            "measure": self.measure,
            "without": self.baseline_name,
            "unit": self.unit,
            "remarks": to_json_value(self.remarks),
            "details": to_json_value(self.details),
        }
