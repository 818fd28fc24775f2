"""Documents and derived files with one numbering of rows.

SQLite holds all documents. Every writer first builds the text index and the tf-idf vectors again if they are
missing, damaged or of another version, for example after an interruption or in a copy.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from rerank.common.batches import batched
from rerank.common.errors import WorkspaceError
from rerank.common.files import as_system_error, sync_folder
from rerank.engines.file_features import FeatureFiles
from rerank.engines.local import tfidf
from rerank.engines.local.documents import Documents, Version
from rerank.engines.local.files import disk, unreadable
from rerank.engines.local.snapshot import Snapshot
from rerank.engines.local.text_index import Batch, TextIndex

_TRIES = 20  # to read the files while a writer replaces them
_BATCH = 256  # documents indexed together
_BUILD_AGAIN = "run `rerank encode`, which builds it again from the documents"
RESTORE = "restore it from a backup, or remove the folder and ingest the collection again"


class Storage:
    """The folder ``data-N`` of an engine, open for reading."""

    def __init__(self, engine: Path, name: str, lang: str | None) -> None:
        self.folder = engine / name
        self.number = int(name.partition("-")[2])
        # While this is locked, no process removes the folder.
        descriptor = os.open(self.folder, os.O_RDONLY)
        self.release = weakref.finalize(self, os.close, descriptor)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        self._path = self.folder / "documents.db"
        self.documents = Documents(self._path)
        self.index = TextIndex(self.folder / "index", lang)
        self.features = FeatureFiles(self.folder / "features")
        self._mutex = threading.Lock()
        self._snapshot: Snapshot | None = None

    @classmethod
    def create(cls, engine: Path, name: str, lang: str | None) -> Storage:
        """Create a folder without documents, and open it.

        engine: folder of the engine. name: ``data-N``. lang: language of the documents.
        """
        folder = engine / name
        shutil.rmtree(folder, ignore_errors=True)
        for path in (folder, folder / "tfidf", folder / "features"):
            path.mkdir()
        Documents.create(folder / "documents.db")
        TextIndex.create(folder / "index")
        storage = cls(engine, name, lang)
        tfidf.TfIdfWriter(folder / "tfidf", None).write(0, np.empty(0, np.bool_))
        storage.index.share(storage._path)
        return storage

    def close(self) -> None:
        """Close the database, and allow other processes to remove the folder."""
        self.documents.close()
        self.release()

    def newest(self) -> Version:
        """Return the newest version of the documents, which may not be indexed yet."""
        return self.documents.versions()[-1]

    def connection(self, *, writes: bool = False) -> closing[Documents]:
        """Return a context with another connection to the database.

        writes: whether it writes; see :class:`Documents`.
        """
        return closing(Documents(self._path, writes=writes))

    # -- deriving (the caller holds the write lock) ------------------------------------------------------

    def derive(self, documents: Documents) -> None:
        """Derive all files for the newest version, from usable files of the version before."""
        with disk("indexing; the documents are stored, and the next command that writes here indexes them"):
            before, *unfinished = documents.versions()
            newest = unfinished[0] if unfinished else before
            stamp: int | None
            if self._is_usable(before, before.stamp):
                if not unfinished:
                    return
                stamp = self._index(documents, newest, before)
            else:
                committed = self.index.stamp() if unfinished and self._is_committed(newest) else None
                stamp = self._index(documents, newest, None) if committed is None else committed
            sync_folder(self.folder / "index")
        with disk("finishing; all documents are stored and indexed"):
            documents.publish(newest, stamp)
            with suppress(sqlite3.Error):
                documents.checkpoint()
            tfidf.remove_versions(self.folder / "tfidf", newest.number)
            self.index.share(self._path)

    def _is_usable(self, version: Version, stamp: int | None) -> bool:
        """Whether text index and tf-idf vectors can be opened and are of this version."""
        try:
            return stamp is not None and self._open(version, stamp) is not None
        except (OSError, ValueError, WorkspaceError) as error:
            problem = unreadable(self.folder, error, _BUILD_AGAIN)
            if isinstance(error, OSError) and as_system_error(
                error, self.folder
            ):  # building again is no help
                raise problem from error
            return False

    def _is_committed(self, version: Version) -> bool:
        """Whether the text index was committed for a version that was not published.

        Row numbers are never used again, so equal rows mean equal documents.
        """
        stamp = self.index.stamp()
        if stamp is None or not self._is_usable(version, stamp):
            return False
        rows = self.index.all_rows(stamp)
        return rows is not None and np.array_equal(rows, np.flatnonzero(self.documents.alive(version)))

    def _index(self, documents: Documents, new: Version, before: Version | None) -> int:
        """Index a version: what changed since ``before``, or all documents. Return the commit's number."""
        folder = self.folder / "tfidf"
        if before is None:
            problem = documents.problem()
            if problem is not None:
                raise unreadable(self._path, ValueError(problem), RESTORE)
            folder.mkdir(exist_ok=True)
            self.index.create_again()
        vectors = before and tfidf.TfIdf(folder, before.number, before.documents)
        counts = tfidf.TfIdfWriter(folder, vectors)
        stream = documents.documents(new, before.rows if before else 0)

        def counted() -> Iterator[Batch]:
            for batch in batched(stream, _BATCH):
                rows, texts = zip(*batch)
                terms = [self.index.analyze(document.content) for document in texts]
                counts.add(rows, terms)
                yield Batch(rows, texts, terms)
            counts.write(new.number, documents.alive(new))

        return self.index.write(counted(), documents.died(new) if before else [])

    # -- reading -----------------------------------------------------------------------------------------

    def version(self) -> Version:
        """Return the newest complete version; it can be read although its index is damaged."""
        before, *unfinished = self.documents.versions()
        if not unfinished or self.index.stamp() in (before.stamp, None):
            return before
        return unfinished[0]

    def snapshot(self) -> Snapshot:
        """Return the newest complete version. Raises WorkspaceError if its derived files are not usable."""
        problem: Exception = ValueError("the text index is not of the version of the documents")
        with self._mutex:
            for _ in range(_TRIES):
                versions = self.documents.versions()
                old = self._snapshot
                if old is not None and old.version in versions:
                    return old
                published = self._find_published(*versions)
                if published is None:
                    continue
                try:
                    snapshot = self._open(*published)
                except (OSError, ValueError, WorkspaceError) as error:
                    problem = error  # a writer may be removing the version
                    continue
                if snapshot is not None:
                    self._snapshot = snapshot
                    return snapshot
            if self._snapshot is not None:
                return self._snapshot
            raise unreadable(self.folder, problem, _BUILD_AGAIN) from problem

    def _find_published(self, before: Version, *unfinished: Version) -> tuple[Version, int] | None:
        """Return the newest version with a text index, and the stamp of this index.

        None: a writer is publishing a version at this moment.
        """
        stamp = self.index.stamp()
        version = before
        has_new_index = stamp != before.stamp
        if unfinished and has_new_index and self._is_committed(unfinished[0]):
            version = unfinished[0]
        is_of_other_index = version.stamp not in (stamp, None)
        if stamp is None or is_of_other_index:
            return None
        return version, stamp

    def _open(self, version: Version, stamp: int) -> Snapshot | None:
        """Open a version; None if the text index has changed."""
        searcher = self.index.searcher(stamp)
        if searcher is None:
            return None
        self.index.check(searcher)
        vectors = tfidf.TfIdf(self.folder / "tfidf", version.number, version.documents)
        return Snapshot(self.number, version, self.documents, self.index, searcher, vectors, self.features)


def remove_unused(engine: Path, current: str) -> None:
    """Remove the folders of data that no process uses. current: name of the folder in use."""
    for folder in engine.glob("data-*"):
        if folder.name == current or not re.fullmatch(r"data-\d{1,9}", folder.name):
            continue
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
