"""``rerank train``: judged queries, pairs or links -> rankers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.rankers.registry import families
from rerank.results import cell, table
from rerank.text import join_names, plural

from . import INTERRUPTED, config_options, options, output
from .options import Output, option

if TYPE_CHECKING:
    from rerank.rankers.training.job import TrainingResult


_FAMILIES = {one.name: one.options_class() for one in families().values() if one.fitter}
_CHOSEN, _SETTINGS = f"{__name__}.chosen", f"{__name__}.settings"
"""Keys of the families that a command line names, and of the options for their settings."""
_PRESETS = dict.fromkeys(name for config in _FAMILIES.values() for name in config.presets)


class _Train(options.Command):
    """Has the settings of the families that its arguments name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Choose the families, then read the options."""
        named = {*args}
        chosen = [name for name in _FAMILIES if named & {name, *families()[name].rankers}]
        ctx.meta[_CHOSEN] = {name: _FAMILIES[name] for name in chosen}
        ctx.meta[_SETTINGS] = config_options.options_for(ctx.meta[_CHOSEN])
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Options of the families, or of all families, and of the command."""
        if _SETTINGS not in ctx.meta:
            return [*config_options.options_for(_FAMILIES), *super().get_params(ctx)]
        return [*ctx.meta[_SETTINGS], *super().get_params(ctx)]


@options.command(
    "train",
    options.argument("rankers", nargs=-1, required=True, metavar="RANKER..."),
    "Input",
    option("--queries FILE", "Queries, JSON lines."),
    option("--qrels FILE", "Judgments to train on, BEIR or TREC."),
    option("--dev-qrels FILE", "Judgments for early stopping. Default: a tenth of the judged queries."),
    option("--text-pairs FILE", "Pairs of texts for projections, JSON lines.", dest="pairs"),
    option("--labeled-pairs FILE", "Pairs of documents with labels for concept, TSV.", dest="labeled"),
    option("--dev-pairs FILE", "Labeled pairs for early stopping of concept.", dest="dev_labeled"),
    option("--query-text FILE", "Texts for word vectors of queries. Default: the queries."),
    options.first_stage("the first stage of the workspace"),
    options.ignore_categories,
    "Candidates",
    options.infer,
    "Training",
    option("--preset NAME", f"Settings to start from: {', '.join(_PRESETS)}. Default: default."),
    option("--config FILE", "Settings in TOML.", dest="file"),
    option("--as NAME", "Name of the trained ranker. Default: RANKER.", dest="as_name"),
    option("--restart", "Discard an interrupted training."),
    cls=_Train,
)
def command(
    workspace: rerank.Workspace, rankers: tuple[str, ...], file: str | None, **inputs: Any
) -> Iterator[Output]:
    """Train RANKER... and compute the features of the documents.

    RANKER is text, meta or joint (family cnn), lsi, cllsi, opca, cca or s2net (family projection), dense,
    adapter or concept. `rerank train RANKER --help` also lists its settings. dense learns from links
    or judged queries, concept from labeled pairs, the others from judged queries. Ctrl-C keeps the best
    epoch; the same command resumes.
    """
    config = config_options.settings(inputs, click.get_current_context().meta[_CHOSEN], file)
    given = {name: value for name, value in inputs.items() if value is not None}
    if ("queries" in given) != ("qrels" in given) or ("dev_qrels" in given and "qrels" not in given):
        raise click.UsageError("--queries and --qrels belong together; give both")
    report = rerank.train(workspace, rankers, config=config, **given)
    interrupted = any(fitted.interrupted for fitted in report.rankers)
    if interrupted:
        output.note("`rerank encode` computes the features of the documents")
        left = [name for name in rankers if name not in {one.ranker.variant for one in report.rankers}]
        if left:
            output.note(f"not trained: {', '.join(left)}; train again")
    yield Output(report, INTERRUPTED if interrupted else 0)
    if report.train_queries:
        held = f", held out of the judgments: tune on {report.held_out}" if report.held_out else ""
        train = plural(report.train_queries, "train quer[y|ies]")
        dev = plural(report.dev_queries, "dev quer[y|ies]")
        click.echo(f"{train}, {dev}{held}; candidates by {report.first_stage}")
    if report.train_pairs:
        train, dev = plural(report.train_pairs, "train pair[|s]"), plural(report.dev_pairs, "dev pair[|s]")
        click.echo(f"{train}, {dev}")
    for line in output.counted(
        (report.unknown_queries, "judged quer[y is|ies are] not in the query file"),
        (report.unknown_documents, "relevant document[ is|s are] not in the workspace"),
        (report.without_hits, "quer[y retrieves|ies retrieve] nothing", join_names(report.silent)),
        (report.inferred_categories, output.INFERRED),
    ):
        output.note(line)
    for fitted in report.rankers:
        for line in fitted.remarks:
            click.echo(line)
        if history := fitted.details.get("history"):
            click.echo(_history(history))
        click.echo(f"{fitted.ranker.name} {fitted.ranker.version}: {_described(fitted)}")


def _described(fitted: TrainingResult) -> str:
    text = f"{fitted.unit} {fitted.epoch} of {fitted.epochs} kept" if fitted.epochs else "fitted"
    if fitted.interrupted:
        text = f"interrupted, {text if fitted.epoch else 'the start is kept'}"
    if fitted.dev is not None:
        text += f"; {fitted.measure} {fitted.dev:.4f}"
        if fitted.baseline_value is not None:
            text += f", {fitted.baseline_value:.4f} {fitted.baseline_name}"
    return text


def _history(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return table(names, [[cell(row.get(name)) for name in names] for row in rows], left=())
