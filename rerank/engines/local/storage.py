"""Documents and derived files with one numbering of rows.

After an interruption, the next writer derives the missing files.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import numpy as np

from rerank.engines.file_features import FeatureFiles
from rerank.engines.local import tfidf
from rerank.engines.local.documents import Documents, Version
from rerank.engines.local.files import corruptions, disk, update_checksums
from rerank.engines.local.snapshot import Snapshot
from rerank.engines.local.text_index import TextIndex
from rerank.errors import RerankError, WorkspaceError
from rerank.records import Document

_TRIES = 20  # to read the files while a writer replaces them
_BATCH = 256  # documents indexed together


class Storage:
    """The folder ``data-N`` of an engine, open for reading."""

    def __init__(self, engine: Path, name: str, lang: str | None) -> None:
        self.folder, self.number = engine / name, int(name.partition("-")[2])
        # While this is locked, no process removes the folder.
        descriptor = os.open(self.folder, os.O_RDONLY)
        self.release = weakref.finalize(self, os.close, descriptor)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        self.documents = Documents(self.folder / "documents.db")
        self.index = TextIndex(self.folder / "index", lang)
        self.features = FeatureFiles(self.folder / "features")
        self._mutex = threading.Lock()
        self._snapshot: Snapshot | None = None

    @classmethod
    def create(cls, engine: Path, name: str, lang: str | None) -> Storage:
        """Create an empty folder."""
        folder = engine / name
        shutil.rmtree(folder, ignore_errors=True)
        for path in (folder, folder / "tfidf", folder / "features"):
            path.mkdir()
        Documents.create(folder / "documents.db")
        TextIndex.create(folder / "index")
        storage = cls(engine, name, lang)
        tfidf.TfIdfWriter(folder / "tfidf", None).write(0, np.empty(0, np.bool_))
        storage.index.share(folder / "documents.db")
        update_checksums(folder)
        return storage

    def close(self) -> None:
        """Close the database and release the folder."""
        self.documents.close()
        self.release()

    def newest(self) -> Version:
        """The newest version of the documents."""
        return self.documents.versions()[-1]

    def connection(self) -> closing[Documents]:
        """Open another connection to the database."""
        return closing(Documents(self.folder / "documents.db"))

    # -- deriving (the caller holds the write lock) ------------------------------------------------------

    def derive(self, documents: Documents) -> None:
        """Derive all files for the newest version."""
        with disk("indexing; the documents are stored, and the next command that writes here indexes them"):
            versions = documents.versions()
            if len(versions) == 1:
                return
            stamp = self.index.stamp()
            if stamp == versions[0].stamp:
                stamp = self._index(documents, *versions)
        with disk("finishing; all documents are stored and indexed"):
            documents.publish(versions[1], stamp)
            with suppress(sqlite3.Error):
                documents.checkpoint()
            tfidf.remove_versions(self.folder / "tfidf", versions[1].number)
            self.index.share(self.folder / "documents.db")
            update_checksums(self.folder)

    def _index(self, documents: Documents, before: Version, new: Version) -> int:
        folder, stream = self.folder / "tfidf", documents.documents(new, before.rows)
        counts = tfidf.TfIdfWriter(folder, tfidf.TfIdf(folder, before.number, before.documents))

        def counted() -> Iterator[tuple[Sequence[int], Sequence[Document]]]:
            while batch := list(islice(stream, _BATCH)):
                rows, some = zip(*batch)
                counts.add(rows, [self.index.analyze(document.content) for document in some])
                yield rows, some
            counts.write(new.number, documents.alive(new))

        return self.index.write(counted(), documents.died(new))

    # -- reading -----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the newest complete version."""
        with self._mutex:
            for _ in range(_TRIES):
                versions = self.documents.versions()
                old = self._snapshot
                if old is not None and old.version.number == versions[-1].number:
                    return old
                stamp = self.index.stamp()
                version = versions[0] if stamp == versions[0].stamp else versions[-1]
                if version.stamp not in (stamp, None):
                    continue  # a writer is publishing
                if old is not None and old.version.number == version.number:
                    return old
                with suppress(FileNotFoundError):  # a writer is removing the version
                    if (snapshot := self._open(version, stamp)) is not None:
                        self._snapshot = snapshot
                        return snapshot
            if self._snapshot is not None:
                return self._snapshot
            raise WorkspaceError(
                f"documents and text index in {self.folder.parent} are not of the same version; remove the"
                " folder and ingest the collection again"
            )

    def _open(self, version: Version, stamp: int) -> Snapshot | None:
        """Open a version; None if the text index has changed."""
        searcher = self.index.searcher(stamp)
        if searcher is None:
            return None
        index = tfidf.TfIdf(self.folder / "tfidf", version.number, version.documents)
        return Snapshot(self.number, version, self.documents, self.index, searcher, index, self.features)

    def corruptions(self) -> Iterator[tuple[Path, str]]:
        """Yield each corrupt file and its problem."""
        try:
            problem = self.documents.problem()
            if problem is not None:
                yield self.folder / "documents.db", problem
            yield from corruptions(self.folder)
            yield from self.features.corruptions()
        except (OSError, ValueError, LookupError, TypeError, sqlite3.Error, RerankError) as error:
            yield self.folder, str(error)


def remove_unused(engine: Path, kept: str) -> None:
    """Remove unused folders."""
    for folder in engine.glob("data-*"):
        if folder.name == kept or not re.fullmatch(r"data-\d{1,9}", folder.name):
            continue
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
