"""Options of the projections, and their registration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from rerank.config import Count, Natural, NonNegative, Options, Share, option
from rerank.errors import UsageError
from rerank.rankers.projection.s2net import MOST_GAMMA

INITS = ("auto", "random", "cllsi", "opca", "lsi")
"""Starts of S2Net, other than a fitted projection."""
_S2NET = ("s2net",)
_PAIRS = ("cllsi", "opca", "cca", "s2net")


class ProjectionConfig(Options, frozen=True):
    """Options of ``lsi``, ``cllsi``, ``opca``, ``cca`` and ``s2net``."""

    dim: Annotated[Count, option("numbers in a projected vector (k)", common=True)] = 200
    init: Annotated[
        str,
        option(
            "where it starts: random, cllsi, opca, lsi, the folder of a fitted projection, or auto: the best"
            " of these four on dev",
            only=_S2NET,
            common=True,
            metavar="START",
        ),
    ] = "auto"
    letters: Annotated[
        Natural,
        option("length of the letter sequences that are terms beside words; 0: words only", common=True),
    ] = 4
    terms: Annotated[Count, option("at most so many terms (V), those in the most texts", common=True)] = (
        50_000
    )
    graded: Annotated[
        bool, option("lower grades are pairs too, and stay below higher ones", only=_PAIRS, common=True)
    ] = False
    judged: Annotated[
        Share,
        option(
            "weight of documents judged 0 or less, and with graded of lower grades, among what a pair is"
            " compared with; 0: as all others",
            only=_S2NET,
        ),
    ] = 0.5
    hard: Annotated[
        Natural,
        option(
            "so many of the documents that a pair is compared with, those nearest to its query by the matrix"
            " so far, weigh as those judged 0; found anew every 15 iterations",
            only=_S2NET,
        ),
    ] = 0
    negatives: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        option(
            "documents a pair is compared with: those of this many pairs, drawn anew every 15 iterations;"
            " none: all, or 4,096 where there are very many",
            only=_S2NET,
        ),
    ] = None
    gamma: Annotated[
        float, option("factor of the cosines' differences", gt=0, le=MOST_GAMMA, only=_S2NET, common=True)
    ] = 10.0
    beta: Annotated[NonNegative, option("weight of the squared distance from the start", only=_S2NET)] = 0.0
    epochs: Annotated[Count, option("iterations of L-BFGS, at most", only=_S2NET, common=True)] = 120
    seed: Annotated[Natural, option("of everything random", common=True)] = 0

    def __post_init__(self) -> None:
        if self.init not in INITS and not (Path(self.init) / "ranker.json").exists():
            raise UsageError(
                f"--init {self.init!r} is none of {', '.join(INITS)}, nor the folder of a fitted projection"
            )

    def unread(self) -> Mapping[str, str]:
        """Options without effect -> the option that is the reason."""
        return {} if self.judged else {"hard": "--judged 0"}
