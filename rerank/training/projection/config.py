"""Settings of the projections, and how they are registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rerank.errors import UsageError, setting_hint
from rerank.rankers.projection.ranker import Projection
from rerank.rankers.registry import load_ranker
from rerank.settings import setting
from rerank.training.projection.s2net import MOST_GAMMA
from rerank.training.registry import Training

INITS = ("auto", "random", "cllsi", "opca", "lsi")
"""Where S2Net can start from, but for a fitted projection."""
MOST = 120
"""Iterations of L-BFGS."""
_S2NET = ("s2net",)
_PAIRS = ("cllsi", "opca", "cca", "s2net")


@dataclass(frozen=True)
class ProjectionConfig:
    """Settings of ``lsi``, ``cllsi``, ``opca``, ``cca`` and ``s2net``."""

    dim: int = setting(200, "numbers in a projected vector (k)", low=1, common=True)
    init: str = setting(
        "auto",
        "where it starts: random, cllsi, opca, lsi, the folder of a fitted projection, or auto: the best"
        " of these four on dev",
        only=_S2NET,
        common=True,
        metavar="START",
    )
    letters: int = setting(
        4, "length of the letter sequences that are terms beside words; 0: words only", low=0, common=True
    )
    terms: int = setting(50_000, "at most so many terms (V), those in the most texts", low=1, common=True)
    tf: Literal["log", "raw"] = setting("log", "a term's count in its weight: 1 + ln tf, or tf")
    two_matrices: bool = setting(
        False, "a matrix of its own for each side, as cca always has", only=("lsi", "cllsi", "opca", "s2net")
    )
    tanh: bool = setting(False, "g = tanh(A^T f), not linear", only=_S2NET)
    loss: Literal["logistic", "squared"] = setting(
        "logistic", "over differences of cosines, or over cosines and labels", only=_S2NET, common=True
    )
    graded: bool = setting(
        False, "lower grades are pairs too, and stay below higher ones", only=_PAIRS, common=True
    )
    judged: float = setting(
        0.5,
        "weight of documents judged 0 or less, and with graded of lower grades, among what a pair is compared"
        " with; 0: as all others",
        low=0,
        high=1,
        only=_S2NET,
    )
    hard: int = setting(
        0,
        "so many of the documents that a pair is compared with, those nearest to its query by the matrix so"
        " far, weigh as those judged 0; found anew every 15 iterations",
        low=0,
        only=_S2NET,
    )
    both_sides: bool = setting(False, "compare each document with all queries too", only=_S2NET)
    negatives: int | None = setting(
        None,
        "documents a pair is compared with: those of this many pairs, drawn anew every 15 iterations; none:"
        " all, or 4,096 where there are very many",
        low=2,
        only=_S2NET,
    )
    gamma: float = setting(
        10.0,
        "factor of the cosines' differences",
        above=0,
        high=MOST_GAMMA,
        only=_S2NET,
        common=True,
    )
    beta: float = setting(0.0, "weight of the squared distance from the start", low=0, only=_S2NET)
    opca_ridge: float = setting(
        0.5, "ridge, as a share of the mean noise variance of a term", low=0, only=("opca", "s2net")
    )
    cca_ridge: float = setting(1e-4, "variance added to each term", low=0, only=("cca",))
    epochs: int = setting(MOST, "iterations of L-BFGS, at most", low=1, only=_S2NET, common=True)
    memory: int = setting(10, "pairs of differences that L-BFGS keeps", low=1, only=_S2NET)
    seed: int = setting(0, "of everything random", low=0, common=True)
    start: Projection | None = None
    """A fitted projection that s2net starts from, given by programs."""

    def __post_init__(self) -> None:
        if self.start is None and self.init not in INITS:
            object.__setattr__(self, "start", start_from(self.init))

    def unread(self) -> Mapping[str, str]:
        """What the other settings leave without effect, and why."""
        found = {"gamma": setting_hint("loss", "squared")} if self.loss == "squared" else {}
        return found if self.judged else {**found, "hard": setting_hint("judged", 0)}


def start_from(folder: str | Path) -> Projection:
    """Load a fitted projection for S2Net to start from; UsageError where the folder holds none."""
    if not (Path(folder) / "ranker.json").exists():
        raise UsageError(
            f"{setting_hint('init')} {str(folder)!r} is none of {', '.join(INITS)}, nor the folder of a"
            " fitted projection"
        )
    found = load_ranker(Path(folder))
    if not isinstance(found, Projection):
        raise UsageError(f"{folder}: {found.name} is no projection; start from one")
    return found


TRAINING = Training(
    learns_from=("judgements", "pairs"),
    config=ProjectionConfig,
    fitter="rerank.training.projection.fit:trainer",
    resumes=("s2net",),
)
