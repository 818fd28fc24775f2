"""Fits the CNN rankers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rerank.config import values_of
from rerank.errors import TrainingError
from rerank.rankers.base import content_hash
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Inputs
from rerank.rankers.cnn.network import TorchRanker, TorchTower
from rerank.rankers.cnn.ranker import PARTS, CnnRanker
from rerank.rankers.cnn.sampling import Batch, Sampler, batch_size
from rerank.rankers.training.checkpoint import Checkpoint, Measurement
from rerank.rankers.training.data import DevSet, TrainingData, weighted_ndcg
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.rankers.training.trainer import Task, Trainer, TrainerOptions

EMBEDDING_RATE = 1e-2
"""Learning rate of word and category vectors."""
TEMPERATURE = 0.05
"""Of the in-batch softmax of the cosine head."""
LEAST_STEPS = 100
"""Steps after which an unchanged loss means that nothing is learned."""
SIDES = ("query", "document")
MEASURES = {
    "weighted": "dev NDCG",
    "pool-random": "dev NDCG among random documents",
}
"""``epoch_by`` -> the measure that chooses the epoch."""


class CnnTask(Task):
    """Trains ``text``, ``meta`` or ``joint``."""

    def __init__(self, variant: str, name: str, inputs: Inputs) -> None:
        self.name, self.data, self.config = name, inputs.data, inputs.config
        data, config, parts = inputs.data, inputs.config, [getattr(inputs, part) for part in PARTS[variant]]
        sides = {side: [part[side] for part in parts] for side in SIDES}
        torch.manual_seed(config.seed)
        towers = {side: [TorchTower(one, config) for one, _ in own] for side, own in sides.items()}
        self.model: TorchRanker = TorchRanker(towers, config)
        self.tokens = {side: [tokens for _, tokens in own] for side, own in sides.items()}
        batch, graded = config.batch or batch_size(data.train), config.head == "mlp"
        self.sampler = Sampler(
            data.train, len(data.document_ids), batch, config.negatives, config.sampling, graded
        )
        self.steps_per_epoch = self.sampler.batches()
        pools = config.epoch_by == "pool-random"
        self.dev = DevSet.pools(data, config.seed) if pools else DevSet.of(data)
        self.first_stage: float | None = None
        self.spread = 0.0

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Adam; trained embeddings have a sparse one."""
        embeddings = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Embedding)}
        learned = [one for one in self.model.parameters() if one.requires_grad]
        sparse = [one for one in learned if id(one) in embeddings]
        adam = torch.optim.Adam([one for one in learned if id(one) not in embeddings], lr=self.config.rate)
        return [adam, torch.optim.SparseAdam(sparse, lr=EMBEDDING_RATE)] if sparse else [adam]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches of an epoch."""
        return islice(self.sampler.epoch(np.random.default_rng([self.config.seed, epoch])), skip, None)

    def loss(self, batch: Batch) -> Tensor:
        """In-batch softmax (cosine head) or pairwise hinge (MLP)."""
        query, document = (
            self.model.encode(side, [part.take(rows) for part in self.tokens[side]])
            for side, rows in (("query", batch.queries), ("document", batch.documents))
        )
        positive = torch.from_numpy(batch.positive)
        if self.config.head == "cosine":
            relevant, weight = torch.from_numpy(batch.relevant), torch.from_numpy(batch.weight)
            return in_batch_softmax(query @ document.T, positive, relevant, weight, TEMPERATURE)
        if not len(batch.owner):
            return torch.zeros(())
        owner = torch.from_numpy(batch.owner)
        # A relevant document is scored once for all of its pairs, which share the dropout.
        better = self.model.score(query, document[positive])
        worse = self.model.score(query[owner], document[torch.from_numpy(batch.worse)])
        return pairwise_hinge(better[owner], worse)

    def evaluate(self) -> dict[str, float]:
        """nDCG on dev, with and without the first stage."""
        self.model.eval()
        with torch.no_grad():
            document = self._encode("document", self.dev.documents)
            query = self._encode("query", self.dev.queries)
            scores = []
            for i, columns in enumerate(self.dev.columns):
                score = self.model.score(query[i : i + 1], document[torch.from_numpy(columns)]).double()
                scores.append((torch.tanh(score) if self.config.head == "mlp" else score).numpy())
        weighted, alone, first_stage = weighted_ndcg(self.dev.judged, scores)
        self.spread = float(np.mean([one.std() for one in scores]))
        measure = MEASURES[self.config.epoch_by]
        if self.config.epoch_by == "pool-random":
            return {measure: alone}
        self.first_stage = first_stage
        return {measure: weighted, "alone": alone}

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError if nothing is learned."""
        loss, steps = measured.loss or 0.0, measured.step
        epoch = steps // self.steps_per_epoch
        # Few queries make few steps an epoch, and the loss starts at 1.
        stuck = self.config.head == "mlp" and epoch >= 3 and steps >= LEAST_STEPS and loss > 0.995
        if stuck or self.spread < 1e-6:
            raise TrainingError(
                f"{self.name} learns nothing: after epoch {epoch} the loss is {loss:.3f} and its scores"
                f" differ by {self.spread:.1g}; try another --seed, another --head, or check the judgments"
            )

    def _encode(self, side: str, rows: NDArray[np.int64]) -> Tensor:
        tokens = self.tokens[side]
        lengths = sum(part.lengths[rows] for part in tokens) + 1
        cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // 100_000)) + 1
        chunks = np.split(rows, cuts)
        return torch.cat([self.model.encode(side, [part.take(one) for part in tokens]) for one in chunks])


