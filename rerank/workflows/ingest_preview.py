"""Check the files of an ingest without a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from rerank.common.batches import batched
from rerank.common.errors import InputError, RepeatedIdError
from rerank.common.results import Report
from rerank.common.values import items_not_in
from rerank.documents.records import Document
from rerank.documents.text import language
from rerank.workflows.ingest import SAMPLE, main_language, open_existing
from rerank.workflows.ingest_remarks import count_documents
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

_BATCH = 1000  # ids that are looked up together


@dataclass
class IngestPreview(Report):
    """What an ingest of the same files would do.

    documents:     valid documents.
    new, existing: documents that the workspace lacks, and documents that it has.
    removed:       documents that ``replace`` or ``delete`` would remove.
    unknown_deletes: ids to delete that no document has.
    category_edges: edges of the category graph, which the caller reads.
    invalid:       records that would be skipped.

    The other fields are those of :class:`rerank.workflows.ingest_remarks.DocumentCounts`.
    """

    documents: int = 0
    new: int = 0
    existing: int = 0
    removed: int = 0
    unknown_deletes: tuple[str, ...] = ()
    lang: str | None = None
    languages: dict[str, int] = field(default_factory=dict)
    without_text: int = 0
    without_body: int = 0
    other_fields: list[str] = field(default_factory=list)
    without_categories: int = 0
    not_numbers: dict[str, int] = field(default_factory=dict)
    category_edges: int = 0
    invalid: list[str] = field(default_factory=list)


def preview_ingest(
    workspace: WorkspaceOrPath,
    documents: Iterable[Document],
    *,
    delete: Sequence[str] = (),
    lang: str | None = None,
    replace: bool = False,
) -> IngestPreview:
    """Count what :func:`rerank.ingest` would do with the documents. Nothing is written.

    documents: see :class:`rerank.workflows.document_sources.DocumentSources`.
    delete, lang, replace: as for an ingest. The workspace need not exist.

    Raises InputError for a repeated id, for an id that is also deleted, and for another language than the one
    of the workspace.
    """
    preview = IngestPreview()
    existing = open_existing(workspace, lang) if Workspace.exists(workspace) else None
    counted = count_documents(documents, preview)
    ids_to_delete = {*delete}
    ids: set[str] = set()
    sample: list[Document] = []
    for batch in batched(counted, _BATCH):
        for document in batch:
            _check_id(document.id, preview, ids, ids_to_delete)
        if existing is not None:
            preview.existing += len(existing.engine.contains(document.id for document in batch))
        sample += batch[: SAMPLE - len(sample)]
    preview.new = preview.documents - preview.existing
    if existing is None:
        preview.lang = language(lang) or main_language(sample)
        preview.unknown_deletes = tuple(delete)
        return preview
    preview.lang = existing.lang
    stored_ids = existing.engine.contains(delete)
    preview.unknown_deletes = tuple(items_not_in(delete, stored_ids))
    preview.removed = len(existing.engine) - preview.existing if replace else len(stored_ids)
    return preview


def _check_id(id: str, preview: IngestPreview, ids: set[str], ids_to_delete: Set[str]) -> None:
    """Count a document. ids: of the documents before; the id is added.

    Raises RepeatedIdError, and InputError for an id that is also deleted.
    """
    if id in ids:
        raise RepeatedIdError(id, preview.documents + 1)
    if id in ids_to_delete:
        raise InputError(f"id {id!r} is both ingested and deleted; remove it from one of the two")
    ids.add(id)
    preview.documents += 1
