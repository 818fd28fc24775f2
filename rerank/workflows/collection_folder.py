"""Find the files of a collection by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from rerank.errors import InputError
from rerank.formats import read_corpus
from rerank.records import Document
from rerank.references import CitationCounts
from rerank.text import join_names
from rerank.workflows.ingest import Format

SPLITS = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "valid": "dev",
    "validation": "dev",
    "val": "dev",
    "test": "test",
    "eval": "test",
}
"""Words in names of judgment files -> split."""
WHOLE = "all"
"""The split of a judgment file without such a word."""

_CORPORA = ("corpus.jsonl", "documents.jsonl", "docs.jsonl")
_QUERIES = ("queries.jsonl", "topics.jsonl")
_GRAPHS = ("categories.tsv", "categories.txt")
_QRELS = (".tsv", ".txt", ".csv", ".qrels", ".qrel", "")
_JUDGED = {"qrels", "qrel", "judgments"}
_ARTICLES = (".xml", ".nxml")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_WANTED = (
    "give a folder with corpus.jsonl, queries.jsonl, and one or more of qrels/train.tsv, dev.tsv, test.tsv"
)


@dataclass(frozen=True)
class Folder:
    """Files of documents, queries and judgments.

    corpus: JSON lines, or JATS files (``jats``). qrels: ``train``, ``dev``, ``test`` or ``all`` -> file.
    aside: unread judgment files.
    """

    path: Path
    corpus: tuple[Path, ...]
    format: Format
    queries: Path
    qrels: Mapping[str, Path]
    categories: Path | None = None
    aside: tuple[Path, ...] = field(default=())

    def documents(self) -> Iterator[Document]:
        """Read all documents."""
        if self.format == "jsonl":
            return chain.from_iterable(map(read_corpus, self.corpus))
        from rerank.formats.jats import read_jats

        read = (read_jats(path, CitationCounts()) for path in self.corpus)
        return (article.document() for article in chain.from_iterable(read))

    def __str__(self) -> str:
        read = [*self.corpus, self.queries, *([self.categories] if self.categories else [])]
        judgments = join_names([path.name for path in self.qrels.values()])
        aside = f"; {join_names([path.name for path in self.aside])} is not read" if self.aside else ""
        return f"{', '.join(path.name for path in read)}, judgments {judgments}{aside}"

    def files(self) -> list[Path]:
        """Return all files that are read."""
        found = [*self.corpus, self.queries, *self.qrels.values()]
        found += [self.categories] if self.categories else []
        return [one for path in found for one in (_articles(path) if path.is_dir() else [path])]


def read_folder(path: Path) -> Folder:
    """Find the files of a folder, plain or gzip. Judgments are in ``qrels/`` or in the folder.

    Raises InputError for a missing or ambiguous file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("corpus.jsonl.gz", "queries.jsonl", "qrels.dev.tsv"):
    ...     (folder / name).touch()
    >>> found = read_folder(folder)
    >>> found.corpus[0].name, {split: file.name for split, file in found.qrels.items()}
    ('corpus.jsonl.gz', {'dev': 'qrels.dev.tsv'})
    """
    if not path.is_dir():
        problem = "not a folder" if path.exists() else "no such folder"
        raise InputError(f"{path}: {problem}; {_WANTED}")
    files = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
    corpus, format = _corpus(path, files)
    queries = _named(files, _QUERIES)
    qrels, aside = _judgments(path, files)
    parts = {"corpus.jsonl": corpus, "queries.jsonl": queries, "qrels": qrels}
    missing = [name for name, part in parts.items() if not part]
    if missing:
        others = f"; it has {join_names([one.name for one in files])}" if files else ""
        raise InputError(f"{path}: no {' and no '.join(missing)}; {_WANTED}{others}")
    assert queries is not None
    return Folder(path, corpus, format, queries, qrels, _named(files, _GRAPHS), aside)


def _plain(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")


def _named(files: Iterable[Path], names: tuple[str, ...]) -> Path | None:
    found = [one for one in files if _plain(one) in names]
    if len(found) > 1:
        raise InputError(f"{found[0]} and {found[1].name} have the same content; remove one of them")
    return found[0] if found else None


def _corpus(path: Path, files: Iterable[Path]) -> tuple[tuple[Path, ...], Format]:
    files = list(files)
    lines = _named(files, _CORPORA)
    if lines is not None:
        return (lines,), "jsonl"
    articles = [one for one in files if one.name.lower().endswith(_ARCHIVES)]
    if _articles(path):
        articles.append(path)
    return tuple(articles), "jats"


def _articles(path: Path) -> list[Path]:
    return sorted(one for one in path.rglob("*") if _plain(one).endswith(_ARTICLES))


def _judgments(path: Path, files: Iterable[Path]) -> tuple[dict[str, Path], tuple[Path, ...]]:
    within = path / "qrels"
    inside = sorted(one for one in within.iterdir() if one.is_file()) if within.is_dir() else []
    found: dict[str, Path] = {}
    for one in [*(one for one in inside if not one.name.startswith(".")), *files]:
        stem, ending = Path(_plain(one)).stem, Path(_plain(one)).suffix
        words = re.split(r"[._-]+", _plain(one).removesuffix(ending) if ending != ".qrels" else stem)
        named = [SPLITS[word] for word in words if word in SPLITS]
        is_qrels = one.parent == within or ending in (".qrels", ".qrel") or not _JUDGED.isdisjoint(words)
        if ending not in _QRELS or not (is_qrels or stem in SPLITS):
            continue
        split = named[0] if named else WHOLE
        if split in found:
            raise InputError(f"{found[split]} and {one.name} are both {split} judgments; remove one of them")
        found[split] = one
    whole = found.pop(WHOLE, None) if len(found) > 1 else None
    return found, (whole,) if whole else ()
