"""What documents find, before and after training, side by side (figure 4 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHOWN = 5
ASKED = 6
"""Documents whose nearest ones are shown."""


@dataclass(frozen=True)
class Found:
    """A document that is among the nearest; held_out: linked by a link that nobody learned from."""

    id: str
    title: str
    cosine: float
    held_out: bool


@dataclass(frozen=True)
class Asked:
    """A document, and the nearest ones before and after the training."""

    id: str
    title: str
    before: list[Found]
    after: list[Found]


def nearest(unit: NDArray[np.float32], row: int, left_out: NDArray[np.bool_]) -> list[tuple[int, float]]:
    """Rows of the SHOWN nearest to a row, and their cosines; never itself, nor what is ``left_out``.

    >>> nearest(np.float32([[1, 0], [0, 1], [0.6, 0.8], [1, 0]]), 0, np.array([False, False, False, True]))
    [(2, 0.6), (1, 0.0)]
    """
    scores = (unit @ unit[row]).astype(np.float64)
    scores[left_out] = -np.inf
    scores[row] = -np.inf
    order = np.argsort(-scores, kind="stable")[:SHOWN]
    return [(int(i), round(float(scores[i]), 4)) for i in order if scores[i] > -np.inf]
