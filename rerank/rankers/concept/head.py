"""Relatedness of two vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
PARTS = ("first", "second", "apart")
"""Weights of u, v and |u - v|."""


@dataclass(frozen=True)
class Head:
    """sigma(w [u; v; |u - v|] + b), u and v unit vectors (Ma et al. 2023, equation 6).

    first, second, apart: (E,) w.
    bias: b.

    >>> zero = np.zeros(2, dtype=np.float32)
    >>> head = Head(zero, zero, np.float32([-1, -1]), 1.0)
    >>> head.relatedness(np.float32([[1, 0], [1, 0]]), np.float32([[1, 0], [0, 1]])).round(3).tolist()
    [0.731, 0.269]
    """

    first: Float32
    second: Float32
    apart: Float32
    bias: float

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return probabilities, (n,), of (n, E) pairs, averaged over both orders.

        One side may be (1, E) or (E,).
        """
        a, b = a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
        difference = a - b
        both = np.abs(difference, out=difference) @ self.apart + np.float32(self.bias)
        sides = np.stack((self.first, self.second), axis=1)
        left, right = a @ sides, b @ sides
        forward = (both + left[..., 0] + right[..., 1]).astype(np.float64)
        backward = (both + right[..., 0] + left[..., 1]).astype(np.float64)
        return (_sigmoid(forward) + _sigmoid(backward)) / 2

    def arrays(self) -> dict[str, Float32]:
        """Return parameters by name."""
        return {**{name: getattr(self, name) for name in PARTS}, "bias": np.full(1, self.bias, np.float32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Float32]) -> Head:
        """Read :meth:`arrays`."""
        first, second, apart = (arrays[name] for name in PARTS)
        return cls(first, second, apart, float(arrays["bias"][0]))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))
