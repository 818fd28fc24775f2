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
from rerank.text import plural


class ConceptTask(EncoderTask):
    """Trains an encoder on labeled pairs.

    tokens: of the documents of the graph, truncated, without special tokens.
    """

    name = "concept"
    config: ConceptConfig
    objective: ConceptLoss

    def __init__(
        self,
        graph: ConceptGraph,
        tokens: Sequence[NDArray[np.int32]],
        encoder: TextEncoder,
        config: ConceptConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.graph, self.tokens, self.text = graph, tokens, tokens.__getitem__
        if config.objective == "graph-component" and graph.components < 2:
            raise TrainingError(
                f"the related pairs make {plural(graph.components, 'component[|s]')}, and two are needed for"
                " contrasts; give pairs of more groups, or --objective classifier"
            )
        sampler = PairSampler(graph, self.text, min(config.batch, len(graph.component)), config.seed)
        super().__init__(encoder, config, sampler, progress, checkpoint)

    def make_loss(self) -> ConceptLoss:
        """Return the classifier with contrastive losses."""
        graph, config, width = self.graph, self.config, self.encoder.width
        if config.objective == "classifier":
            return ConceptLoss(width)
        moco = MomentumLoss(self.encoding, min(config.queue, len(graph.component)), config.momentum)
        return ConceptLoss(width, [GraphComponentLoss(graph.component, width), moco])

    def head(self) -> Head:
        """Return the current head."""
        return self.objective.head()

    def evaluate(self) -> dict[str, float]:
        """Return the AUC of dev pairs, which decides, and the threshold with its accuracy."""
        graph = self.graph
        if not len(graph.dev):
            return {}
        documents, at = np.unique(graph.dev, return_inverse=True)
        first, second = self.vectors(documents)[at.reshape(-1, 2).T]
        related, scores = graph.dev_labels, self.head().relatedness(first, second)
        threshold = best_threshold(scores, related)
        right = accuracy(scores, related, threshold)
        return {"AUC": auc(scores, related), "threshold": threshold, "accuracy": right}

    def identity(self) -> tuple[Any, Iterable[NDArray[Any]]]:
        """Return ids; texts and pairs."""
        graph = self.graph
        pairs = graph.related, graph.unrelated, graph.dev, graph.dev_labels
        return graph.ids, [*self.tokens, *pairs]

    def passages(self) -> Iterable[NDArray[np.int32]]:
        """Yield all texts."""
        return iter(self.tokens)


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
        graph, encoder = ConceptGraph.of(*job.labeled), config.load()
        tokens = read_tokens(job.engine, graph, encoder, progress)
        task = ConceptTask(graph, tokens, encoder, config, progress, job.checkpoint(name))
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
            f"{len(graph.related):,} related and {plural(len(graph.unrelated), 'unrelated pair[|s]')} of"
            f" {plural(len(graph.component), 'document[|s]')} to learn from;"
            f" {plural(graph.components, 'component[|s]')}, the largest of"
            f" {counts['largest_component']:,}; {plural(len(graph.dev), 'dev pair[|s]')}"
        )
        progress.say(
            f"{remark}; left out: {plural(graph.withheld, 'dev pair[|s]')},"
            f" {plural(graph.disagreeing, 'pair[|s]')} with both labels"
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
    """Tokenize the documents of a graph.

    Raises TrainingError for unknown ids, missing text, or a single label.
    """
    for label, found in (("related", graph.related), ("unrelated", graph.unrelated)):
        if not len(found):
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
            for id, text in zip(block, encoder.tokens([one.content for one in documents if one])):
                if not text:
                    raise TrainingError(f"document {id!r} of a pair has no text; add one, or remove the pair")
                tokens.append(np.array(text[: encoder.room], dtype=np.int32))
            advance(len(block))
    return tokens
