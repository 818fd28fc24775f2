"""Attach an existing OpenSearch index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank.common.errors import UsageError, WorkspaceError
from rerank.common.results import Report
from rerank.documents.text import language
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.connection import Settings
from rerank.engines.opensearch.layout import fields_of
from rerank.formats import read_categories
from rerank.workspace.workspace import Workspace


@dataclass
class AttachReport(Report):
    """Result of ``attach``.

    fields: name -> fields of the index. documents: count. workspace: None after a dry run.
    """

    workspace: Workspace | None
    indices: list[str]
    fields: dict[str, tuple[str, ...]]
    documents: int


def attach(
    workspace: str | os.PathLike[str],
    fields: Mapping[str, Sequence[str]],
    *,
    opensearch: Settings,
    lang: str | None = None,
    categories: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> AttachReport:
    """Create a workspace for an existing index.

    fields: title, text, categories, links, lang -> fields of the index. Empty for an index made by rerank.
    categories: category graph. dry_run: change nothing.

    Raises WorkspaceError for an existing workspace, UsageError for an unknown field, and EngineError for an
    unknown index.

    >>> from rerank import RerankError
    >>> from rerank.engines.opensearch import Settings
    >>> library = Settings(("http://127.0.0.1:1",), "library")
    >>> try:
    ...     attach(folder / "new", {"title": ["title"], "text": ["body"]}, opensearch=library)
    ... except RerankError:
    ...     print("no connection")
    no connection
    """
    lang = language(lang)
    edges = read_categories(categories) if categories is not None else None
    if Workspace.exists(workspace):
        raise WorkspaceError(
            f"{os.fspath(workspace)}: is a workspace already; to connect it to other nodes, edit its"
            " rerank.toml, or choose another folder with -w"
        )
    index_fields = fields_of(fields, "the command")
    engine = OpenSearchEngine.open(opensearch, Path(), None, index_fields)
    engine.index.check(if_missing="give the name of another index with --index, or create this index first")
    engine.index.check_values()
    descriptions = engine.index.indices()
    indices = sorted(descriptions)
    documents = len(engine)
    engine.close()
    settings = opensearch.table()
    if index_fields:
        settings |= {"fields": index_fields}
    else:
        description = descriptions[indices[-1]]
        lang = _language_of(description, lang)
        index_settings = description["settings"]["index"]
        settings |= {name: int(index_settings[f"number_of_{name}"]) for name in ("shards", "replicas")}
    attached = None
    if not dry_run:
        attached = Workspace.create(workspace, lang=lang, engine="opensearch", settings=settings, attach=True)
        if edges is not None:
            attached.save_category_edges(edges)
    return AttachReport(attached, indices, index_fields, documents)


def _language_of(index: Mapping[str, Any], lang: str | None) -> str | None:
    """Return the language of an index made by rerank. Raises UsageError for another or an unknown one."""
    stored_lang: str | None = index["mappings"]["_meta"]["rerank"].get("lang")
    if stored_lang is None:
        return _language_of_template(index, lang)
    index_lang = stored_lang or None
    if lang is None or lang == index_lang:
        return index_lang
    description = index_lang or "no single language"
    raise UsageError(f"--lang {lang}: the index is for {description}; leave out --lang")


def _language_of_template(index: Mapping[str, Any], lang: str | None) -> str | None:
    """Return the language of an index made by an index template, which does not name its language."""
    token_filters = index["settings"]["index"]["analysis"].get("filter", {})
    if lang is None and "rerank_stemmer" in token_filters:
        raise UsageError("the index stems the words of one language; name it with --lang")
    return lang
