"""Fits ``concept`` on labeled pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank.engines.base import Engine
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.ranker import ConceptRanker
from rerank.rankers.concept.task import Concepts, ConceptTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.records import LabeledPair
from rerank.text import plural

BLOCK = 256
"""Documents that are read and tokenized at once."""


@dataclass(frozen=True)
class ConceptFitter:
    """Fits encoder and head; resumes from checkpoints."""

    job: TrainingJob
    config: ConceptConfig

    def fit(self, variant: str, name: str) -> TrainingResult:
        """Fine-tune the encoder and train the head."""
        job, config, progress = self.job, self.config, self.job.progress
        assert job.labeled is not None
        pairs, kept = job.labeled
        encoder = config.load()
        concepts = read_concepts(job.engine, encoder, pairs, kept, progress)
        task = ConceptTask(concepts, encoder, config, progress, job.checkpoint(name))
        run, graph = task.fit(), concepts.graph
        counts = {
            "texts": len(graph.ids),
            "components": graph.groups,
            "largest_component": int(graph.sizes.max()),
            "related": len(graph.related),
            "unrelated": len(graph.unrelated),
            "withheld": graph.withheld,
            "disagreeing": graph.disagreeing,
            "kept_pairs": len(kept),
        }
        threshold = run.kept.measures.get("threshold", 0.5)
        ranker = ConceptRanker.of(name, encoder, task.head(), threshold, {**task.record(run), **counts})
        remark = (
            f"{len(graph.related):,} related and {plural(len(graph.unrelated), 'unrelated pair[|s]')} of"
            f" {plural(len(graph.ids), 'document[|s]')} to learn from;"
            f" {plural(graph.groups, 'component[|s]')}, the largest of {counts['largest_component']:,};"
            f" {plural(len(kept), 'dev pair[|s]')}"
        )
        return task.result(run, ranker, "dev pairs", remark, {**counts, "threshold": threshold})


def read_concepts(
    engine: Engine,
    encoder: TextEncoder,
    pairs: Sequence[LabeledPair],
    kept: Sequence[LabeledPair],
    progress: Progress,
) -> Concepts:
    """Build the graph and tokenize documents. kept: dev pairs.

    Raises TrainingError for unknown ids, missing text, or a single label.
    """
    graph = ConceptGraph.of(pairs, kept)
    for label, found in (("related", graph.related), ("unrelated", graph.unrelated)):
        if not len(found):
            raise TrainingError(
                f"no pair to learn from is {label} ({graph.withheld} are dev pairs, {graph.disagreeing} have"
                " both labels); give --labeled-pairs with related and unrelated pairs"
            )
    ids = Concepts.ids_of(graph, kept)
    tokens: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    with progress.step("read documents", len(ids), "doc") as advance:
        for begin in range(0, len(ids), BLOCK):
            block = ids[begin : begin + BLOCK]
            documents = []
            for id, document in zip(block, engine.get(block)):
                if document is None:
                    raise TrainingError(
                        f"no document has the id {id!r} of a pair; ingest it, or remove the pair"
                    )
                documents.append(document)
            for id, text in zip(block, encoder.tokens([document.content for document in documents])):
                if not text:
                    raise TrainingError(f"document {id!r} of a pair has no text; add one, or remove the pair")
                tokens.append(np.array(text[: encoder.room], dtype=np.int32))
            advance(len(block))
    return Concepts(graph, ids, tokens, kept)
