"""Mine: training examples of `dense`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank.progress import Progress
from rerank.rankers.dense.fit import left_out, read_collection
from rerank.rankers.encoder.transformer import PACKAGED
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.rankers.dense.config import DenseConfig
    from rerank.rankers.graphs.relations import Relation


@dataclass(frozen=True)
class Example:
    """A quintuplet of titles.

    hardest: nearest other anchor. corrupted: start of the corrupted anchor text.
    """

    anchor: str
    level: int
    positive: str
    negative: str
    hardest: str
    corrupted: str


@dataclass(frozen=True)
class Mined:
    """Examples and counts; see :mod:`rerank.rankers.dense.fit`.

    related: documents with related ones. missing: package needed for encoding; without it, words replace
    tokens.
    """

    documents: int
    without_text: int
    structure_from: Relation
    links: int
    self_links: int
    duplicates: int
    unknown: int
    judged: int
    left_out: int
    train_links: int
    held_out: int
    related: int
    missing: str | None
    examples: list[Example]


def mine(
    workspace: Workspace,
    config: DenseConfig | Mapping[str, Any] | None = None,
    *,
    sample: int = 20,
    progress: Progress | None = None,
) -> Mined:
    """Draw examples from the first epoch of a training of ``dense``.

    config: settings as for ``train``. sample: number of examples.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts", "fox": "a fox hunts", "owl": "an owl hunts", "elk": "elks eat"}
    >>> documents = [Document(id, id, text, links=("fox", "owl")) for id, text in texts.items()]
    >>> workspace.engine.write(documents).added
    4
    >>> mined = mine(workspace, {"batch": 2, "held_out": 0.0}, sample=1)
    >>> mined.links, mined.self_links, len(mined.examples)
    (6, 2, 1)
    """
    from rerank.rankers.dense.config import DenseConfig, dense_config
    from rerank.rankers.dense.corruption import Vocabulary
    from rerank.rankers.dense.quintuplets import QuintupletSampler
    from rerank.rankers.dense.structure import Structure
    from rerank.rankers.dense.texts import Passages, Words

    progress = progress or Progress()
    if not isinstance(config, DenseConfig):
        config = dense_config(**(config or {}))
    missing = missing_package(config.model)
    encoder = None if missing else config.load()
    words = Words()
    tokenize, separator = (encoder.tokens, encoder.separator) if encoder else (words.tokens, [0])
    texts = read_collection(workspace.engine, tokenize, config, progress, separator)
    structure = Structure.find(texts, config, progress)
    if encoder:
        vocabulary = Vocabulary.of(encoder.tokenizer)
        passages = Passages.of(texts, encoder, config.passages)
    else:
        vocabulary = Vocabulary(np.arange(1, len(words.number), dtype=np.int32), mask=0)
        passages = Passages(texts.tokens, config.passage_tokens - 2, config.passages)
    sampler = QuintupletSampler(
        structure.neighbors,
        passages,
        vocabulary,
        config.batch,
        isolated=config.keeps_isolated,
        seed=config.seed,
    )

    return Mined(
        documents=len(texts.titles),
        structure_from=config.structure_from,
        links=texts.graph.counts.links,
        **left_out(texts),
        train_links=len(structure.graph.pairs()),
        held_out=len(structure.held_out),
        related=int(structure.neighbors.paired.sum()),
        missing=missing,
        examples=list(islice(_examples(sampler, encoder, words, texts.titles), sample)),
    )


def _examples(sampler: Any, encoder: Any, words: Any, titles: Sequence[str]) -> Iterator[Example]:
    for batch in sampler.epoch(0):
        scores = np.full(batch.near.shape, -np.inf)
        if encoder:
            vectors = encoder.encode([text.tolist() for text in batch.anchor])
            scores = np.where(batch.near, -np.inf, vectors @ vectors.T)
        for i, pair in enumerate(batch.pairs):
            hardest = int(scores[i].argmax())
            corrupted = batch.corrupted[i][:24].tolist()
            yield Example(
                titles[pair.anchor],
                pair.level,
                titles[pair.positive] if pair.level else "",
                titles[pair.negative] if pair.level else "",
                titles[batch.pairs[hardest].anchor] if np.isfinite(scores[i, hardest]) else "",
                encoder.tokenizer.decode(corrupted) if encoder else words.decode(corrupted),
            )


def missing_package(model: str) -> str | None:
    """Return the first package that ``model`` needs but is not installed."""
    needed = ("torch", "transformers", *((PACKAGED[model],) if model in PACKAGED else ()))
    return next((name for name in needed if find_spec(name) is None), None)
