"""What a training will take, told before it begins: a few texts are timed, and the rest is arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PROBED = 16
"""Texts that are timed."""
BACKWARD = 2.0
"""Forward passes that a backward pass takes."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of the parts of a training.

    kept: what the fixed layers make of all texts, computed once. step: one of it; measuring: once.

    >>> forecast = Forecast.of(0.01, texts=1000, batch=100, measured=500, learning=2, layers=6, cut=True)
    >>> round(forecast.kept, 3), round(forecast.step, 3), round(forecast.measuring, 3)
    (6.667, 1.0, 1.667)
    >>> round(forecast.seconds(steps=30, measurements=3), 3)
    41.667
    """

    kept: float
    step: float
    measuring: float

    @classmethod
    def of(
        cls, each: float, *, texts: int, batch: int, measured: int, learning: int, layers: int, cut: bool
    ) -> Forecast:
        """From the seconds that one text takes forward through all layers.

        texts: that are trained on; batch: of a step; measured: that are encoded to measure. learning: layers
        that learn, of how many; cut: whether the others are computed once.
        """
        upper = each * learning / layers
        forward = upper if cut else each
        return cls((each - upper) * texts * cut, batch * (forward + BACKWARD * upper), measured * forward)

    def seconds(self, *, steps: int, measurements: int) -> float:
        """All of it."""
        return self.kept + steps * self.step + measurements * self.measuring


def timed(encode: Callable[[list[NDArray[np.int32]]], object], texts: list[NDArray[np.int32]]) -> float:
    """Seconds of a text forward: the second time, as the first one sets things up."""
    encode(texts[:PROBED])
    begin = time.monotonic()
    encode(texts[:PROBED])
    return (time.monotonic() - begin) / max(1, min(len(texts), PROBED))
