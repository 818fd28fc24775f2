"""Ingest the documents of an auto run."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rerank.common.errors import WorkspaceError
from rerank.documents.stop_words import guess_language
from rerank.documents.text import count_of
from rerank.formats import read_corpus
from rerank.workflows.auto.context import AutoContext
from rerank.workflows.auto.files import Folder
from rerank.workflows.auto.state import AutoState
from rerank.workflows.ingest import ingest
from rerank.workflows.ingest_remarks import describe_documents
from rerank.workspace.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

LANGUAGE_SAMPLE = 500
"""Number of documents that are read to guess their language."""


def ingest_files(
    context: AutoContext, folder: Path, state: AutoState, opensearch: Settings | None, lang: str | None
) -> Workspace:
    """Make or update the workspace.

    lang: language of the documents; None: guess it.

    Raises WorkspaceError for a workspace of other documents.
    """
    files = context.files
    lang = lang or _guess_language(context)
    existing = Workspace.open(folder) if Workspace.exists(folder) else None
    if existing is not None and not state.has_trained:
        _check_workspace(existing, files, state)
    report = ingest(
        existing or folder,
        [str(files.corpus)],
        categories=str(files.categories) if files.categories else None,
        lang=lang,
        opensearch=opensearch,
        encode_features=False,
        progress=context.progress,
    )
    if state.inputs_changed:  # interrupted trainings are of other files
        shutil.rmtree(report.workspace.folder / "training", ignore_errors=True)
    state.save()
    context.say(
        "ingest",
        f"{count_of(report.documents, 'document')} ({report.lang or 'mixed languages'}):"
        f" {report.added:,} added, {report.updated:,} updated, {report.unchanged:,} unchanged",
    )
    context.say("ingest", *describe_documents(report))
    return report.workspace


def _guess_language(context: AutoContext) -> str | None:
    """Return the language of documents without ``lang``, by their words."""
    sample = list(islice(read_corpus(context.files.corpus), LANGUAGE_SAMPLE))
    if any(document.lang for document in sample):
        return None
    lang = guess_language(document.content for document in sample)
    if lang is not None:
        context.say("ingest", f"the documents have no `lang`; by their words it is {lang}, else give --lang")
    return lang


def _check_workspace(workspace: Workspace, files: Folder, state: AutoState) -> None:
    """Raise WorkspaceError for rankers of another training, or documents that the files do not have."""
    trained = workspace.trained()
    if trained and not state.exists:
        raise _used_workspace(workspace, f"rankers of another training ({', '.join(trained)})")
    missing = {*workspace.engine.ids()} - {document.id for document in read_corpus(files.corpus)}
    if missing:
        documents = count_of(len(missing), "document")
        raise _used_workspace(workspace, f"{documents} not in {files.path} ({min(missing)!r} first)")


def _used_workspace(workspace: Workspace, content: str) -> WorkspaceError:
    return WorkspaceError(f"{workspace.folder}: has {content}; choose another folder with -w")
