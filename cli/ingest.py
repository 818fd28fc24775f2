"""``rerank ingest``: files -> documents in the workspace."""

from __future__ import annotations

import click

from . import options, output


@click.command("ingest")
@click.argument("corpus", nargs=-1)
@options.common
@click.option("--categories", metavar="FILE", help="The category graph: child and parent, tab between.")
@click.option(
    "--delete", "delete", multiple=True, metavar="ID[,ID...]", help="Remove these documents; repeatable."
)
@click.option("--delete-from", metavar="FILE", help="Remove the ids in this file, one a line.")
@click.option("--lang", help="Language of the documents (en, it, ...). Default: their `lang` field's.")
@click.option("--skip-invalid", is_flag=True, help="Leave out lines that are no documents, and list them.")
@click.option(
    "--encode/--no-encode",
    default=True,
    show_default=True,
    help="Compute the features of trained rankers now.",
)
def command(
    corpus: tuple[str, ...],
    folder: str,
    as_json: bool,
    categories: str | None,
    delete: tuple[str, ...],
    delete_from: str | None,
    lang: str | None,
    skip_invalid: bool,
    encode: bool,
) -> None:
    """Add or update the documents of CORPUS... (JSON lines, plain or .gz; - is stdin), by `_id`.

    All or nothing: after an error, ctrl-C or a crash no document is changed. An interruption of the
    encoding that follows leaves the documents in; `rerank encode` goes on with it.
    """
    from rerank.formats.lines import decode, read_lines
    from rerank.ingesting import ingest

    ids = [id for group in delete for id in group.split(",") if id]
    if delete_from:
        ids += [line for n, raw in read_lines(delete_from) if (line := decode(delete_from, n, raw).strip())]
    if not corpus and not ids and not categories:
        raise click.UsageError(
            "nothing to do: name a CORPUS, ids with --delete or --delete-from, or --categories"
        )
    _, report = ingest(
        folder,
        corpus,
        categories=categories,
        delete=ids,
        lang=lang,
        skip_invalid=skip_invalid,
        encode_features=encode,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(report)
        return
    click.echo(
        f"{report.added} added, {report.updated} updated, {report.deleted} deleted:"
        f" {report.documents} documents ({report.lang or 'no one language'}) in {folder}"
    )
    for line in report.invalid[:20]:
        output.note(f"skipped {line}")
    if report.invalid:
        output.note(f"{len(report.invalid)} invalid lines skipped")
    if report.unknown_deletes:
        first = ", ".join(report.unknown_deletes[:5])
        output.note(f"{len(report.unknown_deletes)} ids to delete are not there: {first}")
    if report.without_text:
        output.note(f"{report.without_text} documents have neither title nor text: words cannot find them")
    if report.without_categories and report.without_categories < report.added + report.updated:
        output.note(f"{report.without_categories} documents have no categories")
    for lang, count in report.other_languages.items():
        output.note(f"{count} documents say they are in {lang}; they are indexed as {report.lang}")
    if categories:
        click.echo(f"category graph: {report.category_edges} edges")
    for name, count in report.encoded.items():
        if count:
            click.echo(f"{name}: {count} documents encoded")
