"""Fits ``concept`` on labeled pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Engine
from rerank.errors import TrainingError
from rerank.evaluation.pairs import accuracy, auc, best_threshold
from rerank.progress import Progress
from rerank.rankers.concept.batches import PairSampler
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.losses import ConceptLoss, GraphComponentLoss, MomentumLoss
from rerank.rankers.concept.ranker import ConceptRanker, Head
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.records import LabeledPair
from rerank.text import plural


@dataclass(frozen=True)
class Concepts:
    """Training data.

    ids: graph documents, then other dev documents.
    tokens: truncated, without special tokens.
    kept: dev pairs.
    """

    graph: ConceptGraph
    ids: Sequence[str]
    tokens: Sequence[NDArray[np.int32]]
    kept: Sequence[LabeledPair]

    @classmethod
    def ids_of(cls, graph: ConceptGraph, kept: Sequence[LabeledPair]) -> list[str]:
        """Return all ids in order."""
        rest = sorted({one for pair in kept for one in (pair.a, pair.b)} - {*graph.ids})
        return [*graph.ids, *rest]


class ConceptTask(EncoderTask):
    """Trains an encoder on labeled pairs."""

    name = "concept"
    config: ConceptConfig
    objective: ConceptLoss

    def __init__(
        self,
        concepts: Concepts,
        encoder: TextEncoder,
        config: ConceptConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.concepts, graph, self.text = concepts, concepts.graph, concepts.tokens.__getitem__
        sampler = PairSampler(graph, self.text, min(config.batch, len(graph.ids)), config.seed)
        if config.objective == "graph-component" and graph.groups < 2:
            raise TrainingError(
                f"the related pairs make {plural(graph.groups, 'component[|s]')}, and two are needed for"
                " contrasts; give pairs of more groups, or --objective classifier"
            )
        super().__init__(encoder, config, sampler, progress, checkpoint)

    def make_loss(self) -> ConceptLoss:
        """Return the classifier with contrastive losses."""
        graph, config, width = self.concepts.graph, self.config, self.encoder.width
        if config.objective == "classifier":
            return ConceptLoss(width)
        moco = MomentumLoss(self.encoding, min(config.queue, len(graph.ids)), config.momentum)
        return ConceptLoss(width, [GraphComponentLoss(graph.shared, width), moco])

    def head(self) -> Head:
        """Return the current head."""
        return self.objective.head()

    def evaluate(self) -> dict[str, float]:
        """Return the AUC of dev pairs, which decides, and the threshold with its accuracy."""
        kept, place = self.concepts.kept, {one: i for i, one in enumerate(self.concepts.ids)}
        if not kept:
            return {}
        ends = np.array([(place[pair.a], place[pair.b]) for pair in kept], dtype=np.int64)
        documents, at = np.unique(ends, return_inverse=True)
        first, second = self.vectors(documents)[at.reshape(-1, 2).T]
        related, scores = np.array([pair.related for pair in kept]), self.head().relatedness(first, second)
        threshold = best_threshold(scores, related)
        right = accuracy(scores, related, threshold)
        return {"AUC": auc(scores, related), "threshold": threshold, "accuracy": right}

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        """Return ids and dev pairs; texts and pairs."""
        concepts, graph = self.concepts, self.concepts.graph
        return [concepts.ids, sorted(concepts.kept)], [*concepts.tokens, graph.related, graph.unrelated]

    def passages(self) -> Iterable[NDArray[np.int32]]:
        """Yield all texts."""
        return iter(self.concepts.tokens)


BLOCK = 256
"""Documents that are read and tokenized at once."""


@dataclass(frozen=True)
class ConceptFitter:
    """Fits encoder and head; resumes from checkpoints."""

    job: TrainingJob
    config: ConceptConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune the encoder and train the head."""
        job, config, progress = self.job, self.config, self.job.progress
        assert job.labeled is not None
        pairs, kept = job.labeled
        encoder = config.load()
        concepts = read_concepts(job.engine, encoder, pairs, kept, progress)
        task = ConceptTask(concepts, encoder, config, progress, job.checkpoint(name))
        graph, largest = concepts.graph, int(concepts.graph.sizes.max())
        remark = (
            f"{len(graph.related):,} related and {plural(len(graph.unrelated), 'unrelated pair[|s]')} of"
            f" {plural(len(graph.ids), 'document[|s]')} to learn from;"
            f" {plural(graph.groups, 'component[|s]')}, the largest of {largest:,};"
            f" {plural(len(kept), 'dev pair[|s]')}"
        )
        excluded = plural(graph.withheld, "dev pair[|s]"), plural(graph.disagreeing, "pair[|s]")
        progress.say(f"{remark}; left out: {excluded[0]}, {excluded[1]} with both labels")
        if 2 * largest > len(graph.ids):
            progress.say(
                "one component has more than half of the texts: contrasts of components have little effect"
            )
        run = task.fit()
        counts = {
            "texts": len(graph.ids),
            "components": graph.groups,
            "largest_component": largest,
            "related": len(graph.related),
            "unrelated": len(graph.unrelated),
            "withheld": graph.withheld,
            "disagreeing": graph.disagreeing,
            "kept_pairs": len(kept),
        }
        threshold = run.kept.measures.get("threshold", 0.5)
        trained = {**task.record(run), **counts}
        ranker = ConceptRanker(
            name=name, source=encoder, head=task.head(), threshold=threshold, trained=trained
        )
        return task.result(run, ranker, "dev pairs", remark, {**counts, "threshold": threshold})


def read_concepts(
    engine: Engine,
    encoder: TextEncoder,
    pairs: Sequence[LabeledPair],
    kept: Sequence[LabeledPair],
    progress: Progress,
) -> Concepts:
    """Build the graph and tokenize documents. kept: dev pairs.

    Raises TrainingError for unknown ids, missing text, or a single label.
    """
    graph = ConceptGraph.of(pairs, kept)
    for label, found in (("related", graph.related), ("unrelated", graph.unrelated)):
        if not len(found):
            raise TrainingError(
                f"no pair to learn from is {label} ({graph.withheld} are dev pairs, {graph.disagreeing} have"
                " both labels); give --labeled-pairs with related and unrelated pairs"
            )
    ids = Concepts.ids_of(graph, kept)
    tokens: list[NDArray[np.int32]] = []
    with progress.step("read documents", len(ids), "doc") as advance:
        for begin in range(0, len(ids), BLOCK):
            block = ids[begin : begin + BLOCK]
            documents = engine.get(block)
            if None in documents:
                raise TrainingError(
                    f"no document has the id {block[documents.index(None)]!r} of a pair; ingest it, or remove"
                    " the pair"
                )
            for id, text in zip(block, encoder.tokens([one.content for one in documents if one])):
                if not text:
                    raise TrainingError(f"document {id!r} of a pair has no text; add one, or remove the pair")
                tokens.append(np.array(text[: encoder.room], dtype=np.int32))
            advance(len(block))
    return Concepts(graph, ids, tokens, kept)
