"""Torch models for training the CNN rankers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank.common.arrays import Ragged, ranges
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Embedding
from rerank.rankers.cnn.towers import Head, Network, Tower


class TorchTower(nn.Module):
    """Learns the weights of a :class:`rerank.rankers.cnn.towers.Tower`.

    width:        the number of tokens in a window; 1 for categories, which have no order.
    mean:         whether the mean of the token vectors is a part of the result.
    importance:   (n + 1,) the weight of each token; None: all tokens weigh the same.
    pooled_width: the width of the result.
    """

    def __init__(self, embedding: Embedding, config: CnnConfig) -> None:
        super().__init__()
        self.vocabulary = embedding.vocabulary
        is_text = self.vocabulary.part == "text"
        self.width = config.width if is_text else 1
        size = embedding.vectors.shape[1]
        self.vectors = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            torch.from_numpy(embedding.vectors.copy()),
            freeze=not config.tune_embeddings,
            padding_idx=0,
            sparse=True,
        )
        self.filters = nn.Linear(self.width * size, config.filters)
        self.mean = config.mean
        self.importance: Tensor | None
        has_importance = config.importance and is_text
        importance = torch.from_numpy(embedding.importance()) if has_importance else None
        self.register_buffer("importance", importance)
        self.pooled_width = config.filters + (size if config.mean else 0)

    def forward(self, tokens: Ragged) -> Tensor:
        """Return the pooled vectors of n token sequences, (n, pooled_width), with gradient."""
        tokens = tokens.padded(self.width)
        distinct, numbers = np.unique(tokens.flat, return_inverse=True)
        vectors = self.vectors(torch.from_numpy(distinct.astype(np.int64)))
        token_weights = self._token_weights(tokens)

        window_counts = np.maximum(tokens.lengths - self.width + 1, 0)
        first_positions = ranges(tokens.offsets[:-1], window_counts)
        positions = first_positions[:, None] + np.arange(self.width)  # (windows, width)
        hidden = self._convolve(vectors, numbers[positions])
        window_weights = token_weights[torch.from_numpy(positions)].sum(dim=1)
        pooled = _weighted_mean(hidden, window_weights, window_counts)
        if not self.mean:
            return pooled
        mean = _weighted_mean(vectors[torch.from_numpy(numbers)], token_weights, tokens.lengths)
        return torch.cat([pooled, mean], dim=1)

    def _token_weights(self, tokens: Ragged) -> Tensor:
        """Return the weight of each token in its sequence. The weight of padding is 0."""
        flat = torch.from_numpy(tokens.flat.astype(np.int64))
        return (flat > 0).float() if self.importance is None else self.importance[flat]

    def _convolve(self, vectors: Tensor, windows: NDArray[np.int64]) -> Tensor:
        """Return the outputs of the filters for each window, (windows, filters).

        Each distinct word is multiplied once per position in a window, not once per occurrence.

        vectors: (d, size) the vectors of the distinct words.
        windows: (windows, width) the words of each window, as rows of ``vectors``.
        """
        filters = self.filters.out_features
        width = self.width
        size = self.vectors.embedding_dim
        by_position = self.filters.weight.view(filters, width, size).permute(2, 1, 0)
        # A window needs its bias once, so only its first word has one.
        bias = nn.functional.pad(self.filters.bias, (0, (width - 1) * filters))
        products = vectors @ by_position.reshape(size, width * filters) + bias
        rows = torch.from_numpy(windows * width + np.arange(width))
        sums = nn.functional.embedding_bag(rows, products.view(-1, filters), mode="sum")
        return torch.tanh(sums)

    def numpy(self) -> Tower:
        """Return the same tower in NumPy, with the embeddings in fp16."""
        size = self.vectors.embedding_dim
        filters = _array(self.filters.weight).T.reshape(self.width, size, -1)
        bias = _array(self.filters.bias)
        importance = None if self.importance is None else _array(self.importance)
        vectors = _array(self.vectors.weight).astype(np.float16)
        return Tower(self.vocabulary, vectors, importance, filters.copy(), bias, self.mean)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    copied: NDArray[np.float32] = tensor.detach().numpy().copy()
    return copied


def _weighted_mean(rows: Tensor, weights: Tensor, counts: NDArray[np.int64]) -> Tensor:
    """Return the weighted means of the first ``counts[0]`` rows, of the next ``counts[1]`` rows, and so on.

    The mean of no rows is 0.
    """
    sequence = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    total = torch.zeros(len(counts)).index_add_(0, sequence, weights)
    summed = torch.zeros(len(counts), rows.shape[1]).index_add_(0, sequence, rows * weights[:, None])
    return summed / total.clamp(min=1e-9)[:, None]


class TorchRanker(nn.Module):
    """Learns the weights of a :class:`rerank.rankers.cnn.ranker.CnnRanker`.

    Its head is the cosine of two encoded texts, or an MLP that reads both.

    towers: the towers of ``query`` and of ``document``, one per part.
    hidden: the hidden layers of the MLP after the first one.
    output: the last layer of the MLP; None: the head is the cosine.
    """

    def __init__(self, towers: Mapping[str, Sequence[TorchTower]], config: CnnConfig) -> None:
        super().__init__()
        self.towers = towers
        self.sides = nn.ModuleDict()
        for side, side_towers in towers.items():
            self.sides[side] = nn.ModuleList(side_towers)
        self.drop = nn.Dropout(config.dropout)
        is_cosine = config.head == "cosine"
        encoded_width = config.vector_size if is_cosine else config.hidden[0]
        self.from_query = nn.Linear(self._pooled_width("query"), encoded_width)
        # The MLP adds both texts, so one of them has its bias.
        self.from_document = nn.Linear(self._pooled_width("document"), encoded_width, bias=is_cosine)
        self.hidden = nn.ModuleList()
        self.output: nn.Linear | None = None
        if not is_cosine:
            self.hidden.extend(nn.Linear(before, after) for before, after in pairwise(config.hidden))
            self.output = nn.Linear(config.hidden[-1], 1)

    def _pooled_width(self, side: str) -> int:
        return sum(tower.pooled_width for tower in self.towers[side])

    def encode(self, side: str, tokens: Sequence[Ragged]) -> Tensor:
        """Pool n texts and apply the first layer: (n, vector size or first hidden size).

        tokens: the n token sequences of each part.
        """
        first_layer = self.from_query if side == "query" else self.from_document
        parts = [tower(sequences) for tower, sequences in zip(self.towers[side], tokens)]
        pooled = torch.cat(parts, dim=1)
        if self.output is None:
            return nn.functional.normalize(first_layer(self.drop(pooled)), dim=1)
        encoded: Tensor = first_layer(pooled)
        return encoded

    def score(self, query: Tensor, document: Tensor) -> Tensor:
        """Return the (n,) scores of n encoded pairs. Those of the MLP are the values before tanh."""
        if self.output is None:
            return (query * document).sum(dim=1)
        layer = self.drop(torch.relu(query + document))
        for hidden in self.hidden:
            layer = self.drop(torch.relu(hidden(layer)))
        scores: Tensor = self.output(layer)[:, 0]
        return scores

    def numpy(self) -> Network:
        """Return the same network in NumPy, for a stored ranker."""
        towers = {side: [tower.numpy() for tower in side_towers] for side, side_towers in self.towers.items()}
        return Network(query=towers["query"], document=towers["document"], head=self._head())

    def _head(self) -> Head:
        layers = self._layers()
        arrays = {name: _array(layer.weight).T.copy() for name, layer in layers.items()}
        for name, layer in layers.items():
            if layer.bias is not None:
                arrays[f"{name}_bias"] = _array(layer.bias)
        return Head(arrays)

    def _layers(self) -> dict[str, nn.Linear]:
        """Return the layers of the head by the names that a stored ranker has for them."""
        layers: dict[str, nn.Linear] = {"query": self.from_query, "document": self.from_document}
        for number, hidden in enumerate(self.hidden):
            layers[f"hidden.{number}"] = cast(nn.Linear, hidden)
        if self.output is not None:
            layers["output"] = self.output
        return layers
