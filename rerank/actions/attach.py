"""Attach: a workspace for an OpenSearch index that others write."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rerank.engines.opensearch.adoption import Adoption, change, look
from rerank.engines.opensearch.connection import Settings
from rerank.errors import WorkspaceError
from rerank.text import language
from rerank.workspace import Workspace


def attach(
    folder: str | os.PathLike[str],
    settings: Settings,
    fields: Mapping[str, Sequence[str]],
    *,
    lang: str | None = None,
    dry_run: bool = False,
) -> Adoption:
    """Make a workspace whose documents are those of an index that is there.

    fields: title, text, categories, links, lang -> fields of the index; empty for an index that rerank
        has made. Only the field for features is added to the mapping.
    dry_run: change nothing, and return what would be changed.

    Raises WorkspaceError when the folder holds a workspace, UsageError for a field that is not there.
    """
    lang = language(lang)
    if not dry_run and Workspace.exists(folder):
        raise WorkspaceError(f"{folder}: a workspace already; choose another folder with -w")
    adoption = look(settings, fields)
    if not dry_run:
        change(settings, adoption)
        Workspace.create(folder, lang=lang, opensearch=settings, attach=True, fields=adoption.fields)
    return adoption
