"""Fits ``concept`` on labeled pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Engine
from rerank.errors import TrainingError
from rerank.evaluation.pairs import accuracy, auc, best_threshold
from rerank.progress import Progress
from rerank.rankers.concept.batches import PairSampler
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.head import Head
from rerank.rankers.concept.losses import ConceptLoss, GraphComponentLoss, MomentumLoss
from rerank.rankers.concept.ranker import ConceptRanker
from rerank.rankers.encoder.batching import Encode, Loss
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


class DevPairs:
    """Labeled pairs. head: returns the current head."""

    def __init__(self, concepts: Concepts, head: Callable[[], Head]) -> None:
        place = {one: i for i, one in enumerate(concepts.ids)}
        ends = np.array([(place[pair.a], place[pair.b]) for pair in concepts.kept], dtype=np.int64)
        self.documents, at = np.unique(ends, return_inverse=True)
        self.first, self.second = at.reshape(-1, 2).T
        self.related = np.array([pair.related for pair in concepts.kept])
        self.head = head

    def measure(self, encode: Encode) -> dict[str, float]:
        """Return AUC (decides), and the threshold with its accuracy."""
        vectors, related = encode(self.documents), self.related
        scores = self.head().relatedness(vectors[self.first], vectors[self.second])
        threshold = best_threshold(scores, related)
        return {
            "AUC": auc(scores, related),
            "threshold": threshold,
            "accuracy": accuracy(scores, related, threshold),
        }


class ConceptTask(EncoderTask):
    """Trains an encoder on labeled pairs."""

    name = "concept"
    config: ConceptConfig
    evaluator: DevPairs | None
    objective: ConceptLoss

    def __init__(
        self,
        concepts: Concepts,
        encoder: TextEncoder,
        config: ConceptConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.concepts, graph = concepts, concepts.graph
        sampler = PairSampler(graph, self.text, min(config.batch, len(graph.ids)), config.seed)
        if config.objective == "graph-component" and graph.groups < 2:
            raise TrainingError(
                f"the related pairs make {plural(graph.groups, 'component[|s]')}, and two are needed for"
                " contrasts; give pairs of more groups, or --objective classifier"
            )
        evaluator = DevPairs(concepts, self.head) if concepts.kept else None
        super().__init__(encoder, config, sampler, evaluator, progress, checkpoint)

    def make_loss(self) -> ConceptLoss:
        """Return the classifier with contrastive losses."""
        return ConceptLoss(self.encoding.encoder.width, self.contrasts())

    def contrasts(self) -> list[Loss]:
        """Return the contrastive losses."""
        if self.config.objective == "classifier":
            return []
        graph, encoding, queue = self.concepts.graph, self.encoding, self.config.queue
        components = GraphComponentLoss(graph.shared, encoding.encoder.width)
        return [components, MomentumLoss(encoding, min(queue, len(graph.ids)), self.config.momentum)]

    def head(self) -> Head:
        """Return the current head."""
        return self.objective.classifier.head()

    def identity(self) -> Iterable[bytes]:
        """Yield texts and pairs."""
        yield "\n".join(self.concepts.ids).encode()
        yield repr(sorted(self.concepts.kept)).encode()
        for tokens in self.concepts.tokens:
            yield tokens.tobytes()
        for pairs in (self.concepts.graph.related, self.concepts.graph.unrelated):
            yield pairs.tobytes()

    def text(self, document: int) -> NDArray[np.int32]:
        """Return a document's first tokens."""
        return self.concepts.tokens[document]

    def passages(self) -> Iterable[NDArray[np.int32]]:
        """Yield all texts."""
        return iter(self.concepts.tokens)

    def report_data(self) -> None:
        """Report components and excluded pairs."""
        graph = self.concepts.graph
        largest = int(graph.sizes.max())
        self.progress.say(
            f"{plural(len(graph.ids), 'text[|s]')} in {plural(graph.groups, 'component[|s]')} of related"
            f" texts, the largest of {largest}; left out: {plural(graph.withheld, 'dev pair[|s]')},"
            f" {plural(graph.disagreeing, 'pair[|s]')} with both labels"
        )
        if 2 * largest > len(graph.ids):
            self.progress.say(
                "one component has more than half of the texts: contrasts of components have little effect"
            )


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
        run, graph = task.fit(), concepts.graph
        counts = {
            "texts": len(graph.ids),
            "components": graph.groups,
            "largest_component": int(graph.sizes.max()),
            "related": len(graph.related),
            "unrelated": len(graph.unrelated),
            "withheld": graph.withheld,
            "disagreeing": graph.disagreeing,
            "kept_pairs": len(kept),
        }
        threshold = run.kept.measures.get("threshold", 0.5)
        ranker = ConceptRanker.of(name, encoder, task.head(), threshold, {**task.record(run), **counts})
        remark = (
            f"{len(graph.related):,} related and {plural(len(graph.unrelated), 'unrelated pair[|s]')} of"
            f" {plural(len(graph.ids), 'document[|s]')} to learn from;"
            f" {plural(graph.groups, 'component[|s]')}, the largest of {counts['largest_component']:,};"
            f" {plural(len(kept), 'dev pair[|s]')}"
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
