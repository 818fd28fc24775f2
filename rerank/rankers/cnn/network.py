"""Torch models for training the CNN rankers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Embedding
from rerank.rankers.cnn.heads import CosineHead, Head, MlpHead
from rerank.rankers.cnn.towers import Part, Ragged, Tower, Vocabulary


class TorchTower(nn.Module):
    """Torch version of :class:`rerank.rankers.cnn.towers.Tower`."""

    def __init__(self, embedding: Embedding, config: CnnConfig, part: Part) -> None:
        super().__init__()
        self.part: Part = part
        self.names = embedding.names
        self.width = config.width if part == "text" else 1
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
        weights = torch.from_numpy(embedding.importance()) if config.importance and part == "text" else None
        self.register_buffer("importance", weights)
        self.out = config.filters + (size if config.mean else 0)

    def forward(self, tokens: Ragged) -> Tensor:
        """Pool n sequences: (n, out)."""
        n, h = len(tokens), self.width
        tokens = tokens.padded(h)
        windows = np.maximum(tokens.lengths - h + 1, 0)
        begins = np.cumsum(windows) - windows
        starts = np.repeat(tokens.offsets[:-1] - begins, windows) + np.arange(windows.sum())
        owner = torch.from_numpy(np.repeat(np.arange(n), windows))
        flat = torch.from_numpy(tokens.flat.astype(np.int64))
        vectors = self.vectors(flat) if h == 1 or self.mean else None  # (T, k)
        of_token = of_window = None
        if self.importance is not None:
            of_token = self.importance[flat]
            of_window = of_token[torch.from_numpy(starts[:, None] + np.arange(h))].sum(dim=1)
        if vectors is not None and h == 1:
            hidden = torch.tanh(self.filters.bias + vectors @ self.filters.weight.T)
            pooled = _weighted_mean(hidden, of_window, owner, n)
        else:
            pooled = self._convolved(tokens.flat, starts, of_window, owner, n)
        if vectors is None or not self.mean:
            return pooled
        token_owner = torch.from_numpy(np.repeat(np.arange(n), tokens.lengths))
        if of_token is None:
            of_token = (flat > 0).float()  # padding is no token
        return torch.cat([pooled, _weighted_mean(vectors, of_token, token_owner, n)], dim=1)

    def _convolved(
        self,
        flat: NDArray[np.int32],
        starts: NDArray[np.int64],
        weights: Tensor | None,
        owner: Tensor,
        n: int,
    ) -> Tensor:
        """Mean over each sequence's windows: (n, m)."""
        h, size, m = self.width, self.vectors.embedding_dim, self.filters.out_features
        # Each distinct word is multiplied once per place in a window, not once per occurrence.
        words, place = np.unique(flat, return_inverse=True)
        by_place = self.filters.weight.view(m, h, size).permute(2, 1, 0).reshape(size, h * m)
        bias = nn.functional.pad(self.filters.bias, (0, (h - 1) * m))  # of the first word, once a window
        products = self.vectors(torch.from_numpy(words.astype(np.int64))) @ by_place + bias
        at = torch.from_numpy(place[starts[:, None] + np.arange(h)] * h + np.arange(h))
        share = torch.ones(len(owner)) if weights is None else weights
        total = torch.zeros(n).index_add_(0, owner, share).clamp(min=1e-9)
        pooled: Tensor = _Pooled.apply(products.view(-1, m), at, share / total[owner], owner, n)
        return pooled

    def numpy(self, vocabulary: Vocabulary) -> Tower:
        """Convert to NumPy, embeddings in fp16."""
        size = self.vectors.embedding_dim
        filters = self.filters.weight.detach().numpy().T.reshape(self.width, size, -1)
        return Tower(
            vocabulary,
            self.vectors.weight.detach().numpy().astype(np.float16),
            None if self.importance is None else self.importance.numpy().copy(),
            filters.copy(),
            self.filters.bias.detach().numpy().copy(),
            self.mean,
        )


class _Pooled(torch.autograd.Function):
    """Weighted mean of tanh(sums of products), in blocks to save memory."""

    CHUNK = 4096

    @staticmethod
    def forward(ctx: Any, products: Tensor, at: Tensor, share: Tensor, owner: Tensor, n: int) -> Tensor:
        hidden = torch.empty(len(at), products.shape[1])
        pooled = torch.zeros(n, products.shape[1])
        for begin in range(0, len(at), _Pooled.CHUNK):
            part = slice(begin, begin + _Pooled.CHUNK)
            hidden[part] = nn.functional.embedding_bag(at[part], products, mode="sum").tanh_()
            pooled.index_add_(0, owner[part], hidden[part] * share[part, None])
        ctx.save_for_backward(hidden, at, share, owner)
        ctx.products = len(products)
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, at, share, owner = ctx.saved_tensors
        found = torch.zeros(ctx.products, hidden.shape[1])
        for begin in range(0, len(at), _Pooled.CHUNK):
            part = slice(begin, begin + _Pooled.CHUNK)
            of_sums = (1 - hidden[part].square()).mul_(share[part, None]).mul_(grad[owner[part]])
            for place in at[part].T:
                found.index_add_(0, place, of_sums)
        return found, None, None, None, None


def _weighted_mean(rows: Tensor, weights: Tensor | None, owner: Tensor, n: int) -> Tensor:
    total = torch.zeros(n).index_add_(0, owner, torch.ones(len(owner)) if weights is None else weights)
    rows = rows if weights is None else rows * weights[:, None]
    summed = torch.zeros(n, rows.shape[1]).index_add_(0, owner, rows)
    return summed / total.clamp(min=1e-9)[:, None]


class TorchRanker(nn.Module):
    """Torch version of :class:`rerank.rankers.cnn.ranker.CnnRanker`."""

    def __init__(
        self, query: Sequence[TorchTower], document: Sequence[TorchTower], config: CnnConfig
    ) -> None:
        super().__init__()
        self.query = nn.ModuleList(query)
        self.document = nn.ModuleList(document)
        self.config = config
        self.drop = nn.Dropout(config.dropout)
        widths = sum(t.out for t in query), sum(t.out for t in document)
        first = config.vector_size if config.head == "cosine" else config.hidden[0]
        self.from_query = nn.Linear(widths[0], first)
        self.from_document = nn.Linear(widths[1], first, bias=config.head == "cosine")
        sizes = config.hidden if config.head == "mlp" else ()
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1) if sizes else None

    def encode(self, side: str, tokens: Sequence[Ragged]) -> Tensor:
        """Pool and apply the first layer: (n, projection or first hidden size)."""
        towers, first = (
            (self.query, self.from_query) if side == "query" else (self.document, self.from_document)
        )
        pooled = torch.cat([tower(part) for tower, part in zip(towers, tokens)], dim=1)
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

        def array(tensor: Any) -> NDArray[np.float32]:
            copied: NDArray[np.float32] = tensor.detach().numpy().copy()
            return copied

        query, document = array(self.from_query.weight).T.copy(), array(self.from_document.weight).T.copy()
        if self.output is None:
            return CosineHead(query, array(self.from_query.bias), document, array(self.from_document.bias))
        hidden = [(array(layer.weight).T.copy(), array(layer.bias)) for layer in self.hidden]
        output, bias = array(self.output.weight)[0], array(self.output.bias)
        return MlpHead(query, document, array(self.from_query.bias), hidden, output, bias)
