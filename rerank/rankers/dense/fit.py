"""Fits ``dense`` on relations between documents, or on judged queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.config import values_of
from rerank.errors import TrainingError
from rerank.evaluation.ranks import NDCG
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.judged import JudgedTask
from rerank.rankers.dense.losses import make_loss
from rerank.rankers.dense.neighbors import Structure
from rerank.rankers.dense.quintuplets import QuintupletSampler, Vocabulary
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.batching import Loss
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.training.checkpoint import Measurement
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.text import plural

ANCHORS = 500
"""Maximum number of documents whose held-out links are searched."""


@dataclass(frozen=True)
class HeldOut:
    """Anchors and their pool.

    pool:    (P,) document positions.
    anchors: (A,) places in the pool.
    wanted:  (A, P) bool: held-out links.
    known:   (A, P) bool: unranked anchors and training links.
    """

    pool: NDArray[np.int64]
    anchors: NDArray[np.int64]
    wanted: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        graph: LinkGraph | Citations,
        held: NDArray[np.int32],
        usable: NDArray[np.bool_],
        *,
        size: int,
        seed: int,
        anchors: int = ANCHORS,
    ) -> HeldOut:
        """Draw anchors and ``size`` documents, including their held-out links.

        graph:  without held-out pairs.
        held:   (H, 2) pairs.
        usable: (N,) bool: with text.
        """
        from scipy.sparse import csr_matrix

        rng = np.random.default_rng((seed, 1))
        held = held[usable[held].all(axis=1)]
        links = csr_matrix((np.ones(len(held)), (*held.T,)), shape=(len(usable), len(usable)))
        links = links + links.T
        count, ends = min(anchors, max(1, size // 2)), rng.permutation(np.unique(held))
        needed = np.union1d(ends[:count], links[ends[:count]].indices)
        if len(needed) > size:  # fewer anchors, so that their links fit
            count = max(1, int(count * size / len(needed)))
            needed = np.union1d(ends[:count], links[ends[:count]].indices)
        rest = np.setdiff1d(np.flatnonzero(usable), needed)
        extra = rng.permutation(rest)[: max(0, size - len(needed))]
        pool = np.sort(np.concatenate((needed, extra))).astype(np.int64)
        at = np.searchsorted(pool, np.sort(ends[:count]))
        rows = (links[pool[at]], graph.near(pool[at]))
        wanted, known = (one[:, pool].toarray() > 0 for one in rows)
        known[np.arange(len(at)), at] = True
        assert not (known & wanted).any(), "a held-out link is in the training graph"
        return cls(pool, at, wanted, known)

    def ndcg(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return NDCG without cut-off, (A,). vectors: (P, E), unit length."""
        ndcg = np.zeros(len(self.anchors))
        for anchor, wanted in enumerate(self.ranked(vectors)):
            ranks = np.flatnonzero(wanted)[:, None]
            grades = np.ones(len(ranks))
            ndcg[anchor] = NDCG.values(ranks, grades, ideal=NDCG.ideal(grades), depth=len(wanted))[0]
        return ndcg

    def ranked(self, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Mark held-out links by rank, (A, P) bool. vectors: (P, E), unit length."""
        scores = vectors[self.anchors] @ vectors.T
        scores[self.known] = -np.inf
        return np.take_along_axis(self.wanted, np.argsort(-scores, axis=1, kind="stable"), axis=1)


POOL = 2000
"""Number of documents that are searched for the held-out ones."""


class DenseTask(EncoderTask):
    """Trains on links or co-citations.

    structure, loss: None: from options.
    graph:           training pairs.
    held:            (H, 2) held-out pairs, which measure the training.
    """

    name: str = "dense"
    config: DenseConfig

    def __init__(
        self,
        texts: Texts,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        *,
        structure: Structure | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.texts, loss = texts, loss or make_loss(config.objective)
        structure = structure or Structure.find(texts, config, progress)
        self.graph, self.held = structure.graph, structure.held_out
        self.cut = Passages(texts.tokens, encoder.room, config.passages)
        self.text = self.cut.get
        words = Vocabulary.of(encoder.tokenizer) if "corrupted" in loss.reads else None
        sampler = QuintupletSampler(structure.neighbors, self.cut, words, config.batch, config.seed)
        self.test: HeldOut | None = None
        if texts.usable[self.held].all(axis=1).any():
            self.test = HeldOut.of(self.graph, self.held, texts.usable, size=POOL, seed=config.seed)
        super().__init__(encoder, config, sampler, progress, checkpoint, loss)

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        """Return links and texts."""
        return self.texts.graph.digest(), [self.texts.tokens.flat]

    def passages(self) -> Iterable[NDArray[np.int32]]:
        """Yield all passages."""
        for document in np.flatnonzero(self.texts.usable).tolist():
            for start in self.cut.starts(document):
                yield self.cut.get(document, start)

    def evaluate(self) -> dict[str, float]:
        """Return the mean NDCG of the anchors of held-out pairs."""
        return {"NDCG": float(self.test.ndcg(self.vectors(self.test.pool)).mean())} if self.test else {}

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError if no anchor has a negative."""
        if not measured.loss:
            raise TrainingError(
                "no anchor had a negative: all documents of a batch are related, or none is; add documents,"
                " raise --batch, or lower --related"
            )

    def counts(self) -> dict[str, int]:
        """Return the numbers of texts and pairs."""
        graph, texts, level = self.graph, self.texts, self.config.strategy or "document"
        if isinstance(graph, LinkGraph):
            pairs, unknown = len(graph.pairs()), graph.unknown
        else:
            pairs, unknown = graph.network.levels[level].pairs(), 0
        return {
            "documents": len(texts.tokens) - texts.outside,
            "outside": texts.outside,
            "without_text": int((~texts.usable).sum()),
            "unknown": unknown,
            "train_links": pairs,
            "held_out": len(self.held),
        }


_COUNTS = {
    "documents": "document[|s]",
    "outside": "reference[|s] outside the collection",
    "without_text": "text[|s] without words",
    "unknown": "link[|s] to unknown ids",
    "train_links": "pair[|s] {} to learn from",
    "held_out": "pair[|s] held out",
    "pairs": "pair[|s] to learn from",
}
"""Names and words of the numbers that a training reports."""


@dataclass(frozen=True)
class DenseFitter:
    """Fits encoders on judged queries, if there are any, or relations; resumes from checkpoints."""

    job: TrainingJob
    config: DenseConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune an encoder, unless ``untrained``."""
        job, config = self.job, self.config
        encoder = config.load()
        if not (size := len(job.engine)):
            raise TrainingError("there are no documents yet; run `rerank ingest` first")
        separator = encoder.separator if config.separator else None
        with job.progress.step("read documents", size, "doc") as advance:
            stream, cited = job.engine.documents(), config.strategy is not None
            texts = Texts.read(stream, encoder.tokens, advance, cited=cited, separator=separator)
        passages = texts.longest(encoder, config.passages)
        common: dict[str, Any] = {"name": name, "source": encoder, "passages": passages}
        ranker = partial(DenseRanker, **common, best=config.best, separator=config.separator)
        if config.untrained:
            made = ranker(trained={"settings": values_of(config)})
            return TrainingResult(made, 0, 0, None, None, False, remarks=(f"{config.model}, untrained",))
        given = encoder, config, job.progress, job.checkpoint(name)
        task: JudgedTask | DenseTask
        if job.data is not None:
            task = JudgedTask(job.data, texts.tokens, *given)
            measured, details = "dev queries", {"pairs": len(task.neighbors.ids)}
        else:
            task = DenseTask(texts, *given)
            measured, details = "held-out pairs", task.counts()
        run = task.fit()
        if not run.best and run.best_measurement.measures:
            job.progress.say(f"no step was better than the untrained encoder, which {name} uses")
        relation = "linked" if config.strategy is None else "cited together"
        parts = [plural(count, _COUNTS[one].format(relation)) for one, count in details.items() if count]
        return task.result(run, ranker(trained=task.record(run)), measured, ", ".join(parts), details)
