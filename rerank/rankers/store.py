"""The rankers of a workspace: which version of each is the newest, and which older ones stacks still need.

``NAME.json`` states which version of a ranker is the newest, its family, and the size and CRC-32 of its
files. The folder ``NAME-VERSION`` holds it. A version is complete, and on the disk, before anything names it,
and the file that names it is replaced at once: readers find the old version or the new one. Older versions
stay as long as a stack was tuned with them; their records are in ``older``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rerank.errors import RerankError, UsageError, WorkspaceError
from rerank.files import check_name, file_crc, folder_lock, parse_json, sync_folder, trouble, write_text
from rerank.rankers.base import Ranker
from rerank.rankers.registry import load_ranker

Record = dict[str, Any]
"""What ``NAME.json`` says: ``version``, ``family``, ``variant``, and ``files``: name -> size and CRC-32."""

Needed = Callable[[], Mapping[str, Collection[str]] | None]
"""Gives ranker -> versions that stacks were tuned with; None where that cannot be told, and all stay."""

VERSION = r"\w[\w.-]{0,99}"
"""What a version can be called: folders are named so."""

_PATIENCE = 60.0  # seconds to wait for another installation, which takes a moment: a training is at stake
_TRIES = 100  # to load a ranker that others keep replacing


class RankerStore:
    """The folder ``rankers`` of a workspace.

    not_trained: gives the error for a ranker that there is not. needed: the older versions that stay.
    """

    def __init__(self, folder: Path, not_trained: Callable[[str], RerankError], needed: Needed) -> None:
        self.folder = folder
        self._not_trained, self._needed = not_trained, needed

    def names(self) -> list[str]:
        """Names of the rankers."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def record(self, name: str, version: str | None = None) -> Record:
        """What is said of a version; None: the newest. KeyError for one that is not here (any more)."""
        records = self._records(name)
        if version is None:
            return records[0]
        for record in records:
            if record["version"] == version and (self.folder / f"{name}-{version}").is_dir():
                return record
        raise KeyError(version)

    def versions(self, name: str) -> list[str]:
        """The versions that are here, the newest first."""
        return [one["version"] for one in self._records(name)]

    def _records(self, name: str) -> list[Record]:
        """What is said of all versions, the newest first."""
        path = self.folder / f"{name}.json"
        try:
            read = parse_json(path.read_text("utf-8"))
            return [_record(one) for one in (read, *read.get("older", ()))]
        except FileNotFoundError:
            raise self._not_trained(name) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise (
                trouble(error, path) or WorkspaceError(f"{path}: damaged ({error}); train {name} again")
            ) from error

    def load(self, name: str, version: str | None = None) -> Ranker:
        """Load a version; None: the newest.

        Raises WorkspaceError where its files cannot be read, KeyError for a version that is not here.
        """
        for _ in range(_TRIES):
            before = self._stamp(name)
            record = self.record(name, version)
            try:
                return load_ranker(self.folder / f"{name}-{record['version']}")
            except WorkspaceError:
                if self._stamp(name) == before:
                    raise
        raise WorkspaceError(f"{self.folder / name}.json: keeps changing; try again when that is over")

    def _stamp(self, name: str) -> tuple[int, int] | None:
        """What is another one after every installation."""
        try:
            about = (self.folder / f"{name}.json").stat()
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns

    def verify(self) -> dict[str, str]:
        """Compare the files of all versions with their checksums; file -> what is wrong with it."""
        wrong = {}
        for name in self.names():
            try:
                records = self._records(name)
            except RerankError as error:
                wrong[str(self.folder / f"{name}.json")] = str(error)
                continue
            for record in records:
                folder = self.folder / f"{name}-{record['version']}"
                if record is not records[0] and not folder.is_dir():
                    continue  # no stack needs this older version
                wrong |= {str(folder / file): problem for file, problem in _changed(folder, record).items()}
        return wrong

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep others from installing meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.folder, f"installing a ranker in {self.folder}", patience=_PATIENCE):
            yield

    def version_folder(self, name: str, version: str | None = None) -> Path:
        """The folder of a version; None: of the newest. KeyError for one that is not here."""
        return self.folder / f"{name}-{self.record(name, version)['version']}"

    def install(self, ranker: Ranker, beside: Mapping[str, str] | None = None) -> Record:
        """Make a fitted ranker the newest, and drop the versions that nobody needs.

        beside: name -> text of further files that are kept with the version.
        """
        with self.changing():
            record = self.add(ranker, beside or {})
            before, needed = self._named().get(ranker.name, []), self._needed()
            older = [
                one
                for one in before
                if one["version"] != ranker.version
                and (needed is None or one["version"] in needed.get(ranker.name, ()))
            ]
            write_text(self.folder / f"{ranker.name}.json", json.dumps({**record, "older": older}) + "\n")
            self.sweep()
        return record

    def add(self, ranker: Ranker, beside: Mapping[str, str]) -> Record:
        """Write a version, without naming it; its record. The caller holds the lock."""
        final = self.folder / f"{ranker.name}-{ranker.version}"
        for name, records in self._named().items():
            if name != ranker.name and any(f"{name}-{one['version']}" == final.name for one in records):
                raise UsageError(f"{final} holds {name}; call the ranker, or its version, something else")
        record: Record = {
            "version": ranker.version,
            "family": ranker.family,
            "variant": ranker.variant or ranker.name,
        }
        fresh = self._unnamed(ranker.name)
        try:
            ranker.save(fresh)
            for name, text in beside.items():
                write_text(fresh / name, text)
            record["files"] = _checksums(fresh)
            if final.exists():
                if not record["files"] or not _changed(final, record):
                    return record
                # What is there cannot be loaded, so nobody misses it.
                final.rename(self._unnamed(ranker.name))
            fresh.rename(final)
            sync_folder(self.folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return record

    def _unnamed(self, name: str) -> Path:
        """A name for a folder that nobody asks for; :meth:`sweep` removes what has it."""
        return self.folder / f".{name[:100]}-{secrets.token_hex(6)}"

    def _named(self) -> dict[str, list[Record]]:
        """Name -> records of the versions that somebody may ask for, the newest first."""
        named, needed = {}, self._needed()
        for name in self.names():
            try:
                newest, *older = self._records(name)
            except RerankError:
                continue
            kept = [one for one in older if needed is None or one["version"] in needed.get(name, ())]
            named[name] = [newest, *kept]
        return named

    def sweep(self) -> None:
        """Remove the versions that nobody names, and what a kill has left. The caller holds the lock."""
        kept = {f"{name}-{one['version']}" for name, records in self._named().items() for one in records}
        damaged = set(self.names()) - set(self._named())
        for path in self.folder.iterdir():
            mine = any(path.name.startswith(f"{name}-") for name in damaged)  # which one cannot be told
            if path.name not in kept and not mine and (path / "ranker.json").is_file():
                path = path.rename(self._unnamed(path.name))  # half a version would be nobody's
            if re.fullmatch(r"\.[\w.-]+-[0-9a-f]{12}", path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif re.fullmatch(r"\.[\w.-]+\.[0-9a-f]{12}\.tmp", path.name):
                path.unlink(missing_ok=True)  # a record that was not yet in place


def _record(read: Mapping[str, Any]) -> Record:
    """A record as it was read; ValueError where it names what is not in its folder."""
    record: Record = {key: str(read[key]) for key in ("version", "family", "variant")}
    if not re.fullmatch(VERSION, record["version"]):
        raise ValueError(f"{record['version']!r} is no version")
    record["files"] = dict(read.get("files", {}))
    for name, (size, crc) in record["files"].items():
        check_name(name)
        if type(size) is not int or type(crc) is not int:
            raise ValueError(f"{name!r} has no checksum")
    return record


def _files(folder: Path) -> list[Path]:
    return sorted(Path(base) / name for base, _, names in os.walk(folder) for name in names)


def _checksums(folder: Path) -> dict[str, list[int]]:
    """File -> size and CRC-32 of all files in a folder, which are flushed to the disk."""
    found = {}
    for path in _files(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        size = path.stat().st_size
        found[path.relative_to(folder).as_posix()] = [size, file_crc(path, 0, size)]
    return found


def _changed(folder: Path, record: Record) -> dict[str, str]:
    """File -> what is wrong with it, for the files that are not what the record states."""
    wrong = {}
    for name, (size, expected) in record["files"].items():
        try:
            if (folder / name).stat().st_size != size or file_crc(folder / name, 0, size) != expected:
                wrong[str(name)] = "the checksum does not match"
        except (OSError, ValueError) as error:
            wrong[str(name)] = str(error)
    return wrong
