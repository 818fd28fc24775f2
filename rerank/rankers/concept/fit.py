"""Fits ``concept`` on labeled pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import TrainingError
from rerank.common.progress import SILENT, Progress
from rerank.documents.text import count_of
from rerank.engines.base import Engine
from rerank.evaluation.pair_measures import accuracy, auc, best_threshold
from rerank.rankers.concept.batches import PairSampler
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.losses import ConceptLoss, GraphComponentLoss, MomentumLoss
from rerank.rankers.concept.ranker import ConceptRanker, Head
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.job import TrainingJob, TrainingResult


class ConceptTask(EncoderTask):
    """Trains an encoder on labeled pairs.

    tokens: the tokens of each document of the graph, truncated and without special tokens.
    """

    config: ConceptConfig
    objective: ConceptLoss

    def __init__(
        self,
        graph: ConceptGraph,
        tokens: Sequence[NDArray[np.int32]],
        encoder: TextEncoder,
        config: ConceptConfig,
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
        *,
        name: str = "concept",
    ) -> None:
        self.name = name
        self.graph = graph
        self.tokens = tokens
        self.text = tokens.__getitem__
        if config.objective == "graph-component" and graph.components < 2:
            raise TrainingError(
                f"the related pairs make {count_of(graph.components, 'component')}, and two are needed for"
                " contrasts; give pairs of more groups, or --objective classifier"
            )
        sampler = PairSampler(graph, self.text, min(config.batch, len(graph.component)), config.seed)
        super().__init__(encoder, config, sampler, progress, checkpoint)

    def make_loss(self) -> ConceptLoss:
        """Return the loss of the classifier, with the contrasts unless only the classifier learns."""
        graph = self.graph
        config = self.config
        width = self.encoder.width
        if config.objective == "classifier":
            return ConceptLoss(width)
        moco = MomentumLoss(self.encoding, min(config.queue, len(graph.component)), config.momentum)
        return ConceptLoss(width, [GraphComponentLoss(graph.component, width), moco])

    def head(self) -> Head:
        """Return the head with its current weights, in NumPy."""
        return self.objective.head()

    def evaluate(self) -> dict[str, float]:
        """Return the AUC of the dev pairs, which decides, and the best threshold with its accuracy."""
        graph = self.graph
        if not len(graph.dev):
            return {}
        documents, rows = np.unique(graph.dev, return_inverse=True)
        first, second = self.vectors(documents)[rows.reshape(-1, 2).T]
        scores = self.head().relatedness(first, second)
        labels = graph.dev_labels
        threshold = best_threshold(scores, labels)
        return {
            "AUC": auc(scores, labels),
            "threshold": threshold,
            "accuracy": accuracy(scores, labels, threshold),
        }

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        graph = self.graph
        pairs = graph.related, graph.unrelated, graph.dev, graph.dev_labels
        return graph.ids, [*self.tokens, *pairs]

    def passages(self) -> Iterable[NDArray[np.int32]]:
        return iter(self.tokens)


BLOCK = 256
"""Documents that are read and tokenized at once."""


@dataclass(frozen=True)
class ConceptFitter:
    """Fits ``concept``, the encoder and its head, on the labeled pairs of a job."""

    job: TrainingJob
    config: ConceptConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune the encoder and train the head.

        Raises TrainingError if a document is missing or has no text, or if all pairs have one label.
        """
        job = self.job
        config = self.config
        progress = job.progress
        assert job.labeled is not None
        graph = ConceptGraph.from_pairs(*job.labeled)
        encoder = config.load()
        tokens = read_tokens(job.engine, graph, encoder, progress)
        task = ConceptTask(graph, tokens, encoder, config, progress, job.checkpoint(name), name=name)
        counts = {
            "texts": len(graph.component),
            "components": graph.components,
            "largest_component": int(np.bincount(graph.component + 1)[1:].max()),
            "related": len(graph.related),
            "unrelated": len(graph.unrelated),
            "withheld": graph.withheld,
            "disagreeing": graph.disagreeing,
            "kept_pairs": len(graph.dev),
        }
        remark = (
            f"{len(graph.related):,} related and {count_of(len(graph.unrelated), 'unrelated pair')} of"
            f" {count_of(len(graph.component), 'document')} to learn from;"
            f" {count_of(graph.components, 'component')}, the largest of"
            f" {counts['largest_component']:,}; {count_of(len(graph.dev), 'dev pair')}"
        )
        progress.say(
            f"left out: {count_of(graph.withheld, 'dev pair')},"
            f" {count_of(graph.disagreeing, 'pair')} with both labels"
        )
        if 2 * counts["largest_component"] > counts["texts"]:
            progress.say(
                "one component has more than half of the texts: contrasts of components have little effect"
            )
        run = task.fit()
        threshold = run.best_measurement.measures.get("threshold", 0.5)
        trained = {**task.record(run), **counts}
        ranker = ConceptRanker(
            name=name, source=encoder, head=task.head(), threshold=threshold, trained=trained
        )
        return task.result(run, ranker, "dev pairs", remark, {**counts, "threshold": threshold})


def read_tokens(
    engine: Engine, graph: ConceptGraph, encoder: TextEncoder, progress: Progress
) -> list[NDArray[np.int32]]:
    """Return the tokens of the documents of a graph, truncated to the room of the encoder.

    Raises TrainingError if a document is missing or has no text, or if all pairs have one label.
    """
    for label, pairs in (("related", graph.related), ("unrelated", graph.unrelated)):
        if not len(pairs):
            raise TrainingError(
                f"no pair to learn from is {label} ({graph.withheld} are dev pairs, {graph.disagreeing} have"
                " both labels); give --labeled-pairs with related and unrelated pairs"
            )
    tokens: list[NDArray[np.int32]] = []
    with progress.step("read documents", len(graph.ids), "doc") as advance:
        for begin in range(0, len(graph.ids), BLOCK):
            block = graph.ids[begin : begin + BLOCK]
            documents = engine.get(block)
            if None in documents:
                raise TrainingError(
                    f"no document has the id {block[documents.index(None)]!r} of a pair; ingest it, or remove"
                    " the pair"
                )
            texts = [document.content for document in documents if document]
            for id, text in zip(block, encoder.tokens(texts)):
                if not text:
                    raise TrainingError(f"document {id!r} of a pair has no text; add one, or remove the pair")
                tokens.append(np.array(text[: encoder.room], dtype=np.int32))
            advance(len(block))
    return tokens
