"""``rerank show``: show documents as they are stored."""

from __future__ import annotations

import json

import click

import rerank
from rerank.common.errors import InputError
from rerank.documents.text import join_names

from . import output
from .options import Command, json_option, workspace_option


@click.command("show", cls=Command)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@workspace_option
@json_option
def command(folder: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Show documents as they are stored, one JSON object per document, as in a CORPUS.

    If an id is unknown, the other documents are shown, and the exit code is 1.
    """
    records = []
    unknown = []
    for id, document in zip(ids, rerank.Workspace.open(folder).engine.get(ids)):
        if document is None:
            unknown.append(id)
        else:
            records.append(document.to_json())
    if as_json:
        output.print_json({"documents": records, "unknown": unknown})
    else:
        for record in records:
            click.echo(json.dumps(record, ensure_ascii=False, indent=2))
    if unknown:
        raise InputError(f"no document has the id {join_names(unknown)}; check the ids")
