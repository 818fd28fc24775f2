"""Torch models for training the CNN rankers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Embedding
from rerank.rankers.cnn.towers import Head, Ragged, Tower, ranges


class TorchTower(nn.Module):
    """Torch version of :class:`rerank.rankers.cnn.towers.Tower`."""

    def __init__(self, embedding: Embedding, config: CnnConfig) -> None:
        super().__init__()
        self.vocabulary, text = embedding.vocabulary, embedding.vocabulary.part == "text"
        self.width = config.width if text else 1
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
        weights = torch.from_numpy(embedding.importance()) if config.importance and text else None
        self.register_buffer("importance", weights)
        self.out = config.filters + (size if config.mean else 0)

    def forward(self, tokens: Ragged) -> Tensor:
        """Pool n sequences: (n, out)."""
        h, size, m = self.width, self.vectors.embedding_dim, self.filters.out_features
        tokens = tokens.padded(h)
        windows = np.maximum(tokens.lengths - h + 1, 0)
        places = ranges(tokens.offsets[:-1], windows)[:, None] + np.arange(h)
        # Each distinct word is multiplied once per place in a window, not once per occurrence.
        words, word = np.unique(tokens.flat, return_inverse=True)
        vectors = self.vectors(torch.from_numpy(words.astype(np.int64)))
        by_place = self.filters.weight.view(m, h, size).permute(2, 1, 0).reshape(size, h * m)
        bias = nn.functional.pad(self.filters.bias, (0, (h - 1) * m))  # of the first word, once a window
        products = (vectors @ by_place + bias).view(-1, m)
        bags = torch.from_numpy(word[places] * h + np.arange(h))
        hidden = torch.tanh(nn.functional.embedding_bag(bags, products, mode="sum"))
        flat = torch.from_numpy(tokens.flat.astype(np.int64))
        of_token = (flat > 0).float() if self.importance is None else self.importance[flat]  # 0 for padding
        pooled = _weighted_mean(hidden, of_token[torch.from_numpy(places)].sum(dim=1), windows)
        if not self.mean:
            return pooled
        mean = _weighted_mean(vectors[torch.from_numpy(word)], of_token, tokens.lengths)
        return torch.cat([pooled, mean], dim=1)

    def numpy(self) -> Tower:
        """Convert to NumPy, embeddings in fp16."""
        size = self.vectors.embedding_dim
        filters, bias = _array(self.filters.weight).T.reshape(self.width, size, -1), _array(self.filters.bias)
        importance = None if self.importance is None else _array(self.importance)
        vectors = _array(self.vectors.weight).astype(np.float16)
        return Tower(self.vocabulary, vectors, importance, filters.copy(), bias, self.mean)


def _array(tensor: Any) -> NDArray[np.float32]:
    copied: NDArray[np.float32] = tensor.detach().numpy().copy()
    return copied


def _weighted_mean(rows: Tensor, weights: Tensor, counts: NDArray[np.int64]) -> Tensor:
    """Means of the first ``counts[0]`` rows, of the next ``counts[1]`` rows, ...; of no rows 0."""
    owner = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    total = torch.zeros(len(counts)).index_add_(0, owner, weights)
    summed = torch.zeros(len(counts), rows.shape[1]).index_add_(0, owner, rows * weights[:, None])
    return summed / total.clamp(min=1e-9)[:, None]


class TorchRanker(nn.Module):
    """Torch version of :class:`rerank.rankers.cnn.ranker.CnnRanker`. towers: of each side."""

    def __init__(self, towers: Mapping[str, Sequence[TorchTower]], config: CnnConfig) -> None:
        super().__init__()
        self.towers = towers
        self.sides = nn.ModuleDict({side: nn.ModuleList(own) for side, own in towers.items()})
        self.drop = nn.Dropout(config.dropout)
        widths = {side: sum(tower.out for tower in own) for side, own in towers.items()}
        cosine = config.head == "cosine"
        first = config.vector_size if cosine else config.hidden[0]
        self.from_query = nn.Linear(widths["query"], first)
        self.from_document = nn.Linear(widths["document"], first, bias=cosine)
        sizes = () if cosine else config.hidden
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1) if sizes else None

    def encode(self, side: str, tokens: Sequence[Ragged]) -> Tensor:
        """Pool and apply the first layer: (n, projection or first hidden size)."""
        first = self.from_query if side == "query" else self.from_document
        pooled = torch.cat([tower(part) for tower, part in zip(self.towers[side], tokens)], dim=1)
        encoded: Tensor = first(self.drop(pooled) if self.output is None else pooled)
        return nn.functional.normalize(encoded, dim=1) if self.output is None else encoded

    def score(self, query: Tensor, document: Tensor) -> Tensor:
        """Scores of n encoded pairs: (n,); MLP: before tanh."""
        if self.output is None:
            return (query * document).sum(dim=1)
        layer = self.drop(torch.relu(query + document))
        for hidden in self.hidden:
            layer = self.drop(torch.relu(hidden(layer)))
        scores: Tensor = self.output(layer)[:, 0]
        return scores

    def head(self) -> Head:
        """Convert the head to NumPy."""
        layers: dict[str, Any] = {"query": self.from_query, "document": self.from_document}
        layers |= {f"hidden.{i}": layer for i, layer in enumerate(self.hidden)}
        layers |= {"output": self.output} if self.output is not None else {}
        arrays = {name: _array(layer.weight).T.copy() for name, layer in layers.items()}
        biases = {f"{name}_bias": layer.bias for name, layer in layers.items() if layer.bias is not None}
        return Head(arrays | {name: _array(bias) for name, bias in biases.items()})
