"""``rerank report concept``: labelled pairs -> components, before and after training -> one HTML page."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.errors import InputError, RerankError, UsageError, action_hint, setting_hint
from rerank.evaluation.pairs import auc
from rerank.files import atomic_write
from rerank.graph.concepts import ConceptGraph
from rerank.progress import Progress
from rerank.rankers.concept.head import Head
from rerank.rankers.concept.ranker import ConceptRanker
from rerank.rankers.dense.transformer import TextEncoder
from rerank.records import Document, LabelledPair
from rerank.reports.concept.figures import ConceptFigures, ConceptSide
from rerank.reports.concept.page import page
from rerank.reports.dense.figures import Mapped, Separation
from rerank.reports.dense.neighbours import NONE, OTHER, SHOWN, in_common, share_near, tsne
from rerank.reports.dense.numbers import BINS, histogram, nearer, quantiles
from rerank.settings import build, settings_of
from rerank.workspace import Workspace

UNTRAINED = "untrained"
_TITLE = 60

Vectors = NDArray[np.float32]


def report_concept(
    workspace: Workspace,
    name: str,
    out: str | os.PathLike[str],
    *,
    pairs: Sequence[LabelledPair] = (),
    sample: int = 500,
    against: str = UNTRAINED,
    sensitivity: bool = False,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ConceptFigures:
    """Write the page on a ranker of relatedness to ``out``, and return its numbers.

    pairs: whose graph has the components: those that were learned from, or others. sample: documents of the
    map (figure 3 of Ma et al. 2023), whole components as long as there is room. against: the encoder it is
    compared with, or ``untrained``, the one it started from.

    Raises UsageError for a path that cannot be written, before anything is computed, and without pairs.
    """
    progress = progress or Progress()
    if Path(out).is_dir():
        raise UsageError(f"{out}: a folder; give the page a file name by {setting_hint('out')}")
    ranker = workspace.ranker(name)
    if not isinstance(ranker, ConceptRanker):
        raise UsageError(f"{workspace.folder}: its ranker {name!r} is of another kind ({ranker.kind})")
    if not pairs:
        raise UsageError(f"the report on {name} shows the components of pairs: give {setting_hint('pairs')}")
    if sensitivity or steps:
        raise UsageError(f"{setting_hint('sensitivity')} is of the report on encoders of links; leave it out")
    with atomic_write(out, follow=True) as file:
        figures = _figures(workspace, ranker, pairs, str(out), sample, against, seed, progress)
        file.write(page(figures).encode("utf-8", "replace"))
    return figures


def _figures(
    workspace: Workspace,
    ranker: ConceptRanker,
    pairs: Sequence[LabelledPair],
    out: str,
    sample: int,
    against: str,
    seed: int,
    progress: Progress,
) -> ConceptFigures:
    remarks: list[str] = []
    before, problem = _start(ranker, against)
    if problem is not None:
        remarks.append(f"The encoder that the training started from is not at hand: {problem}.")
        progress.say(f"the trained encoder is shown alone: {problem.message}")
    graph = ConceptGraph.of(pairs)
    documents = [one or Document("") for one in workspace.engine.get(graph.ids)]
    texts = [one.content for one in documents]
    labelled = np.concatenate((graph.related, graph.unrelated))
    related = np.arange(len(labelled)) < len(graph.related)
    mapped = _mapped(graph, sample, seed)
    vectors: list[Vectors] = []
    heads: list[Head | None] = []
    for encoder, head in ((before, None), (ranker.stored.encoder, ranker.head)):
        if encoder is not None:
            vectors.append(_encoded(encoder, texts, progress))
            heads.append(head)
    distances = [1 - np.einsum("ij,ij->i", v[labelled[:, 0]], v[labelled[:, 1]]) for v in vectors]
    top = np.ceil(max(float(one.max()) for one in distances) * 10) / 10
    edges = np.linspace(0, max(top, 0.1), BINS + 1)
    groups = [(str(c),) if graph.sizes[c] > 1 else () for c in graph.component[mapped].tolist()]
    same = in_common(groups, [])
    sides: list[ConceptSide] = []
    points: NDArray[np.float64] | None = None
    for v, head, found in zip(
        progress.over(vectors, "t-SNE", len(vectors), "map"), heads, distances, strict=True
    ):
        points = tsne(v[mapped], seed, points)
        score = None if head is None else head.relatedness(v[labelled[:, 0]], v[labelled[:, 1]])
        sides.append(
            ConceptSide(
                distances=Separation(
                    pairs=int(related.sum()),
                    nearer=nearer(found[related], found[~related]),
                    same_anchor=None,
                    related=quantiles(found[related]),
                    unrelated=quantiles(found[~related]),
                    related_histogram=histogram(found[related], edges),
                    unrelated_histogram=histogram(found[~related], edges),
                ),
                head=None if score is None or related.all() else auc(score, related),
                component=share_near(v[mapped], same),
                map=[] if points is None else points.round(4).tolist(),
            )
        )
    titles = [" ".join((one.title or one.text).split())[:_TITLE] or one.id for one in documents]
    shown = _shown(graph, mapped)
    marks = {component: i for i, component in enumerate(shown)}
    of = graph.component[mapped].tolist()
    trained = ranker.trained
    return ConceptFigures(
        name=ranker.name,
        version=ranker.version,
        settings=dict(trained["settings"]),
        history=[dict(one) for one in trained["history"]],
        best=int(trained["best"]),
        share=float(trained.get("share", 1.0)),
        against=against if before is not None else None,
        remarks=remarks,
        documents=len(graph.ids),
        related=len(graph.related),
        unrelated=len(graph.unrelated),
        components=graph.groups,
        sizes=dict(sorted(Counter(graph.sizes[graph.sizes > 1].tolist()).items())),
        alone=int((graph.sizes == 1).sum()),
        counts={name: int(count) for name, count in asdict(graph.counts).items() if count},
        seed=seed,
        edges=[float(edge) for edge in edges],
        shown=[titles[_middle(graph, vectors[-1], component)] for component in shown],
        shown_counts=[of.count(component) for component in shown],
        mapped=[
            Mapped(
                id=graph.ids[i],
                title=titles[i],
                mark=NONE if graph.sizes[component] == 1 else marks.get(component, OTHER),
            )
            for i, component in zip(mapped.tolist(), of)
        ],
        after=sides[-1],
        before=sides[0] if before is not None else None,
        out=out,
    )


def _start(ranker: ConceptRanker, against: str) -> tuple[TextEncoder | None, RerankError | None]:
    """Load the encoder to compare with: (encoder, None), or (None, why the start cannot be loaded)."""
    from rerank.training.concept.config import ConceptConfig

    known = {one.name for one in settings_of(ConceptConfig)}
    try:
        stored = {name: value for name, value in ranker.trained["settings"].items() if name in known}
        config: ConceptConfig = build(ConceptConfig, {}, stored)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise InputError(
            f"{ranker.folder}/ranker.json: its settings are not those of this version ({error}); train it"
            f" again with {action_hint('train', 'concept')}"
        ) from error
    if against != UNTRAINED:
        changed: ConceptConfig = build(ConceptConfig, {}, {**stored, "model": against})
        return changed.encoder.load(config.seed), None
    try:
        return config.encoder.load(config.seed), None
    except RerankError as error:
        return None, error


def _encoded(encoder: TextEncoder, texts: Sequence[str], progress: Progress) -> Vectors:
    """(n, E) of length 1; zeros for a text without tokens."""
    tokens = [one[: encoder.room] for one in encoder.tokens(list(texts))]
    filled = [i for i, one in enumerate(tokens) if one]
    vectors = np.zeros((len(texts), encoder.width), np.float32)
    progress.start("encode", len(filled), "text")
    try:
        vectors[filled] = encoder.encode([tokens[i] for i in filled], progress.advance)
    finally:
        progress.finish()
    return vectors


def _mapped(graph: ConceptGraph, count: int, seed: int) -> NDArray[np.int64]:
    """Documents of the map: whole components in a random order, as long as there is room, then others."""
    rng = np.random.default_rng((seed, 8))
    large = rng.permutation(np.flatnonzero(graph.sizes > 1))
    order = {component: i for i, component in enumerate(large.tolist())}
    places = [order.get(component, len(order)) for component in graph.component.tolist()]
    chosen = np.argsort(places, kind="stable")[:count]
    return np.sort(chosen).astype(np.int64)


def _shown(graph: ConceptGraph, mapped: NDArray[np.int64]) -> list[int]:
    """The components with the most documents on the map."""
    of = Counter(c for c in graph.component[mapped].tolist() if graph.sizes[c] > 1)
    return sorted(of, key=lambda component: (-of[component], component))[:SHOWN]


def _middle(graph: ConceptGraph, vectors: Vectors, component: int) -> int:
    """The document that is nearest to a component's centroid."""
    members = np.flatnonzero(graph.component == component)
    return int(members[(vectors[members] @ vectors[members].mean(axis=0)).argmax()])
