"""Options of the projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from rerank.common.config import Count, Natural, NonNegative, Options, option

MAX_GAMMA = 40.0
"""Cosines differ by 2 at most, and exp(2 gamma) must be a number in single precision."""
_S2NET = ("s2net",)
_PAIRS = ("cllsi", "opca", "cca", "s2net")


class ProjectionConfig(Options, frozen=True):
    """Options of the linear projections of terms: ``lsi``, ``cllsi``, ``opca``, ``cca`` and ``s2net``."""

    judged_options: ClassVar[Sequence[str]] = ("graded", "judged")

    dim: Annotated[Count, option("Length of a projected vector (k).")] = 200
    init: Annotated[Literal["random", "cllsi", "opca", "lsi"], option("First matrix.", only=_S2NET)] = "lsi"
    letters: Annotated[
        Natural, option("Length of the letter sequences that are also terms; 0: words only.")
    ] = 4
    terms: Annotated[Count, option("Maximum number of terms (V). Terms of the most texts are used.")] = 50_000
    graded: Annotated[
        bool,
        option("Also learn from lower grades, which rank below higher ones.", only=_PAIRS),
    ] = False
    judged: Annotated[
        bool,
        option(
            "Compare a pair only with documents judged 0 or less (with graded: also of lower grades), if it"
            " has any.",
            only=_S2NET,
        ),
    ] = False
    gamma: Annotated[float, option("Factor of differences of cosines.", gt=0, le=MAX_GAMMA, only=_S2NET)] = (
        10.0
    )
    beta: Annotated[NonNegative, option("Weight of the squared distance from the start.", only=_S2NET)] = 0.0
    epochs: Annotated[Count, option("Maximum number of iterations of L-BFGS.", only=_S2NET)] = 120
    seed: Annotated[Natural, option("Random seed.")] = 0
