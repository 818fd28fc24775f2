"""Options of the projections, and their registration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rerank.errors import UsageError, setting_hint
from rerank.rankers.projection.s2net import MOST_GAMMA
from rerank.rankers.training.registry import Training
from rerank.settings import setting

INITS = ("auto", "random", "cllsi", "opca", "lsi")
"""Starts of S2Net, other than a fitted projection."""
_S2NET = ("s2net",)
_PAIRS = ("cllsi", "opca", "cca", "s2net")


@dataclass(frozen=True)
class ProjectionConfig:
    """Options of ``lsi``, ``cllsi``, ``opca``, ``cca`` and ``s2net``."""

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
    negatives: int | None = setting(
        None,
        "documents a pair is compared with: those of this many pairs, drawn anew every 15 iterations; none:"
        " all, or 4,096 where there are very many",
        low=2,
        only=_S2NET,
    )
    gamma: float = setting(
        10.0, "factor of the cosines' differences", above=0, high=MOST_GAMMA, only=_S2NET, common=True
    )
    beta: float = setting(0.0, "weight of the squared distance from the start", low=0, only=_S2NET)
    epochs: int = setting(120, "iterations of L-BFGS, at most", low=1, only=_S2NET, common=True)
    seed: int = setting(0, "of everything random", low=0, common=True)

    def __post_init__(self) -> None:
        if self.init not in INITS and not (Path(self.init) / "ranker.json").exists():
            raise UsageError(
                f"{setting_hint('init')} {self.init!r} is none of {', '.join(INITS)}, nor the folder of a"
                " fitted projection"
            )

    def unread(self) -> Mapping[str, str]:
        """Options without effect -> the option that is the reason."""
        return {} if self.judged else {"hard": setting_hint("judged", 0)}


TRAINING = Training(
    learns_from=("judgements", "pairs"),
    config=ProjectionConfig,
    fitter="rerank.rankers.projection.fit:trainer",
)
