"""Fine-tuning of an encoder on judged queries, with negatives of the batch and of the first stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import Ragged
from rerank.common.progress import SILENT, Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.losses import Contrastive
from rerank.rankers.dense.neighbors import Neighbors, StructuralPair
from rerank.rankers.dense.quintuplets import QuintupletSampler
from rerank.rankers.dense.texts import Passages
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.data import DevSet, TrainingData, TrainingQuery

TRAIN_PASSAGES = 2
"""Passages of a document that are read in training: the first and the last."""
HARD_NEGATIVES = 16
"""Candidates of a query that can be its negatives."""
PAIRS_PER_EPOCH = 4
"""Most pairs of a query in an epoch."""
POOL = 1000
"""Maximum number of documents that the dev queries rank."""
DEPTH = 30
"""Candidates of each dev query."""


@dataclass(frozen=True)
class JudgedNeighbors(Neighbors):
    """The relevant documents of each train query. The texts are the N documents, and then the Q queries.

    negatives: the candidates of a query that are not relevant, by the query's position among the texts.
    """

    negatives: dict[int, NDArray[np.int64]]

    @classmethod
    def read(cls, data: TrainingData, usable: NDArray[np.bool_], seed: int) -> JudgedNeighbors:
        """Draw HARD_NEGATIVES negatives for each train query.

        usable: (N + Q,) bool, which texts have tokens.
        """
        rng = np.random.default_rng((seed, 2))
        count = len(data.document_ids)
        rows: list[int] = []
        ids: list[int] = []
        negatives: dict[int, NDArray[np.int64]] = {}
        for query in data.train:
            relevant = query.documents[usable[query.documents]]
            irrelevant = np.setdiff1d(np.union1d(query.candidates, query.unwanted), query.documents)
            irrelevant = irrelevant[usable[irrelevant]]
            if not len(irrelevant):
                irrelevant = np.setdiff1d(np.flatnonzero(usable[:count]), query.documents)
            if len(irrelevant):
                rows += [count + query.query] * len(relevant)
                ids += relevant.tolist()
                negatives[count + query.query] = rng.permutation(irrelevant)[:HARD_NEGATIVES]
        order = np.argsort(rows, kind="stable")
        scores = np.ones(len(ids))
        pairs = Neighbors.from_pairs(np.array(rows)[order], np.array(ids)[order], scores, usable)
        return cls(
            indptr=pairs.indptr, ids=pairs.ids, scores=pairs.scores, usable=usable, negatives=negatives
        )

    def turns(self) -> NDArray[np.int64]:
        return np.minimum(np.diff(self.indptr), PAIRS_PER_EPOCH)

    def draw(self, anchor: int, rng: np.random.Generator, turn: int = 0) -> StructuralPair:
        """Draw a relevant document, another one each turn, and a candidate that is not relevant."""
        near = self.near(anchor)
        positive = int(rng.permutation(near)[turn])
        return StructuralPair(anchor, 1, positive, int(rng.choice(self.negatives[anchor])))


def dev_set(data: TrainingData, seed: int) -> DevSet:
    """Draw dev queries until they have POOL different candidates.

    Raises TrainingError if no dev query has candidates.
    """
    judged: list[TrainingQuery] = []
    pool: set[int] = set()
    for position in np.random.default_rng((seed, 3)).permutation(len(data.dev)).tolist():
        query = data.dev[position]
        pool.update(query.candidates[:DEPTH].tolist())
        if judged and len(pool) > POOL:
            break
        judged.append(replace(query, candidates=query.candidates[:DEPTH], scores=query.scores[:DEPTH]))
    return DevSet.from_candidates(replace(data, dev=judged))


@dataclass(frozen=True)
class _Passages(Passages):
    """Passages with prompts.

    first_query: the position of the first query among the texts.
    prompts:     the tokens before each document, and before each query.
    """

    first_query: int
    prompts: tuple[NDArray[np.int32], NDArray[np.int32]]

    def get(self, document: int, start: int = 0) -> NDArray[np.int32]:
        """Return the tokens of a passage with its prompt."""
        prompt = self.prompts[1] if document >= self.first_query else self.prompts[0]
        return np.concatenate((prompt, super().get(document, start)))


class JudgedTask(EncoderTask):
    """Trains an encoder on judged queries.

    documents: the tokens of the documents of ``data``, without special tokens.
    """

    def __init__(
        self,
        data: TrainingData,
        documents: Ragged,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
        *,
        name: str = "dense",
    ) -> None:
        self.name = name
        queries = Ragged.from_lists(encoder.tokens(list(data.query_texts)))
        offsets = np.concatenate((documents.offsets, queries.offsets[1:] + documents.offsets[-1]))
        texts = Ragged(np.concatenate((documents.flat, queries.flat)), offsets)
        without_prompt = replace(encoder)
        without_prompt.tokens = replace(encoder.tokens, prompt="")
        special = len(without_prompt.tokens.frame[0])
        prompts = (_prompt(encoder, special), _prompt(encoder.of_queries, special))
        size = min(encoder.room, encoder.of_queries.room)
        self.cut = _Passages(texts, size, TRAIN_PASSAGES, len(documents), prompts)
        self.text = self.cut.get
        self.neighbors = JudgedNeighbors.read(data, texts.lengths > 0, config.seed)
        sampler = QuintupletSampler(self.neighbors, self.cut, None, config.batch, config.seed)
        self.dev = dev_set(data, config.seed)
        self.queries = len(documents) + self.dev.queries
        super().__init__(without_prompt, config, sampler, progress, checkpoint, Contrastive(hard=True))

    def evaluate(self) -> dict[str, float]:
        """Return the best NDCG with the first stage, which decides, and the NDCG of the encoder."""
        weighted, encoder_only, _ = self.dev.ndcg(
            self.vectors(self.queries), self.vectors(self.dev.documents)
        )
        return {"NDCG with the first stage": weighted, "NDCG": encoder_only}

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        tokens = self.cut.tokens
        neighbors = self.neighbors
        return None, [tokens.flat, tokens.offsets, neighbors.indptr, neighbors.ids, self.dev.documents]

    def passages(self) -> Iterator[NDArray[np.int32]]:
        neighbors = self.neighbors
        learned = [np.flatnonzero(neighbors.paired), neighbors.ids.astype(np.int64)]
        learned += neighbors.negatives.values()
        texts = np.unique(np.concatenate([*learned, self.dev.documents, self.queries]))
        for text in texts.tolist():
            for start in self.cut.starts(text) or [0]:
                yield self.cut.get(text, start)


def _prompt(encoder: TextEncoder, special: int) -> NDArray[np.int32]:
    """Return the tokens of an encoder's prompt, which follow ``special`` special tokens."""
    return np.array(encoder.tokens.frame[0][special:], np.int32)
