"""Fits the CNN rankers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rerank.common.arrays import Ragged
from rerank.common.config import values_of
from rerank.common.errors import TrainingError
from rerank.rankers.base import content_hash
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Inputs
from rerank.rankers.cnn.network import TorchRanker, TorchTower
from rerank.rankers.cnn.ranker import PARTS, CnnRanker
from rerank.rankers.cnn.sampling import Batch, Sampler, batch_size
from rerank.rankers.training.checkpoint import Checkpoint, Measurement, TrainingRun
from rerank.rankers.training.data import TrainingData, weighted_ndcg
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.rankers.training.trainer import Task, Trainer, TrainerOptions

EMBEDDING_RATE = 1e-2
"""Learning rate of word and category vectors."""
CHUNK_TOKENS = 100_000
"""Tokens that are encoded at once to measure."""
TEMPERATURE = 0.05
"""Of the in-batch softmax of the cosine head."""
LEAST_EPOCHS = 3
"""Epochs after which an unchanged loss means that nothing is learned."""
LEAST_STEPS = 100
"""Steps after which an unchanged loss means that nothing is learned."""
UNCHANGED_LOSS = 0.995
"""Losses of the MLP above this value count as unchanged. The first loss is 1."""
LEAST_SPREAD = 1e-6
"""Standard deviation of a query's scores below which they count as equal."""
SIDES = ("query", "document")
SEED_STEP = 1000
"""Difference of the seeds of the networks of a ranker, so that ``--seed 1`` has other networks than 0."""
MEASURES = {
    "weighted": "dev NDCG",
    "pool-random": "dev NDCG among random documents",
}
"""``epoch_by`` -> the measure that chooses the epoch."""


class CnnTask(Task):
    """Trains ``text``, ``meta`` or ``joint``.

    variant: decides which parts of the texts are read.
    inputs:  the embeddings and tokens, which several trainings share.
    config:  the options of this training, which can have another seed than the inputs.
    """

    def __init__(self, variant: str, name: str, inputs: Inputs, config: CnnConfig) -> None:
        data = inputs.data
        self.name = name
        self.data = data
        self.config = config
        torch.manual_seed(config.seed)
        towers: dict[str, list[TorchTower]] = {side: [] for side in SIDES}
        self.tokens: dict[str, list[Ragged]] = {side: [] for side in SIDES}
        for side in SIDES:
            for part in PARTS[variant]:
                embedding, tokens = getattr(inputs, part)[side]
                towers[side].append(TorchTower(embedding, config))
                self.tokens[side].append(tokens)
        self.model: TorchRanker = TorchRanker(towers, config)
        self.sampler = Sampler(
            data.train,
            collection=len(data.document_ids),
            batch=config.batch or batch_size(data.train),
            negatives=config.negatives,
            source=config.sampling,
            graded=config.head == "mlp",
        )
        self.steps_per_epoch = self.sampler.batches()
        self.dev = inputs.dev_set
        self.first_stage: float | None = None
        self.spread = 0.0

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Return Adam, and a sparse Adam for the embeddings if they are trained."""
        embeddings: set[int] = set()
        for module in self.model.modules():
            if isinstance(module, nn.Embedding):
                embeddings.add(id(module.weight))

        dense: list[nn.Parameter] = []
        trained_embeddings: list[nn.Parameter] = []
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameters = trained_embeddings if id(parameter) in embeddings else dense
                parameters.append(parameter)
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=self.config.rate)]
        if trained_embeddings:
            optimizers.append(torch.optim.SparseAdam(trained_embeddings, lr=EMBEDDING_RATE))
        return optimizers

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        return islice(self.sampler.epoch(np.random.default_rng([self.config.seed, epoch])), skip, None)

    def loss(self, batch: Batch) -> Tensor:
        """Return the in-batch softmax for the cosine head, and the pairwise hinge for the MLP."""
        query = self._encode_rows("query", batch.queries)
        document = self._encode_rows("document", batch.documents)
        positive = torch.from_numpy(batch.positive)
        if self.config.head == "cosine":
            relevant = torch.from_numpy(batch.relevant)
            weight = torch.from_numpy(batch.weight)
            return in_batch_softmax(query @ document.T, positive, relevant, weight, TEMPERATURE)
        if not len(batch.owner):
            return torch.zeros(())
        owner = torch.from_numpy(batch.owner)
        # A relevant document is scored once for all of its pairs, which share the dropout.
        better = self.model.score(query, document[positive])
        worse = self.model.score(query[owner], document[torch.from_numpy(batch.worse)])
        return pairwise_hinge(better[owner], worse)

    def evaluate(self) -> dict[str, float]:
        """Return the nDCG on dev, with and without the first stage, or among random documents."""
        scores = self.dev_scores()
        self.spread = float(np.mean([query_scores.std() for query_scores in scores]))
        return self.measure(scores)

    def measure(self, scores: Sequence[NDArray[np.float64]]) -> dict[str, float]:
        """Return the measures of the scores of the dev candidates of each query; the first one decides."""
        weighted, alone, first_stage = weighted_ndcg(self.dev.judged, scores)
        measure = MEASURES[self.config.epoch_by]
        if self.config.epoch_by == "pool-random":
            return {measure: alone}
        self.first_stage = first_stage
        return {measure: weighted, "alone": alone}

    @torch.no_grad()
    def dev_scores(self) -> list[NDArray[np.float64]]:
        """Return the scores of the dev candidates of each query."""
        self.model.eval()
        document = self._encode_in_chunks("document", self.dev.documents)
        query = self._encode_in_chunks("query", self.dev.queries)
        scores = []
        for row, columns in enumerate(self.dev.columns):
            score = self.model.score(query[row : row + 1], document[torch.from_numpy(columns)]).double()
            scores.append((torch.tanh(score) if self.config.head == "mlp" else score).numpy())
        return scores

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError if the loss of the MLP stays at its first value, or all scores are equal."""
        loss = measured.loss or 0.0
        epoch = measured.step // self.steps_per_epoch
        if self._is_stuck(loss, epoch, measured.step) or self.spread < LEAST_SPREAD:
            raise TrainingError(
                f"{self.name} learns nothing: after epoch {epoch} the loss is {loss:.3f} and its scores"
                f" differ by {self.spread:.1g}; try another --seed, another --head, or check the judgments"
            )

    def _is_stuck(self, loss: float, epoch: int, step: int) -> bool:
        """Return whether the loss of the MLP still has its first value. Other losses may start anywhere."""
        if epoch < LEAST_EPOCHS or step < LEAST_STEPS:  # few queries make few steps an epoch
            return False
        return self.config.head == "mlp" and loss > UNCHANGED_LOSS

    def _encode_rows(self, side: str, rows: NDArray[np.int64]) -> Tensor:
        return self.model.encode(side, [tokens.take(rows) for tokens in self.tokens[side]])

    def _encode_in_chunks(self, side: str, rows: NDArray[np.int64]) -> Tensor:
        """Encode many texts, about CHUNK_TOKENS tokens at once, so that they fit into memory."""
        lengths = sum(tokens.lengths[rows] for tokens in self.tokens[side]) + 1
        cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // CHUNK_TOKENS)) + 1
        return torch.cat([self._encode_rows(side, chunk) for chunk in np.split(rows, cuts)])


