"""Fits ``concept``: labeled pairs of documents -> a fine-tuned encoder and a head."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rerank.config import values_of
from rerank.engines.base import Engine
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.ranker import ConceptRanker
from rerank.rankers.concept.task import Concepts, ConceptTask
from rerank.rankers.dense.fit import in_memory
from rerank.rankers.encoder.stored import StoredEncoder
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.records import LabeledPair
from rerank.text import plural

BLOCK = 256
"""Documents that are read and tokenized at once."""


@dataclass(frozen=True)
class ConceptFitter:
    """Fits an encoder and a head on labeled pairs.

    An interrupted training goes on from its newest checkpoint when it is started again.
    """

    job: TrainingJob
    config: ConceptConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune an encoder, and train its head."""
        job, config, progress = self.job, self.config, self.job.progress
        assert job.labeled is not None
        pairs, kept = job.labeled
        encoder = config.load()
        concepts = read_concepts(job.engine, encoder, pairs, kept, progress)
        folder = job.folder / name
        if job.restart:
            shutil.rmtree(folder, ignore_errors=True)
        encoder.precision = config.precision
        with in_memory(config.batch):
            task = ConceptTask(concepts, encoder, config, progress, folder)
            fit = task.fit()
        encoder.precision = "auto"
        head = task.head()
        graph = concepts.graph
        history = [one.row() for one in fit.history]
        counted = {
            "texts": len(graph.ids),
            "components": graph.groups,
            "largest_component": int(graph.sizes.max()),
            "alone": int((graph.sizes == 1).sum()),
            "related": len(graph.related),
            "unrelated": len(graph.unrelated),
            "drawn_related": len(task.pairs.related) - len(graph.related),
            "drawn_unrelated": len(task.pairs.unrelated) - len(graph.unrelated),
            "ratio": task.pairs.ratio,
            **asdict(graph.counts),
            "kept_pairs": len(kept),
            "batches_without_related": fit.counts.get("without_related", 0),
            "contrast_bytes": task.objective.memory,
            "rate": fit.rate,
            "seconds": fit.cpu,
        }
        trained = {
            "settings": values_of(config),
            "history": history,
            "best": fit.best,
            "share": fit.share,
            **counted,
        }
        measured = fit.kept
        threshold = measured.measures.get("threshold", 0.5)
        ranker = ConceptRanker.of(name, StoredEncoder.of(fit.encoder), head, threshold, trained)
        decides = next(iter(fit.kept.measures), "nothing")
        drawn = counted["drawn_related"] + counted["drawn_unrelated"]
        return TrainingResult(
            ranker,
            fit.best,
            fit.steps,
            measured.value,
            fit.history[0].value,
            fit.interrupted,
            f"{decides} of pairs to measure by",
            "untrained",
            "step",
            (
                f"{len(graph.related):,} related and {plural(len(graph.unrelated), 'unrelated pair[|s]')} of"
                f" {plural(len(graph.ids), 'document[|s]')} to learn from"
                + (f", {drawn:,} more drawn" if drawn else "")
                + f"; {plural(graph.groups, 'component[|s]')}, the largest of"
                f" {counted['largest_component']:,};"
                f" {plural(len(kept), 'pair[|s]')} to measure by; {plural(fit.steps, 'step[|s]')} at"
                f" {fit.rate:.1f} sequences/s",
            ),
            {**counted, "threshold": threshold, "history": history, "share": fit.share},
            [(m.step, m.loss, m.value) for m in fit.history if m.share == 1],
            task.checkpoint.discard if task.checkpoint and not fit.interrupted else dict,
        )


def read_concepts(
    engine: Engine,
    encoder: TextEncoder,
    pairs: Sequence[LabeledPair],
    kept: Sequence[LabeledPair],
    progress: Progress,
) -> Concepts:
    """Build the graph, and tokenize the documents that occur in pairs.

    Raises TrainingError for ids that no document has, a document without text, pairs of one label only, and
    where no pair is left.
    """
    graph = ConceptGraph.of(pairs, kept)
    for count, label, other in (
        (len(graph.related), "related", "unrelated"),
        (len(graph.unrelated), "unrelated", "related"),
    ):
        if not count:
            reasons = [
                plural(number, what)
                for number, what in (
                    (graph.counts.withheld, "[is|are] among those to measure by"),
                    (graph.counts.disagreeing, "[is|are] labeled both ways"),
                )
                if number
            ]
            left = f" ({', '.join(reasons)})" if reasons else ""
            raise TrainingError(
                f"no pair to learn from is {label}{left}; a classifier learns from {label} and {other} ones:"
                f" give --labeled-pairs with both"
            )
    ids = Concepts.ids_of(graph, kept)
    tokens: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    progress.start("read documents", len(ids), "doc")
    try:
        for begin in range(0, len(ids), BLOCK):
            block = ids[begin : begin + BLOCK]
            found = engine.get(block)
            for one, document in zip(block, found):
                if document is None:
                    raise TrainingError(
                        f"there is no document {one!r}, which a pair names; ingest it, or take the pair out"
                    )
            texts = encoder.tokens([document.content for document in found if document is not None])
            for one, text in zip(block, texts):
                if not text:
                    raise TrainingError(
                        f"document {one!r} of a pair has no text; give it one, or take the pair out"
                    )
                tokens.append(np.array(text[: encoder.room], dtype=np.int32))
            progress.advance(len(block))
    finally:
        progress.finish()
    return Concepts(graph, ids, tokens, kept)
