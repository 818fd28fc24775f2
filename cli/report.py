"""``rerank report``: an evaluation, or what a ranker has learned, as an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import evaluate, options, output

if TYPE_CHECKING:
    from rerank.workspace import Workspace

_OF_A_RANKER = ("sample", "pairs", "against", "sensitivity", "steps")
_OF_AN_EVALUATION = ("queries", "qrels")


@click.command("report")
@click.argument("name", required=False, metavar="[NAME]")
@options.common
@click.option("--out", metavar="FILE", help="Where the page goes. Default: report.html, or RANKER.html.")
@click.option(
    "--queries",
    metavar="FILE",
    help="Queries, JSON lines. Default: those of the last evaluation here.",
)
@click.option("--qrels", metavar="FILE", help="Judgements to measure with. Default: those of the same.")
@click.option(
    "--sample",
    type=click.IntRange(min=2),
    default=500,
    show_default=True,
    help="Documents that distances are measured from, or that are mapped.",
)
@click.option("--pairs", metavar="FILE", help="Labelled pairs, for the report on concept: its components.")
@click.option(
    "--against",
    metavar="MODEL",
    default="untrained",
    show_default=True,
    help="The encoder that it is compared with: a model, or the one the training started from.",
)
@click.option(
    "--sensitivity", is_flag=True, help="Train short runs over gamma and the margins; goes on where it was."
)
@click.option("--steps", type=click.IntRange(min=1), help="Of each of these runs. Default: 60.")
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
    **how: Any,
) -> None:
    """Write one HTML page on an evaluation, or on what a trained encoder has learned.

    Without a NAME, or with a stack's: what stacks reach on judged queries, query by query with both rankings,
    how the weights were tuned, fewer candidates, training, latency and coverage. The queries, judgements and
    options are those of the last evaluation here, by any command or in Python, unless others are named.

    With a ranker's, dense or concept: distances by links, levels and hops, margins, a map, before and after
    training; of concept the components of labelled pairs.
    """
    from rerank.actions.evaluated import remembered
    from rerank.rankers.registry import family, maker
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    trained = name is not None and name in workspace.trained()
    of = family(workspace.kind(name)[0]) if trained and name else maker(name) if name else None
    if of is not None and of.report:
        _refuse(context, _OF_AN_EVALUATION, f"on {name}: leave it out, or name a stack")
        _ranker(workspace, name, out, as_json, seed=seed, **how)
        return
    _refuse(context, _OF_A_RANKER, "on an evaluation: leave it out, or name a ranker as dense")
    if name is not None:
        workspace.stack(name)  # refuses what is none, before anything is asked for
    known = {parameter.name for parameter in evaluate.command.params}
    values = {name: value for name, value in remembered(workspace).items() if name in known}
    given = {"queries": queries, "qrels": qrels}
    values |= {key: value for key, value in given.items() if value is not None}
    if name is not None or "stacks" not in values:
        values |= {"stacks": (name or evaluate.in_use(workspace),)}
    lacking = [f"--{key}" for key in given if key not in values]
    if lacking:
        raise click.UsageError(
            f"{' and '.join(lacking)} must be named: nothing was evaluated here, by `rerank evaluate` or else"
        )
    if not as_json and (queries is None or qrels is None):
        output.note(f"as last evaluated: {', '.join(values['stacks'])} on {values['qrels']}")
    if context.get_parameter_source("seed") is click.core.ParameterSource.COMMANDLINE:
        values["seed"] = seed
    context.invoke(
        evaluate.command, **{**values, "folder": folder, "as_json": as_json, "page": out or "report.html"}
    )


def _refuse(context: click.Context, names: tuple[str, ...], why: str) -> None:
    """Refuse options of the other kind of page."""
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} has no effect {why}")


def _ranker(
    workspace: Workspace, name: str | None, out: str | None, as_json: bool, *, pairs: str | None, **how: Any
) -> None:
    from rerank.actions.report import report
    from rerank.formats import read_labelled_pairs

    labelled = read_labelled_pairs(pairs, workspace.engine.contains, remark=output.note) if pairs else ()
    found = report(workspace, name, out, pairs=labelled, progress=output.Bar(quiet=as_json), **how)
    if as_json:
        output.print_json(found.to_json())
        return
    if not getattr(found, "same", True):
        output.note("documents or links have changed since the training: held-out links cannot be told")
    rows = found.rows()
    cells = [
        ["" if one is None else one if isinstance(one, str) else f"{one:.3f}" for one in row.values()]
        for row in rows
    ]
    click.echo(output.table(list(rows[0]), cells))
    click.echo(f"written to {found.out}")
