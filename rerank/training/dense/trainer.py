"""The training loop of an encoder: batches -> vectors -> loss -> step; early stopping, checkpoints."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rerank.errors import TrainingError, setting_hint
from rerank.graph.cited import CitationGraph
from rerank.progress import Progress
from rerank.rankers.dense.transformer import TextEncoder
from rerank.settings import values_of
from rerank.training.dense.averaging import SHARES, between
from rerank.training.dense.checkpoint import Checkpoint, Measured, State
from rerank.training.dense.config import DenseConfig, ModelConfig, TrainingConfig
from rerank.training.dense.corruption import Vocabulary
from rerank.training.dense.encoding import Batch, BatchEncoder
from rerank.training.dense.heldout import Evaluator, HeldOut
from rerank.training.dense.losses import Loss, Vectors
from rerank.training.dense.lower import LowerLayers
from rerank.training.dense.sampling import Sampler
from rerank.training.dense.structure import prepare_structure
from rerank.training.dense.texts import Fragments, Texts
from rerank.training.unfinished import about

LEAST_STEPS, PARTS = 10, 2
"""What is measured is measured PARTS times an epoch, but not more often than every LEAST_STEPS steps."""
LOSS = "loss:"
"""Before the names of what belongs to the loss, among the weights of the encoder."""


class Batches(Protocol):
    """Draws the batches of an epoch; the same for the same number, whatever was drawn before."""

    def steps(self) -> int:
        """Steps of an epoch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Draw the batches of an epoch, from batch ``first`` on."""


class Settings(Protocol):
    """What the loop reads of a family's configuration."""

    @property
    def encoder(self) -> ModelConfig:
        """What is trained."""

    @property
    def training(self) -> TrainingConfig:
        """How long."""

    @property
    def objective(self) -> Loss:
        """On what."""

    @property
    def seed(self) -> int:
        """Of everything random."""


@dataclass(frozen=True)
class Fit:
    """A trained encoder and how it came about.

    history: measurements, the untrained encoder's first; best: the step that was kept (0: untrained), and
        share: how much of the way to its weights (see ``averaging.between``).
    rate:    sequences a second, forward and backward; seconds: of the processor, for all steps.
    tally:   see :class:`State`.
    """

    encoder: TextEncoder
    history: list[Measured]
    best: int
    steps: int
    interrupted: bool
    rate: float
    seconds: float
    tally: dict[str, float]
    share: float


@dataclass(frozen=True)
class DenseFit(Fit):
    """The same on links.

    masked: share of the anchors that had no structural pair.
    """

    masked: float
    held_out: int
    train_links: int


