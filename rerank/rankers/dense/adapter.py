"""``adapter``: a linear map of the vectors of a pretrained encoder, learned from judged queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from rerank.common.config import Count, NonNegative, option, values_of
from rerank.documents.text import count_of
from rerank.rankers.dense.config import Neighbors
from rerank.rankers.dense.neighborhood import encoded_means
from rerank.rankers.dense.ranker import BEST, DenseRanker, windows
from rerank.rankers.encoder.config import ModelConfig, Tokens
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.solver import Vectors, descend
from rerank.rankers.training.job import TrainingJob, TrainingResult

GAMMA = 20.0
"""Factor of differences of cosines."""
TRAIN_PASSAGES = 2
"""Most passages of a document that are encoded to learn: the first and the last. More gained nothing."""


class AdapterConfig(ModelConfig, frozen=True):
    """Options of ``adapter``, a linear map of the vectors of a pretrained encoder."""

    passage_tokens: Annotated[
        Tokens | None, option("Tokens of a passage, special ones included. none: as the model's folder says.")
    ] = None
    passages: Annotated[int, option("Maximum number of passages of a document.", ge=1, le=100)] = 8
    best: Annotated[Count, option("Number of passages whose cosines make the score of a document.")] = BEST
    neighbors: Neighbors = 0
    beta: Annotated[NonNegative, option("Weight of the squared distance from the identity.")] = 0.01
    epochs: Annotated[Count, option("Maximum number of iterations of L-BFGS.")] = 60

    def solver(self) -> ProjectionConfig:
        """Return the options of the solver of S2Net, which learns the map."""
        return ProjectionConfig(gamma=GAMMA, beta=self.beta, epochs=self.epochs, graded=True)


@dataclass(frozen=True)
class AdapterFitter:
    """Learns the map with the loss of S2Net (Yih et al. 2011) on frozen vectors."""

    job: TrainingJob
    config: AdapterConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Learn from the train queries, and keep the best map on dev. It can be the identity."""
        config = self.config
        data = self.job.data
        progress = self.job.progress
        assert data is not None
        encoder = config.load()
        untrained = DenseRanker(
            name="",
            source=encoder,
            passages=min(TRAIN_PASSAGES, config.passages),
            pretrained_version=encoder.version(),
        )
        documents, longest = self._documents(untrained)
        passages = max(1, len(windows(longest, encoder.room, config.passages)))
        queries = untrained.vectors(data.query_texts, queries=True)
        vectors = Vectors(data, config.solver(), documents, queries)
        start = np.eye(encoder.width, dtype=np.float32)
        best = descend(name, vectors, start, config.solver(), progress)
        if best.iteration:
            before = encoder.modules.projection
            matrix = best.matrix if before is None else before @ best.matrix
            encoder.modules = replace(encoder.modules, projection=matrix.astype(np.float32))
        else:
            progress.say(f"no map was better than the identity, so {name} is {config.model}")
        trained = {"settings": values_of(config), "history": best.history, "first_stage": data.first_stage}
        ranker = DenseRanker(
            family=variant,
            variant=variant,
            name=name,
            source=encoder,
            pretrained_version=untrained.pretrained_version,
            trained=trained,
            passages=passages,
            best=config.best,
        )
        remark = f"{count_of(len(vectors.pairs), 'pair')} to learn from"
        best.baseline_value = best.history[0][2]  # of the identity
        ranker = ranker.with_neighbors(config.neighbors, self.job)
        return best.result(ranker, "without the map", remarks=(remark,))

    def _documents(self, ranker: DenseRanker) -> tuple[NDArray[np.float32], int]:
        """Return mean vectors of the passages of documents, (D, E), and the tokens of the longest text."""
        engine = self.job.engine
        vectors: list[NDArray[np.float32]] = []
        longest = 0
        with self.job.progress.step("encode documents", len(engine), "doc") as advance:
            for batch, means in encoded_means(ranker, engine.documents()):
                vectors.append(means)
                lengths = map(len, ranker.encoder.tokens([document.content for document in batch]))
                longest = max(longest, *lengths)
                advance(len(batch))
        return np.concatenate(vectors), longest
