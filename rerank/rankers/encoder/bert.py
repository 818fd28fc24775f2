"""Query encoding by BERT in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.files import parse_json
from rerank.rankers.encoder.folder import BERT_TYPES, ROBERTA, has_weights, map_weights
from rerank.rankers.encoder.modules import Modules, Tokens

Array = NDArray[np.float32]


def first_position(config: Mapping[str, Any]) -> int:
    """Return the position of the first token.

    >>> first_position({"model_type": "bert"}), first_position({"model_type": "roberta", "pad_token_id": 1})
    (0, 2)
    """
    return int(config["pad_token_id"]) + 1 if config["model_type"] in ROBERTA else 0


def readable(folder: Path) -> bool:
    """Return whether :class:`Bert` supports the type, the activation and the files of a model."""
    try:
        config = parse_json((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return (
        config.get("model_type") in BERT_TYPES
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and has_weights(folder)
        and (folder / "tokenizer.json").is_file()
    )


@dataclass(frozen=True)
class Bert:
    """BERT for queries in NumPy, without torch: a query takes milliseconds, and importing torch seconds.

    weights: name in Hugging Face's layout -> array.
    layers:  number of layers.
    heads:   number of attention heads.
    epsilon: constant of the layer normalizations.
    first:   position of the first token.
    tokens:  tokenizer of queries.
    modules: pooling, projection and prompts.
    """

    weights: dict[str, Array]
    layers: int
    heads: int
    epsilon: float
    first: int
    tokens: Tokens
    modules: Modules

    @classmethod
    def load(cls, folder: Path) -> Bert:
        """Read a model for which :func:`readable` is true. Its weights are mapped into memory."""
        config = parse_json((folder / "config.json").read_text("utf-8"))
        modules = Modules.read(folder)
        mapped = map_weights(folder)
        weights = {name: array.astype(np.float32, copy=False) for name, array in mapped.items()}
        longest = modules.longest or config["max_position_embeddings"] - first_position(config)
        return cls(
            weights,
            int(config["num_hidden_layers"]),
            int(config["num_attention_heads"]),
            float(config["layer_norm_eps"]),
            first_position(config),
            Tokens.read(folder, longest, modules.query_prompt, lowercase=modules.lowercase),
            modules,
        )

    def encode(self, text: str) -> Array:
        """Return the vector of a text, (E,), of length 1, or zeros for a text without tokens."""
        return self.mapped(self.pooled(text))

    def pooled(self, text: str) -> Array:
        """Return the pooled states of a text before the linear map, or zeros for a text without tokens."""
        tokens = self.tokens([text])[0][: self.tokens.room]
        before, after = self.tokens.frame
        states = self.states([*before, *tokens, *after])
        pooled: Array = states[0] if self.modules.pooling == "cls" else states.mean(axis=0)
        return pooled if tokens else np.zeros_like(pooled)

    def mapped(self, pooled: Array) -> Array:
        """Return the vector of a text, (E,), from its pooled states."""
        if pooled.any():
            return self.modules.mapped(pooled)
        return np.zeros(self.modules.width(len(pooled)), np.float32)

    def states(self, ids: Sequence[int], types: Sequence[int] = (0,)) -> Array:
        """Return the states of the last layer, (T, E) (Devlin et al. 2019).

        ids: T tokens. types: of the T tokens, or one for all.
        """
        weights = self.weights
        states = weights["embeddings.word_embeddings.weight"][list(ids)]
        positions = weights["embeddings.position_embeddings.weight"]
        states = states + positions[self.first : self.first + len(ids)]
        states += weights["embeddings.token_type_embeddings.weight"][list(types)]
        states = self._normalized(states, "embeddings.LayerNorm")
        for number in range(self.layers):
            layer = f"encoder.layer.{number}"
            attended = self.linear(self._attention(states, layer), f"{layer}.attention.output.dense")
            states = self._normalized(states + attended, f"{layer}.attention.output.LayerNorm")
            hidden = gelu(self.linear(states, f"{layer}.intermediate.dense"))
            states = self._normalized(
                states + self.linear(hidden, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"
            )
        return states

    def linear(self, states: Array, name: str) -> Array:
        """Return the states, (T, E), after the linear layer with this name."""
        mapped: Array = states @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return mapped

    def _normalized(self, states: Array, name: str) -> Array:
        centered = states - states.mean(axis=1, keepdims=True)
        spread = np.sqrt(np.square(centered).mean(axis=1, keepdims=True) + np.float32(self.epsilon))
        scaled: Array = centered / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return scaled

    def _attention(self, states: Array, layer: str) -> Array:
        tokens, width = states.shape
        query, key, value = (
            self.linear(states, f"{layer}.attention.self.{name}")
            .reshape(tokens, self.heads, width // self.heads)
            .transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )  # (heads, T, width / heads)
        scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(width // self.heads))
        scores = np.exp(scores - scores.max(axis=2, keepdims=True))
        scores /= scores.sum(axis=2, keepdims=True)
        mixed: Array = (scores @ value).transpose(1, 0, 2).reshape(tokens, width)
        return mixed


def gelu(x: Array) -> Array:
    """Return x Phi(x), Phi the normal distribution.

    >>> [round(value, 4) for value in gelu(np.float32([-1, 0, 1])).tolist()]
    [-0.1587, 0.0, 0.8413]
    """
    half: Array = np.float32(0.5) * x * (np.float32(1) + erf(x * np.float32(np.sqrt(0.5))))
    return half


_OVER: tuple[float, ...] = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_UNDER: tuple[float, ...] = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03),
    -1.42647390514189e-02,
)


def erf(x: Array) -> Array:
    """Return the error function to 5e-7 (approximation of Eigen and XLA; faster than SciPy)."""
    x = np.clip(x, -4, 4)
    squared = x * x
    over, under = (
        reduce(lambda sum_, factor: sum_ * squared + np.float32(factor), factors, np.zeros_like(x))
        for factors in (_OVER, _UNDER)
    )
    ratio: Array = x * over / under
    return ratio
