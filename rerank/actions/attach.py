"""Attach: a workspace for an OpenSearch index that others write."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rerank.arguments import checked
from rerank.engines.opensearch.adoption import look
from rerank.engines.opensearch.connection import Settings
from rerank.errors import WorkspaceError, setting_hint
from rerank.formats import read_categories
from rerank.results import Report
from rerank.text import language
from rerank.workspace import Workspace


@dataclass
class AttachReport(Report):
    """What was attached: index names, name -> fields of the index, how many documents.

    workspace: None after a dry run.
    """

    workspace: Workspace | None
    indices: list[str]
    fields: dict[str, tuple[str, ...]]
    documents: int


@checked
def attach(
    workspace: str | os.PathLike[str],
    fields: Mapping[str, Sequence[str]],
    *,
    opensearch: Settings,
    lang: str | None = None,
    categories: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> AttachReport:
    """Make a workspace, in a folder, whose documents are those of an index that is there.

    fields: title, text, categories, links, lang -> fields of the index; empty for an index that rerank
        has made. The index stays as it is.
    opensearch: where the index is.
    categories: a file with the category graph of the documents' categories.
    dry_run: make nothing, and return what would be attached.

    Raises WorkspaceError when the folder holds a workspace, UsageError for a field that is not there.

    >>> import tempfile
    >>> from rerank import RerankError
    >>> from rerank.engines.opensearch import Settings
    >>> library = Settings(("http://127.0.0.1:1",), "library")
    >>> try:
    ...     attach(tempfile.mkdtemp() + "/ws", {"title": ["title"], "text": ["body"]}, opensearch=library)
    ... except RerankError:
    ...     print("nobody is there")
    nobody is there
    """
    lang = language(lang)
    if not dry_run and Workspace.exists(workspace):
        raise WorkspaceError(
            f"{os.fspath(workspace)}: a workspace already;"
            f" choose another folder with {setting_hint('workspace')}"
        )
    edges = read_categories(categories) if categories is not None else None
    found = look(opensearch, fields)
    made = None
    if not dry_run:
        settings = opensearch.table() | ({"fields": found.fields} if found.fields else {})
        made = Workspace.create(workspace, lang=lang, engine="opensearch", settings=settings, attach=True)
        if edges is not None:
            made.save_category_edges(edges)
    return AttachReport(made, **vars(found))