class CnnTrainer:
    """Fits the rankers of one training on judgments. They share the embeddings, which are trained first."""

    def __init__(self, job: TrainingJob, config: CnnConfig) -> None:
        assert job.data is not None
        self.job = job
        self.data = job.data
        self.config = config
        self.progress = job.progress
        self.inputs = Inputs(self.data, config, self.progress)

    def fit(self, variant: str, name: str = "") -> TrainingResult:
        """Fit one ranker. An interruption keeps the finished networks, and the interrupted one if it helps.

        Raises TrainingError if the data lack texts, categories or candidates, or if nothing is learned.
        """
        name = name or variant
        folder = self.job.checkpoint(name)
        trainings: list[NetworkTraining] = []
        for number in range(self.config.networks):
            try:
                trainings.append(self._train_network(variant, name, folder, number))
            except KeyboardInterrupt:
                if not trainings:
                    raise
                trainings[-1].run.interrupted = True
            if trainings[-1].run.interrupted:
                break
        return self._result(variant, name, trainings, trainings[-1].run.interrupted)

    def _train_network(self, variant: str, name: str, folder: Path, number: int) -> NetworkTraining:
        """Train a network of a ranker. number: from 0. folder: of the checkpoints of the ranker."""
        config = replace(self.config, seed=self.config.seed + number * SEED_STEP)
        networks = config.networks
        label = name if networks == 1 else f"{name}, network {number + 1} of {networks}"
        task = CnnTask(variant, label, self.inputs, config)
        key = identity(self.data, config, variant)
        checkpoint = Checkpoint(folder / str(number) if number else folder, key)
        options = TrainerOptions(
            steps=config.epochs * task.steps_per_epoch,
            patience=config.patience,
            measure_first=False,
            warmup=None,
            clip=None,
            seed=config.seed,
        )
        run = Trainer(task, options, checkpoint, self.progress).fit()
        # The trainer does not keep the scores of the best epoch.
        return NetworkTraining(task, run, checkpoint, task.dev_scores())

    def _result(
        self, variant: str, name: str, trainings: Sequence[NetworkTraining], interrupted: bool
    ) -> TrainingResult:
        """Return the ranker of trained networks, and how it was trained.

        A network whose training was interrupted is left out if the others are better without it.
        """
        if interrupted and len(trainings) > 1:
            trainings = max(trainings, trainings[:-1], key=mean_value)
        value = mean_value(trainings)
        best_epochs = [training.best_epoch for training in trainings]
        epoch = max(best_epochs)
        record = {"epoch": epoch, "dev": round(value, 6), "config": values_of(self.config)}
        record["first_stage"] = self.data.first_stage
        networks = [training.task.model.numpy() for training in trainings]
        ranker = CnnRanker(name=name, variant=variant, networks=networks, trained=record)
        remarks = [] if variant == "text" else [*self.inputs.category_graph.remarks]
        if self.config.networks > 1:
            epochs = ", ".join(map(str, best_epochs))
            remarks.append(
                f"{name} has {len(trainings)} of {self.config.networks} networks; epochs: {epochs}"
            )
        return TrainingResult(
            ranker,
            epoch,
            max(training.epochs for training in trainings),
            value,
            trainings[0].task.first_stage,
            interrupted,
            measure={**MEASURES, "weighted": TrainingResult.measure}[self.config.epoch_by],
            curve=list(chain.from_iterable(map(NetworkTraining.curve, trainings))),
            remarks=remarks,
            details={"best_epochs": best_epochs},
            discard_checkpoint=None if interrupted else trainings[0].checkpoint.discard,
        )


