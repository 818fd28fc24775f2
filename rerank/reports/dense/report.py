"""``rerank report dense``: workspace -> figures -> one HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import (
    InputError,
    RerankError,
    TrainingError,
    UsageError,
    action_hint,
    setting_hint,
)
from rerank.files import atomic_write
from rerank.graph.links import LinkGraph
from rerank.progress import Progress
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.transformer import TextEncoder
from rerank.records import LabelledPair
from rerank.reports.dense.figures import Figures, Mapped, Side
from rerank.reports.dense.measuring import Measured
from rerank.reports.dense.nearest import Asked, Found, nearest
from rerank.reports.dense.neighbours import in_common, legend, tsne
from rerank.reports.dense.numbers import BINS
from rerank.reports.dense.page import page
from rerank.reports.dense.sample import Drawer, Sample
from rerank.reports.dense.sensitivity import STEPS, Sensitivity, Sweep
from rerank.reports.dense.subgraphs import layout
from rerank.reports.dense.vectors import raw_vectors
from rerank.settings import build, settings_of
from rerank.training.dense.draws import Hierarchical, Triplets
from rerank.training.dense.neighbours import Intimacy
from rerank.wording import amount
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.training.dense.config import DenseConfig
    from rerank.training.dense.neighbours import Neighbours
    from rerank.training.dense.texts import Texts

UNTRAINED = "untrained"


@dataclass(frozen=True)
class Collection:
    """The documents with what the training learned from.

    graph: the links that were learned from; held: (H, 2) pairs that were not. same: see ``Figures``.
    """

    texts: Texts
    categories: list[tuple[str, ...]]
    graph: LinkGraph
    held: NDArray[np.int32]
    neighbours: Neighbours
    same: bool


def report_dense(
    workspace: Workspace,
    name: str,
    out: str | os.PathLike[str],
    *,
    sample: int = 500,
    pairs: Sequence[LabelledPair] = (),
    against: str = UNTRAINED,
    sensitivity: bool = False,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Figures:
    """Write the page on an encoder of the workspace's to ``out``, and return its numbers.

    sample: documents that distances are measured from. against: the encoder it is compared with: a model, or
    ``untrained``, the one it started from. sensitivity: train short runs of ``steps`` over gamma and the
    margins; without it those that are there are shown.

    Raises UsageError for a path that cannot be written, before anything is computed.
    """
    progress = progress or Progress()
    if Path(out).is_dir():
        raise UsageError(f"{out}: a folder; give the page a file name by {setting_hint('out')}")
    ranker = workspace.ranker(name)
    if not isinstance(ranker, DenseRanker):
        raise UsageError(f"{workspace.folder}: its ranker {name!r} is of another kind ({ranker.kind})")
    if pairs:
        raise UsageError(f"the report on {name} reads no {setting_hint('pairs')}; leave them out")
    with atomic_write(out, follow=True) as file:
        figures = _figures(workspace, ranker, str(out), sample, against, sensitivity, steps, seed, progress)
        file.write(page(figures).encode("utf-8", "replace"))
    return figures


def _figures(
    workspace: Workspace,
    ranker: DenseRanker,
    out: str,
    count: int,
    against: str,
    sensitivity: bool,
    steps: int | None,
    seed: int,
    progress: Progress,
) -> Figures:
    config = _config(ranker)
    # The losses share names; what the structure's margin is, is said first.
    defaults = {one.name: one.default for one in reversed(settings_of(type(config)))}
    settings = {**defaults, **ranker.trained["settings"]}
    remarks: list[str] = []
    before, problem = _start(config, ranker, against)
    if problem is not None:
        if sensitivity:
            raise problem
        remarks.append(f"The encoder that the training started from is not at hand: {problem}.")
        progress.say(f"the trained encoder is shown alone: {problem.message}")
    collection = _read(workspace, ranker, config, progress)
    runs = _sensitivity(
        workspace, config, collection, before if against == UNTRAINED else None, sensitivity, steps, progress
    )
    drawer = Drawer(
        collection.graph,
        collection.held,
        collection.neighbours,
        np.random.default_rng((seed, 5)),
        Hierarchical(getattr(config.positives, "max_level", None)),
    )
    sample = drawer.draw(count)
    if len(sample.anchors) < count:
        progress.say(
            f"{amount(len(sample.anchors), 'document[ has|s have]')} links and text, fewer than the sample of"
            f" {count}: all are taken"
        )
    sides = [
        _measured(encoder, collection.texts, sample, config, seed, what, progress)
        for encoder, what in ((before, "before"), (ranker.stored.encoder, "trained"))
        if encoder is not None
    ]
    mapped = sample.mapped.tolist()
    categories = [collection.categories[i] for i in mapped]
    shown = legend(categories)
    common = (
        in_common(categories, shown.left_out),
        _linked(drawer.links, sample.mapped),
        _linked(drawer.held_links, sample.mapped),
    )
    top = np.ceil(max(side.farthest() for side in sides) * 10) / 10
    edges = np.linspace(0, max(top, 0.1), BINS + 1)
    finished: list[Side] = []
    points: NDArray[np.float64] | None = None
    inside: NDArray[np.float64] | None = None
    graph = _linked(drawer.links, sample.subgraphs[:, 0])
    places = layout(graph, seed)
    for side in progress.over(sides, "t-SNE", len(sides), "map"):
        points = tsne(side.unit(), seed, points)
        inside = tsne(side.unit(sample.subgraphs[:, 0]), seed, inside)
        finished.append(side.side(edges, settings, points, inside, common))
    texts, counts = collection.texts, collection.texts.graph.counts
    return Figures(
        version=ranker.version,
        settings=settings,
        history=[dict(one) for one in ranker.trained["history"]],
        best=int(ranker.trained["best"]),
        share=float(ranker.trained.get("share", 1.0)),
        against=against if before is not None else None,
        same=collection.same,
        remarks=remarks,
        documents=len(texts.titles),
        without_text=int((~texts.usable).sum()),
        links=counts.links,
        linked_pairs=len(collection.graph.pairs()),
        held_out_pairs=len(collection.held),
        anchors=len(sample.anchors),
        encoded=len(sample.documents),
        seed=seed,
        edges=[float(e) for e in edges],
        categories=shown.names,
        category_counts=shown.counts,
        categories_left_out=shown.left_out,
        mapped=[
            Mapped(id=collection.graph.ids[i], title=texts.titles[i], mark=mark)
            for i, mark in zip(mapped, shown.marks)
        ],
        subgraphs=[
            Mapped(id=collection.graph.ids[i], title=texts.titles[i], mark=mark)
            for i, mark in sample.subgraphs.tolist()
        ],
        subgraph_links=np.argwhere(np.triu(graph)).tolist(),
        subgraph_layout=[] if places is None else places.round(4).tolist(),
        asked=[_asked(document, sides, drawer, texts) for document in sample.asked.tolist()],
        after=finished[-1],
        before=finished[0] if before is not None else None,
        sensitivity=runs,
        out=out,
    )


def _config(ranker: DenseRanker) -> DenseConfig:
    """Settings of the training, as ``ranker.json`` has them; what this version does not know is left out."""
    from rerank.training.dense.config import DenseConfig

    known = {one.name for one in settings_of(DenseConfig)}
    try:
        stored = {name: value for name, value in ranker.trained["settings"].items() if name in known}
        return build(DenseConfig, {}, stored)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise InputError(
            f"{ranker.folder}/ranker.json: its settings are not those of this version ({error}); train it"
            f" again with {action_hint('train', 'dense')}"
        ) from error


def _start(
    config: DenseConfig, ranker: DenseRanker, against: str
) -> tuple[TextEncoder | None, RerankError | None]:
    """Load the encoder to compare with: (encoder, None), or (None, why the start cannot be loaded).

    Raises UsageError for another model that cannot be loaded, or does not read the same tokens.
    """
    from rerank.training.dense.config import changed

    if against == UNTRAINED:
        try:
            encoder = config.encoder.load(config.seed)
        except RerankError as error:
            return None, error
    else:
        encoder = changed(config, model=against).encoder.load(config.seed)
    if encoder.tokenizer.get_vocab() != ranker.stored.encoder.tokenizer.get_vocab():
        problem = UsageError(
            f"{config.encoder.model if against == UNTRAINED else against}: reads other tokens than"
            " the trained encoder"
        )
        if against != UNTRAINED:
            raise problem
        return None, problem
    return encoder, None


def _read(workspace: Workspace, ranker: DenseRanker, config: DenseConfig, progress: Progress) -> Collection:
    """Read the documents; hold out the links that the training held out."""
    from rerank.training.dense.structure import prepare_structure
    from rerank.training.dense.texts import Texts

    size = len(workspace.engine)
    if not size:
        raise TrainingError(f"{workspace.folder}: there are no documents; run {action_hint('ingest')} first")
    categories: list[tuple[str, ...]] = []

    def watched() -> Iterator[Any]:
        for document in workspace.engine.documents():
            categories.append(document.categories)
            yield document

    progress.start("read documents", size, "doc")
    try:
        texts = Texts.read(
            watched(),
            ranker.stored.encoder.tokens,
            progress.advance,
            structure_from=config.structure_from,
            separator=ranker.separator,
            weights=config.level_weights,
        )
    finally:
        progress.finish()
    categories += [()] * texts.outside
    with suppress(InputError):  # judgements that have gone: another graph then, and the report says so
        texts = texts.without_judged(config.leave_out)
    same = ranker.trained.get("links") == texts.graph.digest()
    how = replace(
        config,
        neighbours=config.neighbours if isinstance(config.neighbours, Intimacy) else Intimacy(),
        positives=Hierarchical() if isinstance(config.positives, Triplets) else config.positives,
        measured=replace(config.measured, held_out=config.measured.held_out if same else 0.0),
    )
    graph, held, neighbours = prepare_structure(texts, how, progress)
    return Collection(
        texts=texts, categories=categories, graph=graph, held=held, neighbours=neighbours, same=same
    )


def _measured(
    encoder: TextEncoder,
    texts: Texts,
    sample: Sample,
    config: DenseConfig,
    seed: int,
    what: str,
    progress: Progress,
) -> Measured:
    """Encode the first fragments of the sampled documents, and another of each anchor that has several."""
    from rerank.training.dense.texts import Fragments

    fragments = Fragments.of(texts, encoder, config.encoder.fragments)
    first = [fragments.get(d).tolist() for d in sample.documents.tolist()]
    own, own_anchors = [], []
    for anchor in sample.anchors.tolist():
        starts = fragments.starts(anchor)[1:]
        if starts:
            rng = np.random.default_rng((seed, 6, anchor))
            own.append(fragments.get(anchor, starts[int(rng.integers(len(starts)))]).tolist())
            own_anchors.append(anchor)
    progress.start(f"encode, {what}", len(first) + len(own), "text")
    try:
        vectors = raw_vectors(encoder, first + own, progress.advance)
    finally:
        progress.finish()
    return Measured(
        sample=sample,
        vectors=vectors[: len(first)],
        own=vectors[len(first) :],
        own_anchors=np.array(own_anchors, dtype=np.int64),
    )


def _asked(document: int, sides: Sequence[Measured], drawer: Drawer, texts: Texts) -> Asked:
    """What a document finds among those of the sample, less those whose links were learned from."""
    documents = sides[-1].sample.documents
    known = np.isin(documents, drawer.links[document].indices)
    wanted = set(drawer.held_links[document].indices.tolist())
    ids = drawer.graph.ids
    (row,) = np.flatnonzero(documents == document).tolist()
    found = [
        [
            Found(ids[at := int(documents[i])], texts.titles[at], cosine, at in wanted)
            for i, cosine in nearest(side.unit(documents), row, known)
        ]
        for side in sides
    ]
    return Asked(ids[document], texts.titles[document], found[0] if len(found) > 1 else [], found[-1])


def _linked(links: Any, mapped: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(K, K) which documents of the map are linked."""
    found: NDArray[np.bool_] = links[mapped][:, mapped].toarray() > 0
    return found


def _sensitivity(
    workspace: Workspace,
    config: DenseConfig,
    collection: Collection,
    start: TextEncoder | None,
    wanted: bool,
    steps: int | None,
    progress: Progress,
) -> Sensitivity | None:
    """Train the runs that are wanted; give those that are there."""
    if start is None:
        if wanted:
            raise UsageError(
                f"{setting_hint('sensitivity')} trains from the ranker's own start; leave"
                f" {setting_hint('against')} out"
            )
        return None
    sweep = Sweep(workspace.folder, config, collection.texts, start)
    if wanted:
        sweep.run(iter(lambda: config.encoder.load(config.seed), None), steps or STEPS, progress)
    return sweep.found(steps or (STEPS if wanted else None))
