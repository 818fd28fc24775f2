"""Train ``dense``: documents and links of a workspace -> a fine-tuned transformer with its features."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rerank.errors import BusyError, TrainingError
from rerank.ingesting import encode
from rerank.progress import Progress
from rerank.rankers.dense import DenseRanker
from rerank.rankers.transformer import TextEncoder
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.training.dense.config import DenseConfig
    from rerank.training.dense.texts import Texts

NAME = "dense"


@dataclass(frozen=True)
class DenseReport:
    """What a training used and gave.

    links, train_links, held_out: links of the collection, linked pairs that were learned from, and held out.
    self_links, duplicates, unknown, without_text: links and documents that were left out.
    history: step, mean loss, recall at 5 and 10 of held-out links; the untrained encoder's first.
    best: the step that was kept; 0: the untrained encoder. rate: sequences a second. masked: share of the
    anchors without a structural pair.
    """

    version: str
    documents: int
    without_text: int
    links: int
    self_links: int
    duplicates: int
    unknown: int
    train_links: int
    held_out: int
    history: list[dict[str, float | None]]
    best: int
    steps: int
    interrupted: bool
    rate: float
    masked: float
    encoded: dict[str, int] = field(default_factory=dict)


def train_dense(
    workspace: Workspace,
    config: DenseConfig | None = None,
    *,
    restart: bool = False,
    progress: Progress | None = None,
) -> DenseReport | None:
    """Fine-tune a text encoder on the links of the workspace's documents, put it in use, encode the
    documents.

    Under ``torchrun`` each process encodes its share of every batch; all but the first return None.
    An interrupted training goes on from its newest checkpoint when it is started again; ``restart`` drops
    that.
    """
    from rerank.training.dense.config import DenseConfig
    from rerank.training.dense.trainer import DenseTrainer, settings

    config, progress = config or DenseConfig(), progress or Progress()
    encoder = load_encoder(config)
    texts = read_texts(workspace, encoder, progress)
    folder = workspace.folder / "training" / NAME
    if restart and os.environ.get("RANK", "0") == "0":
        shutil.rmtree(folder, ignore_errors=True)
    trainer = DenseTrainer(texts, encoder, config, progress, folder)
    try:
        fit = trainer.fit()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise TrainingError(
            f"a batch of {config.batch} does not fit into memory; lower --batch or --fragment-tokens, or"
            " raise --accumulate"
        ) from error
    if trainer.group.rank:
        return None
    history = [asdict(one) for one in fit.history]
    trained = {
        "settings": settings(config),
        "history": history,
        "best": fit.best,
        "links": texts.graph.digest(),
    }
    ranker = DenseRanker.of(NAME, fit.encoder, longest_document(texts, encoder, config.fragments), trained)
    workspace.install(ranker)
    encoded: dict[str, int] = {}
    try:
        encoded = encode(workspace, progress=progress)
    except BusyError as error:
        progress.say(f"{error}: the ranker is in use; `rerank encode` stores the document sides")
    counts = texts.graph.counts
    return DenseReport(
        ranker.version,
        len(texts.titles),
        int((~texts.usable).sum()),
        counts.links,
        counts.self_links,
        counts.duplicates,
        counts.unknown,
        fit.train_links,
        fit.held_out,
        history,
        fit.best,
        fit.steps,
        fit.interrupted,
        fit.rate,
        fit.masked,
        encoded,
    )


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


def read_texts(workspace: Workspace, encoder: TextEncoder, progress: Progress) -> Texts:
    """Tokenise the collection."""
    from rerank.training.dense.texts import Texts

    size = len(workspace.engine)
    if not size:
        raise TrainingError(f"{workspace.folder}: there are no documents yet; run `rerank ingest` first")
    progress.start("read documents", size, "doc")
    try:
        return Texts.read(workspace.engine.documents(), encoder.tokens, progress.advance)
    finally:
        progress.finish()


def longest_document(texts: Texts, encoder: TextEncoder, most: int) -> int:
    """Count the fragments of the longest document, ``most`` at most: so many are stored for each."""
    from rerank.rankers.fragments import windows

    return max(1, len(windows(int(texts.tokens.lengths.max(initial=0)), encoder.room, most)))


@dataclass(frozen=True)
class Example:
    """One quintuplet, as titles: what is nearer to the anchor, what is farther, at which level.

    hardest: the nearest other anchor of the sample, its semantic negative. corrupted: the words of the
    anchor's text with some replaced.
    """

    anchor: str
    level: int
    positive: str
    negative: str
    hardest: str
    corrupted: str


@dataclass(frozen=True)
class Mined:
    """A sample of what a training would learn from, and the counts behind it.

    related: documents with any related ones; levels: examples of each level; capped: see ``Intimacy``.
    """

    documents: int
    without_text: int
    links: int
    self_links: int
    duplicates: int
    unknown: int
    train_links: int
    held_out: int
    related: int
    examples: list[Example]


def mine_structure(
    workspace: Workspace,
    config: DenseConfig | None = None,
    *,
    sample: int = 20,
    progress: Progress | None = None,
) -> Mined:
    """Draw quintuplets as the first epoch of a training with the same settings does."""
    from rerank.training.dense.config import DenseConfig
    from rerank.training.dense.sampling import Sampler, Vocabulary
    from rerank.training.dense.texts import Fragments
    from rerank.training.dense.trainer import prepare_structure

    config, progress = config or DenseConfig(), progress or Progress()
    encoder = load_encoder(config)
    texts = read_texts(workspace, encoder, progress)
    graph, held, structure = prepare_structure(texts, config, progress)
    sampler = Sampler(
        structure,
        Fragments.of(texts, encoder, config.fragments),
        Vocabulary.of(encoder.tokenizer),
        config.batch,
        corrupted=config.corrupted,
        corruption=config.corruption,
        same_fragment=config.same_fragment,
        seed=config.seed,
    )

    def examples() -> Iterator[Example]:
        left = sample
        for batch in sampler.epoch(0):
            vectors = encoder.encode([text.tolist() for text in batch.anchor])
            scores = np.where(batch.near, -np.inf, vectors @ vectors.T)
            for i, draw in enumerate(batch.draws):
                if not left:
                    return
                left -= 1
                hardest = int(scores[i].argmax())
                yield Example(
                    texts.titles[draw.anchor],
                    draw.level,
                    texts.titles[draw.positive] if draw.level else "",
                    texts.titles[draw.negative] if draw.level else "",
                    texts.titles[batch.draws[hardest].anchor] if np.isfinite(scores[i, hardest]) else "",
                    encoder.tokenizer.decode(batch.corrupted[i][:24].tolist()),
                )

    counts = texts.graph.counts
    return Mined(
        len(texts.titles),
        int((~texts.usable).sum()),
        counts.links,
        counts.self_links,
        counts.duplicates,
        counts.unknown,
        len(graph.pairs()),
        len(held),
        int((np.diff(structure.indptr) > 0).sum()),
        list(examples()),
    )
