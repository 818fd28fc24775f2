"""``rerank ingest``: add documents from files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import rerank
from rerank.documents.text import count_of, join_names

from . import output
from .cluster import connection_options, connection_settings
from .options import (
    COUNT,
    NATURAL,
    Command,
    categories_option,
    json_option,
    lang_option,
    option,
    workspace_option,
)

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings
    from rerank.workflows.document_sources import DocumentSources, Format
    from rerank.workflows.ingest import IngestReport
    from rerank.workflows.ingest_preview import IngestPreview

MOST_INVALID = 20
"""Number of invalid lines that are listed at most."""


@click.command("ingest", cls=Command)
@click.argument("corpus", nargs=-1)
@option(
    "--format",
    metavar="jsonl|jats",
    type=click.Choice(["jsonl", "jats"]),
    default="jsonl",
    group="Input",
    help="Format of CORPUS. jsonl: also tables. jats: articles in XML.",
)
@option("--body", is_flag=True, group="Input", help="For jats: use the body as text, not the abstract.")
@categories_option
@lang_option
@option("--skip-invalid", is_flag=True, group="Input", help="Skip invalid documents.")
@option("--replace", is_flag=True, group="Changes", help="Remove all documents that are not in CORPUS.")
@option(
    "--yes",
    is_flag=True,
    group="Changes",
    help="With --replace, also remove more than half of the documents.",
)
@option(
    "--delete",
    metavar="ID,...",
    multiple=True,
    group="Changes",
    help="Remove these documents. Repeatable.",
)
@option(
    "--delete-from",
    metavar="FILE",
    group="Changes",
    help="Remove the documents with the ids in this file.",
)
@option(
    "--dry-run",
    is_flag=True,
    group="Changes",
    help="Read CORPUS and show what would change. Nothing is written.",
)
@option("--encode/--no-encode", "encode_features", default=True, group="Changes", help="Compute features.")
@connection_options
@option(
    "--shards",
    metavar="N",
    type=COUNT,
    group="Connection",
    help="Shards of a new index. Default: 1.",
)
@option(
    "--replicas",
    metavar="N",
    type=NATURAL,
    group="Connection",
    help="Replicas of a new index. Default: 1.",
)
@workspace_option
@json_option
def command(
    folder: str,
    corpus: tuple[str, ...],
    format: Format,
    body: bool,
    categories: str | None,
    lang: str | None,
    skip_invalid: bool,
    replace: bool,
    yes: bool,
    delete: tuple[str, ...],
    delete_from: str | None,
    dry_run: bool,
    encode_features: bool,
    url: tuple[str, ...],
    index: str | None,
    profile: str | None,
    shards: int | None,
    replicas: int | None,
    as_json: bool,
) -> None:
    """Add or update the documents of CORPUS by their `_id`.

    CORPUS is one or more files of JSON lines, tables (CSV, TSV) or articles in JATS; - is stdin. All
    documents are checked before the first change. If interrupted, run the same command again.
    """
    from rerank.workflows.ingest_preview import preview_ingest

    deleted_ids = _deleted_ids(delete, delete_from)
    _check_work(corpus, deleted_ids, categories)
    _check_flags(corpus, format, body=body, replace=replace, yes=yes)
    opensearch = connection_settings(url, index, profile, shards, replicas)
    _note_query_files(corpus)
    progress = output.Bar(hidden=as_json)
    if dry_run:
        _check_workspace(folder, lang, opensearch)
        documents, errors = _sources(corpus, format, body=body, skip_invalid=skip_invalid)
        counted = progress.over(documents, "read", unit="doc")
        with documents.naming():
            preview = preview_ingest(folder, counted, delete=deleted_ids, lang=lang, replace=replace)
        _complete_preview(preview, errors, categories)
        output.print_report(preview, partial(_show_preview, folder=folder), as_json=as_json)
        return
    report = rerank.ingest(
        folder,
        corpus,
        format=format,
        body=body,
        categories=categories,
        delete=deleted_ids,
        lang=lang,
        skip_invalid=skip_invalid,
        replace=replace,
        yes=yes,
        encode_features=encode_features,
        opensearch=opensearch,
        progress=progress,
    )
    show = partial(_show, folder=folder, format=format, has_graph=categories is not None)
    output.print_report(report, show, as_json=as_json)


def _complete_preview(
    preview: IngestPreview, errors: Sequence[rerank.RerankError], categories: str | None
) -> None:
    """Add the skipped records, and the edges of a file of --categories, which is checked."""
    from rerank.formats import read_categories

    preview.invalid = [str(error) for error in errors]
    preview.category_edges = len(read_categories(categories)) if categories else 0


def _deleted_ids(delete: Sequence[str], delete_from: str | None) -> list[str]:
    """Return the ids of --delete, which may have several in one value, and of a file of ids."""
    from rerank.formats.lines import read_texts

    ids = list(filter(None, ",".join(delete).split(",")))
    if delete_from:
        ids += [text.strip() for _, text in read_texts(delete_from)]
    return ids


def _note_query_files(files: Sequence[str]) -> None:
    for file in files:
        if "quer" in Path(file).name.lower():
            output.note(f"{file} looks like a file of queries; pass such a file with --queries")


def _check_work(corpus: Sequence[str], deleted_ids: Sequence[str], categories: str | None) -> None:
    if not any((corpus, deleted_ids, categories)):
        raise click.UsageError("nothing to do: name a CORPUS, --delete, --delete-from or --categories")


def _check_flags(corpus: Sequence[str], format: Format, *, body: bool, replace: bool, yes: bool) -> None:
    """Raise UsageError for a flag that has no effect."""
    if body and format != "jats":
        raise click.UsageError("--body is for --format jats: in JSON lines, `text` is the text")
    if replace and not corpus:
        raise click.UsageError("--replace needs a CORPUS to replace the documents with")
    if yes and not replace:
        raise click.UsageError("--yes has an effect only with --replace")


def _show(report: IngestReport, folder: str, format: Format, *, has_graph: bool) -> None:
    """Print the counts. has_graph: a category graph was read."""
    from rerank.workflows.ingest_remarks import describe_documents

    unchanged = f", {report.unchanged:,} unchanged" if report.unchanged else ""
    click.echo(
        f"{report.added:,} added, {report.updated:,} updated, {report.deleted:,} deleted{unchanged}:"
        f" {count_of(report.documents, 'document')} ({report.lang or 'no single language'}) in {folder}"
    )
    output.note(*_describe_invalid(report, format))
    output.note(*describe_documents(report))
    if has_graph:
        click.echo(f"category graph: {count_of(report.category_edges, 'edge')}")
    for name, count in report.encoded.items():
        if count:
            click.echo(f"{name}: {count_of(count, 'document')} encoded")


def _describe_invalid(report: IngestReport, format: Format) -> Iterator[str]:
    """Describe skipped records and ids to delete that no document has."""
    listed = report.invalid if format == "jats" else report.invalid[:MOST_INVALID]
    for error in listed:
        yield f"skipped {error}"
    if report.invalid:
        record = "unreadable file" if format == "jats" else "invalid line"
        yield f"{count_of(len(report.invalid), record)} skipped"
    yield from _describe_unknown_deletes(report.unknown_deletes)


def _describe_unknown_deletes(ids: Sequence[str]) -> Iterator[str]:
    if ids:
        yield f"{count_of(len(ids), 'unknown id')} to delete: {join_names(ids)}"


def _sources(
    corpus: Sequence[str], format: Format, *, body: bool, skip_invalid: bool
) -> tuple[DocumentSources, list[rerank.RerankError]]:
    """Return the documents, and a list that gets the errors of skipped ones while they are read."""
    from rerank.formats.lines import raise_invalid
    from rerank.workflows.document_sources import DocumentSources

    errors: list[rerank.RerankError] = []
    return DocumentSources(corpus, format, body, errors.append if skip_invalid else raise_invalid), errors


def _check_workspace(folder: str, lang: str | None, opensearch: Settings | None) -> None:
    """Raise the errors that an ingest into an existing workspace would raise."""
    from rerank.workflows.ingest import open_existing

    if rerank.Workspace.exists(folder):
        open_existing(folder, lang, opensearch)


def _show_preview(preview: IngestPreview, folder: str) -> None:
    """Print the counts of a dry run, and the records that would be skipped."""
    from rerank.workflows.ingest_remarks import describe_documents

    removed = f", {preview.removed:,} to remove" if preview.removed else ""
    click.echo(
        f"dry run: {count_of(preview.documents, 'valid document')} ({preview.lang or 'no single language'}):"
        f" {preview.new:,} new, {preview.existing:,} in {folder} already{removed}; nothing was written"
    )
    for error in preview.invalid[:MOST_INVALID]:
        output.note(f"would skip {error}")
    if preview.invalid:
        output.note(f"would skip {count_of(len(preview.invalid), 'invalid record')}")
    output.note(*_describe_unknown_deletes(preview.unknown_deletes))
    output.note(*describe_documents(preview))
    if preview.category_edges:
        click.echo(f"category graph: {count_of(preview.category_edges, 'edge')}")
