"""Find the files of a collection by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rerank.errors import InputError
from rerank.text import join_names

SPLITS = ("train", "dev", "test")
WHOLE = "all"
"""The split of the judgments ``qrels.tsv``."""

_SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
"""Split -> names of its file in ``qrels/``."""
_RECORD_ENDINGS = (".jsonl", ".json", ".csv", ".tsv")
_JUDGMENT_ENDINGS = (".tsv", ".csv", ".txt", ".qrels")
_COMPRESSIONS = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
_CLICK_LOGS = ("ubi_*.ndjson", "clicks.csv")
_ADVICE = (
    "give a folder with corpus.jsonl, queries.jsonl, and qrels.tsv or one or more of qrels/train.tsv,"
    " qrels/dev.tsv, qrels/test.tsv; or with corpus.jsonl and a click log, ubi_*.ndjson or clicks.csv"
)


@dataclass(frozen=True)
class Folder:
    """Files of documents, queries and judgments.

    qrels: ``train``, ``dev``, ``test`` or ``all`` -> file. clicks: the click log. queries: None only if a
    click log has the queries.
    """

    path: Path
    corpus: Path
    queries: Path | None
    qrels: Mapping[str, Path]
    categories: Path | None = None
    clicks: tuple[Path, ...] = ()

    def files(self) -> list[Path]:
        """Return all files that are read."""
        optional = [file for file in (self.queries, self.categories) if file]
        return [self.corpus, *optional, *self.qrels.values(), *self.clicks]

    def __str__(self) -> str:
        return ", ".join(str(path.relative_to(self.path)) for path in self.files())


def read_folder(path: Path, *, has_clicks: bool = False) -> Folder:
    """Find the files of a folder, plain or compressed. ``qrels.tsv`` is read if ``qrels/`` is empty.

    The dev split can also be named validation, valid or val. Queries and judgments may be missing if there is
    a click log: in the folder, or elsewhere (``has_clicks``).

    Raises InputError for a missing file, and for two files of one split.
    """
    if not path.is_dir():
        problem = "not a folder" if path.exists() else "no such folder"
        raise InputError(f"{path}: {problem}; {_ADVICE}")
    corpus = _find_file(path, ("corpus",), _RECORD_ENDINGS)
    queries = _find_file(path, ("queries",), _RECORD_ENDINGS)
    categories = _find_file(path, ("categories",), (".tsv",))
    qrels = {}
    for split, names in _SPLIT_NAMES.items():
        file = _find_file(path, [f"qrels/{name}" for name in names], _JUDGMENT_ENDINGS)
        if file is not None:
            qrels[split] = file
    whole = _find_file(path, ("qrels",), _JUDGMENT_ENDINGS)
    if not qrels and whole is not None:
        qrels = {WHOLE: whole}
    clicks = _click_logs(path)
    files: dict[str, object] = {"corpus.jsonl": corpus}
    if qrels or not (clicks or has_clicks):
        files |= {"queries.jsonl": queries, "qrels": qrels}
    if corpus is None or not all(files.values()):
        missing = [name for name, file in files.items() if not file]
        existing = sorted(file.name for file in path.iterdir())
        content = f"; it has {join_names(existing)}" if existing else ""
        raise InputError(f"{path}: no {' and no '.join(missing)}; {_ADVICE}{content}")
    return Folder(path, corpus, queries, qrels, categories, clicks)


def _click_logs(folder: Path) -> tuple[Path, ...]:
    """Return the files of a click log, plain or compressed."""
    patterns = [f"{name}{compression}" for name in _CLICK_LOGS for compression in _COMPRESSIONS]
    return tuple(sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file()))


def _find_file(folder: Path, stems: Sequence[str], endings: Sequence[str]) -> Path | None:
    """Return the only file with one of these names, plain or compressed. Raises InputError for several."""
    files = [
        folder / f"{stem}{ending}{compression}"
        for stem in stems
        for ending in endings
        for compression in _COMPRESSIONS
    ]
    existing = [file for file in files if file.is_file()]
    stems_found = {str(file).removesuffix("".join(file.suffixes)) for file in existing}
    if len(stems_found) > 1:
        names = join_names([file.name for file in existing])
        raise InputError(f"{existing[0].parent}: {names} have the same meaning; keep one of them")
    return existing[0] if existing else None
