"""Fits ``dense``: documents and their relations -> a fine-tuned transformer; and how it is registered."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rerank.config import values_of
from rerank.engines.base import Engine
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.text import plural

if TYPE_CHECKING:
    from rerank.rankers.dense.texts import Texts

NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "bad_alloc",
    "ALLOC_FAILED",
    "could not create a primitive",
)
"""Parts of the messages of torch and its libraries when there is no memory left: CUDA, the CPU allocator,
C++, cuBLAS and cuDNN, oneDNN."""
RELATED = {
    "links": "linked to each other",
    "categories": "that share a category",
    "cocitation": "cited together",
}
"""Pairs of documents, by what relates them."""


@dataclass(frozen=True)
class DenseFitter:
    """Fits encoders on how the documents of a collection are related.

    An interrupted training goes on from its newest checkpoint when it is started again.
    """

    job: TrainingJob
    config: DenseConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune an encoder."""
        from rerank.rankers.dense.task import DenseTask

        job, config, progress = self.job, self.config, self.job.progress
        encoder = config.load()
        texts = read_collection(job.engine, encoder.tokens, config, progress, encoder.separator)
        folder = job.folder / name
        if job.restart:
            shutil.rmtree(folder, ignore_errors=True)
        encoder.precision = config.precision
        with in_memory(config.batch):
            task = DenseTask(texts, encoder, config, progress, folder)
            fit = task.fit()
        encoder.precision = "auto"
        history = [one.row() for one in fit.history]
        trained = {
            "settings": values_of(config),
            "history": history,
            "best": fit.best,
            "share": fit.share,
        }
        most = texts.longest(encoder, config.passages)
        ranker = DenseRanker.of(
            name,
            fit.encoder,
            most,
            trained,
            best=config.best,
            normalize=config.normalize,
            separator=config.separator,
        )
        counts = fit.counts

        def share(part: str, whole: str) -> float | None:
            return counts[part] / max(counts[whole], 1) if part in counts and whole in counts else None

        semantic = share("semantic", "anchors")
        shares = {
            "masked": fit.masked,
            "masked_semantic": None if semantic is None else 1 - semantic,
            "active_structural": share("active_structural", "structural"),
            "active_semantic": share("active_semantic", "semantic"),
        }
        missing = left_out(texts)
        for line in remarks(missing):
            progress.say(line)
        if not fit.best and task.evaluator:
            progress.say(f"no step was better than the untrained encoder: {name} is that one")
        decides = next(iter(fit.kept.measures), "nothing")
        return TrainingResult(
            ranker,
            fit.best,
            fit.steps,
            fit.kept.value,
            fit.history[0].value,
            fit.interrupted,
            f"{decides} of held-out pairs",
            "untrained",
            "step",
            (
                f"{_what(texts)}, {plural(fit.train_links, 'pair[|s]')} {RELATED[config.structure_from]} to"
                f" learn from, {fit.held_out:,} held out; {plural(fit.steps, 'step[|s]')} at {fit.rate:.1f}"
                f" sequences/s",
                "; ".join(
                    f"{value:.0%} {_SHARES[part]}" for part, value in shares.items() if value is not None
                ),
            ),
            {
                "documents": len(texts.titles),
                "outside": texts.outside,
                "structure_from": config.structure_from,
                "links": texts.graph.counts.links,
                **missing,
                "train_links": fit.train_links,
                "held_out": fit.held_out,
                "history": history,
                "share": fit.share,
                "rate": fit.rate,
                **shares,
                "distance": counts.get("distance", 0.0),
            },
            [(m.step, m.loss, m.value) for m in fit.history if m.share == 1],
            task.checkpoint.discard if task.checkpoint and not fit.interrupted else dict,
        )


@contextmanager
def in_memory(batch: int) -> Iterator[None]:
    """Raise TrainingError for a lack of memory; all other errors stay as they are."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in NO_MEMORY):
            raise
        raise TrainingError(
            f"a batch of {batch} does not fit into memory; lower --batch or"
            f" --passage-tokens, or raise --accumulate"
        ) from error


def _what(texts: Texts) -> str:
    """Count the texts."""
    count = plural(len(texts.titles) - texts.outside, "document[|s]")
    outside = plural(texts.outside, "reference[|s] outside the collection")
    return f"{count} and {outside}" if texts.outside else count


_SHARES = {
    "masked": "of the anchors had no structural pair",
    "masked_semantic": "had no semantic negative",
    "active_structural": "of the structural hinges were active",
    "active_semantic": "of the semantic hinges were active",
}
_LEFT_OUT = {
    "unknown": "link[ to an id|s to ids] that no document has",
    "self_links": "link[|s] of a document to itself",
    "duplicates": "link[|s] given twice",
    "judged": "linked pair[|s] that judgments give the same query",
    "without_text": "document[|s] without text",
    "left_out": "categor[y|ies] or linking document[|s] that relate[s|] too many documents",
}


def left_out(texts: Texts) -> dict[str, int]:
    """Count links and documents that cannot be learned from."""
    counts = {**asdict(texts.graph.counts), "left_out": texts.graph.left_out}
    counts["without_text"] = int((~texts.usable).sum())
    return {name: counts[name] for name in _LEFT_OUT}


def remarks(counts: Mapping[str, int]) -> Iterator[str]:
    """Word what :func:`left_out` counted."""
    return (
        plural(counts[name], f"{what} [is|are] left out") for name, what in _LEFT_OUT.items() if counts[name]
    )


def read_collection(
    engine: Engine,
    tokenize: Callable[[list[str]], list[list[int]]],
    config: DenseConfig,
    progress: Progress,
    separator: Sequence[int] | None = None,
) -> Texts:
    """Tokenize the documents of an engine. separator: where the settings ask for one."""
    from rerank.rankers.dense.texts import read_texts

    size = len(engine)
    if not size:
        raise TrainingError("there are no documents yet; run `rerank ingest` first")
    return read_texts(engine.documents(), tokenize, config, progress, size, separator)