class CnnTrainer:
    """Fits several rankers with shared embeddings."""

    def __init__(self, job: TrainingJob, config: CnnConfig) -> None:
        assert job.data is not None
        self.job, self.data, self.config, self.progress = job, job.data, config, job.progress
        self.inputs = Inputs(self.data, config, self.progress)

    def fit(self, variant: str, name: str = "") -> TrainingResult:
        """Fit one ranker. Raises TrainingError for insufficient data."""
        config, name = self.config, name or variant
        task = CnnTask(variant, name, self.inputs)
        checkpoint = Checkpoint(self.job.checkpoint(name), identity(self.data, config, variant))
        each = task.steps_per_epoch
        options = TrainerOptions(
            steps=config.epochs * each,
            patience=config.patience,
            first=False,
            warmup=None,
            clip=None,
            seed=config.seed,
        )
        run = Trainer(task, options, checkpoint, self.progress).fit()
        epoch, value = run.best // each, run.kept.value
        assert value is not None
        record = {"epoch": epoch, "dev": round(value, 6), "config": values_of(config)}
        record["first_stage"] = self.data.first_stage
        query, document = ([tower.numpy() for tower in task.model.towers[side]] for side in SIDES)
        return TrainingResult(
            CnnRanker(
                name=name,
                variant=variant,
                query=query,
                document=document,
                head=task.model.head(),
                trained=record,
            ),
            epoch,
            -(-run.steps // each),
            value,
            task.first_stage,
            run.interrupted,
            measure={**MEASURES, "weighted": TrainingResult.measure}[config.epoch_by],
            curve=[(one.step // each, one.loss, one.value) for one in run.history],
            remarks=() if variant == "text" else self.inputs.category_graph.remarks,
            cleanup=dict if run.interrupted else checkpoint.discard,
        )


def identity(data: TrainingData, config: CnnConfig, variant: str) -> str:
    """Hash of all inputs."""
    settings: list[Any] = [variant, values_of(config), data.first_stage, data.category_edges]
    arrays: list[NDArray[Any]] = []
    for corpus in (data.documents, data.queries, data.query_text):
        if corpus is not None:
            settings += [corpus.words, corpus.categories]
            arrays += [corpus.tokens.flat, corpus.tokens.offsets]
    judged = (value for one in (*data.train, *data.dev) for value in vars(one).values())
    return content_hash(settings, [*arrays, *map(np.asarray, judged)])


def pairwise_hinge(better: Tensor, worse: Tensor) -> Tensor:
    """Mean of max(0, 1 - (S(q, d+) - S(q, d-))) (Kuwa et al. 2020, section 3.1).

    better, worse: (P,) scores before tanh, which saturates.
    """
    return functional.relu(1.0 - (better - worse)).mean()


def in_batch_softmax(
    cosines: Tensor, positive: Tensor, relevant: Tensor, weight: Tensor, temperature: float
) -> Tensor:
    """Weighted mean of -log(exp(s_+ / t) / sum_d exp(s_d / t)), without other relevant d.

    cosines: (B, U); positive: (B,) relevant column; relevant: (B, U) bool;
    weight: (B,); temperature: t.
    """
    masked = relevant.clone()
    masked[torch.arange(len(positive)), positive] = False
    logits = (cosines / temperature).masked_fill(masked, float("-inf"))
    loss = functional.cross_entropy(logits, positive, reduction="none")
    return (loss * weight).sum() / weight.sum()
