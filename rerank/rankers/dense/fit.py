"""Fits ``dense`` on relations between documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

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
_SHARES = (
    ("masked", "masked", "anchors", "of the anchors had no structural pair"),
    ("semantic", "semantic", "anchors", "had a semantic negative"),
    ("active_structural", "active_structural", "structural", "of the structural hinges were active"),
    ("active_semantic", "active_semantic", "semantic", "of the semantic hinges were active"),
)
"""Name, part, whole, text."""
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
        """Fine-tune an encoder."""
        from rerank.rankers.dense.task import DenseTask
        from rerank.rankers.encoder.task import FittedTask

        job, config, progress = self.job, self.config, self.job.progress
        encoder = config.load()
        texts = read_collection(job.engine, encoder.tokens, config, progress, encoder.separator)
        fitted = FittedTask.of(job, name, lambda folder: DenseTask(texts, encoder, config, progress, folder))
        task, run = fitted.task, fitted.run
        ranker = DenseRanker.of(
            name,
            encoder,
            texts.longest(encoder, config.passages),
            fitted.record,
            best=config.best,
            separator=config.separator,
        )
        counts = run.counts
        shares = {
            name: (counts[part] / max(counts[whole], 1), text)
            for name, part, whole, text in _SHARES
            if part in counts and whole in counts
        }
        missing = left_out(texts)
        for line in describe_left_out(missing):
            progress.say(line)
        if not run.best and task.evaluator:
            progress.say(f"no step was better than the untrained encoder, which {name} uses")
        pairs, outside = (
            len(task.graph.pairs()),
            plural(texts.outside, "reference[|s] outside the collection"),
        )
        documents = plural(len(texts.titles) - texts.outside, "document[|s]")
        return fitted.result(
            ranker,
            "held-out pairs",
            (
                f"{documents}{f' and {outside}' * bool(texts.outside)},"
                f" {plural(pairs, 'pair[|s]')} {RELATED[config.structure_from]} to learn from,"
                f" {len(task.held):,} held out;"
                f" {plural(run.steps, 'step[|s]')} at {run.rate:.1f} sequences/s",
                "; ".join(f"{value:.0%} {text}" for value, text in shares.values()),
            ),
            {
                "documents": len(texts.titles),
                "outside": texts.outside,
                "structure_from": config.structure_from,
                "links": texts.graph.counts.links,
                **missing,
                "train_links": pairs,
                "held_out": len(task.held),
                **{name: value for name, (value, _) in shares.items()},
                "distance": counts.get("distance", 0.0),
            },
        )


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
