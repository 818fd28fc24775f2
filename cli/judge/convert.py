"""``rerank judge convert``: write judgments for other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rerank.documents.text import count_of

from .. import output
from ..options import OUTPUT, Command, json_option, option, queries_option

if TYPE_CHECKING:
    from rerank.judging.convert import ConvertReport, Target

_TARGETS = ("srw", "queryset", "quepid", "rank-eval", "trec")


@click.command("convert", cls=Command)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=OUTPUT)
@queries_option
@option("--to", type=click.Choice(_TARGETS), required=True, group="Output", help="Form of OUT.")
@option("--index", metavar="NAME", group="Output", help="Index of the documents, for rank-eval.")
@json_option
def command(source: str, target: str, queries: str, to: Target, index: str | None, as_json: bool) -> None:
    """Write the judgments of the file IN into the file OUT, in the form of another tool.

    IN is BEIR, TREC, CSV of Quepid, JSON of Search Relevance Workbench, or a file of `rerank serve --judge`.
    If several people have judged a document, the median counts.
    """
    from rerank.judging.convert import convert_judgments

    report = convert_judgments(source, target, queries=queries, to=to, index=index)
    output.print_report(report, _show, as_json=as_json)


def _show(report: ConvertReport) -> None:
    if report.agreement:
        output.note(report.agreement)
    output.note(*report.warnings)
    click.echo(
        f"{count_of(report.judgments, 'judgment')} of {count_of(report.queries, 'query')} written to"
        f" {report.file}"
    )
