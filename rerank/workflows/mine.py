"""Labeled pairs and co-citations of a collection."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from rerank.engines.base import SearchRequest
from rerank.errors import InputError, TrainingError, UsageError
from rerank.files import atomic_write, check_output
from rerank.formats import write_labeled_pairs
from rerank.progress import Progress
from rerank.rankers.concept.mining import PairMining, RelatedDocuments, SampledPairs, Source, split_units
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Level
from rerank.records import Document, LabeledPair, Qrels
from rerank.results import Report
from rerank.text import plural, words
from rerank.workspace import Workspace

NAMES = ("train", "dev", "test")
DEPTH = 100
"""Candidates per document; unrelated documents are taken from them."""
COUNTED = 100_000_000
"""Largest number of pairs of references whose distinct pairs are counted."""
_FIRST_WORDS = 20
"""Words that replace a missing title."""


@dataclass(frozen=True)
class MinedFile:
    """Pairs of one part of the split.

    path: None if not written. groups: of related documents. hard: unrelated pairs of one topic or with common
    words.
    """

    name: str
    path: str | None
    documents: int
    groups: int
    related: int
    unrelated: int
    hard: int


@dataclass
class MinedPairs(Report):
    """Mined pairs.

    left_out: documents without related ones. pairs: part -> pairs.
    """

    source: Source
    documents: int
    left_out: int
    files: list[MinedFile]
    pairs: dict[str, list[LabeledPair]] = field(default_factory=dict, repr=False)

    def rows(self) -> list[dict[str, object]]:
        """Return a row per file."""
        return [vars(one) for one in self.files]


def mine_pairs(
    workspace: Workspace,
    source: Source,
    *,
    out: str | os.PathLike[str] | None = None,
    qrels: Qrels | None = None,
    split: Sequence[float] | None = (0.7, 0.15, 0.15),
    mining: PairMining | None = None,
    progress: Progress | None = None,
) -> MinedPairs:
    """Draw related and unrelated pairs of documents.

    source: ``categories``, ``links`` or ``qrels``. split: shares; a group stays in one part.
    out: folder for ``train.tsv``, ``dev.tsv`` and ``test.tsv``, or ``pairs.tsv``.

    Raises UsageError for missing or unused judgments, TrainingError for too few related documents.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts", "fox": "a fox hunts", "owl": "an owl hunts", "elk": "elks eat"}
    >>> documents = [Document(id, id, text, links=("fox",)) for id, text in texts.items()]
    >>> workspace.engine.write(documents).added
    4
    >>> mined = mine_pairs(workspace, "links", split=None)
    >>> [one.related for one in mined.files]
    [3]
    """
    mining, progress = mining or PairMining(), progress or Progress()
    if (source == "qrels") != (qrels is not None):
        uses = "needs" if qrels is None else "does not use"
        raise UsageError(f"mining pairs from {source} {uses} judgments (--qrels)")
    shares = (1.0,) if split is None else tuple(split)
    if len(shares) > len(NAMES):
        raise UsageError(f"--split has {len(shares)} shares; give at most {len(NAMES)}: {', '.join(NAMES)}")
    names = ("pairs",) if split is None else NAMES[: len(shares)]
    paths = {} if out is None else {name: Path(out) / f"{name}.tsv" for name in names}
    for path in paths.values():
        check_output(path, "a\tb\trelated")
    documents = _read_short(workspace, progress)
    related = _related(source, documents, workspace, mining, qrels)
    units = split_units(related, shares, mining.seed)
    near = _nearest(workspace, documents, related)
    samples = {}
    for number, name in enumerate(progress.over(names, "draw pairs", len(names), "part")):
        sample = SampledPairs(related, units[number], replace(mining, seed=mining.seed + number), near)
        if not {True, False} <= {pair.related for pair in sample.pairs}:
            raise TrainingError(
                f"{workspace.folder}: {source} of {plural(len(related), 'document[ gives|s give]')} only"
                f" {plural(sample.groups, 'group[|s]')} and {plural(len(sample.pairs), 'pair[|s]')} for"
                f" {name}; give a larger share of --split, a smaller --smallest or"
                " another source"
            )
        samples[name] = sample
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_labeled_pairs(path, samples[name].pairs)
    files = [_counted(name, paths.get(name), of) for name, of in samples.items()]
    pairs = {name: of.pairs for name, of in samples.items()}
    return MinedPairs(source, len(related), int((related.units < 0).sum()), files, pairs)


def _counted(name: str, path: Path | None, of: SampledPairs) -> MinedFile:
    related = sum(pair.related for pair in of.pairs)
    counts = of.documents, of.groups, related, len(of.pairs) - related, of.hard
    return MinedFile(name, None if path is None else str(path), *counts)


def _read_short(workspace: Workspace, progress: Progress) -> list[Document]:
    """Documents by id; the first words replace a missing title."""
    engine = workspace.engine
    if not len(engine):
        raise TrainingError(f"{workspace.folder}: the workspace is empty; run `rerank ingest` first")
    short = []
    for one in progress.over(engine.documents(), "read documents", len(engine), "doc"):
        text = "" if one.title else " ".join(words(one.text)[:_FIRST_WORDS])
        short.append(Document(one.id, one.title, text, one.categories, one.links))
    return sorted(short, key=lambda one: one.id)


def _related(
    source: Source,
    documents: list[Document],
    workspace: Workspace,
    mining: PairMining,
    qrels: Qrels | None,
) -> RelatedDocuments:
    reason = "no query has two relevant documents"
    if qrels is not None:
        related = RelatedDocuments.by_qrels((one.id for one in documents), qrels)
    elif source == "categories":
        related = RelatedDocuments.by_categories(documents, workspace.category_edges(), mining)
        reason = f"no category has {mining.smallest} documents and at most {mining.largest * 100:g}% of them"
    else:
        related, reason = RelatedDocuments.by_links(documents), "no document links to another"
    if not any(len(mates) for mates in related.mates):
        raise TrainingError(
            f"{workspace.folder}: {source} relate no documents: {reason}; mine pairs from another source"
        )
    return related


def _nearest(
    workspace: Workspace, documents: Sequence[Document], related: RelatedDocuments
) -> Callable[[int], list[int]]:
    """Map a document to the documents that its title finds."""
    engine, first = workspace.engine, workspace.first_stage
    place = {one: i for i, one in enumerate(related.ids)}
    texts = {one.id: one.title or one.text for one in documents}

    def near(i: int) -> list[int]:
        hits = engine.find(SearchRequest(texts[related.ids[i]], first_stage=first, depth=DEPTH))
        return [place[one] for one in hits.ids if one in place]

    return near


@dataclass(frozen=True)
class LevelSize:
    """Size of a level of a network.

    groups: places with several references. largest: references in the largest group. references: in any
    group. pairs: distinct; None if too many.
    """

    groups: int
    largest: int
    references: int
    pairs: int | None


@dataclass
class CoCited(Report):
    """Co-citations of a workspace.

    citing: documents with citations. outside: references without documents. titled: references with titles.
    mentions: citations.
    """

    citing: int
    references: int
    outside: int
    titled: int
    mentions: int
    levels: dict[Level, LevelSize]
    out: str | None = None


def mine_cocitation(
    workspace: Workspace,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> CoCited:
    """Return the sizes of the co-citation network.

    out: TSV file of all pairs: keys, counts of citing sentences, paragraphs, sections and documents.

    Raises InputError if no document has citations.

    >>> import tempfile
    >>> from rerank import Document
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> place = {"section": 0, "paragraph": 0, "sentence": 0}
    >>> cited = {"citations": [{"ref": "a", **place}, {"ref": "b", **place}]}
    >>> _ = workspace.engine.write([Document("x", "X", extra=cited)])
    >>> mine_cocitation(workspace).levels["sentence"].pairs
    1
    """
    if out is not None:
        check_output(out, "a\tb\t")
    citations = workspace.citations(progress)
    if not citations.mentions:
        raise InputError(
            f"{workspace.folder}: no document has citations; ingest articles"
            " (`rerank ingest ARCHIVE --format jats`), or documents with links or citations"
        )
    refs = set(citations.references)
    network = citations.network()
    if out is not None:
        _write_network(network, out)
    return CoCited(
        citing=citations.citing,
        references=len(refs),
        outside=len(refs - citations.documents),
        titled=len(refs & citations.titles.keys()),
        mentions=citations.mentions,
        levels={level: _size(network, level) for level in LEVELS},
        out=None if out is None else os.fspath(out),
    )


def _size(network: CoCitations, level: Level) -> LevelSize:
    groups = network.levels[level]
    sizes = np.diff(groups.indptr)
    return LevelSize(
        groups=len(sizes),
        largest=int(sizes.max(initial=0)),
        references=len(np.unique(groups.refs)),
        pairs=groups.pairs() if (sizes * (sizes - 1) // 2).sum() <= COUNTED else None,
    )


def _write_network(network: CoCitations, path: str | os.PathLike[str]) -> None:
    order = sorted(range(len(network)), key=network.keys.__getitem__)
    rank = np.argsort(np.array(order, np.int64))
    names = network.names(order)
    counted = {level: network.levels[level].pair_counts() for level in LEVELS}
    pairs = counted["document"][0]
    columns = np.zeros((2 + len(LEVELS), len(pairs)), np.int64)
    columns[:2] = np.sort(rank[np.stack(np.divmod(pairs, max(len(network), 1)))], axis=0)
    for row, (keys, counts) in zip(columns[2:], counted.values()):
        row[np.searchsorted(pairs, keys)] = counts
    columns = columns[:, np.lexsort(columns[1::-1])]
    with atomic_write(path, follow=True) as file:
        file.write(("\t".join(("a", "b", *LEVELS)) + "\n").encode())
        for begin in range(0, len(pairs), 100_000):
            rows = columns[:, begin : begin + 100_000].T.tolist()
            lines = ("\t".join((names[a], names[b], *map(str, counts))) for a, b, *counts in rows)
            file.write("".join(f"{line}\n" for line in lines).encode())
