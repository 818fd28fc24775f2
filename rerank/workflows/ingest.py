"""Ingest: files -> documents -> engine, and the features of the rankers that are already trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

from rerank.engines.base import Encoder, WriteResult
from rerank.errors import BusyError, InputError, NotTrainedError, UsageError, WorkspaceError
from rerank.formats import read_categories, read_corpus
from rerank.formats.lines import Source, name_of
from rerank.inputs import as_list
from rerank.progress import Progress
from rerank.rankers.base import Ranker
from rerank.records import Document
from rerank.references import CitationCounts
from rerank.results import Report
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import check_retrieves, learned
from rerank.text import language, language_or_none, plural
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

Format = Literal["jsonl", "jats"]

MOST_TEXTS = 1_000_000
"""Different texts among which equal ones are looked for."""
SAMPLE = 1000
"""Documents that are looked at to tell the collection's language."""


@dataclass
class IngestReport(Report):
    """What an ingest into ``workspace`` did. ``invalid`` lists skipped lines; ``encoded`` counts documents a
    ranker; ``citations`` what full texts cite, None where no document says. ``languages``: of the documents,
    where they are not of one ("": not said). ``same_text``: documents with the text of one before them.
    """

    workspace: Workspace
    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    unknown_deletes: tuple[str, ...] = ()
    documents: int = 0
    lang: str | None = None
    other_languages: dict[str, int] = field(default_factory=dict)
    languages: dict[str, int] = field(default_factory=dict)
    same_text: int = 0
    without_text: int = 0
    without_categories: int = 0
    category_edges: int = 0
    invalid: list[str] = field(default_factory=list)
    encoded: dict[str, int] = field(default_factory=dict)
    citations: CitationCounts | None = None


@dataclass
class EncodeReport(Report):
    """What an encoding did: ranker -> number of documents that it encoded.

    reused: stored features that were assigned again, because documents of an attached index were moved or
        written again with the same text; counted for each ranker.
    """

    encoded: dict[str, int]
    reused: int = 0


