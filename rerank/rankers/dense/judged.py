"""Fine-tuning of an encoder on judged queries, with negatives of the batch and of the first stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import Ragged
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.losses import Contrastive
from rerank.rankers.dense.neighbors import Neighbors, StructuralPair
from rerank.rankers.dense.quintuplets import QuintupletSampler
from rerank.rankers.dense.texts import Passages
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.data import DevSet, TrainingData, TrainingQuery

READ = 2
"""Passages of a document that are read in training: the first and the last."""
HARD = 16
"""Candidates of a query that can be its negatives."""
TURNS = 4
"""Most pairs of a query in an epoch."""
POOL, DEPTH = 2000, 30
"""Most documents that dev queries rank, and candidates of each."""


@dataclass(frozen=True)
class JudgedNeighbors(Neighbors):
    """Texts are documents, then queries. Neighbors of a query: its relevant documents.

    negatives: text -> candidates without relevance.
    """

    negatives: dict[int, NDArray[np.int64]]

    @classmethod
    def read(cls, data: TrainingData, usable: NDArray[np.bool_], seed: int) -> JudgedNeighbors:
        """Draw HARD candidates for each train query. usable: (N + Q,) bool."""
        rng, count = np.random.default_rng((seed, 2)), len(data.document_ids)
        rows, ids, negatives = list[int](), list[int](), dict[int, NDArray[np.int64]]()
        for one in data.train:
            relevant = one.documents[usable[one.documents]]
            others = np.setdiff1d(np.union1d(one.candidates, one.unwanted), one.documents)
            others = others[usable[others]]
            if not len(others):
                others = np.setdiff1d(np.flatnonzero(usable[:count]), one.documents)
            if len(others):
                rows += [count + one.query] * len(relevant)
                ids += relevant.tolist()
                negatives[count + one.query] = rng.permutation(others)[:HARD]
        order = np.argsort(rows, kind="stable")
        found = Neighbors.of(np.array(rows)[order], np.array(ids)[order], np.ones(len(ids)), usable)
        return cls(**vars(found), negatives=negatives)

    def turns(self) -> NDArray[np.int64]:
        """Return pairs of an epoch per text."""
        return np.minimum(np.diff(self.indptr), TURNS)

    def draw(self, anchor: int, rng: np.random.Generator, turn: int = 0) -> StructuralPair:
        """Draw a relevant document, another one each turn, and a candidate that is not relevant."""
        near = self.near(anchor)
        positive = int(rng.permutation(near)[turn])
        return StructuralPair(anchor, 1, positive, int(rng.choice(self.negatives[anchor])))


def dev_set(data: TrainingData, seed: int) -> DevSet:
    """Draw dev queries with at most POOL candidates. Raises TrainingError without candidates."""
    judged, pool = list[TrainingQuery](), set[int]()
    for place in np.random.default_rng((seed, 3)).permutation(len(data.dev)).tolist():
        one = data.dev[place]
        pool |= {*one.candidates[:DEPTH].tolist()}
        if judged and len(pool) > POOL:
            break
        judged.append(replace(one, candidates=one.candidates[:DEPTH], scores=one.scores[:DEPTH]))
    return DevSet.from_candidates(replace(data, dev=judged))


@dataclass(frozen=True)
class _Passages(Passages):
    """Passages with prompts. first: number of the first query; prompts: of documents and queries."""

    first: int
    prompts: tuple[NDArray[np.int32], NDArray[np.int32]]

    def get(self, document: int, start: int = 0) -> NDArray[np.int32]:
        """Return the tokens of a passage with its prompt."""
        return np.concatenate((self.prompts[document >= self.first], super().get(document, start)))


class JudgedTask(EncoderTask):
    """Trains on judged queries. documents: tokens, without special tokens."""

    name: str = "dense"

    def __init__(
        self,
        data: TrainingData,
        documents: Ragged,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        queries = Ragged.from_lists(encoder.tokens(list(data.query_texts)))
        offsets = np.concatenate((documents.offsets, queries.offsets[1:] + documents.offsets[-1]))
        texts, first = Ragged(np.concatenate((documents.flat, queries.flat)), offsets), len(documents)
        bare = replace(encoder)
        bare.tokens = replace(encoder.tokens, prompt="")
        special = len(bare.tokens.frame[0])
        prompts = [np.array(one.tokens.frame[0][special:], np.int32) for one in (encoder, encoder.of_queries)]
        size = min(encoder.room, encoder.of_queries.room)
        self.cut = _Passages(texts, size, READ, first, (prompts[0], prompts[1]))
        self.text = self.cut.get
        self.neighbors = JudgedNeighbors.read(data, texts.lengths > 0, config.seed)
        sampler = QuintupletSampler(self.neighbors, self.cut, None, config.batch, config.seed)
        self.dev = dev_set(data, config.seed)
        self.queries = first + self.dev.queries
        super().__init__(bare, config, sampler, progress, checkpoint, Contrastive(hard=True))

    def evaluate(self) -> dict[str, float]:
        """Return the best NDCG with the first stage, and the NDCG of the encoder."""
        both, single, _ = self.dev.ndcg(self.vectors(self.queries), self.vectors(self.dev.documents))
        return {"NDCG with the first stage": both, "NDCG": single}

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        """Return texts and pairs."""
        tokens, found = self.cut.tokens, self.neighbors
        return None, [tokens.flat, tokens.offsets, found.indptr, found.ids, self.dev.documents]

    def passages(self) -> Iterator[NDArray[np.int32]]:
        """Yield the passages that are read."""
        found = self.neighbors
        learned = [np.flatnonzero(found.paired), found.ids.astype(np.int64), *found.negatives.values()]
        for text in np.unique(np.concatenate([*learned, self.dev.documents, self.queries])).tolist():
            for start in self.cut.starts(text) or [0]:
                yield self.cut.get(text, start)
