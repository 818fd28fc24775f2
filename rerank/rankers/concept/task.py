"""Training of ``concept``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.evaluation.pairs import accuracy, auc, best_threshold, f1
from rerank.progress import Progress
from rerank.rankers.concept.batches import PairSampler
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.head import Head
from rerank.rankers.concept.losses import ConceptLoss
from rerank.rankers.encoder.batching import Encode
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.checkpoint import Measurement
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
    """Labeled pairs. head: current head; None: cosine."""

    def __init__(self, concepts: Concepts, head: Callable[[], Head | None]) -> None:
        place = {one: i for i, one in enumerate(concepts.ids)}
        ends = np.array([(place[pair.a], place[pair.b]) for pair in concepts.kept], dtype=np.int64)
        self.documents, at = np.unique(ends, return_inverse=True)
        self.first, self.second = at.reshape(-1, 2).T
        self.related = np.array([pair.related for pair in concepts.kept])
        self.head = head

    def measure(self, encode: Encode) -> dict[str, float]:
        """Return AUC (decides), threshold, accuracy, F1 and cosine AUC."""
        head, vectors, related = self.head(), encode(self.documents), self.related
        a, b = vectors[self.first], vectors[self.second]
        cosines = np.einsum("ij,ij->i", a, b).astype(np.float64)
        scores = head.relatedness(a, b) if head else cosines
        threshold = best_threshold(scores, related)
        found = {
            "AUC": auc(scores, related),
            "threshold": threshold,
            "accuracy": accuracy(scores, related, threshold),
            "F1": f1(scores, related, threshold),
        }
        return found | ({"cosine AUC": auc(cosines, related)} if head else {})


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
        self._check_config(config)
        evaluator = DevPairs(concepts, self.head) if concepts.kept else None
        super().__init__(encoder, config, sampler, evaluator, progress, checkpoint)

    def make_loss(self) -> ConceptLoss:
        """Return the classifier with contrastive losses."""
        return ConceptLoss(self.config, self.concepts.graph.shared, self.encoding)

    def head(self) -> Head | None:
        """Return the current head; None: cosine."""
        return self.objective.classifier.head() if self.config.score == "head" else None

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
        graph, counts = self.concepts.graph, self.concepts.graph.counts
        largest = int(graph.sizes.max())
        self.progress.say(
            f"{plural(len(graph.ids), 'text[|s]')} in {plural(graph.groups, 'component[|s]')} of related"
            f" texts, the largest of {largest}; {int((graph.sizes == 1).sum())} without related texts"
        )
        for number, text in (
            (counts.withheld, "pair[ is a dev pair, and| are dev pairs, and] left out"),
            (counts.disagreeing, "pair[ has|s have] both labels, and [is|are] left out"),
            (counts.contradictions, "pair[ is|s are] unrelated within a component, and [stays|stay] so"),
            (counts.implied, "dev pair[ follows|s follow] from the others by transitivity"),
        ):
            if number:
                self.progress.say(plural(number, text))
        if 2 * largest > len(graph.ids):
            self.progress.say(
                "one component has more than half of the texts: contrasts of components have little effect"
            )

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError without related pairs."""
        if "related" in self.counts and not self.counts["related"]:
            raise TrainingError(f"no batch of {self.config.batch} texts had a related pair; raise --batch")

    def _check_config(self, config: ConceptConfig) -> None:
        graph, (with_components, with_momentum) = self.concepts.graph, config.contrasts
        if with_momentum and config.queue > len(graph.ids):
            raise TrainingError(
                f"a queue of {config.queue} keys is longer than {plural(len(graph.ids), 'text[|s]')}"
                f" to learn from; give --queue {len(graph.ids)} or less"
            )
        if with_components and graph.groups < 2:
            raise TrainingError(
                f"the related pairs make {plural(graph.groups, 'component[|s]')}, and two are needed for"
                " contrasts; give pairs of more groups, or --gc-nce false, or --objective classifier"
            )
