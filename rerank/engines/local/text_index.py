"""The tantivy index: BM25 (k1 = 1.2, b = 0.75) over one field."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import tantivy
from numpy.typing import NDArray
from tantivy import Occur, TextAnalyzerBuilder, Tokenizer

from rerank.common.errors import WorkspaceError
from rerank.common.files import check_relative_path, parse_json
from rerank.documents.filters import FIELD, KINDS, Filter, Span, every, terms_of
from rerank.documents.records import Document
from rerank.documents.text import Terms, analyzer

_HEAP = 64_000_000  # bytes that tantivy collects before it writes a segment
_THREADS = 1  # more threads make more, slower segments
_MAX_ROW_CLAUSES = 1000  # a query for more rows is faster with a set of terms
_SCORE = itemgetter(0)
_ADDRESS = itemgetter(1)


class Batch(NamedTuple):
    """n documents to index. terms: of the content of each one, as :class:`TextIndex` analyzes it."""

    rows: Sequence[int]
    documents: Sequence[Document]
    terms: Sequence[Sequence[str]]


class TextIndex:
    """The index in a folder. It is opened for reading by :meth:`searcher`, and for each :meth:`write`."""

    def __init__(self, folder: Path, lang: str | None) -> None:
        self._folder = folder
        self._lang = lang
        self.analyze = Terms(lang)
        self._index: tantivy.Index
        self._schema: tantivy.Schema

    def _open(self, folder: Path) -> tantivy.Index:
        managed = folder / ".managed.json"
        for name in parse_json(managed.read_bytes()) if managed.exists() else ():
            # Tantivy removes listed files that it does not need, in any folder.
            check_relative_path(str(name))
        with _panics():
            index = tantivy.Index.open(str(folder))
        index.register_tokenizer("content", analyzer(self._lang))
        index.config_reader("manual")
        return index

    def _open_links(self) -> tuple[tantivy.Index, tantivy.Searcher]:
        """Open through links, for users without write permission."""
        with TemporaryDirectory(prefix="rerank-index-", ignore_cleanup_errors=True) as links:
            for path in self._folder.iterdir():
                if path.name == "meta.json":
                    (Path(links) / path.name).write_bytes(path.read_bytes())
                elif not path.name.startswith("."):
                    (Path(links) / path.name).symlink_to(path.absolute())
            index = self._open(Path(links))
            with _panics():
                index.reload()
                return index, index.searcher()  # keeps the files open

    @staticmethod
    def create(folder: Path) -> None:
        """Create an index without documents in a new folder."""
        builder = tantivy.SchemaBuilder().add_unsigned_field("row", indexed=True, fast=True)
        builder.add_text_field("content", tokenizer_name="content", index_option="freq")
        builder.add_text_field(FIELD, tokenizer_name="raw", index_option="basic")
        folder.mkdir()
        tantivy.Index(builder.build(), str(folder))

    def create_again(self) -> None:
        """Remove the index, and create it without documents.

        Threads of tantivy can still write into the folder, so it is renamed before its files are removed.
        """
        removed = self._folder.with_name(f".{self._folder.name}.{secrets.token_hex(6)}.tmp")
        with suppress(FileNotFoundError):
            self._folder.rename(removed)
        self.create(self._folder)
        shutil.rmtree(removed, ignore_errors=True)

    def stamp(self) -> int | None:
        """Return the number of the last commit; None if the index is missing or not complete."""
        try:
            return int(parse_json((self._folder / "meta.json").read_bytes())["opstamp"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None

    def searcher(self, stamp: int) -> tantivy.Searcher | None:
        """Open the index and return a searcher; None: not the last commit."""
        if self.stamp() != stamp:
            return None
        # To read a folder, tantivy locks a file in it.
        locks = (self._folder, *self._folder.glob(".tantivy*.lock"))
        if all(os.access(path, os.W_OK) for path in locks):
            index = self._open(self._folder)
            with _panics():
                index.reload()
                searcher = index.searcher()
        else:
            index, searcher = self._open_links()
        self._index = index
        self._schema = index.schema
        # Stamps only increase, so the reload read this commit.
        return searcher if self.stamp() == stamp else None

    def check(self, searcher: tantivy.Searcher) -> None:
        """Raise WorkspaceError if a field cannot be searched: tantivy opens its files at the first search."""
        for name in ("content", FIELD):
            query = tantivy.Query.term_query(self._schema, name, "a")
            with _panics():
                searcher.search(query, limit=1)

    def all_rows(self, stamp: int) -> NDArray[np.int64] | None:
        """Return the rows of all documents, ascending; None: not the last commit."""
        searcher = self.searcher(stamp)
        return None if searcher is None else np.sort(self.rows(searcher, tantivy.Query.all_query()))

    def share(self, like: Path) -> None:
        """Give tantivy's lists the same rights as another file, so that the same users can read them."""
        mode = like.stat().st_mode & 0o777
        for name in ("meta.json", ".managed.json"):
            path = self._folder / name
            if path.stat().st_mode & 0o777 != mode:
                path.chmod(mode)

    def write(self, batches: Iterable[Batch], dead: Sequence[int]) -> int:
        """Index documents in their rows, remove dead rows, and commit; return the commit's number.

        Requires the write lock. An error discards the changes.
        """
        index = self._open(self._folder)
        # Tantivy splits the terms, instead of stemming all words a second time.
        index.register_tokenizer("content", TextAnalyzerBuilder(Tokenizer.whitespace()).build())
        with _io():
            writer = index.writer(_HEAP, _THREADS)
        try:
            for batch in batches:
                with _io():
                    for row, document, terms in zip(*batch):
                        writer.add_document(_fields(row, document, terms))
            with _io():
                for i in range(0, len(dead), 1000):
                    # delete_documents_by_term reads numbers as signed and finds nothing.
                    rows = tantivy.Query.term_set_query(index.schema, "row", dead[i : i + 1000])
                    writer.delete_documents_by_query(rows)
                stamp: int = writer.commit()
        except BaseException:
            with suppress(ValueError):  # stopped by a full disk, so nothing was committed
                writer.rollback()
            with suppress(ValueError):
                writer.wait_merging_threads()
            with suppress(ValueError):
                writer = index.writer(_HEAP, 1)  # the old one may have failed
                writer.garbage_collect_files()
                writer.wait_merging_threads()
            raise
        with suppress(ValueError):  # a failed merge loses nothing
            writer.wait_merging_threads()
        return stamp

    def filter(self, searcher: tantivy.Searcher, filters: Sequence[Filter]) -> tantivy.Query:
        """Return the query for the documents that meet all filters. It does not change scores.

        Raises UsageError for a filter that does not fit the values of its field.
        """
        clauses = []
        for condition in filters:
            with _panics():
                spans = {kind: self._span(every(condition.field, kind)) for kind in KINDS}
                kinds = [kind for kind, span in spans.items() if searcher.search(span, limit=1).hits]
            condition.check("".join(kinds))
            alternatives = [(Occur.Should, self._term(term)) for term in condition.terms()]
            clauses.append((Occur.Must, tantivy.Query.boolean_query(alternatives)))
        return tantivy.Query.const_score_query(tantivy.Query.boolean_query(clauses), 0.0)

    def _term(self, term: str | Span) -> tantivy.Query:
        if isinstance(term, Span):
            return self._span(term)
        return tantivy.Query.term_query(self._schema, FIELD, term, index_option="basic")

    def _span(self, span: Span) -> tantivy.Query:
        # Only the parser makes ranges of text; the ends of a span are letters and digits.
        return self._index.parse_query(f"{FIELD}:[{span.low} TO {span.high}}}")

    def rows(self, searcher: tantivy.Searcher, query: tantivy.Query) -> NDArray[np.int64]:
        """Return the rows of all documents that match a query, in no order."""
        with _panics():
            return _rows(searcher, searcher.search(query, limit=max(searcher.num_docs, 1), count=False).hits)

    def query(self, text: str) -> tantivy.Query | None:
        """Return the OR of the terms of a text, weighted by count; None without terms."""
        clauses = []
        for term, count in Counter(self.analyze(text)).items():
            query = tantivy.Query.term_query(self._schema, "content", term, index_option="freq")
            clauses.append((Occur.Should, tantivy.Query.boost_query(query, count) if count > 1 else query))
        return tantivy.Query.boolean_query(clauses) if clauses else None

    def top(
        self,
        searcher: tantivy.Searcher,
        query: tantivy.Query | None,
        depth: int,
        among: tantivy.Query | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return rows and scores of the ``depth`` best documents and all ties, and a few others.

        query: of :meth:`query`.
        among: restricts the documents, and scores 0.
        """
        documents = searcher.num_docs
        if query is None or documents == 0:
            return np.empty(0, np.int64), np.empty(0, np.float64)
        if among is not None:
            # One clause for all terms, so the float32 sum is the same.
            query = tantivy.Query.boolean_query([(Occur.Must, among), (Occur.Must, query)])
        # A tie at the cut costs a second search.
        limit = min(depth + 1 + min(depth // 8, 32), documents)
        while True:
            with _panics():
                hits = searcher.search(query, limit=limit, count=False).hits
            if len(hits) < limit or limit == documents or hits[-1][0] < hits[depth - 1][0]:
                break
            limit = min(4 * limit, documents)
        return _rows(searcher, hits), np.fromiter(map(_SCORE, hits), np.float64, len(hits))

    def scores(
        self, searcher: tantivy.Searcher, query: tantivy.Query | None, rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the (n,) scores of distinct rows, as :meth:`top` computes them; 0: no shared term."""
        scores = np.zeros(len(rows), np.float64)
        if not len(rows):
            return scores
        order = np.argsort(rows)
        among = tantivy.Query.const_score_query(self._any_of(rows.tolist()), 0.0)
        matches, scores_of_matches = self.top(searcher, query, len(rows), among)
        scores[order[np.searchsorted(rows[order], matches)]] = scores_of_matches
        return scores

    def _any_of(self, rows: Sequence[int]) -> tantivy.Query:
        """Return the query for some rows. A set of terms has fixed costs: 0.7 ms with 60,000 documents."""
        if len(rows) > _MAX_ROW_CLAUSES:
            return tantivy.Query.term_set_query(self._schema, "row", rows)
        clauses = []
        for row in rows:
            query = tantivy.Query.term_query(self._schema, "row", row, index_option="basic")
            clauses.append((Occur.Should, query))
        return tantivy.Query.boolean_query(clauses)


def _fields(row: int, document: Document, terms: Sequence[str]) -> tantivy.Document:
    """Return the fields of a document. terms: of its content."""
    fields = tantivy.Document()
    fields.add_unsigned("row", row)
    fields.add_text("content", " ".join(terms))
    for term in terms_of(document):
        fields.add_text(FIELD, term)
    return fields


def _rows(searcher: tantivy.Searcher, hits: Sequence[tuple[float, tantivy.DocAddress]]) -> NDArray[np.int64]:
    rows = searcher.fast_field_values("row", list(map(_ADDRESS, hits)))
    return np.fromiter(rows, np.int64, len(hits))


@contextmanager
def _panics() -> Iterator[None]:
    """Turn tantivy's panics and errors of reading into one error."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException" and not isinstance(error, ValueError):
            raise
        raise WorkspaceError(
            f"the text index is damaged ({error}); remove its folder (engine/data-N/index) and run"
            " `rerank encode`, which builds it again from the documents"
        ) from error


@contextmanager
def _io() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        text = " ".join(str(error).split())
        number = next((n for n in (errno.ENOSPC, errno.EFBIG) if f"os error {n}" in text), errno.EIO)
        raise OSError(number, text) from error
