"""Attach an existing OpenSearch index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rerank.config_file import changed
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.attach import look
from rerank.engines.opensearch.connection import Settings
from rerank.engines.opensearch.layout import fields_of
from rerank.errors import WorkspaceError
from rerank.files import write_text
from rerank.formats import read_categories
from rerank.results import Report
from rerank.text import language
from rerank.workspace import Workspace


@dataclass
class AttachReport(Report):
    """Result of ``attach``.

    fields: name -> fields of the index. documents: count. workspace: None after a dry run. changed: an
    existing workspace was connected to other nodes.
    """

    workspace: Workspace | None
    indices: list[str]
    fields: dict[str, tuple[str, ...]]
    documents: int
    changed: bool = False


def attach(
    workspace: str | os.PathLike[str],
    fields: Mapping[str, Sequence[str]],
    *,
    opensearch: Settings,
    lang: str | None = None,
    categories: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> AttachReport:
    """Create a workspace for an existing index, or connect a workspace to other nodes.

    fields: title, text, categories, links, lang -> fields of the index. Empty for an index made by rerank.
    opensearch: replaces the connection in ``rerank.toml``, except for defaults.
    categories: category graph. dry_run: change nothing.

    Raises WorkspaceError for a workspace of another index, UsageError for an unknown field.

    >>> import tempfile
    >>> from rerank import RerankError
    >>> from rerank.engines.opensearch import Settings
    >>> library = Settings(("http://127.0.0.1:1",), "library")
    >>> try:
    ...     attach(tempfile.mkdtemp() + "/ws", {"title": ["title"], "text": ["body"]}, opensearch=library)
    ... except RerankError:
    ...     print("no connection")
    no connection
    """
    lang = language(lang)
    edges = read_categories(categories) if categories is not None else None
    if Workspace.exists(workspace):
        return _change_nodes(Workspace.open(workspace), fields, opensearch, edges, dry_run)
    found = look(opensearch, fields)
    made = None
    if not dry_run:
        settings = opensearch.table() | ({"fields": found.fields} if found.fields else {})
        made = Workspace.create(workspace, lang=lang, engine="opensearch", settings=settings, attach=True)
        if edges is not None:
            made.save_category_edges(edges)
    return AttachReport(made, **vars(found))


def _change_nodes(
    workspace: Workspace,
    fields: Mapping[str, Sequence[str]],
    opensearch: Settings,
    edges: list[tuple[str, str]] | None,
    dry_run: bool,
) -> AttachReport:
    table = workspace.config.get("opensearch", {})
    same = workspace.config.get("engine") == "opensearch" and table.get("index") == opensearch.index
    known = fields_of(table.get("fields", {}), "rerank.toml") if same else {}
    if not same or (fields and fields_of(fields, "the command") != known):
        raise WorkspaceError(
            f"{workspace.folder}: a workspace of another index or with other fields; choose another"
            f" folder with -w"
        )
    values = opensearch.table()
    merged = {name: value for name, value in table.items() if name != "fields"} | values
    file = workspace.folder / "rerank.toml"
    found = look(Settings.read(merged, str(file)), known)
    if dry_run:
        return AttachReport(None, **vars(found))
    try:
        text = changed(file.read_text("utf-8"), "opensearch", values)
    except ValueError as error:
        raise WorkspaceError(f"{file}: cannot be changed ({error}); edit it by hand") from error
    OpenSearchEngine.named(merged, str(file))
    write_text(file, text)
    if edges is not None:
        workspace.save_category_edges(edges)
    return AttachReport(Workspace.open(workspace.folder), **vars(found), changed=True)
