"""A folder of a collection's files: which of them is what, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rerank.errors import InputError
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
"""How files of judgments are called -> what they are for."""
WHOLE = "all"
"""What judgments are for whose file does not say."""

_CORPORA = ("corpus.jsonl", "documents.jsonl", "docs.jsonl")
_QUERIES = ("queries.jsonl", "topics.jsonl")
_GRAPHS = ("categories.tsv", "categories.txt")
_QRELS = (".tsv", ".txt", ".csv", ".qrels", ".qrel", "")
_JUDGED = {"qrels", "qrel", "judgments"}
_ARTICLES = (".xml", ".nxml")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_WANTED = "name one with corpus.jsonl, queries.jsonl, and qrels/train.tsv, dev.tsv, test.tsv or some of them"


@dataclass(frozen=True)
class Folder:
    """Where a collection's documents, queries and judgments are.

    corpus: one file of JSON lines; with the format ``jats`` archives and folders of articles.
    qrels:  ``train``, ``dev``, ``test`` or ``all`` -> a file. aside: files of judgments that are not read.
    """

    path: Path
    corpus: tuple[Path, ...]
    format: Format
    queries: Path
    qrels: Mapping[str, Path]
    categories: Path | None = None
    aside: tuple[Path, ...] = field(default=())

    def files(self) -> list[Path]:
        """All files that are read, those of folders of articles included."""
        found = [*self.corpus, self.queries, *self.qrels.values()]
        found += [self.categories] if self.categories else []
        return [one for path in found for one in (_articles(path) if path.is_dir() else [path])]


def read_folder(path: Path) -> Folder:
    """Tell the files of a folder. Any may be gzip'd, and judgments lie in ``qrels/`` or beside the others.

    Raises InputError where something is missing, or two files could be meant.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("corpus.jsonl.gz", "queries.jsonl", "qrels.dev.tsv"):
    ...     (folder / name).touch()
    >>> found = read_folder(folder)
    >>> found.corpus[0].name, {split: file.name for split, file in found.qrels.items()}
    ('corpus.jsonl.gz', {'dev': 'qrels.dev.tsv'})
    """
    if not path.is_dir():
        what = "a file, and no folder" if path.exists() else "there is no such folder"
        raise InputError(f"{path}: {what}; {_WANTED}")
    files = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
    corpus, format = _corpus(path, files)
    queries = _named(files, _QUERIES)
    qrels, aside = _judgments(path, files)
    lacking = [
        name
        for name, there in (("no corpus.jsonl", corpus), ("no queries.jsonl", queries), ("no qrels", qrels))
        if not there
    ]
    if lacking:
        missing = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if len(lacking) > 1 else lacking)
        there = f"; this one has {join_names([one.name for one in files])}" if files else ""
        raise InputError(f"{path}: there is {missing}; {_WANTED}{there}")
    assert queries is not None
    return Folder(path, corpus, format, queries, qrels, _named(files, _GRAPHS), aside)


def _plain(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")


def _named(files: Iterable[Path], names: tuple[str, ...]) -> Path | None:
    """The one file of these names."""
    found = [one for one in files if _plain(one) in names]
    if len(found) > 1:
        raise InputError(f"{found[0]} and {found[1].name} are the same thing twice; leave one of them")
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
    """The articles of a folder; its other files, a workspace's too, do not count."""
    return sorted(one for one in path.rglob("*") if _plain(one).endswith(_ARTICLES))


def _judgments(path: Path, files: Iterable[Path]) -> tuple[dict[str, Path], tuple[Path, ...]]:
    """Files of judgments by what they are for, and those that are not read."""
    within = path / "qrels"
    inside = sorted(one for one in within.iterdir() if one.is_file()) if within.is_dir() else []
    found: dict[str, Path] = {}
    for one in [*(one for one in inside if not one.name.startswith(".")), *files]:
        stem, ending = Path(_plain(one)).stem, Path(_plain(one)).suffix
        words = re.split(r"[._-]+", _plain(one).removesuffix(ending) if ending != ".qrels" else stem)
        named = [SPLITS[word] for word in words if word in SPLITS]
        told = one.parent == within or ending in (".qrels", ".qrel") or not _JUDGED.isdisjoint(words)
        if ending not in _QRELS or not (told or stem in SPLITS):
            continue
        split = named[0] if named else WHOLE
        if split in found:
            raise InputError(
                f"{found[split]} and {one.name} could both be the {split} judgments; leave one of them"
            )
        found[split] = one
    whole = found.pop(WHOLE, None) if len(found) > 1 else None
    return found, (whole,) if whole else ()
