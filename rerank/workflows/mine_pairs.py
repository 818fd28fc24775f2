"""Mine pairs: labeled pairs of a collection that has no labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from rerank.engines.base import SearchRequest
from rerank.errors import RerankError, TrainingError, UsageError
from rerank.files import check_output
from rerank.formats.pairs import in_tsv, write_labeled_pairs
from rerank.progress import Progress
from rerank.rankers.concept.mining import PairMining, Related, Source, draw_pairs, split_units
from rerank.records import Document, LabeledPair, Qrels
from rerank.results import Report
from rerank.text import plural, words
from rerank.workspace import Workspace

SPLIT = (0.7, 0.15, 0.15)
NAMES = ("train", "dev", "test")
DEPTH = 100
"""Candidates that a document's title finds; unrelated ones are taken from them."""
_FIRST_WORDS = 20
"""Of a document without a title, which stand for it."""


@dataclass(frozen=True)
class MinedFile:
    """Pairs of one part of the split.

    path: None where nothing was written. groups: of related documents; single documents where links relate
    them. hard: unrelated pairs of one topic, or of the same words.
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
    """What was mined.

    documents: of the collection; left_out: those that are related to nothing. pairs: part -> its pairs.
    """

    source: Source
    documents: int
    left_out: int
    files: list[MinedFile]
    pairs: dict[str, list[LabeledPair]] = field(default_factory=dict, repr=False)

    def rows(self) -> list[dict[str, object]]:
        """A row for each file."""
        return [vars(one) for one in self.files]


def mine_pairs(
    workspace: Workspace,
    source: Source,
    *,
    out: str | os.PathLike[str] | None = None,
    qrels: Qrels | None = None,
    split: Sequence[float] | None = SPLIT,
    mining: PairMining | None = None,
    progress: Progress | None = None,
) -> MinedPairs:
    """Draw related and unrelated pairs of documents from what a collection has.

    source: see :class:`rerank.rankers.concept.mining.Related`. out: the folder for ``train.tsv``,
    ``dev.tsv`` and ``test.tsv``; ``pairs.tsv`` without a split. split: shares of the documents; no group is
    in two parts.

    Raises UsageError where judgments are missing, or are given and not read, and TrainingError where the
    collection has nothing that relates documents, or too little for the split. Nothing is written then.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts", "fox": "a fox hunts", "owl": "an owl hunts", "elk": "elks eat"}
    >>> documents = [Document(id, id, text, links=("fox",)) for id, text in texts.items()]
    >>> workspace.engine.write(documents).added
    4
    >>> found = mine_pairs(workspace, "links", split=None)
    >>> [one.related for one in found.files]
    [3]
    """
    mining, progress = mining or PairMining(), progress or Progress()
    if (source == "qrels") != (qrels is not None):
        what = "needs" if qrels is None else "reads no"
        raise UsageError(f"mining pairs from {source} {what} judgments, --qrels")
    shares = (1.0,) if split is None else tuple(split)
    if len(shares) > len(NAMES):
        raise UsageError(f"--split takes at most {len(NAMES)} shares: {', '.join(NAMES)}")
    names = ("pairs",) if split is None else NAMES[: len(shares)]
    if out is not None:
        _check_files(Path(out), names)
    documents = _short(workspace, progress)
    related = _related(source, documents, workspace, mining, qrels)
    parts = progress.over(
        list(zip(names, split_units(related, shares, mining.seed))), "draw pairs", len(names), "part"
    )
    near = _nearest(workspace, documents, related)
    drawn = {
        name: draw_pairs(related, part, replace(mining, seed=mining.seed + number), near)
        for number, (name, part) in enumerate(parts)
    }
    for name, one in drawn.items():
        if not {True, False} <= {pair.related for pair in one.pairs}:
            raise TrainingError(
                f"{workspace.folder}: {source} of {plural(len(related), 'document[ gives|s give]')}"
                f" {plural(one.groups, 'group[|s]')} and {plural(len(one.pairs), 'pair[|s]')} for {name}:"
                f" too few; take a larger share of"
                f" --split, a smaller --smallest or another source"
            )
    paths: dict[str, str] = {}
    if out is not None:
        paths = _write({name: one.pairs for name, one in drawn.items()}, Path(out))
    return MinedPairs(
        source=source,
        documents=len(related),
        left_out=int((related.units < 0).sum()),
        files=[
            MinedFile(
                name=name,
                path=paths.get(name),
                documents=one.documents,
                groups=one.groups,
                related=sum(pair.related for pair in one.pairs),
                unrelated=sum(not pair.related for pair in one.pairs),
                hard=one.hard,
            )
            for name, one in drawn.items()
        ],
        pairs={name: one.pairs for name, one in drawn.items()},
    )


def _first(document: Document) -> str:
    return "" if document.title else " ".join(words(document.text)[:_FIRST_WORDS])


def _related(
    source: Source,
    documents: list[Document],
    workspace: Workspace,
    mining: PairMining,
    qrels: Qrels | None,
) -> Related:
    """What is related; TrainingError where nothing is."""
    if source == "categories":
        related = Related.by_categories(documents, workspace.category_edges(), mining)
    elif source == "links":
        related = Related.by_links(documents)
    elif source == "titles":
        related = Related.by_titles(documents)
    else:
        assert qrels is not None
        related = Related.by_qrels((one.id for one in documents), qrels)
    if not any(len(mates) for mates in related.mates):
        lacking = {
            "categories": f"no category is on {mining.smallest} documents and on at most"
            f" {mining.largest * 100:g}% of them",
            "links": "no document is linked with another",
            "titles": "no two titles are alike",
            "qrels": "no query has two relevant documents",
        }
        raise TrainingError(
            f"{workspace.folder}: {source} relate no documents: {lacking[source]}; mine pairs from another"
            " source"
        )
    return related


def _check_files(folder: Path, names: Iterable[str]) -> None:
    """Raise UsageError if a file of another kind is in the place of one that will be written."""
    for name in names:
        check_output(folder / f"{name}.tsv", "a\tb\trelated")
        check_output(folder / f"{name}.jsonl", '{"a": ')


def _short(workspace: Workspace, progress: Progress) -> list[Document]:
    """Read the documents with short texts, by their ids. Raises TrainingError if there are none."""
    engine = workspace.engine
    if not len(engine):
        raise TrainingError(f"{workspace.folder}: there are no documents; run `rerank ingest` first")
    short = [
        Document(one.id, one.title, _first(one), one.categories, one.links)
        for one in progress.over(engine.documents(), "read documents", len(engine), "doc")
    ]
    return sorted(short, key=lambda one: one.id)


def _nearest(
    workspace: Workspace, documents: Sequence[Document], related: Related
) -> Callable[[int], list[int]]:
    """Return a function from a document to those that its title finds, by their places."""
    engine, first = workspace.engine, workspace.first_stage
    place = {one: i for i, one in enumerate(related.ids)}
    texts = {one.id: one.title or one.text for one in documents}

    def near(i: int) -> list[int]:
        found = engine.find(SearchRequest(texts[related.ids[i]], first_stage=first, depth=DEPTH))
        return [place[one] for one in found.ids if one in place]

    return near


def _write(parts: dict[str, list[LabeledPair]], folder: Path) -> dict[str, str]:
    """Write a file for each part; JSON lines where TSV cannot hold an id."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RerankError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from error
    ids = {one for pairs in parts.values() for pair in pairs for one in pair[:2]}
    plain = all(map(in_tsv, ids))
    paths = {name: str(folder / f"{name}.{'tsv' if plain else 'jsonl'}") for name in parts}
    for name, pairs in parts.items():
        write_labeled_pairs(paths[name], pairs)
    return paths
