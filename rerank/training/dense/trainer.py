"""The training loop of ``dense``: quintuplets -> vectors -> loss -> step; early stopping, checkpoints."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.dense.transformer import TextEncoder, precision
from rerank.training.dense.checkpoint import Checkpoint, Measured, State
from rerank.training.dense.config import DenseConfig
from rerank.training.dense.heldout import HeldOut
from rerank.training.dense.losses import Objective, Vectors, objective
from rerank.training.dense.lower import LowerLayers
from rerank.training.dense.parallel import Group
from rerank.training.dense.parts import by_length, in_parts
from rerank.training.dense.sampling import Quintuplets, Sampler, Vocabulary
from rerank.training.dense.structure import prepare_structure
from rerank.training.dense.texts import Fragments, Texts

LEAST_STEPS, PARTS = 10, 2
"""Held-out links are looked for PARTS times an epoch, but not more often than every LEAST_STEPS steps."""
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Of the way from the untrained weights to the last ones, that are tried at the end."""


@dataclass(frozen=True)
class DenseFit:
    """A trained encoder and how it came about.

    history: measurements, the untrained encoder's first; best: the step that was kept (0: untrained), and
        share: how much of the way to its weights (see :func:`between`).
    masked:  share of the anchors that had no structural pair.
    rate:    sequences a second, forward and backward.
    tally:   see :class:`State`.
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
    tally: dict[str, float]
    share: float = 1.0


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
        self.texts, self.encoder, self.config = texts, encoder, config
        self.group = Group.join()
        self.progress = progress if progress and not self.group.rank else Progress()
        self.objective: Objective = objective(
            config.objective,
            gamma=config.gamma,
            structural_margin=config.structural_margin,
            semantic_margin=config.semantic_margin,
            margin=config.margin,
            temperature=config.temperature,
            pool=config.pool,
        )
        graph, held, structure = prepare_structure(texts, config, self.progress)
        fragments = Fragments.of(texts, encoder, config.fragments)
        self.first = fragments
        self.sampler = Sampler.of(structure, fragments, Vocabulary.of(encoder.tokenizer), config)
        self.held_out = (
            HeldOut.of(graph, held, texts.usable, size=config.held_out_pool, seed=config.seed)
            if texts.usable[held].all(axis=1).any()
            else None
        )
        self.graph, self.held = graph, held
        layers = config.learning_layers(encoder.model.config.num_hidden_layers)
        self.lower = LowerLayers(encoder, layers, config.precision) if layers else None
        self.checkpoint = Checkpoint(checkpoint, self._key()) if checkpoint is not None else None

    def _key(self) -> str:
        """Hash of the settings, the model, the texts and the links."""
        digest = hashlib.sha256(json.dumps(asdict(self.config), sort_keys=True).encode())
        digest.update(self.encoder.version().encode())
        digest.update(json.dumps(self.texts.graph.ids).encode())
        links = self.texts.graph.adjacency
        for array in (self.texts.tokens.flat, links.indptr, links.indices, links.data):
            digest.update(array.tobytes())
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
        if self.lower is not None:
            self._keep_lower(self.lower)
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(learning, lr=config.rate, eps=1e-8)
        start = self._weights()
        state, best, share = State(), start, 1.0
        loaded = self.checkpoint.load(model, optimizer) if self.checkpoint else None
        if loaded is not None:
            state, best = loaded
            self.progress.say(f"goes on at step {state.step} of {total}")
        interrupted = False
        sequences = 0
        begin, spent = time.monotonic(), 0.0
        try:
            if not state.history:
                self._look_at_margins(state)
                state.history.append(self._measure(0, None))
                self._report(state, total, 0.0)
            self.progress.start("train dense", total, "step")
            self.progress.advance(state.step)
            for batch in self._batches(state.step, total, each):
                if state.stale >= config.patience:
                    break
                started = time.monotonic()
                loss = self._step(batch, state.step, total, optimizer, state.tally)
                spent += time.monotonic() - started
                if not np.isfinite(loss):
                    raise TrainingError(f"the loss is not finite at step {state.step}; lower --rate")
                sequences += len(batch.draws) * self.objective.branches
                state.step += 1
                state.losses.append(loss)
                self.progress.advance()
                self.progress.show(loss=f"{loss:.3f}", sequences=f"{sequences / spent:.1f}/s")
                if state.step % every == 0 or state.step == total:
                    _check_tally(state, config)
                    measured = self._measure(state.step, float(np.mean(state.losses)))
                    state.losses.clear()
                    # The first steps cost a strong encoder some of what it knew: as long as it is on its
                    # way back, it goes on.
                    gains = all(_better(measured, other) for other in state.history[1:])
                    state.stale = 0 if gains else state.stale + 1
                    if _better(measured, next(m for m in state.history if m.step == state.best)):
                        state.best, best = state.step, self._weights()
                    state.history.append(measured)
                    self._report(state, total, sequences / spent, time.monotonic() - begin)
                    if self.checkpoint and not self.group.rank:
                        self.checkpoint.save(state, model, optimizer, best)
            if config.average and self.held_out and state.step:
                averaged = self._average(start, state)
                if averaged is not None:
                    best, share = averaged
                    state.best = state.step
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.progress.finish()
        model.load_state_dict(best)
        model.to("cpu").eval()
        self.group.leave()
        return DenseFit(
            self.encoder,
            state.history,
            state.best,
            state.step,
            interrupted,
            state.tally.get("masked", 0) / max(state.tally.get("anchors", 0), 1),
            sequences / spent if spent else 0.0,
            len(self.held),
            len(self.graph.pairs()),
            state.tally,
            share,
        )

    def _average(self, start: dict[str, Tensor], state: State) -> tuple[dict[str, Tensor], float] | None:
        """Try weights between the untrained and the last ones: (the best, their share) or None."""
        last, found = self._weights(), None
        leading = next(one for one in state.history if one.step == state.best)
        for share in SHARES:
            mixed = between(start, last, share)
            self.encoder.model.load_state_dict(mixed)
            measured = replace(self._measure(state.step, None), share=share)
            state.history.append(measured)
            self.progress.say(f"{share:.2f} of the way to step {state.step}: {_found(measured)}")
            if _better(measured, leading):
                found, leading = (mixed, share), measured
        return found

    def _keep_lower(self, lower: LowerLayers) -> None:
        fragments, usable = self.sampler.fragments, np.flatnonzero(self.texts.usable).tolist()
        self.progress.start("lower layers", None, "fragment")
        try:
            kept = lower.keep(
                lambda: (fragments.get(one, start) for one in usable for start in fragments.starts(one)),
                self.progress.advance,
            )
        finally:
            self.progress.finish()
        if not kept:
            self.progress.say("what the lower layers make of the texts is not kept: computed at every step")

    def _batches(self, done: int, total: int, each: int) -> Iterator[Quintuplets]:
        while done < total:
            for batch in self.sampler.epoch(done // each, done % each):
                yield batch
                done += 1
                if done == total:
                    return

    def _step(
        self,
        batch: Quintuplets,
        step: int,
        total: int,
        optimizer: torch.optim.Optimizer,
        tally: dict[str, float] | None = None,
    ) -> float:
        config, model = self.config, self.encoder.model
        for group in optimizer.param_groups:
            group["lr"] = config.rate * _schedule(step, total, config.warmup)
        torch.manual_seed(config.seed * 1_000_003 + step + (self.group.rank << 40))
        model.train()
        optimizer.zero_grad(set_to_none=True)
        alone = config.accumulate == self.group.size == 1
        tally = {} if tally is None else tally
        loss = self._loss(batch, tally) if alone else in_parts(self, batch, tally)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        return loss

    def _loss(self, batch: Quintuplets, tally: dict[str, float]) -> float:
        vectors = self.vectors(batch)
        self.count(vectors, tally)
        loss = self.objective.loss(vectors)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def count(self, vectors: Vectors, tally: dict[str, float]) -> None:
        """Add to the tally what the anchors of a batch had to learn from."""
        found = {"anchors": len(vectors.level), "masked": int((vectors.level == 0).sum())}
        with torch.no_grad():
            for name in ("structural", "semantic"):
                rows = getattr(self.objective, name)
                if rows is not None:
                    losses, valid = rows(vectors)
                    found[name] = int(valid.sum())
                    if self.objective.hinged:
                        found[f"active_{name}"] = int((losses[valid] > 0).sum())
        for name, value in found.items():
            tally[name] = tally.get(name, 0) + value

    def _look_at_margins(self, state: State) -> None:
        """Log how far texts of a batch are from each other, and warn where a margin is larger than that."""
        config = self.config
        self.encoder.model.eval()
        with torch.no_grad():
            found = self.encode(next(self.sampler.epoch(0)).anchor).float()
        apart = float(torch.pdist(found).median()) if len(found) > 1 else 0.0
        state.tally["distance"] = apart
        self.progress.say(f"median distance of two texts of a batch: {apart:.3f}")
        if not self.objective.structural or not self.objective.hinged:
            return
        unit = bool(((found.norm(dim=1) - 1).abs() < 1e-3).all())
        if config.structural_margin > (min(apart, 1.0) if unit else apart):
            why = " of vectors of length 1" if unit else ""
            self.progress.say(
                f"a structural margin of {config.structural_margin:g} can hardly be kept at a median distance"
                f" of {apart:.3f}{why}; lower --structural-margin"
            )

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
        lengths = np.array([len(text) for text in texts]) + (self.encoder.longest - self.encoder.room)
        # A GPU takes one large batch in less time than two smaller ones.
        parts = by_length(lengths) if self.encoder.device.type == "cpu" else [np.arange(len(texts))]
        vectors = [self._encoded([texts[i] for i in part]) for part in parts]
        return torch.cat(vectors)[np.argsort(np.concatenate(parts))] if len(parts) > 1 else vectors[0]

    def _encoded(self, texts: list[NDArray[np.int32]]) -> Tensor:
        if self.lower is not None and (upper := self.lower.vectors(texts)) is not None:
            return upper
        with precision(self.encoder.device, self.config.precision):
            return self.encoder.forward(*self.encoder.batch(texts))

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
            near_negative=torch.from_numpy(batch.near_negative).to(device),
        )

    def _measure(self, step: int, loss: float | None) -> Measured:
        if self.held_out is None:
            return Measured(step, loss, None, None, None)  # nothing held out: the last one is kept
        texts = [self.first.get(document).tolist() for document in self.held_out.pool.tolist()]
        self.progress.show(measuring=f"{len(texts)} documents")
        encode = self.encoder.encode if self.lower is None else self.lower.encode
        vectors = encode(texts)
        recall5, recall10 = self.held_out.recall(vectors).mean(axis=0).tolist()
        ndcg = float(self.held_out.ndcg(vectors).mean())
        measured: Measured = self.group.agreed(Measured(step, loss, recall5, recall10, ndcg))
        return measured

    def _report(self, state: State, total: int, rate: float, elapsed: float = 0.0) -> None:
        last = state.history[-1]
        found = _found(last)
        if last.loss is None:
            self.progress.say(
                f"untrained: {found} of held-out links"
                if self.held_out
                else "nothing is held out: the last step is kept, whether it is better or not"
            )
            return
        left = elapsed / max(state.step, 1) * (total - state.step) / 60
        self.progress.say(
            f"step {last.step} of {total}: loss {last.loss:.4f}, {found}; {rate:.1f} sequences/s,"
            f" {left:.1f} minutes left"
        )

    def _weights(self) -> dict[str, Tensor]:
        return {name: t.detach().cpu().clone() for name, t in self.encoder.model.state_dict().items()}


def _schedule(step: int, total: int, warmup: float) -> float:
    """Rise over the first ``warmup`` of the steps, then fall to 0, both linearly."""
    rise = max(1.0, warmup * total)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))


def _better(one: Measured, other: Measured) -> bool:
    return one.ndcg is None or other.ndcg is None or one.ndcg > other.ndcg


def _found(measured: Measured) -> str:
    if measured.recall5 is None or measured.recall10 is None or measured.ndcg is None:
        return "nothing held out"
    return f"NDCG {measured.ndcg:.4f}, R@5 {measured.recall5:.4f}, R@10 {measured.recall10:.4f}"


def between(start: dict[str, Tensor], end: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Weights on the straight line between two states of a model: start + share (end - start).

    A fine-tuned encoder has learned the collection and lost some of what it knew; between the two it often is
    better than either (Wortsman et al. 2022, WiSE-FT).

    >>> between({"w": torch.zeros(2)}, {"w": torch.ones(2)}, 0.25)["w"].tolist()
    [0.25, 0.25]
    """
    return {
        name: one + share * (end[name] - one) if one.is_floating_point() else end[name]
        for name, one in start.items()
    }


def _check_tally(state: State, config: DenseConfig) -> None:
    """Raise TrainingError where no anchor had anything to learn from."""
    if not state.tally.get("structural", 0) and not state.tally.get("semantic", 0):
        related = "" if config.objective == "triplet" else ", lower --related, or add --no-mask-related"
        raise TrainingError(
            f"in {state.step} steps no document had another one to be told from: all of a batch are related,"
            f" or alone; add documents, raise --batch{related}"
        )


def settings(config: DenseConfig) -> dict[str, Any]:
    """Give the settings as JSON values."""
    return asdict(config)
