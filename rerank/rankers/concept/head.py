"""Relatedness of two vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Head:
    """sigma(w [u; v; |u - v|] + b), u and v unit vectors (Ma et al. 2023, equation 6).

    first, second, apart: (E,) w.
    bias: (1,) b.
    """

    first: Float32
    second: Float32
    apart: Float32
    bias: Float32

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return probabilities, (n,), of (n, E) pairs, averaged over both orders.

        One side may be (1, E) or (E,).
        """
        a, b = a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
        difference = a - b
        both = np.abs(difference, out=difference) @ self.apart + self.bias
        sides = np.stack((self.first, self.second), axis=1)
        left, right = a @ sides, b @ sides
        forward = (both + left[..., 0] + right[..., 1]).astype(np.float64)
        backward = (both + right[..., 0] + left[..., 1]).astype(np.float64)
        return (_sigmoid(forward) + _sigmoid(backward)) / 2


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))