class EncoderTrainer(ABC):
    """Trains one encoder, with what its loss has beside it. Subclasses say on what.

    name:      of the ranker, for people.
    evaluator: what is measured on the way; None: nothing, the last step is kept.
    groups:    see ``BatchEncoder``.
    """

    name: ClassVar[str]
    groups: NDArray[np.int64] | None = None

    def __init__(
        self,
        encoder: TextEncoder,
        config: Settings,
        sampler: Batches,
        evaluator: Evaluator | None,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.encoder, self.config, self.sampler, self.evaluator = encoder, config, sampler, evaluator
        self.progress = progress or Progress()
        self.checkpoint = Checkpoint(checkpoint, self._key()) if checkpoint is not None else None
        if torch.cuda.is_available():
            encoder.model.to("cuda")
        layers = config.encoder.learning_layers(encoder.model.config.num_hidden_layers)
        self.lower = LowerLayers(encoder, layers, config.encoder.precision) if layers else None
        branches = config.objective.branches
        self.batches = BatchEncoder(encoder, self.lower, branches, config.encoder.precision, self.groups)
        self.loss = config.objective.begin(self.batches)

    @abstractmethod
    def identity(self) -> Iterable[bytes]:
        """All that the training depends on beside settings and model: a checkpoint is of that alone."""

    @abstractmethod
    def text(self, document: int) -> NDArray[np.int32]:
        """Tokens that stand for a document where it is measured."""

    @abstractmethod
    def pieces(self) -> Iterable[NDArray[np.int32]]:
        """Tokens of all texts that are encoded more than once."""

    @abstractmethod
    def check(self, tally: dict[str, float]) -> None:
        """Raise TrainingError where nothing could be learned so far, by what the loss has counted."""

    @abstractmethod
    def look(self, tally: dict[str, float]) -> None:
        """Look at the untrained encoder, before anything is measured."""

    def _key(self) -> str:
        digest = hashlib.sha256(json.dumps(values_of(self.config), sort_keys=True).encode())
        digest.update(self.encoder.version().encode())
        for part in self.identity():
            digest.update(part)
        return digest.hexdigest()

    def fit(self) -> Fit:
        """Train until what is measured gets no better, or the steps are done; Ctrl-C keeps the best so far.

        The untrained encoder is one of the choices.
        """
        config, model = self.config.training, self.encoder.model
        if config.threads:
            torch.set_num_threads(config.threads)
        each = self.sampler.steps()
        total = config.steps or config.epochs * each
        every = config.every or max(LEAST_STEPS, each // PARTS)
        optimizer = torch.optim.Adam(self._groups(), lr=config.rate, eps=1e-8)
        start = self._weights()
        state, best, share = State(), start, 1.0
        loaded = self.checkpoint.load(self._restore, optimizer) if self.checkpoint else None
        if loaded is not None:
            state, best = loaded
            self.progress.say(f"goes on at step {state.step} of {total}")
        if self.lower is not None:
            self._keep_lower(self.lower)
        interrupted = False
        sequences = 0
        begin, spent, worked = time.monotonic(), 0.0, 0.0
        try:
            if not state.history:
                self.look(state.tally)
                state.history.append(self._measure(0, None))
                self._report(state, total, 0.0)
            self.progress.start(f"train {self.name}", total, "step")
            self.progress.advance(state.step)
            for batch in self._batches(state.step, total, each):
                if state.stale >= config.patience:
                    break
                started, busy = time.monotonic(), time.process_time()
                if state.step % each == 0:
                    self.loss.begin_epoch(state.step // each, self.vectors)
                loss = self._step(batch, state.step, total, optimizer, state.tally)
                spent += time.monotonic() - started
                worked += time.process_time() - busy
                if not np.isfinite(loss):
                    raise TrainingError(
                        f"the loss is not finite at step {state.step}; lower {setting_hint('rate')}"
                    )
                sequences += len(self.batches.texts(batch))
                state.step += 1
                self.loss.after_step(state.step)
                state.losses.append(loss)
                self.progress.advance()
                self.progress.show(loss=f"{loss:.3f}", sequences=f"{sequences / spent:.1f}/s")
                if state.step % every == 0 or state.step == total:
                    self.check(state.tally)
                    measured = self._measure(state.step, float(np.mean(state.losses)))
                    state.losses.clear()
                    # The first steps cost a strong encoder some of what it knew: as long as it is on its
                    # way back, it goes on.
                    gains = all(self._better(measured, other) for other in state.history[1:])
                    state.stale = 0 if gains else state.stale + 1
                    if self._better(measured, next(m for m in state.history if m.step == state.best)):
                        state.best, best = state.step, self._weights()
                    state.history.append(measured)
                    self._report(state, total, sequences / spent, time.monotonic() - begin)
                    if self.checkpoint:
                        told = about(self.name, values_of(self.config), state.step, total, "step")
                        self.checkpoint.save(state, self._weights(), optimizer, best, told)
            if config.average and self.evaluator and state.step:
                averaged = self._average(start, state)
                if averaged is not None:
                    best, share = averaged
                    state.best = state.step
        except KeyboardInterrupt:
            if not state.history:  # nothing was measured: there is no best yet
                raise
            interrupted = True
        finally:
            self.progress.finish()
        self._restore(best)
        model.to("cpu").eval()
        rate = sequences / spent if spent else 0.0
        return Fit(
            self.encoder, state.history, state.best, state.step, interrupted, rate, worked, state.tally, share
        )

    def _average(self, start: dict[str, Tensor], state: State) -> tuple[dict[str, Tensor], float] | None:
        """Try weights between the untrained and the last ones: (the best, their share) or None."""
        last, found = self._weights(), None
        leading = next(one for one in state.history if one.step == state.best)
        untrained = {name: last[name] if name.startswith(LOSS) else one for name, one in start.items()}
        for share in SHARES:
            mixed = between(untrained, last, share)
            self._restore(mixed)
            measured = replace(self._measure(state.step, None), share=share)
            state.history.append(measured)
            self.progress.say(f"{share:.2f} of the way to step {state.step}: {measured}")
            if self._better(measured, leading):
                found, leading = (mixed, share), measured
        return found

    def _keep_lower(self, lower: LowerLayers) -> None:
        self.progress.start("lower layers", len({piece.tobytes() for piece in self.pieces()}), "text")
        try:
            kept = lower.keep(self.pieces, self.progress.advance)
        finally:
            self.progress.finish()
        if not kept and self.encoder.device.type == "cpu":
            self.progress.say("what the lower layers make of the texts is not kept: computed at every step")

    def _batches(self, done: int, total: int, each: int) -> Iterator[Batch]:
        while done < total:
            for batch in self.sampler.epoch(done // each, done % each):
                yield batch
                done += 1
                if done == total:
                    return

    def learning(self) -> list[torch.nn.Parameter]:
        """The parameters that learn: the encoder's, and the loss's own."""
        return [*self.encoder.learning(), *self.loss.parameters()]

    def _groups(self) -> list[dict[str, Any]]:
        """The same for the optimiser: the loss's own learn at a rate of their own."""
        own = list(self.loss.parameters())
        groups: list[dict[str, Any]] = [{"params": self.encoder.learning()}]
        return [*groups, {"params": own, "faster": self.loss.faster}] if own else groups

    def _step(
        self,
        batch: Batch,
        step: int,
        total: int,
        optimizer: torch.optim.Optimizer,
        tally: dict[str, float] | None = None,
    ) -> float:
        config, found = self.config.training, {} if tally is None else tally

        def counted(vectors: Vectors) -> Tensor:
            self._count(vectors, found)
            return self.loss(vectors)

        for group in optimizer.param_groups:
            group["lr"] = config.rate * group.get("faster", 1.0) * _schedule(step, total, config.warmup)
        torch.manual_seed(self.config.seed * 1_000_003 + step)
        self.encoder.model.train()
        optimizer.zero_grad(set_to_none=True)
        loss = self.batches.backward(batch, counted, config.accumulate)
        torch.nn.utils.clip_grad_norm_(self.learning(), config.clip)
        optimizer.step()
        return loss

    def _count(self, vectors: Vectors, tally: dict[str, float]) -> None:
        """Add to the tally what the anchors of a batch had to learn from."""
        with torch.no_grad():
            found = self.loss.count(vectors)
        for name, value in {"anchors": len(vectors.anchor), **found}.items():
            tally[name] = tally.get(name, 0) + value

    def vectors(self, documents: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, E) vectors of length 1 of documents, without dropout."""
        texts = [self.text(document).tolist() for document in documents.tolist()]
        return (self.encoder if self.lower is None else self.lower).encode(texts)

    def _measure(self, step: int, loss: float | None) -> Measured:
        if self.evaluator is None:
            return Measured(step, loss)  # the last one is kept
        self.progress.show(measuring="")
        return Measured(step, loss, self.evaluator.measure(self.vectors))

    def _better(self, one: Measured, other: Measured) -> bool:
        name = self.evaluator.decides if self.evaluator else None
        return name is None or one.measures[name] > other.measures[name]

    def _report(self, state: State, total: int, rate: float, elapsed: float = 0.0) -> None:
        last = state.history[-1]
        if last.loss is None:
            self.progress.say(
                f"untrained: {last}"
                if self.evaluator
                else "nothing is held out: the last step is kept, whether it is better or not"
            )
            return
        left = elapsed / max(state.step, 1) * (total - state.step) / 60
        self.progress.say(
            f"step {last.step} of {total}: loss {last.loss:.4f}, {last}{self._reached(state)}; {rate:.1f}"
            f" sequences/s, {left:.1f} minutes left"
        )

    def _reached(self, state: State) -> str:
        """What was reached so far, beside the untrained encoder."""
        if self.evaluator is None:
            return ""
        name = self.evaluator.decides
        best = next(m for m in state.history if m.step == state.best).measures[name]
        untrained = state.history[0].measures[name]
        if not state.best:
            return f"; nothing better than the untrained encoder's {name} {untrained:.4f} yet"
        return f"; the best so far: {name} {best:.4f} at step {state.best}, {untrained:.4f} untrained"

    def _weights(self) -> dict[str, Tensor]:
        """Copies of the encoder's weights and the loss's state."""
        whole = {**self.encoder.model.state_dict()}
        whole |= {LOSS + name: tensor for name, tensor in self.loss.state_dict().items()}
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in whole.items()}

    def _restore(self, weights: dict[str, Tensor]) -> None:
        """Put back what :meth:`_weights` gave."""
        mine = {name: tensor for name, tensor in weights.items() if not name.startswith(LOSS)}
        self.encoder.model.load_state_dict(mine)
        self.loss.load_state_dict(
            {name.removeprefix(LOSS): tensor for name, tensor in weights.items() if name.startswith(LOSS)}
        )


class DenseTrainer(EncoderTrainer):
    """Trains one encoder on what relates the documents of one collection.

    evaluator: what is measured on the way; None: held-out links.
    """

    name = "dense"
    config: DenseConfig
    sampler: Sampler

    def __init__(
        self,
        texts: Texts,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        self.texts = texts
        self.graph, self.held, neighbours = prepare_structure(texts, config, progress or Progress())
        self.fragments = Fragments.of(texts, encoder, config.encoder.fragments)
        sampler = Sampler.of(neighbours, self.fragments, Vocabulary.of(encoder.tokenizer), config)
        if evaluator is None and texts.usable[self.held].all(axis=1).any():
            size = config.measured.held_out_pool
            evaluator = HeldOut.of(self.graph, self.held, texts.usable, size=size, seed=config.seed)
        super().__init__(encoder, config, sampler, evaluator, progress, checkpoint)

    def fit(self) -> DenseFit:
        """Train on the links."""
        fit = super().fit()
        masked = fit.tally.get("masked", 0) / max(fit.tally.get("anchors", 0), 1)
        return DenseFit(
            **vars(fit), masked=masked, held_out=len(self.held), train_links=len(self.graph.pairs())
        )

    def identity(self) -> Iterable[bytes]:
        """The texts and the links."""
        yield json.dumps(self.texts.graph.ids).encode()
        if isinstance(self.texts.graph, CitationGraph):
            yield self.texts.graph.digest().encode()
        links = self.texts.graph.adjacency
        for array in (self.texts.tokens.flat, links.indptr, links.indices, links.data):
            yield array.tobytes()

    def text(self, document: int) -> NDArray[np.int32]:
        """Tokens of its first fragment."""
        return self.fragments.get(document)

    def pieces(self) -> Iterable[NDArray[np.int32]]:
        """All fragments."""
        for one in np.flatnonzero(self.texts.usable).tolist():
            for start in self.fragments.starts(one):
                yield self.fragments.get(one, start)

    def _count(self, vectors: Vectors, tally: dict[str, float]) -> None:
        """Add to the tally what the anchors of a batch had to learn from."""
        super()._count(vectors, tally)
        tally["masked"] = tally.get("masked", 0) + int((vectors.level == 0).sum())

    def check(self, tally: dict[str, float]) -> None:
        """Raise TrainingError where no anchor had anything to learn from."""
        if any(tally.get(name, 0) for name in self.loss.counted):
            return
        read = values_of(self.config)
        also = f", lower {setting_hint('related')}" if "related" in read else ""
        also += f", or give {setting_hint('mask_related', 'false')}" if "mask_related" in read else ""
        raise TrainingError(
            f"in {int(tally['anchors'])} draws no document had another one to be told from: all of a batch"
            f" are related, or alone; add documents, raise {setting_hint('batch')}{also}"
        )

    def look(self, tally: dict[str, float]) -> None:
        """Log how far texts of a batch are from each other, and warn where a margin is larger than that."""
        self.encoder.model.eval()
        with torch.no_grad():
            found = self.batches.encode(next(self.sampler.epoch(0)).anchor).float()
        apart = float(torch.pdist(found).median()) if len(found) > 1 else 0.0
        tally["distance"] = apart
        self.progress.say(f"median distance of two texts of a batch: {apart:.3f}")
        margin = self.loss.widest_margin()
        unit = bool(((found.norm(dim=1) - 1).abs() < 1e-3).all())
        if margin is not None and margin > (min(apart, 1.0) if unit else apart):
            why = " of vectors of length 1" if unit else ""
            self.progress.say(
                f"a structural margin of {margin:g} can hardly be kept at a median distance of"
                f" {apart:.3f}{why}; lower {setting_hint('structural_margin')}"
            )


def _schedule(step: int, total: int, warmup: float) -> float:
    """Rise over the first ``warmup`` of the steps, then fall to 0, both linearly."""
    rise = max(1.0, warmup * total)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))
