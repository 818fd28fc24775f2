"""Heads: pooled vectors of both sides -> score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass
class CosineHead:
    """S = cos(P_q c_q + a_q, P_d c_d + a_d).

    query, document: (width, z); query_bias, document_bias: (z,), outputs without tokens.
    """

    name: ClassVar[str] = "cosine"
    query: Float32
    query_bias: Float32
    document: Float32
    document_bias: Float32

    def encode_query(self, pooled: Float32) -> Float32:
        """(n, width) -> (n, z), length 1."""
        return _unit(pooled @ self.query + self.query_bias)

    def encode_documents(self, pooled: Float32) -> Float32:
        """(n, width) -> (n, z), length 1."""
        return _unit(pooled @ self.document + self.document_bias)

    def score(self, query: Float32, documents: NDArray[np.floating]) -> NDArray[np.float64]:
        """(z,), (n, z) -> (n,) cosines."""
        cosines: Float32 = documents.astype(np.float32, copy=False) @ query
        return cosines.astype(np.float64)

    def arrays(self) -> dict[str, Float32]:
        """Parameters by name."""
        return dict(vars(self))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Float32]) -> CosineHead:
        """Inverse of :meth:`arrays`."""
        return cls(**arrays)


@dataclass
class MlpHead:
    """S = tanh(O relu(... relu(U_q c_q + U_d c_d + b))) (Kuwa et al. 2020, section 3.1).

    query, document: (width, s); bias: (s,).
    hidden: (s, s) weights and (s,) biases. output: (s,), output_bias: (1,).
    """

    name: ClassVar[str] = "mlp"
    query: Float32
    document: Float32
    bias: Float32
    hidden: list[tuple[Float32, Float32]]
    output: Float32
    output_bias: Float32

    def encode_query(self, pooled: Float32) -> Float32:
        """(n, width) -> (n, s): U_q c_q + b."""
        encoded: Float32 = pooled @ self.query + self.bias
        return encoded

    def encode_documents(self, pooled: Float32) -> Float32:
        """(n, width) -> (n, s): U_d c_d."""
        encoded: Float32 = pooled @ self.document
        return encoded

    def score(self, query: Float32, documents: NDArray[np.floating]) -> NDArray[np.float64]:
        """(s,), (n, s) -> (n,) scores in [-1, 1]."""
        layer = documents.astype(np.float32)
        layer += query
        np.maximum(layer, 0.0, out=layer)
        for weight, bias in self.hidden:
            layer = layer @ weight
            layer += bias
            np.maximum(layer, 0.0, out=layer)
        linear = (layer @ self.output).astype(np.float64) + float(self.output_bias[0])
        return np.tanh(linear)

    def arrays(self) -> dict[str, Float32]:
        """Parameters by name."""
        arrays = {name: value for name, value in vars(self).items() if name != "hidden"}
        for i, (weight, bias) in enumerate(self.hidden):
            arrays |= {f"hidden.{i}": weight, f"hidden_bias.{i}": bias}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Float32]) -> MlpHead:
        """Inverse of :meth:`arrays`."""
        layers = sum(name.startswith("hidden.") for name in arrays)
        hidden = [(arrays[f"hidden.{i}"], arrays[f"hidden_bias.{i}"]) for i in range(layers)]
        others = {name: value for name, value in arrays.items() if not name.startswith("hidden")}
        return cls(hidden=hidden, **others)


Head = CosineHead | MlpHead
HEADS: dict[str, type[CosineHead] | type[MlpHead]] = {"cosine": CosineHead, "mlp": MlpHead}


def _unit(rows: Float32) -> Float32:
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    unit: Float32 = rows / np.maximum(norms, 1e-9)[:, None]
    return unit
