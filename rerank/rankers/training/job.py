"""Input and result of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerank.engines.base import Engine
from rerank.progress import Progress
from rerank.rankers.base import Ranker
from rerank.rankers.training.data import TrainingData
from rerank.records import LabeledPair


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

    ranker: Ranker
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
    curve: Sequence[tuple[int, float | None, float | None]] = ()
    cleanup: Callable[[], object] = dict
