"""Fits ``dense`` on relations between documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

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

RELATED = {"links": "linked", "categories": "with a common category", "cocitation": "cited together"}
"""Pairs of documents, by their relation."""
_LEFT_OUT = {
    "unknown": "link[ to an id|s to ids] that no document has",
    "self_links": "link[|s] of a document to itself",
    "duplicates": "link[|s] given twice",
    "judged": "linked pair[|s] that judgments give the same query",
    "without_text": "document[|s] without text",
    "left_out": "categor[y|ies] or linking document[|s] that relate[s|] too many documents",
}


@dataclass(frozen=True)
class DenseFitter:
    """Fits encoders on relations; resumes from checkpoints."""

    job: TrainingJob
    config: DenseConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune an encoder, unless ``untrained``."""
        job, config, progress = self.job, self.config, self.job.progress
        encoder = config.load()
        texts = read_collection(job.engine, encoder.tokens, config, progress, encoder.separator)

        def ranker(trained: Mapping[str, Any]) -> DenseRanker:
            passages = texts.longest(encoder, config.passages)
            return DenseRanker.of(
                name, encoder, passages, trained, best=config.best, separator=config.separator
            )

        if config.untrained:
            made = ranker({"settings": values_of(config)})
            return TrainingResult(made, 0, 0, None, None, False, remarks=(f"{config.model}, untrained",))
        from rerank.rankers.dense.task import DenseTask

        task = DenseTask(texts, encoder, config, progress, job.checkpoint(name))
        run = task.fit()
        if not run.best and task.evaluator:
            progress.say(f"no step was better than the untrained encoder, which {name} uses")
        missing = left_out(texts)
        for line in describe_left_out(missing):
            progress.say(line)
        pairs, relation = len(task.graph.pairs()), config.structure_from
        details = {
            "documents": len(texts.titles),
            "outside": texts.outside,
            "structure_from": relation,
            "links": texts.graph.counts.links,
            "train_links": pairs,
            "held_out": len(task.held),
            "distance": 0.0,
            **run.counts,
        }
        outside = f" and {plural(texts.outside, 'reference[|s] outside the collection')}"
        remark = (
            f"{plural(len(texts.titles) - texts.outside, 'document[|s]')}{outside * bool(texts.outside)},"
            f" {plural(pairs, 'pair[|s]')} {RELATED[relation]} to learn from,"
            f" {len(task.held):,} held out"
        )
        return task.result(run, ranker(task.record(run)), "held-out pairs", remark, {**missing, **details})


def left_out(texts: Texts) -> dict[str, int]:
    """Count unused links and documents by reason."""
    counts = {**asdict(texts.graph.counts), "left_out": texts.graph.left_out}
    counts["without_text"] = int((~texts.usable).sum())
    return {name: counts[name] for name in _LEFT_OUT}


def describe_left_out(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence per reason."""
    for reason, text in _LEFT_OUT.items():
        if counts[reason]:
            yield plural(counts[reason], f"{text} [is|are] left out")


def read_collection(
    engine: Engine,
    tokenize: Callable[[list[str]], list[list[int]]],
    config: DenseConfig,
    progress: Progress,
    separator: Sequence[int] | None = None,
) -> Texts:
    """Tokenize documents and read their relation.

    separator: optional tokens after titles.

    Raises TrainingError without documents.
    """
    from rerank.rankers.dense.texts import Texts

    size = len(engine)
    if not size:
        raise TrainingError("there are no documents yet; run `rerank ingest` first")
    with progress.step("read documents", size, "doc") as advance:
        texts = Texts.read(
            engine.documents(),
            tokenize,
            advance,
            structure_from=config.structure_from,
            separator=separator if config.separator else None,
        )
    return texts.without_judged(config.leave_out)