@dataclass(frozen=True)
class NetworkTraining:
    """A finished training of a network. The task has its best weights.

    checkpoint: of the training. The folder of the first network has the folders of the others.
    dev_scores: the scores of the dev candidates of each query.
    """

    task: CnnTask
    run: TrainingRun
    checkpoint: Checkpoint
    dev_scores: Sequence[NDArray[np.float64]]

    @property
    def best_epoch(self) -> int:
        return self.run.best // self.task.steps_per_epoch

    @property
    def epochs(self) -> int:
        """The number of epochs that were trained."""
        return -(-self.run.steps // self.task.steps_per_epoch)

    def curve(self) -> list[tuple[int, float | None, float | None]]:
        """Return the epoch, the loss and the measure of each measurement."""
        steps_per_epoch = self.task.steps_per_epoch
        return [(point.step // steps_per_epoch, point.loss, point.value) for point in self.run.history]


def mean_value(trainings: Sequence[NetworkTraining]) -> float:
    """Return the dev measure of the mean scores of networks."""
    scores_by_query = zip(*(training.dev_scores for training in trainings))
    means = [np.mean(scores_of_networks, axis=0) for scores_of_networks in scores_by_query]
    return next(iter(trainings[0].task.measure(means).values()))


def identity(data: TrainingData, config: CnnConfig, variant: str) -> str:
    """Return a hash of everything that a training reads.

    A checkpoint stores it, so that only the same training continues from it.
    """
    settings: list[Any] = [variant, values_of(config), data.first_stage, data.category_edges]
    arrays: list[NDArray[Any]] = []
    for corpus in (data.documents, data.queries, data.query_text):
        if corpus is not None:
            different, categories = _number_categories(corpus.categories)
            settings += [corpus.words, different]
            arrays += [corpus.tokens.flat, corpus.tokens.offsets, categories]
    for query in (*data.train, *data.dev):
        arrays += map(np.asarray, vars(query).values())
    return content_hash(settings, arrays)


def _number_categories(
    categories: Sequence[tuple[str, ...]],
) -> tuple[list[tuple[str, ...]], NDArray[np.int64]]:
    """Return the different categories of n texts, and (n,) the position of each text's categories in them."""
    different = list(dict.fromkeys(categories))
    positions = {names: position for position, names in enumerate(different)}
    return different, np.array([positions[names] for names in categories], np.int64)


def pairwise_hinge(better: Tensor, worse: Tensor) -> Tensor:
    """Return the mean of max(0, 1 - (S(q, d+) - S(q, d-))) over P pairs (Kuwa et al. 2020, section 3.1).

    better, worse: (P,) scores S of d+ and d- before tanh, which saturates.
    """
    return functional.relu(1.0 - (better - worse)).mean()


def in_batch_softmax(
    cosines: Tensor, positive: Tensor, relevant: Tensor, weight: Tensor, temperature: float
) -> Tensor:
    """Return the weighted mean of -log(exp(s_+ / t) / sum_d exp(s_d / t)) over B examples.

    The sum leaves out the documents d that are also relevant.

    cosines:     (B, U) scores s of all documents of the batch.
    positive:    (B,) the column of the relevant document.
    relevant:    (B, U) bool, the documents that are relevant.
    weight:      (B,) weights of the examples.
    temperature: t.
    """
    masked = relevant.clone()
    masked[torch.arange(len(positive)), positive] = False
    logits = (cosines / temperature).masked_fill(masked, float("-inf"))
    loss = functional.cross_entropy(logits, positive, reduction="none")
    return (loss * weight).sum() / weight.sum()
