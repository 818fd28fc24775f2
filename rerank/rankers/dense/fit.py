"""Fits ``dense`` on relations between documents, or on judged queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.config import values_of
from rerank.common.errors import TrainingError
from rerank.common.progress import SILENT, Progress
from rerank.documents.categories import with_names_as_text
from rerank.documents.text import count_of
from rerank.evaluation.ranks import NDCG
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

ANCHORS = 500
"""Maximum number of documents whose held-out links are searched."""


@dataclass(frozen=True)
class LinkEvaluation:
    """The search for held-out links: A anchors, and the pool of P documents that is searched.

    pool:     (P,) positions of the documents.
    anchors:  (A,) positions of the anchors in the pool.
    relevant: (A, P) bool, the held-out links of each anchor.
    excluded: (A, P) bool, the documents that are not ranked: the anchor itself, and its training links.
    """

    pool: NDArray[np.int64]
    anchors: NDArray[np.int64]
    relevant: NDArray[np.bool_]
    excluded: NDArray[np.bool_]

    @classmethod
    def draw(
        cls,
        graph: LinkGraph | Citations,
        held_out: NDArray[np.int32],
        usable: NDArray[np.bool_],
        *,
        size: int,
        seed: int,
        anchors: int = ANCHORS,
    ) -> LinkEvaluation:
        """Draw at most ``anchors`` anchors, and ``size`` documents that include their held-out links.

        graph:    the links without the held-out pairs.
        held_out: (H, 2) the held-out pairs.
        usable:   (N,) bool, which documents have a text.
        """
        from scipy.sparse import csr_matrix

        rng = np.random.default_rng((seed, 1))
        pairs = held_out[usable[held_out].all(axis=1)]
        links = csr_matrix((np.ones(len(pairs)), (*pairs.T,)), shape=(len(usable), len(usable)))
        links = links + links.T
        ends = rng.permutation(np.unique(pairs))
        count = min(anchors, max(1, size // 2))
        needed = np.union1d(ends[:count], links[ends[:count]].indices)
        if len(needed) > size:  # fewer anchors, so that their links fit
            count = max(1, int(count * size / len(needed)))
            needed = np.union1d(ends[:count], links[ends[:count]].indices)
        remaining = np.setdiff1d(np.flatnonzero(usable), needed)
        extra = rng.permutation(remaining)[: max(0, size - len(needed))]
        pool = np.sort(np.concatenate((needed, extra))).astype(np.int64)
        anchor_rows = np.searchsorted(pool, np.sort(ends[:count]))
        anchor_documents = pool[anchor_rows]
        relevant = links[anchor_documents][:, pool].toarray() > 0
        excluded = graph.near(anchor_documents)[:, pool].toarray() > 0
        excluded[np.arange(len(anchor_rows)), anchor_rows] = True
        assert not (excluded & relevant).any(), "a held-out link is in the training graph"
        return cls(pool, anchor_rows, relevant, excluded)

    def ndcg(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the NDCG of each anchor without cut-off, (A,).

        vectors: (P, E) of the pool, of length 1.
        """
        ndcg = np.zeros(len(self.anchors))
        for anchor, relevant in enumerate(self.ranked(vectors)):
            ranks = np.flatnonzero(relevant)[:, None]
            grades = np.ones(len(ranks))
            ndcg[anchor] = NDCG.values(ranks, grades, ideal=NDCG.ideal(grades), depth=len(relevant))[0]
        return ndcg

    def ranked(self, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which ranks of each anchor have a held-out link, (A, P) bool.

        vectors: (P, E) of the pool, of length 1.
        """
        scores = vectors[self.anchors] @ vectors.T
        scores[self.excluded] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")
        return np.take_along_axis(self.relevant, order, axis=1)


POOL = 2000
"""Number of documents that are searched for the held-out ones."""


class DenseTask(EncoderTask):
    """Trains an encoder on links or co-citations.

    texts:     the texts, and their relations.
    structure: the relations to learn and those held out; by default as the options say.
    loss:      by default as the options say.
    """

    config: DenseConfig

    def __init__(
        self,
        texts: Texts,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
        *,
        name: str = "dense",
        structure: Structure | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.name = name
        self.texts = texts
        loss = loss or make_loss(config.objective)
        structure = structure or Structure.find(texts, config, progress)
        self.graph = structure.graph
        self.held_out = structure.held_out
        self.cut = Passages(texts.tokens, encoder.room, config.passages)
        self.text = self.cut.get
        words = Vocabulary.from_tokenizer(encoder.tokenizer) if "corrupted" in loss.reads else None
        sampler = QuintupletSampler(structure.neighbors, self.cut, words, config.batch, config.seed)
        self.test: LinkEvaluation | None = None
        if texts.usable[self.held_out].all(axis=1).any():
            self.test = LinkEvaluation.draw(
                self.graph, self.held_out, texts.usable, size=POOL, seed=config.seed
            )
        super().__init__(encoder, config, sampler, progress, checkpoint, loss)

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        return self.texts.graph.digest(), [self.texts.tokens.flat]

    def passages(self) -> Iterable[NDArray[np.int32]]:
        for document in np.flatnonzero(self.texts.usable).tolist():
            for start in self.cut.starts(document):
                yield self.cut.get(document, start)

    def evaluate(self) -> dict[str, float]:
        """Return the mean NDCG of the anchors of held-out pairs."""
        if self.test is None:
            return {}
        ndcg = self.test.ndcg(self.vectors(self.test.pool))
        return {"NDCG": float(ndcg.mean())}

    def check(self, measured: Measurement) -> None:
        if not measured.loss:
            raise TrainingError(
                "no anchor had a negative: all documents of a batch are related, or none is; add documents or"
                " raise --batch"
            )

    def counts(self) -> dict[str, int]:
        """Return the numbers of texts and pairs, for the report of the training."""
        graph = self.graph
        texts = self.texts
        if isinstance(graph, LinkGraph):
            pairs = len(graph.pairs())
            unknown = graph.unknown
        else:
            pairs = graph.network.levels[self.config.strategy or "document"].pairs()
            unknown = 0
        return {
            "documents": len(texts.tokens) - texts.outside,
            "outside": texts.outside,
            "without_text": int((~texts.usable).sum()),
            "unknown": unknown,
            "train_links": pairs,
            "held_out": len(self.held_out),
        }


_COUNTS = {
    "documents": ("document", ""),
    "outside": ("reference", " outside the collection"),
    "without_text": ("text", " without words"),
    "unknown": ("link", " to unknown ids"),
    "train_links": ("pair", " {relation} to learn from"),
    "held_out": ("pair", " held out"),
    "pairs": ("pair", " to learn from"),
}
"""Names and words of the numbers that a training reports."""


@dataclass(frozen=True)
class DenseFitter:
    """Fits ``dense`` on judged queries if the job has any, and otherwise on the relations of documents."""

    job: TrainingJob
    config: DenseConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune an encoder, or use it unchanged with ``untrained``.

        Raises TrainingError without documents, without names to read, and without relations to learn.
        """
        job = self.job
        config = self.config
        encoder = config.load()
        texts = self._read_texts(encoder)
        if config.names and not texts.usable.any():
            raise TrainingError("no document has categories, whose names --names reads; leave out --names")
        ranker = partial(
            DenseRanker,
            name=name,
            source=encoder,
            passages=texts.max_passages(encoder, config.passages),
            best=config.best,
            separator=config.separator,
            names=config.names,
        )
        if config.untrained:
            untrained = ranker(pretrained_version=encoder.version(), trained={"settings": values_of(config)})
            untrained = untrained.with_neighbors(config.neighbors, job)
            remarks = (f"{config.model}, untrained",)
            return TrainingResult(untrained, 0, 0, None, None, False, remarks=remarks)
        checkpoint = job.checkpoint(name)
        task: JudgedTask | DenseTask
        if job.data is not None:
            task = JudgedTask(job.data, texts.tokens, encoder, config, job.progress, checkpoint, name=name)
            measured_on = "dev queries"
            counts = {"pairs": len(task.neighbors.ids)}
        else:
            task = DenseTask(texts, encoder, config, job.progress, checkpoint, name=name)
            measured_on = "held-out pairs"
            counts = task.counts()
        run = task.fit()
        trained = ranker(trained=task.record(run)).with_neighbors(config.neighbors, job)
        return task.result(run, trained, measured_on, self._remark(counts), counts)

    def _read_texts(self, encoder: TextEncoder) -> Texts:
        engine = self.job.engine
        if not len(engine):
            raise TrainingError("there are no documents yet; run `rerank ingest` first")
        with self.job.progress.step("read documents", len(engine), "doc") as advance:
            documents = engine.documents()
            return Texts.read(
                map(with_names_as_text, documents) if self.config.names else documents,
                encoder.tokens,
                advance,
                relation=self.config.relation if self.config.strategy is None else "citations",
                separator=encoder.separator if self.config.separator else None,
            )

    def _remark(self, counts: Mapping[str, int]) -> str:
        relation = "linked" if self.config.strategy is None else "cited together"
        if self.config.relation == "categories":
            relation = "with shared categories"
        parts: list[str] = []
        for name, count in counts.items():
            if count:
                noun, details = _COUNTS[name]
                parts.append(f"{count_of(count, noun)}{details.format(relation=relation)}")
        return ", ".join(parts)
