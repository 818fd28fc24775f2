"""Find the files of a collection by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from rerank.common.errors import InputError
from rerank.common.values import items_not_in, without_none
from rerank.documents.text import join_names

SPLITS = ("train", "dev", "test")
WHOLE = "all"
"""The split of the judgments ``qrels.tsv``."""

_SPLIT_FILES = {
    "train": ("qrels/train",),
    "dev": ("qrels/dev", "qrels/validation", "qrels/valid", "qrels/val"),
    "test": ("qrels/test",),
}
"""Split -> names of its file."""
_RECORD_ENDINGS = (".jsonl", ".json", ".csv", ".tsv")
_TABLE_ENDINGS = (".tsv", ".csv", ".txt", ".qrels")
_JUDGMENT_ENDINGS = (*_TABLE_ENDINGS, ".json")
_COMPRESSIONS = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
_CLICK_LOGS = ("ubi_*.ndjson", "clicks.csv")
_ADVICE = (
    "give a folder with corpus.jsonl, queries.jsonl, and qrels.tsv or one or more of qrels/train.tsv,"
    " qrels/dev.tsv, qrels/test.tsv; or with corpus.jsonl and a click log, ubi_*.ndjson or clicks.csv; or"
    " with corpus.jsonl and queries.jsonl, to judge the best hits by hand"
)


@dataclass(frozen=True)
class Folder:
    """Files of documents, queries and judgments.

    qrels: ``train``, ``dev``, ``test`` or ``all`` -> file; may be empty. clicks: the click log. queries: None
    only if a click log has the queries.
    """

    path: Path
    corpus: Path
    queries: Path | None
    qrels: Mapping[str, Path]
    categories: Path | None = None
    clicks: tuple[Path, ...] = ()

    def files(self) -> list[Path]:
        """Return all files that an auto run reads. Other files in the folder have no effect."""
        optional = filter(None, (self.queries, self.categories))
        return [self.corpus, *optional, *self.qrels.values(), *self.clicks]

    def unread_judgments(self) -> list[str]:
        """Return the tables that could be judgments but belong to no split, such as ``qrels/eval.tsv``.

        Other copies of a file that is read, for example compressed ones, are left out.
        """
        read_stems = {_stem(file) for file in self.files()}
        unread: list[str] = []
        for table in _find_tables(self.path):
            name = str(table.relative_to(self.path))
            if "qrels" in name and _stem(table) not in read_stems:
                unread.append(name)
        return sorted(unread)

    def __str__(self) -> str:
        return ", ".join(str(path.relative_to(self.path)) for path in self.files())


def read_folder(path: Path, *, has_clicks: bool = False) -> Folder:
    """Find the files of a folder, plain or compressed. ``qrels.tsv`` is read if ``qrels/`` is empty.

    The dev split can also be named validation, valid or val. Queries and judgments may be missing if there is
    a click log: in the folder, or elsewhere (``has_clicks``). Without a log, only judgments may be missing.

    Raises InputError for a missing file, for two files with the same meaning, and for a table with an unknown
    name that could be the missing judgments.
    """
    if not path.is_dir():
        problem = "not a folder" if path.exists() else "no such folder"
        raise InputError(f"{path}: {problem}; {_ADVICE}")
    corpus = _find_file(path, ("corpus",), _RECORD_ENDINGS)
    queries = _find_file(path, ("queries",), _RECORD_ENDINGS)
    categories = _find_file(path, ("categories",), (".tsv",))
    qrels = _find_judgments(path)
    clicks = _click_logs(path)
    has_log = bool(clicks) or has_clicks
    _check_required(path, corpus, queries, qrels, has_log=has_log)
    if not qrels and not has_log:
        _check_unknown_tables(path, categories)
    assert corpus is not None
    return Folder(path, corpus, queries, qrels, categories, clicks)


def _check_required(
    folder: Path, corpus: Path | None, queries: Path | None, qrels: Mapping[str, Path], *, has_log: bool
) -> None:
    """Raise InputError for a missing file. Only without judgments, a click log replaces the queries."""
    missing: list[str] = []
    if corpus is None:
        missing.append("corpus.jsonl")
    if queries is None and qrels:
        missing.append("queries.jsonl")
    elif queries is None and not has_log:
        missing += ["queries.jsonl", "qrels"]
    if missing:
        raise _missing_files(folder, missing)


def _missing_files(folder: Path, missing: Sequence[str]) -> InputError:
    """Return the error for a folder without these files. It lists the files that the folder has."""
    existing = sorted(file.name for file in folder.iterdir())
    content = f"; it has {join_names(existing)}" if existing else ""
    return InputError(f"{folder}: no {' and no '.join(missing)}; {_ADVICE}{content}")


def _find_judgments(folder: Path) -> dict[str, Path]:
    """Return split -> file, or ``all`` -> file if no split has a file."""
    files = {split: _find_file(folder, names, _JUDGMENT_ENDINGS) for split, names in _SPLIT_FILES.items()}
    all_judgments = {WHOLE: _find_file(folder, ("qrels",), _JUDGMENT_ENDINGS)}
    return without_none(files) or without_none(all_judgments)


def _check_unknown_tables(folder: Path, categories: Path | None) -> None:
    """Raise InputError if a folder without judgments has a table that could be judgments."""
    unknown: list[str] = []
    for file in items_not_in(_find_tables(folder), [categories]):
        if not file.name.startswith(("corpus.", "queries.")):
            unknown.append(str(file.relative_to(folder)))
    if unknown:
        names = join_names(sorted(unknown))
        raise InputError(
            f"{folder}: no qrels, but {names} could be judgments; name judgments qrels.tsv, and move other"
            " tables out of the folder"
        )


def _find_tables(folder: Path) -> set[Path]:
    """Return the files that end as judgments do, where judgments may be."""
    tables: set[Path] = set()
    for subfolder, ending, compression in product(("", "qrels/"), _TABLE_ENDINGS, _COMPRESSIONS):
        tables.update(folder.glob(f"{subfolder}*{ending}{compression}"))
    return tables


def _stem(file: Path) -> Path:
    """Return the path without endings: ``qrels/dev.tsv.gz`` is ``qrels/dev``."""
    return file.with_name(file.name.partition(".")[0])


def _click_logs(folder: Path) -> tuple[Path, ...]:
    """Return the files of a click log. A plain file is read instead of its compressed copies."""
    logs: dict[str, Path] = {}
    for compression, pattern in product(_COMPRESSIONS, _CLICK_LOGS):
        for file in folder.glob(f"{pattern}{compression}"):
            if file.is_file():
                logs.setdefault(file.name.removesuffix(compression), file)
    return tuple(sorted(logs.values()))


def _find_file(folder: Path, stems: Sequence[str], endings: Sequence[str]) -> Path | None:
    """Return the only file with one of these names, plain or compressed. Raises InputError for several."""
    names = map("".join, product(stems, endings))
    existing = list(filter(None, map(partial(_plain_or_compressed, folder), names)))
    if len(existing) > 1:
        file_names = join_names([file.name for file in existing])
        raise InputError(f"{existing[0].parent}: {file_names} have the same meaning; keep one of them")
    return next(iter(existing), None)


def _plain_or_compressed(folder: Path, name: str) -> Path | None:
    """Return the file of this name, else its first compressed copy, or None."""
    files = (folder / f"{name}{compression}" for compression in _COMPRESSIONS)
    return next(filter(Path.is_file, files), None)
