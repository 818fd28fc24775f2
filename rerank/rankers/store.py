"""Trained rankers of a workspace.

``NAME.json`` lists versions, newest first. A folder ``NAME-VERSION`` is complete before it is listed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, MsgspecError, Struct, json

from rerank.common.errors import NotTrainedError, RerankError, UsageError, WorkspaceError, did_you_mean
from rerank.common.files import as_system_error, folder_lock, parse_json, sync_folder, write_bytes, write_text
from rerank.common.values import items_at, items_in, items_not_in
from rerank.engines.base import FIRST_STAGES
from rerank.rankers.base import Ranker
from rerank.rankers.registry import families, load_ranker, trainable

VERSION = r"\w[\w.-]{0,99}"
"""Pattern of versions, which are also names of folders."""
LOCK_SECONDS = 60.0
"""Time to wait for another installation. It takes a moment, and a training would be lost."""

Value = TypeVar("Value")

_NEW = ".new"
"""Folder of the version that is being written."""

Needed = Callable[[], Mapping[str, Collection[str]] | None]
"""Returns ranker -> versions that stacks were tuned with; None if unknown: then all versions stay."""


class RankerVersion(Struct):
    """One entry of a ranker's list of versions.

    version: identifies the content of the ranker.
    family:  name of the family that can read it.
    variant: the kind of ranker within the family, for example ``text``.
    """

    version: Annotated[str, Meta(pattern=rf"\A{VERSION}\Z")]
    family: str
    variant: str


RankerVersions = Annotated[list[RankerVersion], Meta(min_length=1)]
"""Content of ``NAME.json``, the newest version first."""


class RankerStore:
    """The folder ``rankers`` of a workspace: installs, lists, loads and removes versions of rankers.

    needed: returns the older versions to keep, which stacks use.
    """

    def __init__(self, folder: Path, needed: Needed) -> None:
        self.folder = folder
        self._needed = needed

    def names(self) -> list[str]:
        """Return the names of all trained rankers, in alphabetical order."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def record(self, name: str, version: str | None = None) -> RankerVersion:
        """Return the entry of a version in the list of a ranker.

        version: Default: the newest.

        Raises NotTrainedError if the ranker is not trained or the version was removed, UsageError for a name
        that no family has.
        """
        records = self._records(name)
        if version is None:
            return records[0]
        for record in records:
            if record.version == version and (self.folder / f"{name}-{version}").is_dir():
                return record
        raise NotTrainedError(f"{name} {version} was removed from {self.folder.parent}; tune the stack again")

    def has(self, name: str, version: str) -> bool:
        """Return whether a version of a ranker is stored, so that :meth:`load` can read it."""
        try:
            self.record(name, version)
        except RerankError:
            return False
        return True

    def read(self, name: str, version: str | None, file: str) -> Any:
        """Return the JSON values in a file of a ranker, or None if it cannot be read.

        version: if it is not stored any longer, or None, the newest version is read.
        file:    name of the file in the folder of the version.
        """
        stored = version if version is not None and self.has(name, version) else None
        try:
            return self._read_version(name, stored, lambda folder: parse_json((folder / file).read_bytes()))
        except (OSError, ValueError):
            return None

    def versions(self, name: str) -> list[str]:
        """Return the versions of a ranker, newest first. Raises the errors of :meth:`record`."""
        return [record.version for record in self._records(name)]

    def _records(self, name: str) -> list[RankerVersion]:
        path = self.folder / f"{name}.json"
        try:
            return json.decode(path.read_bytes(), type=RankerVersions)
        except FileNotFoundError:
            raise self._not_trained(name) from None
        except (OSError, ValueError, MsgspecError, RecursionError) as error:
            damaged = WorkspaceError(f"{path}: damaged ({error}); train {name} again")
            raise as_system_error(error, path) or damaged from error

    def _not_trained(self, name: str) -> NotTrainedError | UsageError:
        signals = (*FIRST_STAGES, *self.names())
        family = trainable().get(name)
        if family is None:
            rankers = chain.from_iterable(group.rankers for group in families().values())
            names = [*signals, *rankers]
            question = did_you_mean(name, names)
            return UsageError(
                f"signal {name!r} is unknown; this workspace has {', '.join(signals)}{question}"
            )
        files = " --queries QUERIES --qrels QRELS" if family.learns_from[0] == "judgments" else ""
        return NotTrainedError(
            f"signal {name!r} is not trained in {self.folder.parent} (there are {', '.join(signals)});"
            f" train it with `rerank train {name}{files}`"
        )

    def load(self, name: str, version: str | None = None) -> Ranker:
        """Load a version of a ranker.

        version: Default: the newest.

        Raises WorkspaceError if it is damaged, and the errors of :meth:`record`.
        """
        return self._read_version(name, version, load_ranker)

    def _read_version(self, name: str, version: str | None, read: Callable[[Path], Value]) -> Value:
        """Return what ``read`` returns for the folder of a version.

        An installation can remove the folder while it is read, but it first replaces the list of versions.
        Then the new list is used.
        """
        while True:
            identity = self._identity_of_list(name)
            record = self.record(name, version)
            try:
                return read(self.folder / f"{name}-{record.version}")
            except (WorkspaceError, OSError, ValueError):
                if self._identity_of_list(name) == identity:
                    raise

    def _identity_of_list(self, name: str) -> tuple[int, int] | None:
        """Return values that change if the list of versions is replaced; None: there is no list."""
        try:
            status = (self.folder / f"{name}.json").stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    @contextmanager
    def exclusive_lock(self) -> Iterator[None]:
        """Keep the installations and removals of other processes out of the folder, during a block."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.folder, f"installing a ranker in {self.folder}", patience=LOCK_SECONDS):
            yield

    def install(self, ranker: Ranker, extra: Mapping[str, str] | None = None) -> None:
        """Install a ranker as the newest version, and remove the older versions that are not needed.

        A process that is killed leaves the old or the new list, never a version that is incomplete.

        extra: name -> text of further files in the folder of the version.

        Raises UsageError if another ranker's version has the same folder.
        """
        new = self.folder / _NEW
        name = ranker.name
        with self.exclusive_lock():
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            try:
                listed = self._listed()
                needed = self._needed()
                record = self._write(ranker, extra or {}, new, listed)
                entries = {entry.version: entry for entry in listed.get(name, ())}
                older = items_not_in(entries, [record.version])
                if needed is not None:
                    older = items_in(older, needed.get(name, ()))
                versions = [record, *items_at(entries, older)]
                write_bytes(self.folder / f"{name}.json", json.encode(versions) + b"\n")
                self._sweep()
            finally:
                shutil.rmtree(new, ignore_errors=True)

    def remove(self, name: str, version: str | None = None) -> list[str]:
        """Remove a version of a ranker, or all of its versions. Return the removed ones.

        Raises the errors of :meth:`record`.
        """
        with self.exclusive_lock():
            removed = self.versions(name) if version is None else [self.record(name, version).version]
            remaining = [record for record in self._records(name) if record.version not in removed]
            file = self.folder / f"{name}.json"
            if remaining:
                write_bytes(file, json.encode(remaining) + b"\n")
            else:
                file.unlink()
            for old in removed:
                shutil.rmtree(self.folder / f"{name}-{old}", ignore_errors=True)
        return removed

    def _write(
        self, ranker: Ranker, extra: Mapping[str, str], new: Path, listed: Mapping[str, list[RankerVersion]]
    ) -> RankerVersion:
        """Write a version and return its entry for the list. An existing readable version is kept."""
        final = self.folder / f"{ranker.name}-{ranker.version}"
        _check_folder_is_free(final, ranker.name, listed)
        ranker.save(new / "ranker")
        for file, text in extra.items():
            write_text(new / "ranker" / file, text)
        for path in (new / "ranker").rglob("*"):
            sync_folder(path)
        record = RankerVersion(ranker.version, ranker.family, ranker.variant or ranker.name)
        if final.exists():
            with suppress(WorkspaceError):
                load_ranker(final)
                return record
            final.rename(new / "damaged")
        (new / "ranker").rename(final)
        sync_folder(self.folder)
        return record

    def _listed(self) -> dict[str, list[RankerVersion]]:
        """Name -> versions, without damaged lists."""
        listed: dict[str, list[RankerVersion]] = {}
        for name in self.names():
            with suppress(RerankError):
                listed[name] = self._records(name)
        return listed

    def _sweep(self) -> None:
        """Remove unlisted versions of listed rankers, and temporary lists.

        A ranker whose list is lost or damaged keeps all its folders.
        """
        listed = self._listed()
        complete = {f"{name}-{record.version}" for name, records in listed.items() for record in records}
        for path in self.folder.iterdir():
            if re.fullmatch(r"\.[\w.-]+\.[0-9a-f]{12}\.tmp", path.name):
                path.unlink(missing_ok=True)
            elif path.name not in complete and _ranker_in(path) in listed:
                path.rename(self.folder / _NEW / path.name)  # removed with it, also after a kill


def _ranker_in(folder: Path) -> str | None:
    """Return the name of the ranker that is stored in a folder; None: another folder."""
    try:
        return str(parse_json((folder / "ranker.json").read_bytes())["name"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _check_folder_is_free(folder: Path, name: str, listed: Mapping[str, list[RankerVersion]]) -> None:
    """Raise UsageError if a folder has a version of another ranker, such as ``a-b`` 1 and ``a`` b-1."""
    for other_name, records in listed.items():
        folders = [f"{other_name}-{record.version}" for record in records]
        if other_name != name and folder.name in folders:
            raise UsageError(f"{folder} holds {other_name}; choose another name or version for the ranker")
