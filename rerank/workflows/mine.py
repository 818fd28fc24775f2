"""Mine: quintuplets of `dense`, labeled pairs of `concept`, co-citations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from rerank.engines.base import Engine, SearchRequest
from rerank.errors import InputError, RerankError, TrainingError, UsageError
from rerank.files import atomic_write, check_output
from rerank.formats.pairs import in_tsv, write_labeled_pairs
from rerank.progress import Progress
from rerank.rankers.concept.mining import PairMining, RelatedDocuments, SampledPairs, Source, split_units
from rerank.rankers.encoder.transformer import PACKAGED
from rerank.rankers.graphs.citations import Citations, mentions
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Level
from rerank.records import Document, LabeledPair, Qrels
from rerank.results import Report
from rerank.text import plural, words
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.rankers.dense.config import DenseConfig
    from rerank.rankers.graphs.relations import Relation

NAMES = ("train", "dev", "test")
DEPTH = 100
"""Candidates per document; unrelated documents are taken from them."""
COUNTED = 100_000_000
"""Largest number of pairs of references whose distinct pairs are counted."""
BLOCK = 500
"""Documents that are read at a time."""
_FIRST_WORDS = 20
"""Words that replace a missing title."""


# -- quintuplets -----------------------------------------------------------------------------------------


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
    from rerank.rankers.dense.config import DenseConfig
    from rerank.rankers.dense.corruption import Vocabulary
    from rerank.rankers.dense.fit import left_out, read_collection
    from rerank.rankers.dense.quintuplets import QuintupletSampler
    from rerank.rankers.dense.structure import Structure
    from rerank.rankers.dense.texts import Passages, Words

    progress = progress or Progress()
    if not isinstance(config, DenseConfig):
        config = DenseConfig.of(**(config or {}))
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
    isolated = config.keeps_isolated
    sampler = QuintupletSampler(
        structure.neighbors, passages, vocabulary, config.batch, isolated=isolated, seed=config.seed
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


# -- labeled pairs ---------------------------------------------------------------------------------------


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
    files = []
    for name, sample in samples.items():
        positive = sum(pair.related for pair in sample.pairs)
        negative = len(sample.pairs) - positive
        path, sizes = paths.get(name), (sample.documents, sample.groups)
        files.append(MinedFile(name, path, *sizes, positive, negative, sample.hard))
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


# -- co-citations ----------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Shared:
    """A sentence that cites both references; ``text`` may be empty."""

    document: str
    text: str


@dataclass
class Neighbor:
    """A co-cited reference.

    level: finest common level. documents, sentences: citing both.
    """

    key: str
    title: str
    level: Level = "document"
    documents: list[str] = field(default_factory=list)
    sentences: list[Shared] = field(default_factory=list)


@dataclass(frozen=True)
class Neighborhood:
    """A reference and its neighbors.

    cited_by: documents. sizes: level -> neighbors at this or a finer level. neighbors: by level, documents,
    key.
    """

    key: str
    title: str
    cited_by: list[str]
    sizes: dict[Level, int]
    neighbors: list[Neighbor]


@dataclass
class CoCited(Report):
    """Co-citations of a workspace.

    citing: documents with citations. outside: references without documents. titled: references with titles.
    mentions: citations. levels: empty for one reference.
    """

    citing: int
    references: int
    outside: int
    titled: int
    mentions: int
    levels: dict[Level, LevelSize]
    shown: Neighborhood | None = None
    out: str | None = None


def mine_cocitation(
    workspace: Workspace,
    *,
    show: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> CoCited:
    """Return the sizes of the co-citation network, or one reference with its neighbors.

    show: DOI, PMID, document id or title.
    out: TSV file of all pairs: keys, counts of citing sentences, paragraphs, sections and documents.

    Raises UsageError for a reference that no document cites.

    >>> import tempfile
    >>> from rerank import Document
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> place = {"section": 0, "paragraph": 0, "sentence": 0, "text": "As A and B say."}
    >>> cited = {"citations": [{"ref": "a", **place}, {"ref": "b", **place}]}
    >>> _ = workspace.engine.write([Document("x", "X", extra=cited)])
    >>> report = mine_cocitation(workspace, show="a")
    >>> report.shown.neighbors[0].key, report.shown.neighbors[0].sentences[0].text
    ('b', 'As A and B say.')
    """
    if out is not None:
        check_output(out, "a\tb\t")
    citations = workspace.citations(progress)
    if not citations.mentions:
        raise InputError(
            f"{workspace.folder}: no document has citations; ingest articles"
            f" (`rerank ingest ARCHIVE --format jats`), or documents with links or citations"
        )
    refs = set(citations.references)
    shown = None if show is None else _neighborhood(workspace.engine, citations, _named(citations, show))
    network = citations.network() if shown is None or out is not None else None
    if network is not None and out is not None:
        _write_network(network, out)
    return CoCited(
        citing=citations.citing,
        references=len(refs),
        outside=len(refs - citations.documents),
        titled=len(refs & citations.titles.keys()),
        mentions=citations.mentions,
        levels={level: _size(network, level) for level in LEVELS} if network is not None else {},
        shown=shown,
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


def _named(citations: Citations, name: str) -> str:
    key = citations.key(name)
    if key in citations.references:
        return key
    titled = citations.titled(name)
    if titled:
        return titled[0]
    if key in citations.documents:
        raise UsageError(f"no document cites {key!r}; choose a cited document")
    near = "; ".join(f"{one} ({citations.titles[one]})" for one in citations.nearest(name, 3))
    wanted = f"the nearest titles are {near}" if near else "give a DOI, a PMID, a document id or a title"
    raise UsageError(f"no document cites {name!r}; {wanted}")


def _neighborhood(engine: Engine, citations: Citations, key: str) -> Neighborhood:
    found: dict[str, Neighbor] = {}
    citing = citations.citing_of(key)
    blocks = (engine.get(citing[begin : begin + BLOCK]) for begin in range(0, len(citing), BLOCK))
    for document in filter(None, chain.from_iterable(blocks)):
        cited = mentions(document)
        keys = [citations.key(mention.reference) for mention in cited]
        rows = document.extra.get("citations") or [{}] * len(cited)
        texts = {mention.sentence: str(row["text"]) for mention, row in zip(cited, rows) if row.get("text")}
        own = [mention for mention, name in zip(cited, keys) if name == key]
        parts: dict[Level, set[int]] = {
            level: {getattr(mention, level) for mention in own} for level in LEVELS[:-1]
        }
        sentences = dict[tuple[str, int], None]()
        for mention, name in zip(cited, keys):
            if name in (key, document.id):
                continue
            level = next((one for one in parts if getattr(mention, one) in parts[one]), LEVELS[-1])
            near = found.setdefault(name, Neighbor(name, citations.titles.get(name, "")))
            near.level = min(near.level, level, key=LEVELS.index)
            if near.documents[-1:] != [document.id]:
                near.documents.append(document.id)
            if level == "sentence":
                sentences[name, mention.sentence] = None
        for name, sentence in sentences:
            found[name].sentences.append(Shared(document.id, texts.get(sentence, "")))
    ranks = {name: LEVELS.index(one.level) for name, one in found.items()}
    order = sorted(found, key=lambda name: (ranks[name], -len(found[name].documents), name))
    return Neighborhood(
        key,
        citations.titles.get(key, ""),
        citing,
        {level: sum(rank <= place for rank in ranks.values()) for place, level in enumerate(LEVELS)},
        [found[name] for name in order],
    )


def _write_network(network: CoCitations, path: str | os.PathLike[str]) -> None:
    order = sorted(range(len(network)), key=lambda ref: natural(network.keys[ref]))
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


def natural(key: str) -> tuple[int, int, str]:
    """Return a sort key: numbers by value, then texts."""
    return (0, int(key), key) if key.isascii() and key.isdigit() else (1, 0, key)
