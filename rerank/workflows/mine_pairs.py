"""Labeled pairs of `concept` from the collection."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from rerank.engines.base import SearchRequest
from rerank.errors import RerankError, TrainingError, UsageError
from rerank.files import check_output
from rerank.formats.pairs import in_tsv, write_labeled_pairs
from rerank.progress import Progress
from rerank.rankers.concept.mining import PairMining, RelatedDocuments, SampledPairs, Source, split_units
from rerank.records import Document, LabeledPair, Qrels
from rerank.results import Report
from rerank.text import plural, words
from rerank.workspace import Workspace

NAMES = ("train", "dev", "test")
DEPTH = 100
"""Candidates per document; unrelated documents are taken from them."""
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

    @classmethod
    def of(cls, name: str, path: str | None, sample: SampledPairs) -> MinedFile:
        """Count the pairs of a part."""
        related = sum(pair.related for pair in sample.pairs)
        unrelated = len(sample.pairs) - related
        return cls(name, path, sample.documents, sample.groups, related, unrelated, sample.hard)


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

    source: ``categories``, ``links``, ``titles`` or ``qrels``. split: shares; a group stays in one part.
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
    for name in names if out is not None else ():
        check_output(Path(out or "", f"{name}.tsv"), "a\tb\trelated")
        check_output(Path(out or "", f"{name}.jsonl"), '{"a": ')
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
    pairs = {name: sample.pairs for name, sample in samples.items()}
    paths = {} if out is None else _write_pairs(pairs, Path(out))
    files = [MinedFile.of(name, paths.get(name), sample) for name, sample in samples.items()]
    return MinedPairs(source, len(related), int((related.units < 0).sum()), files, pairs)


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
    elif source == "links":
        related, reason = RelatedDocuments.by_links(documents), "no document links to another"
    else:
        related, reason = RelatedDocuments.by_titles(documents), "no two titles are similar"
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


def _write_pairs(parts: dict[str, list[LabeledPair]], folder: Path) -> dict[str, str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RerankError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from error
    plain = all(in_tsv(one) for pairs in parts.values() for pair in pairs for one in pair[:2])
    paths = {name: str(folder / f"{name}.{'tsv' if plain else 'jsonl'}") for name in parts}
    for name, pairs in parts.items():
        write_labeled_pairs(paths[name], pairs)
    return paths
