"""The training loop of ``dense``: quintuplets -> vectors -> loss -> step; early stopping, checkpoints."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rerank.errors import TrainingError
from rerank.graph.links import LinkGraph, hold_out
from rerank.progress import Progress
from rerank.rankers.transformer import TextEncoder, precision
from rerank.training.dense.checkpoint import Checkpoint, Measured, State
from rerank.training.dense.config import DenseConfig
from rerank.training.dense.heldout import HeldOut
from rerank.training.dense.losses import OBJECTIVES, Objective, Vectors, objective
from rerank.training.dense.parallel import Group
from rerank.training.dense.sampling import Quintuplets, Sampler, Vocabulary
from rerank.training.dense.structure import Structure
from rerank.training.dense.texts import Fragments, Texts

LEAST_STEPS, PARTS = 10, 4
"""Held-out links are looked for PARTS times an epoch, but not more often than every LEAST_STEPS steps."""


@dataclass(frozen=True)
class DenseFit:
    """A trained encoder and how it came about.

    history: measurements, the untrained encoder's first; best: the step that was kept (0: untrained).
    masked:  share of the anchors that had no structural pair.
    rate:    sequences a second, forward and backward.
    """

    encoder: TextEncoder
    history: list[Measured]
    best: int
    steps: int
    interrupted: bool
    masked: float
    rate: float
    held_out: int
    train_links: int


def prepare_structure(
    texts: Texts, config: DenseConfig, progress: Progress
) -> tuple[LinkGraph, NDArray[np.int32], Structure]:
    """Hold links out, then rank what is related: (graph that is left, (H, 2) held-out pairs, structure).

    Raises TrainingError where there is nothing to learn from.
    """
    counts = texts.graph.counts
    if not counts.links:
        raise TrainingError(
            f"the documents have no links to each other ({counts.unknown} to unknown ids, {counts.self_links}"
            " to themselves), and dense learns from links; give documents `links` (citations, hyperlinks,"
            " related items), or train s2net or text on judged queries"
        )
    graph, held = hold_out(texts.graph, config.held_out, config.seed)
    how = objective(config.objective).sampling
    progress.start("intimacy", len(texts.titles), "doc")
    try:
        structure = Structure.of(
            graph,
            texts.usable,
            sampling=how,
            most=config.related,
            grey=config.grey,
            alpha=config.alpha,
            axis=config.axis,
            direction=config.direction,
            tolerance=config.tolerance,
            most_levels=config.most_levels,
            seed=config.seed,
            progress=progress.advance,
        )
    finally:
        progress.finish()
    if not len(structure.ids):
        raise TrainingError("no two linked documents have text; dense has nothing to learn from")
    return graph, held, structure


class DenseTrainer:
    """Trains one encoder on the links of one collection."""

    def __init__(
        self,
        texts: Texts,
        encoder: TextEncoder,
        config: DenseConfig,
        progress: Progress | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        if config.objective not in OBJECTIVES:
            raise TrainingError(f"objective {config.objective!r} is unknown; use {', '.join(OBJECTIVES)}")
        self.texts, self.encoder, self.config = texts, encoder, config
        self.group = Group.join()
        self.progress = progress if progress and not self.group.rank else Progress()
        self.objective: Objective = objective(
            config.objective,
            gamma=config.gamma,
            structural_margin=config.structural_margin,
            semantic_margin=config.semantic_margin,
            temperature=config.temperature,
        )
        graph, held, structure = prepare_structure(texts, config, self.progress)
        fragments = Fragments.of(texts, encoder, config.fragments)
        self.first = fragments
        self.sampler = Sampler(
            structure,
            fragments,
            Vocabulary.of(encoder.tokenizer),
            config.batch,
            semantic=self.objective.corrupted,
            corrupted=config.corrupted,
            corruption=config.corruption,
            same_fragment=config.same_fragment,
            seed=config.seed,
        )
        self.held_out = (
            HeldOut.of(graph, held, texts.usable, size=config.pool, seed=config.seed) if len(held) else None
        )
        self.graph, self.held = graph, held
        self.checkpoint = Checkpoint(checkpoint, self._key()) if checkpoint is not None else None

    def _key(self) -> str:
        """Hash of the settings, the texts and the links."""
        digest = hashlib.sha256(json.dumps(asdict(self.config), sort_keys=True).encode())
        digest.update(json.dumps(self.texts.graph.ids).encode())
        digest.update(self.texts.tokens.flat.tobytes())
        digest.update(self.texts.graph.adjacency.indices.tobytes())
        return digest.hexdigest()

    def fit(self) -> DenseFit:
        """Train until held-out links are found no better, or the steps are done; Ctrl-C keeps the best so
        far.

        The untrained encoder is one of the choices.
        """
        config, model = self.config, self.encoder.model
        if config.threads:
            torch.set_num_threads(config.threads)
        if torch.cuda.is_available():
            model.to("cuda")
        each = self.sampler.steps()
        total = config.steps or config.epochs * each
        every = config.every or max(LEAST_STEPS, each // PARTS)
        optimizer = torch.optim.Adam(model.parameters(), lr=config.rate, eps=1e-8)
        state, best = State(), self._weights()
        loaded = self.checkpoint.load(model, optimizer) if self.checkpoint else None
        if loaded is not None:
            state, best = loaded
            self.progress.say(f"goes on at step {state.step} of {total}")
        interrupted = False
        pairs = masked = sequences = 0
        begin, spent = time.monotonic(), 0.0
        try:
            if not state.history:
                state.history.append(self._measure(0, None))
                self._report(state, total, 0.0)
            self.progress.start("train dense", total, "step")
            self.progress.advance(state.step)
            for batch in self._batches(state.step, total, each):
                if state.stale >= config.patience:
                    break
                started = time.monotonic()
                loss = self._step(batch, state.step, total, optimizer)
                spent += time.monotonic() - started
                if not np.isfinite(loss):
                    raise TrainingError(f"the loss is not finite at step {state.step}; lower --rate")
                sequences += len(batch.draws) * self.objective.branches
                pairs += len(batch.draws)
                masked += sum(draw.level == 0 for draw in batch.draws)
                state.step += 1
                state.losses.append(loss)
                self.progress.advance()
                self.progress.show(loss=f"{loss:.3f}", sequences=f"{sequences / spent:.1f}/s")
                if state.step % every == 0 or state.step == total:
                    measured = self._measure(state.step, float(np.mean(state.losses)))
                    state.losses.clear()
                    state.history.append(measured)
                    if _better(measured, next(m for m in state.history if m.step == state.best)):
                        state.best, state.stale, best = state.step, 0, self._weights()
                    else:
                        state.stale += 1
                    self._report(state, total, sequences / spent, time.monotonic() - begin)
                    if self.checkpoint and not self.group.rank:
                        self.checkpoint.save(state, model, optimizer, best)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.progress.finish()
        model.load_state_dict(best)
        model.to("cpu").eval()
        self.group.leave()
        if self.checkpoint and not interrupted and not self.group.rank:
            self.checkpoint.discard()
        return DenseFit(
            self.encoder,
            state.history,
            state.best,
            state.step,
            interrupted,
            masked / max(pairs, 1),
            sequences / spent if spent else 0.0,
            len(self.held),
            len(self.graph.pairs()),
        )

    def _batches(self, done: int, total: int, each: int) -> Iterator[Quintuplets]:
        while done < total:
            for batch in self.sampler.epoch(done // each, done % each):
                yield batch
                done += 1
                if done == total:
                    return

    def _step(self, batch: Quintuplets, step: int, total: int, optimizer: torch.optim.Optimizer) -> float:
        config, model = self.config, self.encoder.model
        for group in optimizer.param_groups:
            group["lr"] = config.rate * _schedule(step, total, config.warmup)
        torch.manual_seed(config.seed * 1_000_003 + step + (self.group.rank << 40))
        model.train()
        optimizer.zero_grad(set_to_none=True)
        alone = config.accumulate == self.group.size == 1
        loss = self._loss(batch) if alone else in_parts(self, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        return loss

    def _loss(self, batch: Quintuplets) -> float:
        loss = self.objective.loss(self.vectors(batch))
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def branches(self, batch: Quintuplets) -> list[list[NDArray[np.int32]]]:
        """The texts of a batch that the objective needs, branch by branch."""
        of = self.objective
        asked = (
            (True, batch.anchor),
            (of.positive, batch.positive),
            (of.negative, batch.negative),
            (of.corrupted, batch.corrupted),
        )
        return [texts for needed, texts in asked if needed]

    def encode(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """(n, E) vectors with gradient."""
        device = self.encoder.device
        lengths = np.array([len(text) for text in texts]) + (self.encoder.longest - self.encoder.room)
        # A GPU takes one large batch in less time than two smaller ones.
        parts = by_length(lengths) if device.type == "cpu" else [np.arange(len(texts))]
        with precision(device, self.config.precision):
            vectors = [self.encoder.forward(*self.encoder.batch([texts[i] for i in part])) for part in parts]
        return torch.cat(vectors)[np.argsort(np.concatenate(parts))] if len(parts) > 1 else vectors[0]

    def vectors(self, batch: Quintuplets, encoded: list[Tensor] | None = None) -> Vectors:
        """Encode the texts of a batch in one pass, and put them in their places."""
        branches = self.branches(batch)
        if encoded is None:
            flat = [text for branch in branches for text in branch]
            encoded = list(torch.split(self.encode(flat), len(batch.draws)))
        of, rest = self.objective, iter(encoded)
        device = encoded[0].device
        return Vectors(
            anchor=next(rest),
            positive=next(rest) if of.positive else None,
            negative=next(rest) if of.negative else None,
            corrupted=next(rest) if of.corrupted else None,
            level=torch.tensor([draw.level for draw in batch.draws], device=device),
            near=torch.from_numpy(batch.near).to(device),
            near_positive=torch.from_numpy(batch.near_positive).to(device),
        )

    def _measure(self, step: int, loss: float | None) -> Measured:
        if self.held_out is None:
            return Measured(step, loss, float(step), float(step))  # nothing held out: the last one is kept
        texts = [self.first.get(document).tolist() for document in self.held_out.pool.tolist()]
        self.progress.show(measuring=f"{len(texts)} documents")
        found = self.held_out.recall(self.encoder.encode(texts)).mean(axis=0)
        measured: Measured = self.group.agreed(Measured(step, loss, float(found[0]), float(found[1])))
        return measured

    def _report(self, state: State, total: int, rate: float, elapsed: float = 0.0) -> None:
        last = state.history[-1]
        if last.loss is None:
            self.progress.say(
                f"untrained: R@5 {last.recall5:.4f}, R@10 {last.recall10:.4f} of held-out links"
            )
            return
        left = elapsed / max(state.step, 1) * (total - state.step) / 60
        self.progress.say(
            f"step {last.step} of {total}: loss {last.loss:.4f}, R@5 {last.recall5:.4f}, R@10"
            f" {last.recall10:.4f}; {rate:.1f} sequences/s, {left:.1f} minutes left"
        )

    def _weights(self) -> dict[str, Tensor]:
        return {name: t.detach().cpu().clone() for name, t in self.encoder.model.state_dict().items()}


def by_length(lengths: NDArray[np.integer]) -> list[NDArray[np.integer]]:
    """Cut texts into the longer and the shorter ones, where that saves a tenth of the tokens, padding
    included.

    >>> [part.tolist() for part in by_length(np.array([10, 64, 9, 60]))], len(by_length(np.array([9, 10])))
    ([[1, 3], [0, 2]], 1)
    """
    count, order = len(lengths), np.argsort(-lengths, kind="stable")
    cuts, ranked = np.arange(1, count), lengths[order]
    tokens = ranked[0] * cuts + ranked[1:] * (count - cuts)
    if count < 2 or tokens.min() > 0.9 * ranked[0] * count:
        return [np.arange(count)]
    return np.split(order, [int(tokens.argmin()) + 1])


def in_parts(trainer: DenseTrainer, batch: Quintuplets) -> float:
    """Gradient of a whole batch's loss with the memory of a part of it, on one device or several.

    All texts are encoded without gradient; the loss gives each vector its gradient; then part by part the
    texts are encoded again (with the same dropout) and the gradients sent back (Gao et al. 2021, gradient
    cache). So in-batch negatives come from the whole batch, which summing the gradients of small batches
    would lose, and the number of devices changes nothing but the time.
    """
    group, device = trainer.group, trainer.encoder.device
    flat = [text for branch in trainer.branches(batch) for text in branch]
    shares = [list(share) for share in np.array_split(np.arange(len(flat)), group.size)]
    mine = shares[group.rank]
    size = max(1, -(-len(mine) // trainer.config.accumulate))
    parts = [mine[i : i + size] for i in range(0, len(mine), size)]
    states: list[tuple[Tensor, Tensor | None]] = []
    vectors: list[Tensor] = []
    with torch.no_grad():
        for part in parts:
            states.append(_random_state(device))
            vectors.append(trainer.encode([flat[i] for i in part]))
    whole = group.gathered(torch.cat(vectors), [len(share) for share in shares])
    leaf = whole.requires_grad_()
    loss = trainer.objective.loss(trainer.vectors(batch, list(torch.split(leaf, len(batch.draws)))))
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        for part, state in zip(parts, states):
            _set_random_state(device, state)
            encoded = trainer.encode([flat[i] for i in part])
            encoded.backward(leaf.grad[part])  # type: ignore[no-untyped-call]
        group.add_gradients(trainer.encoder.model)
    return float(loss.detach())


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


def _schedule(step: int, total: int, warmup: float) -> float:
    """Rise over the first ``warmup`` of the steps, then fall to 0, both linearly."""
    rise = max(1.0, warmup * total)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))


def _better(one: Measured, other: Measured) -> bool:
    return (one.recall10, one.recall5) > (other.recall10, other.recall5)


def settings(config: DenseConfig) -> dict[str, Any]:
    """Give the settings as JSON values."""
    return asdict(config)
