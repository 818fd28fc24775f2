"""``rerank show``: one or more documents."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

import rerank
from rerank.errors import InputError
from rerank.text import join_names

from . import options, output
from .options import Output


@options.command("show", options.argument("ids", nargs=-1, required=True, metavar="ID..."))
def command(workspace: rerank.Workspace, progress: output.Bar, ids: tuple[str, ...]) -> Iterator[Output]:
    """Show documents as they are stored, one JSON object per document, as in a CORPUS."""
    documents = workspace.engine.get(ids)
    unknown = [id for id, document in zip(ids, documents) if document is None]
    if unknown:
        raise InputError(f"no document has the id {join_names(unknown)}; check the ids")
    records = [document.to_json() for document in documents if document is not None]
    yield Output({"documents": records})
    for record in records:
        click.echo(json.dumps(record, ensure_ascii=False, indent=2))
