"""``rerank ingest``: files -> documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.text import join_names, plural

from . import cluster, options, output
from .options import Output, option

if TYPE_CHECKING:
    from rerank.workflows.ingest import IngestReport

MOST_INVALID = 20
"""Invalid lines that are listed."""
MOST_FIELDS = 10
"""Fields that a remark lists."""


@options.command(
    "ingest",
    options.argument("corpus", nargs=-1),
    "Input",
    option(
        "--format jsonl|jats", "Format of CORPUS. jsonl: also tables. jats: articles in XML.", default="jsonl"
    ),
    option("--body", "For jats: use the body as text, not the abstract."),
    options.categories,
    options.lang,
    option("--skip-invalid", "Skip invalid documents."),
    "Changes",
    option("--replace", "Remove all documents that are not in CORPUS."),
    option("--yes", "With --replace, also remove more than half of the documents."),
    option("--delete ID,... ...", "Remove these documents. Repeatable."),
    option("--delete-from FILE", "Remove the documents with the ids in this file."),
    option("--dry-run", "Read CORPUS and show what would change. Nothing is written."),
    option("--encode/--no-encode", "Compute features.", dest="encode_features", default=True),
    "Connection",
    *cluster.connection,
    option("--shards N", "Shards of a new index. Default: 1."),
    option("--replicas N", "Replicas of a new index. Default: 1.", type=options.Whole(0)),
)
def command(
    folder: str,
    corpus: tuple[str, ...],
    delete: tuple[str, ...],
    delete_from: str | None,
    dry_run: bool,
    **settings: Any,
) -> Iterator[Output]:
    """Add or update the documents of CORPUS by their `_id`.

    CORPUS is one or more files of JSON lines, tables (CSV, TSV) or articles in JATS; - is stdin. All
    documents are checked before the first change. If interrupted, run the same command again.
    """
    from rerank.formats.lines import read_texts

    ids = [*filter(None, ",".join(delete).split(","))]
    if delete_from:
        ids += [text.strip() for _, text in read_texts(delete_from)]
    _check(corpus, ids, settings)
    opensearch = cluster.settings(settings)
    for file in corpus:
        if "quer" in Path(file).name.lower():
            output.note(f"{file} looks like a file of queries; pass such a file with --queries")
    if dry_run:
        yield from _preview(folder, corpus, settings)
        return
    report = rerank.ingest(folder, corpus, delete=ids, opensearch=opensearch, **settings)
    yield Output(report)
    unchanged = f", {report.unchanged:,} unchanged" if report.unchanged else ""
    click.echo(
        f"{report.added:,} added, {report.updated:,} updated, {report.deleted:,} deleted{unchanged}:"
        f" {plural(report.documents, 'document[|s]')} ({report.lang or 'no one language'}) in {folder}"
    )
    for line in _remarks(report, settings["format"]):
        output.note(line)
    if settings["categories"]:
        click.echo(f"category graph: {plural(report.category_edges, 'edge[|s]')}")
    for name, count in report.encoded.items():
        if count:
            click.echo(f"{name}: {plural(count, 'document[|s]')} encoded")


def _preview(folder: str, corpus: tuple[str, ...], settings: dict[str, Any]) -> Iterator[Output]:
    from rerank.workflows.ingest import read_documents
    from rerank.workflows.ingest_preview import preview_ingest

    errors: list[rerank.RerankError] = []
    on_invalid = errors.append if settings["skip_invalid"] else None
    documents = read_documents(corpus, settings["format"], settings["body"], on_invalid)
    preview = preview_ingest(
        folder,
        documents,
        lang=settings["lang"],
        replace=settings["replace"],
        progress=settings["progress"],
    )
    preview.invalid = [str(error) for error in errors]
    yield Output(preview)
    removed = f", {preview.removed:,} to remove" if preview.removed else ""
    click.echo(
        f"dry run: {plural(preview.documents, 'valid document[|s]')} ({preview.lang or 'no one language'}):"
        f" {preview.new:,} new, {preview.existing:,} in {folder} already{removed}; nothing was written"
    )
    for line in preview.invalid[:MOST_INVALID]:
        output.note(f"would skip {line}")
    for line in output.counted(
        (len(preview.invalid), "invalid record[|s] would be skipped"),
        (preview.without_text, "document[ has|s have] neither title nor text and cannot be found by words"),
    ):
        output.note(line)


def _check(corpus: tuple[str, ...], ids: list[str], settings: dict[str, Any]) -> None:
    if not corpus and not ids and not settings["categories"]:
        raise click.UsageError("nothing to do: name a CORPUS, --delete, --delete-from or --categories")
    if settings["body"] and settings["format"] != "jats":
        raise click.UsageError("--body is for --format jats: in JSON lines, `text` is the text")
    if settings["replace"] and not corpus:
        raise click.UsageError("--replace needs a CORPUS to replace the documents with")
    if settings["yes"] and not settings["replace"]:
        raise click.UsageError("--yes has an effect only with --replace")


def _remarks(report: IngestReport, format: str) -> Iterator[str]:
    shown = report.invalid if format == "jats" else report.invalid[:MOST_INVALID]
    yield from (f"skipped {line}" for line in shown)
    if report.without_body and report.without_body == sum(report.languages.values()) and report.other_fields:
        fields = ", ".join(report.other_fields[:MOST_FIELDS])
        yield f"no document has a text: the field is `text`, but the documents have {fields}"
    have_categories = report.without_categories < report.added + report.updated
    yield from output.counted(
        (len(report.invalid), f"{'unreadable file' if format == 'jats' else 'invalid line'}[|s] skipped"),
        (
            len(report.unknown_deletes),
            "id[|s] to delete [is|are] unknown",
            join_names(report.unknown_deletes),
        ),
        (report.without_text, "document[ has|s have] neither title nor text and cannot be found by words"),
        (report.without_categories if have_categories else 0, "document[ has|s have] no categories"),
        *(
            (count, f"document[ has|s have] no number in the field {name!r}: it counts as missing")
            for name, count in report.not_numbers.items()
        ),
        *(
            (count, f"document[ has|s have] another language and [is|are] indexed as {report.lang}", lang)
            for lang, count in report.languages.items()
            if report.lang and lang not in ("", report.lang)
        ),
    )
    if report.lang:
        return
    hint = "words are not stemmed. If most are in one language, ingest into a new workspace with --lang en"
    if len(report.languages) > 1:
        by_count = sorted(report.languages.items(), key=lambda item: (-item[1], item[0]))
        counts = ", ".join(f"{code or 'none'} {count:,}" for code, count in by_count)
        yield f"mixed languages ({counts}): {hint}"
    elif report.languages.get("") == report.documents:
        yield f"no document has a language: {hint}"
