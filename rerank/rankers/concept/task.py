"""Training of ``concept`` on labeled pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.concept.batches import DRAWINGS, Labeled, PairSampler
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.dev_pairs import KeptPairs
from rerank.rankers.concept.graph import ConceptGraph, Expansion
from rerank.rankers.concept.head import Head
from rerank.rankers.concept.losses import ConceptLoss
from rerank.rankers.encoder.task import EncoderTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.checkpoint import Measurement
from rerank.records import LabeledPair
from rerank.text import plural


@dataclass(frozen=True)
class Concepts:
    """What a training learns from: the graph of its pairs, and the texts.

    ids: of all texts, those of the graph first and in its order, then the others that are measured by.
    tokens: of each, without special ones, as many as the encoder reads.
    kept: pairs to measure by.
    """

    graph: ConceptGraph
    ids: Sequence[str]
    tokens: Sequence[NDArray[np.int32]]
    kept: Sequence[LabeledPair]

    @classmethod
    def ids_of(cls, graph: ConceptGraph, kept: Sequence[LabeledPair]) -> list[str]:
        """All ids, in the order in which they are kept."""
        rest = sorted({one for pair in kept for one in (pair.a, pair.b)} - {*graph.ids})
        return [*graph.ids, *rest]


class ConceptTask(EncoderTask):
    """Trains one encoder on labeled pairs of texts."""

    name = "concept"
    config: ConceptConfig
    evaluator: KeptPairs | None
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
        self.pairs = graph.expand(config.hops, config.ratio, seed=config.seed)
        if config.hops == 1:  # nothing is drawn, of unrelated pairs neither
            self.pairs = Expansion(graph.related, graph.unrelated, len(graph.related), None, 1.0)
        alone = graph.sizes[graph.component] == 1
        self.groups = np.full(len(concepts.ids), -1, dtype=np.int64)
        numbers = np.cumsum(graph.sizes > 1) - 1
        self.groups[: len(graph.ids)] = np.where(alone, -1, numbers[graph.component])
        related = np.repeat([True, False], [len(self.pairs.related), len(self.pairs.unrelated)])
        ends = np.concatenate((self.pairs.related, self.pairs.unrelated))
        labeled = Labeled(self.groups[: len(graph.ids)], ends[:, 0], ends[:, 1], related)
        batch = min(config.batch, len(graph.ids))
        sampler = PairSampler(labeled, DRAWINGS[config.batches](), self.text, batch, config.seed)
        self._check(config)
        super().__init__(encoder, config, sampler, self._evaluator(), progress, checkpoint)

    def make_loss(self) -> ConceptLoss:
        """Make the classifier and the contrasts."""
        return ConceptLoss(self.config, self.groups, self.encoding)

    def head(self) -> Head | None:
        """The head as it is now; None if the cosine is the score."""
        return self.objective.classifier.head() if self.config.score == "head" else None

    def _evaluator(self) -> KeptPairs | None:
        kept = self.concepts.kept
        if not kept:
            return None
        place = {one: i for i, one in enumerate(self.concepts.ids)}
        ends = np.array([(place[pair.a], place[pair.b]) for pair in kept], dtype=np.int64)
        documents, at = np.unique(ends, return_inverse=True)
        first, second = at.reshape(-1, 2).T
        related = np.array([pair.related for pair in kept])

        return KeptPairs(documents, first, second, related, self.head)

    def identity(self) -> Iterable[bytes]:
        """The texts and the pairs."""
        yield "\n".join(self.concepts.ids).encode()
        yield repr(sorted(self.concepts.kept)).encode()
        for tokens in self.concepts.tokens:
            yield tokens.tobytes()
        for pairs in (self.pairs.related, self.pairs.unrelated):
            yield pairs.tobytes()

    def text(self, document: int) -> NDArray[np.int32]:
        """Tokens of its beginning."""
        return self.concepts.tokens[document]

    def pieces(self) -> Iterable[NDArray[np.int32]]:
        """All texts."""
        return iter(self.concepts.tokens)

    def look(self) -> None:
        """Say what there is to learn from."""
        graph, counts = self.concepts.graph, self.concepts.graph.counts
        self.progress.say(
            f"{plural(len(graph.ids), 'text[|s]')} in {plural(graph.groups, 'component[|s]')} of related"
            f" ones, the largest of {int(graph.sizes.max())}; {int((graph.sizes == 1).sum())} related to none"
        )
        for number, what in (
            (counts.withheld, "pair[|s] to learn from [is|are] among those to measure by, and left out"),
            (counts.disagreeing, "pair[ is|s are] labeled both ways, and left out"),
            (
                counts.contradictions,
                "pair[ is|s are] labeled unrelated within a component: [it stays|they stay] so",
            ),
            (counts.implied, "pair[|s] to measure by [follows|follow] from the others by transitivity"),
        ):
            if number:
                self.progress.say(plural(number, what))
        if 2 * int(graph.sizes.max()) > len(graph.ids):
            self.progress.say(
                "one component holds more than half of the texts: contrasting components teaches little"
            )

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError where no batch had a related pair."""
        if "related" in self.counts and not self.counts["related"]:
            raise TrainingError(
                f"no batch of {self.config.batch} texts had a related pair; raise"
                f" --batch, or draw --batches pairs"
            )

    def _check(self, config: ConceptConfig) -> None:
        """Raise TrainingError for settings that do not go with the pairs."""
        graph, (with_components, with_momentum) = self.concepts.graph, config.contrasts
        if with_momentum and config.queue > len(graph.ids):
            raise TrainingError(
                f"a queue of {config.queue} keys is longer than {plural(len(graph.ids), 'text[|s]')}"
                f" to learn from; take --queue {len(graph.ids)} or less"
            )
        if with_components and graph.groups < 2:
            raise TrainingError(
                f"the related pairs make {plural(graph.groups, 'component[|s]')}, and there is nothing to"
                f" contrast; give pairs of more groups, or --gc-nce false, or"
                f" --objective classifier"
            )
