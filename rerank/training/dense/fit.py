"""Fits ``dense``: documents and their relations -> a fine-tuned transformer; and how it is registered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from rerank.engines.base import Engine
from rerank.errors import TrainingError, action_hint, setting_hint
from rerank.formats import read_qrels
from rerank.graph.links import judged_together
from rerank.progress import Progress
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.transformer import TextEncoder
from rerank.settings import Setting
from rerank.training.dense.config import PRESETS, DenseConfig, dense_config
from rerank.training.registry import Fitted, Job, Training

if TYPE_CHECKING:
    from rerank.training.dense.texts import Texts

NO_MEMORY = ("memory", "bad_alloc", "could not create a primitive")
"""What torch and its libraries say when there is no memory left; the last: oneDNN."""
RELATED = {
    "links": "linked to each other",
    "categories": "that share a category",
    "cocitation": "linked by the same third document",
}
"""Pairs of documents, by what relates them."""


@dataclass(frozen=True)
class DenseFitter:
    """Fits encoders on how the documents of a collection are related.

    Under ``torchrun`` each process encodes its share of every batch; all but the first return None. An
    interrupted training goes on from its newest checkpoint when it is started again.
    """

    job: Job
    config: DenseConfig

    def fit(self, role: str, name: str) -> Fitted | None:
        """Fine-tune an encoder."""
        from rerank.training.dense.trainer import DenseTrainer, settings

        job, config, progress = self.job, self.config, self.job.progress
        encoder = load_encoder(config)
        texts = read_texts(job.engine, encoder.tokens, config, progress)
        folder = job.folder / name
        if job.restart and os.environ.get("RANK", "0") == "0":
            shutil.rmtree(folder, ignore_errors=True)
        encoder.precision = config.precision
        try:
            trainer = DenseTrainer(texts, encoder, config, progress, folder)
            fit = trainer.fit()
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in NO_MEMORY):
                raise
            raise TrainingError(
                f"a batch of {config.batch} does not fit into memory; lower {setting_hint('batch')} or"
                f" {setting_hint('fragment_tokens')}, or raise {setting_hint('accumulate')}"
            ) from error
        if trainer.group.rank:
            return None
        encoder.precision = "auto"
        history = [asdict(one) for one in fit.history]
        trained = {
            "settings": settings(config),
            "history": history,
            "best": fit.best,
            "share": fit.share,
            "links": texts.graph.digest(),
        }
        most = longest_document(texts, encoder, config.fragments)
        ranker = DenseRanker.of(
            name, fit.encoder, most, trained, best=config.best, normalise=config.normalise
        )
        tally = fit.tally

        def share(part: str, whole: str) -> float | None:
            return tally[part] / max(tally[whole], 1) if part in tally and whole in tally else None

        semantic = share("semantic", "anchors")
        shares = {
            "masked": fit.masked,
            "masked_semantic": None if semantic is None else 1 - semantic,
            "active_structural": share("active_structural", "structural"),
            "active_semantic": share("active_semantic", "semantic"),
        }
        counts = left_out(texts)
        for line in remarks(counts):
            progress.say(line)
        kept = next(m for m in fit.history if (m.step, m.share) == (fit.best, fit.share))
        return Fitted(
            ranker,
            fit.best,
            fit.steps,
            kept.ndcg,
            fit.history[0].ndcg,
            fit.interrupted,
            "NDCG of held-out pairs",
            "untrained",
            "step",
            (
                f"{len(texts.titles)} documents, {fit.train_links} pairs {RELATED[config.structure_from]} to"
                f" learn from, {fit.held_out} held out; {fit.steps} steps at {fit.rate:.1f} sequences/s",
                "; ".join(
                    f"{value:.0%} {_SHARES[part]}" for part, value in shares.items() if value is not None
                ),
            ),
            {
                "documents": len(texts.titles),
                "structure_from": config.structure_from,
                "links": texts.graph.counts.links,
                **counts,
                "train_links": fit.train_links,
                "held_out": fit.held_out,
                "history": history,
                "share": fit.share,
                "rate": fit.rate,
                **shares,
                "distance": tally.get("distance", 0.0),
            },
            trainer.checkpoint.discard if trainer.checkpoint and not fit.interrupted else dict,
        )


_SHARES = {
    "masked": "of the anchors had no structural pair",
    "masked_semantic": "had no semantic negative",
    "active_structural": "of the structural hinges were active",
    "active_semantic": "of the semantic hinges were active",
}
_LEFT_OUT = {
    "unknown": "links to ids that no document has",
    "self_links": "links of a document to itself",
    "duplicates": "links given twice",
    "judged": "linked pairs that judgements give the same query",
    "without_text": "documents without text",
    "left_out": "categories or linking documents that relate too many documents",
}


def left_out(texts: Texts) -> dict[str, int]:
    """Count links and documents that cannot be learned from."""
    counts = {**asdict(texts.graph.counts), "left_out": texts.graph.left_out}
    counts["without_text"] = int((~texts.usable).sum())
    return {name: counts[name] for name in _LEFT_OUT}


def remarks(counts: Mapping[str, int]) -> Iterator[str]:
    """Word what :func:`left_out` counted."""
    return (f"{counts[name]} {what} are left out" for name, what in _LEFT_OUT.items() if counts[name])


def load_encoder(config: DenseConfig) -> TextEncoder:
    """Load the encoder that a training starts from."""
    return TextEncoder.load(
        config.model,
        pooling=config.pooling,
        longest=config.fragment_tokens,
        layers=config.layers,
        random_weights=config.random_weights,
        seed=config.seed,
    )


def read_texts(
    engine: Engine,
    tokenise: Callable[[list[str]], list[list[int]]],
    config: DenseConfig,
    progress: Progress,
) -> Texts:
    """Tokenise the collection."""
    from rerank.training.dense.texts import Texts

    size = len(engine)
    if not size:
        raise TrainingError(f"there are no documents yet; run {action_hint('ingest')} first")
    progress.start("read documents", size, "doc")
    try:
        texts = Texts.read(
            engine.documents(), tokenise, progress.advance, structure_from=config.structure_from
        )
    finally:
        progress.finish()
    return without_judged(texts, config.leave_out)


def without_judged(texts: Texts, files: Sequence[str]) -> Texts:
    """Drop the links between documents that are relevant to the same query of the judgements in ``files``."""
    if not files:
        return texts
    judgements = [read_qrels(file) for file in files]
    pairs = judged_together(texts.graph, judgements)
    graph = texts.graph.without(pairs)
    assert not len(judged_together(graph, judgements))
    return replace(texts, graph=replace(graph, counts=replace(graph.counts, judged=len(pairs))))


def longest_document(texts: Texts, encoder: TextEncoder, most: int) -> int:
    """Count the fragments of the longest document, ``most`` at most: so many are stored for each."""
    from rerank.rankers.dense.fragments import windows

    return max(1, len(windows(int(texts.tokens.lengths.max(initial=0)), encoder.room, most)))


class _Dense(Training):
    def configure(self, given: Mapping[str, Any], preset: str = "default") -> DenseConfig:
        known = {one.name: one for one in self.settings()}
        return dense_config(preset, **{name: known[name].read(value) for name, value in given.items()})

    def settings(self) -> list[Setting]:
        common: tuple[str, ...] = (
            "model",
            "fragment_tokens",
            "fragments",
            "structure_from",
            "leave_out",
            "objective",
        )
        common += ("held_out", "epochs", "steps", "batch", "rate", "seed")
        return [
            Setting(
                one.name,
                type(one.default) if one.default is not None else int,
                one.default,
                one.name.replace("_", " "),
                common=one.name in common,
            )
            for one in fields(DenseConfig)
        ]


TRAINING = _Dense(
    learns_from=("links",),
    config=DenseConfig,
    fitter="rerank.training.dense.fit:DenseFitter",
    presets=PRESETS,
)
