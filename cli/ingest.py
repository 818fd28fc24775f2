"""``rerank ingest``: files -> documents in the workspace."""

from __future__ import annotations

from typing import Any

import click

from rerank.wording import amount, listed

from . import cluster as clusters
from . import options, output


@click.command("ingest")
@click.argument("corpus", nargs=-1)
@options.common
@click.option(
    "--format",
    "format",
    type=click.Choice(["jsonl", "jats"]),
    default="jsonl",
    show_default=True,
    help="Of CORPUS. jats: articles as XML, archives (zip, tar) or folders of them.",
)
@click.option("--body", is_flag=True, help="Of JATS: the body is the text, and not the abstract.")
@click.option("--categories", metavar="FILE", help="The category graph: child and parent, tab between.")
@click.option(
    "--delete", "delete", multiple=True, metavar="ID[,ID...]", help="Remove these documents; repeatable."
)
@click.option("--delete-from", metavar="FILE", help="Remove the ids in this file, one a line.")
@click.option("--lang", help="Language of the documents (en, it, ...). Default: their `lang` field's.")
@click.option("--skip-invalid", is_flag=True, help="Leave out lines and files that are no documents.")
@click.option(
    "--encode/--no-encode",
    "encode_features",
    default=True,
    show_default=True,
    help="Compute the features of trained rankers now.",
)
@click.option("--replace", is_flag=True, help="Remove all documents that are not in CORPUS.")
@click.option(
    "--engine",
    type=click.Choice(["local", "opensearch"]),
    help="Where a new workspace keeps its documents. Default: local; with --url: opensearch.",
)
@clusters.options
@click.option("--shards", type=click.IntRange(min=1), help="Of a new index. Default: 1.")
@click.option("--replicas", type=click.IntRange(min=0), help="Of a new index. Default: 1.")
def command(
    corpus: tuple[str, ...],
    folder: str,
    as_json: bool,
    delete: tuple[str, ...],
    delete_from: str | None,
    engine: str | None,
    cluster: dict[str, Any],
    shards: int | None,
    replicas: int | None,
    **settings: Any,
) -> None:
    """Add or update the documents of CORPUS... (JSON lines, plain or .gz; - is stdin; or JATS), by `_id`.

    A document that is there already, just so, is left alone (local engine).
    All documents are read and checked before the first is changed. In a folder it is all or nothing: after
    an error, ctrl-C or a crash no document is changed. In OpenSearch new and replaced collections show when
    they are complete, and other changes one by one; an ingest that was cut off goes on when the same
    command is run again. An interruption of the encoding that follows leaves the documents in;
    `rerank encode` goes on with it.
    """
    from rerank.actions.ingest import ingest
    from rerank.formats.lines import decode, read_lines
    from rerank.workspace import Workspace

    ids = [id for group in delete for id in group.split(",") if id]
    if delete_from:
        ids += [line for n, raw in read_lines(delete_from) if (line := decode(delete_from, n, raw).strip())]
    if not corpus and not ids and not settings["categories"]:
        raise click.UsageError(
            "nothing to do: name a CORPUS, ids with --delete or --delete-from, or --categories"
        )
    if settings["body"] and settings["format"] != "jats":
        raise click.UsageError("--body is of --format jats: in JSON lines the text is the field `text`")
    if settings["replace"] and not corpus:
        raise click.UsageError("--replace needs a CORPUS to replace the documents with")
    distant = engine == "opensearch" or (clusters.given(cluster) and engine is None)
    if not distant and (clusters.given(cluster) or shards is not None or replicas is not None):
        raise click.UsageError("--url, --index and what belongs to them are for --engine opensearch")
    if settings["format"] == "jsonl":
        may_ask = not as_json and not Workspace.exists(folder)
        _check_for_queries(corpus, may_ask=may_ask)
    there = None
    if distant and (clusters.given(cluster) or not Workspace.exists(folder)):
        there = clusters.settings(cluster, shards=shards, replicas=replicas)
    report = ingest(
        folder,
        corpus,
        delete=ids,
        opensearch=there,
        progress=output.Bar(quiet=as_json),
        **settings,
    )
    if as_json:
        output.print_json(report)
        return
    same = f", {report.unchanged:,} as they were" if report.unchanged else ""
    click.echo(
        f"{report.added:,} added, {report.updated:,} updated, {report.deleted:,} deleted{same}:"
        f" {amount(report.documents, 'document[|s]')} ({report.lang or 'no one language'}) in {folder}"
    )
    articles = settings["format"] == "jats"
    for line in report.invalid[: None if articles else 20]:
        output.note(f"skipped {line}")
    if report.invalid:
        what = "unreadable file[|s]" if articles else "invalid line[|s]"
        output.note(f"{amount(len(report.invalid), what)} skipped")
    if report.unknown_deletes:
        unknown = amount(len(report.unknown_deletes), "id[|s] to delete [is|are] not there")
        output.note(f"{unknown}: {listed(report.unknown_deletes)}")
    if report.without_text:
        what = "document[ has|s have] neither title nor text: words cannot find [it|them]"
        output.note(amount(report.without_text, what))
    if report.without_categories and report.without_categories < report.added + report.updated:
        output.note(amount(report.without_categories, "document[ has|s have] no categories"))
    for lang, count in report.other_languages.items():
        what = f"document[ says it is|s say they are] in {lang}, and [is|are] indexed as {report.lang}"
        output.note(amount(count, what))
    if report.same_text:
        what = "document[ has|s have] the same text as another one of this ingest"
        output.note(amount(report.same_text, what))
    if len(report.languages) > 1:
        told = ", ".join(
            f"{code or 'none'} {count:,}"
            for code, count in sorted(report.languages.items(), key=lambda one: (-one[1], one[0]))
        )
        output.note(
            f"mixed languages ({told}): words are not stemmed; where most are of one, ingest anew and name"
            " it, as --lang en, or give each language a workspace"
        )
    elif report.languages.get("") == report.documents:
        output.note(
            "no document says its language: words are not stemmed; where all are of one, ingest anew and name"
            " it, as --lang en"
        )
    if found := report.citations:
        read = "article" if articles else "document"
        cited = amount(found.references, "reference[|s]"), amount(found.mentions, "time[|s]")
        lists = amount(found.articles, f"{read}[ lists {cited[0]} and cites|s list {cited[0]} and cite]")
        click.echo(f"{lists} {cited[1]}")
        none = f"{read}[ has|s have] no"
        for count, what in (
            (found.without_body, f"{none} {'body' if articles else 'citations'}"),
            (found.without_references, f"{none} references"),
            (
                found.without_key,
                "reference[ has|s have] no DOI, PMID or title: nothing tells [it|them] apart",
            ),
            (found.unresolved, "citation[ names|s name] no reference and [is|are] left out"),
        ):
            if count:
                output.note(amount(count, what))
    if settings["categories"]:
        click.echo(f"category graph: {amount(report.category_edges, 'edge[|s]')}")
    for name, count in report.encoded.items():
        if count:
            click.echo(f"{name}: {amount(count, 'document[|s]')} encoded")


def _check_for_queries(corpus: tuple[str, ...], *, may_ask: bool) -> None:
    """Warn about files that look like queries; on a terminal, ask whether they are the documents."""
    from rerank.formats.beir import looks_like_queries

    for source in filter(looks_like_queries, corpus):
        what = f"{source} looks like a file of queries: its records have no titles"
        if may_ask and output.somebody_answers():
            if not click.confirm(output.harmless(f"{what}. Are these the documents?"), err=True):
                raise click.UsageError("nothing was ingested; name the file of the documents")
        else:
            output.note(f"{what}. If it is one, remove these documents, and name it with --queries later")
