"""Masked language model training of an encoder on the texts of a collection (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rerank.progress import Progress
from rerank.rankers.dense.config import PRESETS
from rerank.rankers.dense.quintuplets import Vocabulary
from rerank.rankers.dense.texts import Passages
from rerank.rankers.encoder.transformer import TextEncoder, precision
from rerank.rankers.training.checkpoint import TrainingRun
from rerank.rankers.training.trainer import Task, Trainer, TrainerOptions

SHARE = 0.15
"""Share of tokens that are predicted. Of these, 80 % are masked, 10 % replaced and 10 % kept."""


class Head(nn.Module):
    """Predicts tokens from states. The last matrix is the embedding matrix; the rest is new."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        width, words = embeddings.embedding_dim, embeddings.num_embeddings
        self.change = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(words))
        self._embeddings = [embeddings]  # in a list: its parameters belong to the encoder

    def forward(self, states: Tensor) -> Tensor:
        """Return logits, (n, V), of states, (n, E)."""
        logits: Tensor = self.change(states) @ self._embeddings[0].weight.T + self.bias
        return logits


class LanguageModel(Task):
    """Learns to predict the masked tokens of one passage per document and epoch, with all layers."""

    name = "language model"

    def __init__(self, encoder: TextEncoder, passages: Passages, seed: int) -> None:
        self.encoder, self.passages, self.seed = encoder, passages, seed
        self.documents = np.flatnonzero(passages.tokens.lengths > 0)
        self.batch, self.rate = int(PRESETS["paper"]["batch"]), float(PRESETS["paper"]["rate"])
        self.steps_per_epoch = max(1, len(self.documents) // self.batch)
        self.vocabulary = Vocabulary.from_tokenizer(encoder.tokenizer)
        if torch.cuda.is_available():
            encoder.model.to("cuda")
        self.head = Head(encoder.model.get_input_embeddings()).to(encoder.device)
        self.model = nn.ModuleDict({"encoder": encoder.model, "head": self.head})

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Return Adam for the encoder and the head."""
        return [torch.optim.Adam(self.model.parameters(), lr=self.rate, eps=1e-8)]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Yield lists of (tokens with masks, original tokens, predicted positions)."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.documents)
        for step in range(skip, self.steps_per_epoch):
            some = order[step * self.batch : (step + 1) * self.batch].tolist()
            rngs = [np.random.default_rng((self.seed, epoch, document)) for document in some]
            drawn = ((self.passages.draw(document, rng), rng) for document, rng in zip(some, rngs))
            yield [masked(tokens, self.vocabulary, rng) for tokens, rng in drawn]

    def loss(self, batch: Any) -> Tensor:
        """Return the mean cross entropy of the predicted tokens."""
        device, shift = self.encoder.device, len(self.encoder.tokens.frame[0])
        rows = np.repeat(np.arange(len(batch)), [len(where) for _, _, where in batch])
        columns = shift + np.concatenate([where for _, _, where in batch])
        wanted = torch.from_numpy(np.concatenate([tokens[where] for _, tokens, where in batch]).astype(int))
        ids, mask = self.encoder.batch([changed for changed, _, _ in batch])
        with precision(device):
            states = self.encoder.model(input_ids=ids, attention_mask=mask).last_hidden_state
            logits = self.head(states[rows, columns])
        return nn.functional.cross_entropy(logits.float(), wanted.to(device))


def masked(
    tokens: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens with masks, the original tokens, and the predicted positions, ascending."""
    where = np.sort(rng.choice(len(tokens), size=max(1, round(SHARE * len(tokens))), replace=False))
    kind, other = rng.random(len(where)), rng.choice(vocabulary.ordinary, size=len(where))
    changed = tokens.copy()
    changed[where] = np.where(kind < 0.8, vocabulary.mask, np.where(kind < 0.9, other, tokens[where]))
    return changed, tokens, where


def tuned(
    encoder: TextEncoder, passages: Passages, epochs: int, seed: int, progress: Progress
) -> TrainingRun:
    """Train all layers of the encoder in place. Batch and rate are the ones of ``--preset paper``."""
    torch.manual_seed(seed)  # of the head
    task = LanguageModel(encoder, passages, seed)
    run = Trainer(task, TrainerOptions(epochs * task.steps_per_epoch, seed=seed), None, progress).fit()
    encoder.model.to("cpu").eval()
    return run
