"""``rerank report``: an evaluation as an HTML page."""

from __future__ import annotations

import click

from . import evaluate, options, output


@click.command("report")
@click.argument("name", required=False, metavar="[STACK]")
@options.common
@click.option("--out", metavar="FILE", help="Where the page goes. Default: report.html in the workspace.")
@click.option(
    "--queries",
    metavar="FILE",
    help="Queries, JSON lines. Default: those of the last evaluation here.",
)
@click.option("--qrels", metavar="FILE", help="Judgments to measure with. Default: those of the same.")
@options.seed
@click.pass_context
def command(
    context: click.Context,
    /,
    name: str | None,
    folder: str,
    as_json: bool,
    out: str | None,
    queries: str | None,
    qrels: str | None,
    seed: int,
) -> None:
    """Write one HTML page on an evaluation.

    It has the measures of stacks on judged queries, query by query with both rankings, how the weights were
    tuned, fewer candidates, training, latency and coverage. Stacks, queries, judgments and options are those
    of the last evaluation here, by any command or in Python, unless others are named.
    """
    from rerank.workflows.evaluated import remembered
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    if name is not None:
        workspace.stack(name)  # raises for an unknown one
    typed = context.get_parameter_source("seed") is click.core.ParameterSource.COMMANDLINE
    given = {
        "queries": queries,
        "qrels": qrels,
        "seed": seed if typed else None,
        "stacks": None if name is None else (name,),
    }
    known = {parameter.name for parameter in evaluate.command.params}
    values = {key: value for key, value in remembered(workspace).items() if key in known}
    values |= {key: value for key, value in given.items() if value is not None}
    missing = [f"--{key}" for key in ("queries", "qrels") if key not in values]
    if missing:
        raise click.UsageError(
            f"nothing was evaluated in {workspace.folder} yet; give {' and '.join(missing)}"
        )
    values.setdefault("stacks", (evaluate.in_use(workspace),))
    if not as_json and (queries is None or qrels is None):
        output.note(f"as last evaluated: {', '.join(values['stacks'])} on {values['qrels']}")
    out = out or str(workspace.folder / "report.html")
    context.invoke(evaluate.command, **{**values, "folder": folder, "as_json": as_json, "page": out})
