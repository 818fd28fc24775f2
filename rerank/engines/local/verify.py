"""Compares the files of a local engine with the checksums that were stored when they were written.

Files that never change have a CRC-32 in a manifest: features and tf-idf in ours, the text index in tantivy's
own footers. Documents have one each in the database, which SQLite also checks itself.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rerank.engines.local import features, tfidf
from rerank.engines.local.data import Data, View
from rerank.errors import RerankError
from rerank.files import file_crc, parse_json

_MAGIC = 1337  # tantivy ends each file of its own with this number
_AT_ONCE = 10_000  # rows

Corruption = tuple[Path, str]
"""A file, and what is wrong with it."""


def corruptions(data: Data) -> Iterator[Corruption]:
    """Find the files that are not as they were written. The caller keeps others from writing."""
    for part in (_database, _ids, _text_index, _tfidf, _features):
        try:
            yield from part(data, data.view())
        except (OSError, ValueError, LookupError, TypeError, sqlite3.Error, RerankError) as error:
            yield data.folder, f"{error}"


def _database(data: Data, view: View) -> Iterator[Corruption]:
    path = data.folder / "documents.db"
    problem = data.store.problem()
    if problem is not None:
        yield path, problem


def _ids(data: Data, view: View) -> Iterator[Corruption]:
    """Compare the ids of all rows with the database."""
    for rows, ids in data.store.rows(_AT_ONCE):
        if view.ids.get(np.array(rows, np.int64)) != ids:
            yield data.folder / "ids.utf8", "the ids are not those of the documents"
            return


def _text_index(data: Data, view: View) -> Iterator[Corruption]:
    files: dict[Path, str] = {}
    footers: dict[str, Counter[str]] = {}  # segment -> the rest of the footers of its files: they are equal
    for path in sorted((data.folder / "index").iterdir()):
        if path.name.startswith(".") or path.suffix == ".json":
            continue
        body, crc, rest = _footer(path.read_bytes())
        if zlib.crc32(body) == crc:
            files[path] = rest
            footers.setdefault(path.stem, Counter())[rest] += 1
        else:
            yield path, "the checksum does not match"
    for path, rest in files.items():
        if rest != footers[path.stem].most_common(1)[0][0]:
            yield path, "its footer differs from the other files of the segment"


def _footer(content: bytes) -> tuple[bytes, int | None, str]:
    """Split a file of tantivy into its body, the CRC that its footer states, and the rest of the footer."""
    size = int.from_bytes(content[-8:-4], "little")
    if int.from_bytes(content[-4:], "little") != _MAGIC or size > len(content) - 8:
        return content, None, ""
    body, footer = content[: -8 - size], content[-8 - size : -8]
    try:
        stated = parse_json(footer)
        return body, int(stated.pop("crc")), str(stated)
    except (ValueError, LookupError, TypeError, AttributeError):
        return body, None, ""


def _tfidf(data: Data, view: View) -> Iterator[Corruption]:
    folder = data.folder / "tfidf"
    for number in tfidf.snapshots(folder)[-1:]:
        manifest = tfidf.Manifest.load(folder / str(number))
        for name, (size, expected) in manifest.files.items():
            yield from _compared(folder / name, size, expected)


def _features(data: Data, view: View) -> Iterator[Corruption]:
    for folder, manifest in data.features.manifests():
        size = manifest.rows * manifest.bytes_per_row()
        if size:
            yield from _compared(folder / features.MATRIX, size, manifest.crc)


def _compared(path: Path, size: int, expected: int) -> Iterator[Corruption]:
    try:
        if file_crc(path, 0, size) != expected:
            yield path, "the checksum does not match"
    except (OSError, ValueError) as error:
        yield path, str(error)