def ingest(
    workspace: Workspace | Source,
    sources: Source | Sequence[Source],
    *,
    format: Format = "jsonl",
    body: bool = False,
    categories: Source | None = None,
    delete: Sequence[str] = (),
    lang: str | None = None,
    skip_invalid: bool = False,
    replace: bool = False,
    encode_features: bool = True,
    opensearch: Settings | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Add or update the documents of files, in an open workspace or that in a folder, made if there is none.

    ``format``: ``jats`` reads articles as XML, archives and folders of them; needs the extra ``fulltext``.
    ``body``: their body is the document's text, and not the abstract.
    An invalid line raises InputError before anything is changed, unless ``skip_invalid``.
    ``lang``: language of the collection; by default that of nine in ten of its first documents.
    ``replace``: the documents that are not in ``sources`` go.
    ``opensearch``: where a new workspace keeps its documents, instead of in the folder.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "corpus.jsonl").write_text('{"_id": "wolf", "text": "a grey wolf", "lang": "en"}')
    >>> report = ingest(folder / "workspace", [folder / "corpus.jsonl"])
    >>> report.added, report.documents, report.lang
    (1, 1, 'en')
    """
    progress = progress or Progress()
    edges = read_categories(categories) if categories else None
    files = _Files(as_list(sources), format, body, skip_invalid)
    created = not Workspace.exists(workspace)
    if created:
        workspace, documents = _create(workspace, files, lang, opensearch, progress)
    else:
        workspace, documents = _open(workspace, lang, opensearch), files.documents()
    report = IngestReport(workspace, lang=workspace.lang)
    documents = files.check_some(_count(documents, workspace.lang, report), replace, progress)
    workspace.recreate_engine()
    encoders = _encoders(workspace, None, progress) if encode_features else []
    try:
        done = _write(workspace, files, documents, delete, replace, encoders, progress)
    except BaseException as error:
        if created and not isinstance(error, BusyError):  # else another process uses it now
            workspace.discard()
        raise
    if edges is not None:
        workspace.save_category_edges(edges)
        report.category_edges = len(edges)
    report.added, report.updated, report.deleted = done.added, done.updated, done.deleted
    report.unchanged, report.unknown_deletes = done.unchanged, done.unknown_deletes
    report.citations = files.counts if format == "jats" or files.counts.articles else None
    report.documents = len(workspace.engine)
    report.invalid = [str(error) for error in files.errors]
    report.invalid += [f"document {id!r}: {reason}" for id, reason in done.refused]
    if encode_features:
        workspace.forget_rankers()
        rest = encode(workspace, progress=progress).encoded
        report.encoded = {name: done.encoded + count for name, count in rest.items()}
    return report


@dataclass
class _Files:
    """The files of an ingest. errors: of the lines that were skipped. counts: of what full texts cite."""

    sources: Sequence[Source]
    format: Format
    body: bool
    skip_invalid: bool
    errors: list[InputError] = field(default_factory=list)
    counts: CitationCounts = field(default_factory=CitationCounts)

    @property
    def names(self) -> str:
        """The files, for messages."""
        return ", ".join(map(name_of, self.sources))

    def documents(self) -> Iterator[Document]:
        """Read all files."""
        skip, invalid, counts = self.skip_invalid, self.errors.append, self.counts
        seen: set[str] = set()
        for source in self.sources:
            if self.format == "jsonl":
                yield from read_corpus(source, skip_invalid=skip, invalid=invalid, counts=counts)
                continue
            if str(source) == "-":
                raise UsageError("articles in JATS are read from files and folders, not from standard input")
            from rerank.formats.jats import read_jats

            for article in read_jats(source, counts, skip_invalid=skip, invalid=invalid, seen=seen):
                yield article.document(body=self.body)

    def check_some(
        self, documents: Iterable[Document], replace: bool, progress: Progress
    ) -> Iterator[Document]:
        """Pass documents on; if there are none, say so, or raise InputError if they replace all others."""
        none = True
        for document in documents:
            none = False
            yield document
        if none and self.sources:
            if replace:
                raise InputError(
                    f"{self.names}: no documents, and all of the workspace would go; to empty it, remove it"
                )
            progress.say(f"{self.names}: no documents; {_LAYOUTS[self.format]}")


def _open(workspace: Workspace | Source, lang: str | None, opensearch: Settings | None) -> Workspace:
    """Open a workspace. Raises an error if its documents are elsewhere or have another language."""
    if not isinstance(workspace, Workspace):
        workspace = Workspace.open(workspace)
    if opensearch is not None:
        workspace.check_place("opensearch", opensearch.table())
    if lang is not None and language(lang) != workspace.lang:
        raise InputError(
            f"{workspace.folder}: indexed as {workspace.lang or 'mixed languages'}, which cannot become"
            f" {lang}; ingest into a new workspace"
        )
    return workspace


def _create(
    folder: Workspace | Source,
    files: _Files,
    lang: str | None,
    opensearch: Settings | None,
    progress: Progress,
) -> tuple[Workspace, Iterator[Document]]:
    """Make a workspace for the documents of files; returns both. Raises InputError if there are none."""
    if not files.sources:
        Workspace.open(folder)  # raises: there is nothing to delete from
    documents = files.documents()
    sample = list(progress.over(islice(documents, SAMPLE), "read", unit="doc"))
    if not sample:
        errors = files.errors
        skipped = f" ({plural(len(errors), 'record[|s]')} skipped, {errors[0]})" if errors else ""
        raise InputError(f"{files.names}: no documents{skipped}; {_LAYOUTS[files.format]}")
    where: dict[str, Any] = {}
    if opensearch is not None:
        where = {"engine": "opensearch", "settings": opensearch.table()}
    workspace = Workspace.create(folder, lang=lang or _language(sample), **where)
    return workspace, chain(sample, documents)


def _write(
    workspace: Workspace,
    files: _Files,
    documents: Iterable[Document],
    delete: Sequence[str],
    replace: bool,
    encoders: Sequence[Encoder],
    progress: Progress,
) -> WriteResult:
    """Write the documents; the progress shows how many the engine has sent."""
    sending = _Sending(progress)
    try:
        return workspace.engine.write(
            progress.over(documents, "ingest", unit="doc"),
            delete,
            encoders=encoders,
            replace=replace,
            skip_refused=files.skip_invalid,
            progress=sending.advance,
        )
    finally:
        sending.finish()


def encode(
    workspace: Workspace,
    names: Iterable[str | Ranker] | None = None,
    *,
    retrieve: Sequence[str] = (),
    part: tuple[int, int] = (0, 1),
    force: bool = False,
    progress: Progress | None = None,
) -> EncodeReport:
    """Compute the missing features of these rankers.

    None: of all that are trained, also in the older versions that stacks were tuned with.

    Of an attached index, features of a text that is no more are missing, too.

    retrieve: those of them that are to retrieve, too, which OpenSearch needs vectors in a field of their own
        for. A ranker that retrieves already goes on doing so without being named.
    part: ``(i, n)`` does the i-th of n parts of the documents; see :meth:`Engine.write_features`.
    force: encode every document anew.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> encode(workspace).encoded  # no ranker is trained
    {}
    """
    progress = progress or Progress()
    retrieve = learned(retriever_depths(retrieve))  # lexical signals need nothing
    for name in retrieve:
        check_retrieves(workspace.ranker(name))
    encoders = [
        encoder._replace(retrieves=encoder.name in retrieve)
        for encoder in _encoders(workspace, names, progress)
    ]
    names = " ".join(dict.fromkeys(encoder.name for encoder in encoders))
    shown = progress if encoders else Progress()
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        step(count)

    with shown.step(f"encode {names}", len(workspace.engine) * len(encoders), "doc") as step:
        encoded = workspace.engine.write_features(
            encoders, part=part, force=force, keep=workspace.needed(before=True), progress=advance
        )
    return EncodeReport(encoded, done - sum(encoded.values()))


def _encoders(
    workspace: Workspace, names: Iterable[str | Ranker] | None, progress: Progress
) -> list[Encoder]:
    if names is not None:
        rankers = [workspace.ranker(one) if isinstance(one, str) else one for one in names]
    else:
        rankers, older = [], workspace.needed()
        for name in workspace.trained():
            try:
                found = [workspace.ranker(name, version) for version in (None, *older.get(name, ()))]
            except (WorkspaceError, NotTrainedError) as error:
                # One ranker that cannot be loaded must not stop the documents, or the other rankers.
                progress.say(f"{name} is left out: {error}")
                continue
            rankers += {ranker.version: ranker for ranker in found}.values()
    return [
        Encoder(ranker.name, ranker.version, ranker.encode_documents, passages=ranker.passages)
        for ranker in rankers
    ]


class _Sending:
    """Shows how many documents the engine has taken, from the first on."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._begun = progress, False

    def advance(self, count: int) -> None:
        if not self._begun:
            self._begun = True
            self._progress.start("send", unit="doc")
        self._progress.advance(count)

    def finish(self) -> None:
        if self._begun:
            self._begun = False
            self._progress.finish()


_LAYOUTS = {
    "jsonl": 'write {"_id": "1", "title": "...", "text": "..."}, a line each',
    "jats": "name files of articles in JATS, archives or folders of them",
}


def _language(sample: Sequence[Document]) -> str | None:
    langs = Counter(code for document in sample if (code := language_or_none(document.lang)))
    if not langs:
        return None
    best, count = langs.most_common(1)[0]
    return best if count >= 0.9 * len(sample) else None


def _count(documents: Iterable[Document], lang: str | None, report: IngestReport) -> Iterator[Document]:
    texts: set[int] = set()  # numbers, as many texts would not fit into memory
    for document in documents:
        if document.lang and lang and language_or_none(document.lang) != lang:
            report.other_languages[document.lang] = report.other_languages.get(document.lang, 0) + 1
        if not lang:
            code = language_or_none(document.lang) or ""
            report.languages[code] = report.languages.get(code, 0) + 1
        if document.content and len(texts) < MOST_TEXTS:
            before = len(texts)
            texts.add(hash(document.content))
            report.same_text += len(texts) == before
        report.without_text += not document.content
        report.without_categories += not document.categories
        yield document
