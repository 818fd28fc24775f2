"""Find the files of a collection by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rerank.errors import InputError
from rerank.text import join_names

SPLITS = ("train", "dev", "test")
WHOLE = "all"
"""The split of the judgments ``qrels.tsv``."""

_NAMES = ("corpus.jsonl", "queries.jsonl", "categories.tsv", "qrels.tsv")
_WANTED = (
    "give a folder with corpus.jsonl, queries.jsonl, and qrels.tsv or one or more of qrels/train.tsv,"
    " qrels/dev.tsv, qrels/test.tsv"
)


@dataclass(frozen=True)
class Folder:
    """Files of documents, queries and judgments. qrels: ``train``, ``dev``, ``test`` or ``all`` -> file."""

    path: Path
    corpus: Path
    queries: Path
    qrels: Mapping[str, Path]
    categories: Path | None = None

    def files(self) -> list[Path]:
        """Return all files that are read."""
        graph = [self.categories] if self.categories else []
        return [self.corpus, self.queries, *graph, *self.qrels.values()]

    def __str__(self) -> str:
        return ", ".join(str(path.relative_to(self.path)) for path in self.files())


def read_folder(path: Path) -> Folder:
    """Find the files of a folder, plain or gzip. ``qrels.tsv`` is read if ``qrels/`` is empty.

    Raises InputError for a missing file.
    """
    if not path.is_dir():
        problem = "not a folder" if path.exists() else "no such folder"
        raise InputError(f"{path}: {problem}; {_WANTED}")
    found = {
        name: file
        for name in (*_NAMES, *(f"qrels/{split}.tsv" for split in SPLITS))
        for file in (path / f"{name}.gz", path / name)
        if file.is_file()
    }
    qrels = {split: found[name] for split in SPLITS if (name := f"qrels/{split}.tsv") in found}
    if not qrels and "qrels.tsv" in found:
        qrels = {WHOLE: found["qrels.tsv"]}
    missing = [name for name in ("corpus.jsonl", "queries.jsonl") if name not in found]
    missing += [] if qrels else ["qrels"]
    if missing:
        files = sorted(one.name for one in path.iterdir())
        others = f"; it has {join_names(files)}" if files else ""
        raise InputError(f"{path}: no {' and no '.join(missing)}; {_WANTED}{others}")
    return Folder(path, found["corpus.jsonl"], found["queries.jsonl"], qrels, found.get("categories.tsv"))
