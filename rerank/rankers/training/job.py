"""The input and the result of a training."""

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

    data:     judgments and pairs, if the family learns from them.
    folder:   for the checkpoints of interrupted trainings, one folder per ranker.
    restart:  discard existing checkpoints.
    labeled: pairs to learn from, and pairs to measure by, if the family learns from labels.
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

    epoch, epochs: the epoch that was kept and their number, each a ``unit`` (epoch, iteration, step); 0 if
        nothing iterates.
    dev, baseline: the ``measure`` of held-out data with the ranker, and ``without`` its gain.
    interrupted: the user stopped it, and the best epoch was kept.
    remarks: lines about the training data. details: the same and more, for JSON.
    curve: measurements as (step, loss, measure).
    cleanup: is called after the ranker is installed, for instance to delete a checkpoint.
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
