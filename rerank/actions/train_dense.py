"""Train ``dense``: documents and links of a workspace -> a fine-tuned transformer with its features."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from rerank.actions.ingest import encode
from rerank.errors import BusyError, TrainingError
from rerank.formats import read_qrels
from rerank.graph.links import judged_together
from rerank.progress import Progress
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.transformer import PACKAGED, TextEncoder
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.graph.relations import Relation
    from rerank.training.dense.config import DenseConfig
    from rerank.training.dense.texts import Texts

NAME = "dense"
NO_MEMORY = ("memory", "bad_alloc", "could not create a primitive")
"""What torch and its libraries say when there is no memory left; the last: oneDNN."""


@dataclass(frozen=True)
class DenseReport:
    """What a training used and gave.

    structure_from: what relates the documents. links, train_links, held_out: links of the collection, related
        pairs that were learned from, and held out.
    self_links, duplicates, unknown, without_text: links and documents that were left out. judged: linked
        pairs that were left out because judgements give them the same query. left_out: categories or linking
        documents that relate too many.
    history: step, mean loss, recall at 5 and 10 and NDCG of held-out links; the untrained encoder's first.
    best: the step that was kept; 0: the untrained encoder. share: of the way from the untrained encoder to
        that step. rate: sequences a second.
    masked, masked_semantic: share of the anchors without a structural pair, and without a semantic negative.
    active_structural, active_semantic: share of the others whose hinge was above 0. None: the objective has
        no such half. distance: median distance of two texts of a batch before training.
    """

    version: str
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
    history: list[dict[str, float | None]]
    best: int
    steps: int
    interrupted: bool
    rate: float
    masked: float
    masked_semantic: float | None
    active_structural: float | None
    active_semantic: float | None
    distance: float
    share: float = 1.0
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
    texts = read_texts(workspace, encoder.tokens, config, progress)
    folder = workspace.folder / "training" / NAME
    if restart and os.environ.get("RANK", "0") == "0":
        shutil.rmtree(folder, ignore_errors=True)
    encoder.precision = config.precision
    try:
        trainer = DenseTrainer(texts, encoder, config, progress, folder)
        fit = trainer.fit()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in NO_MEMORY):
            raise
        raise TrainingError(
            f"a batch of {config.batch} does not fit into memory; lower --batch or --fragment-tokens, or"
            " raise --accumulate"
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
    ranker = DenseRanker.of(NAME, fit.encoder, most, trained, best=config.best, normalise=config.normalise)
    workspace.install(ranker)
    if trainer.checkpoint and not fit.interrupted:
        trainer.checkpoint.discard()
    encoded: dict[str, int] = {}
    try:
        encoded = encode(workspace, progress=progress).encoded
    except BusyError as error:
        progress.say(f"{error}: the ranker is in use; `rerank encode` stores the document sides")
    counts, tally = texts.graph.counts, fit.tally

    def share(part: str, whole: str) -> float | None:
        return tally[part] / max(tally[whole], 1) if part in tally and whole in tally else None

    semantic = share("semantic", "anchors")
    return DenseReport(
        ranker.version,
        len(texts.titles),
        int((~texts.usable).sum()),
        config.structure_from,
        counts.links,
        counts.self_links,
        counts.duplicates,
        counts.unknown,
        counts.judged,
        texts.graph.left_out,
        fit.train_links,
        fit.held_out,
        history,
        fit.best,
        fit.steps,
        fit.interrupted,
        fit.rate,
        fit.masked,
        None if semantic is None else 1 - semantic,
        share("active_structural", "structural"),
        share("active_semantic", "semantic"),
        tally.get("distance", 0.0),
        fit.share,
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


def read_texts(
    workspace: Workspace,
    tokenise: Callable[[list[str]], list[list[int]]],
    config: DenseConfig,
    progress: Progress,
) -> Texts:
    """Tokenise the collection."""
    from rerank.training.dense.texts import Texts

    size = len(workspace.engine)
    if not size:
        raise TrainingError(f"{workspace.folder}: there are no documents yet; run `rerank ingest` first")
    progress.start("read documents", size, "doc")
    try:
        texts = Texts.read(
            workspace.engine.documents(), tokenise, progress.advance, structure_from=config.structure_from
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

    For the counts see :class:`DenseReport`. related: documents with any related ones. missing: the package
    without which nothing can be encoded; plain words then stand for tokens, and no nearest other text is
    found.
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


def mine_structure(
    workspace: Workspace,
    config: DenseConfig | None = None,
    *,
    sample: int = 20,
    progress: Progress | None = None,
) -> Mined:
    """Draw quintuplets as the first epoch of a training with the same settings does.

    Needs neither torch nor the model: without them plain words stand for tokens.
    """
    from rerank.training.dense.config import DenseConfig
    from rerank.training.dense.sampling import Sampler, Vocabulary
    from rerank.training.dense.structure import prepare_structure
    from rerank.training.dense.texts import Fragments, Words

    config, progress = config or DenseConfig(), progress or Progress()
    missing = missing_package(config.model)
    encoder = None if missing else load_encoder(config)
    words = Words()
    texts = read_texts(workspace, encoder.tokens if encoder else words.tokens, config, progress)
    graph, held, structure = prepare_structure(texts, config, progress)
    if encoder:
        vocabulary = Vocabulary.of(encoder.tokenizer)
        fragments = Fragments.of(texts, encoder, config.fragments)
    else:
        vocabulary = Vocabulary(np.arange(1, len(words.number), dtype=np.int32), mask=0)
        fragments = Fragments(texts.tokens, config.fragment_tokens - 2, config.fragments)
    sampler = Sampler.of(structure, fragments, vocabulary, config)

    def examples() -> Iterator[Example]:
        left = sample
        for batch in sampler.epoch(0):
            scores = np.full(batch.near.shape, -np.inf)
            if encoder:
                vectors = encoder.encode([text.tolist() for text in batch.anchor])
                scores = np.where(batch.near, -np.inf, vectors @ vectors.T)
            for i, draw in enumerate(batch.draws):
                if not left:
                    return
                left -= 1
                hardest = int(scores[i].argmax())
                corrupted = batch.corrupted[i][:24].tolist()
                yield Example(
                    texts.titles[draw.anchor],
                    draw.level,
                    texts.titles[draw.positive] if draw.level else "",
                    texts.titles[draw.negative] if draw.level else "",
                    texts.titles[batch.draws[hardest].anchor] if np.isfinite(scores[i, hardest]) else "",
                    encoder.tokenizer.decode(corrupted) if encoder else words.decode(corrupted),
                )

    counts = texts.graph.counts
    return Mined(
        len(texts.titles),
        int((~texts.usable).sum()),
        config.structure_from,
        counts.links,
        counts.self_links,
        counts.duplicates,
        counts.unknown,
        counts.judged,
        texts.graph.left_out,
        len(graph.pairs()),
        len(held),
        int((np.diff(structure.indptr) > 0).sum()),
        missing,
        list(examples()),
    )


def missing_package(model: str) -> str | None:
    """Name a package that is not installed and without which ``model`` cannot be loaded."""
    needed = ("torch", "transformers", *((PACKAGED[model],) if model in PACKAGED else ()))
    return next((name for name in needed if find_spec(name) is None), None)
