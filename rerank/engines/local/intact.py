"""Sums of the files that other libraries read or that are mapped as a whole: whoever opens them compares.

Features have sums of their own, by block, for they are as large as a collection makes them. These files are
read once when they are opened, so they are summed up only where that takes no time: up to ``MOST`` bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rerank.engines.local.files import being_written
from rerank.engines.local.store import Store, header_token
from rerank.engines.local.strings import end_of
from rerank.engines.local.tfidf import VOCABULARY, Manifest, snapshots
from rerank.errors import WorkspaceError
from rerank.files import check_name, parse_json, trouble, write_text
from rerank.vectors.sums import file_digest

SUMS = "sums.json"
MOST = 64_000_000
"""Bytes of all files together that are summed up: a hundredth of a second."""


def save(folder: Path, store: Store) -> None:
    """Sum up what is there. The caller holds the write lock, and nothing waits to be published."""
    found = dict(_files(folder, store))
    if sum(found.values()) > MOST:
        (folder / SUMS).unlink(missing_ok=True)
        return
    sums = {name: [length, file_digest(folder / name, length)] for name, length in found.items()}
    meta, segments = _meta(folder)
    about = {
        "token": header_token(folder / "documents.db"),
        "stamp": meta,
        "segments": segments,
        "files": sums,
    }
    write_text(folder / SUMS, json.dumps(about))


def check(engine: Path, folder: Path) -> None:
    """Raise WorkspaceError for a file that is not what was written."""
    wrong = _wrong(folder)
    for _ in range(2):  # a writer may be replacing what is read here
        if wrong is None or being_written(engine):
            return
        wrong = _wrong(folder)
    if wrong is None:
        return
    raise WorkspaceError(
        f"{folder / wrong}: damaged: not what was written; restore the file, or remove {engine} and ingest"
        " the collection again"
    )


def _wrong(folder: Path) -> str | None:
    try:
        about = parse_json((folder / SUMS).read_bytes())
        files: dict[str, list[Any]] = dict(about["files"])
        for name, (length, _) in files.items():
            check_name(name)
            if type(length) is not int or not 0 <= length < 2**63:
                return SUMS
        token, stamp, segments = about["token"], about["stamp"], about["segments"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return SUMS
    for name, (length, expected) in files.items():
        # Both change while their names stay; a kill may have come before they were summed up again.
        if name == "documents.db" and header_token(folder / "documents.db") != token:
            continue
        if name == "index/meta.json" and _meta(folder) != (stamp, segments):
            continue
        try:
            found = file_digest(folder / name, length)
        except FileNotFoundError:
            continue  # a later state does without it
        except ValueError:
            return name  # it is shorter
        except OSError as error:
            known = trouble(error, folder / name)
            if known is not None:
                raise known from error
            return name
        if found != expected:
            return name
    return None


def _files(folder: Path, store: Store) -> Iterator[tuple[str, int]]:
    """Name and valid length of the files that stay as they are until the next change."""
    state = store.state()
    log = folder / "documents.db-wal"
    if not log.exists() or not log.stat().st_size:
        yield "documents.db", (folder / "documents.db").stat().st_size
    yield from _strings("ids", folder, state.rows)
    for path in (folder / "index").iterdir():
        if not path.name.startswith(".") and path.is_file():
            yield f"index/{path.name}", path.stat().st_size
    numbers = snapshots(folder / "tfidf")
    if numbers:
        newest = folder / "tfidf" / str(numbers[-1])
        for path in newest.iterdir():
            yield path.relative_to(folder).as_posix(), path.stat().st_size
        known = Manifest.load(newest)
        yield from _strings(f"tfidf/{VOCABULARY}", folder, known.terms)
        for name, length in (
            ("terms", 4 * known.counts),
            ("times", 2 * known.counts),
            ("ends", 8 * known.rows),
        ):
            yield f"tfidf/counts.{name}", length


def _strings(name: str, folder: Path, length: int) -> Iterator[tuple[str, int]]:
    if length:
        yield f"{name}.ends", 8 * length
        yield f"{name}.utf8", end_of(folder / name, length)


def _meta(folder: Path) -> tuple[Any, Any]:
    """Number of tantivy's last commit and its segments; a merge changes these alone."""
    try:
        meta = parse_json((folder / "index" / "meta.json").read_bytes())
        return meta["opstamp"], sorted(one["segment_id"] for one in meta["segments"])
    except (OSError, ValueError, LookupError, TypeError):
        return None, None
