"""``rerank train``: train rankers on judged queries, pairs or links."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import rerank
from rerank.common.values import items_not_in
from rerank.documents.text import count_of, join_names
from rerank.rankers.registry import families, readers_of

from . import INTERRUPTED, output
from .config_options import given_settings, setting_options
from .options import (
    Command,
    first_stage_option,
    ignore_categories_option,
    infer_option,
    json_option,
    option,
    workspace_option,
)

if TYPE_CHECKING:
    from rerank.rankers.training.job import TrainingResult
    from rerank.workflows.training_data import TrainReport


_CONFIGURATIONS = {
    family.name: family.options_class() for family in families().values() if family.fitter is not None
}
"""Name of a family that can be trained -> its configuration class."""
_PRESETS = dict.fromkeys(
    preset for configuration in _CONFIGURATIONS.values() for preset in configuration.presets
)
_CHOSEN_CONFIGURATIONS = f"{__name__}.chosen_configurations"
"""Key of the context for the configurations of the families that a command line names."""
_SETTING_OPTIONS = f"{__name__}.setting_options"
"""Key of the context for the options of their settings."""


class _TrainCommand(Command):
    """A command with one option for each setting of the families whose rankers the command line names.

    The families are unknown until the command line is read, so the options are made for each call. In docs,
    which have no command line, the command has the settings of all families.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Make the options of the families that the arguments name, then read the command line with them."""
        configurations = {
            name: configuration
            for name, configuration in _CONFIGURATIONS.items()
            if not {name, *families()[name].rankers}.isdisjoint(args)
        }
        ctx.meta[_CHOSEN_CONFIGURATIONS] = configurations
        ctx.meta[_SETTING_OPTIONS] = setting_options(configurations)
        return super().parse_args(ctx, args)

    def describe_unknown(self, error: click.NoSuchOption, command: str) -> str:
        """Return the message for an unknown option, which can be a setting of rankers that are not named."""
        setting = error.option_name.removeprefix("--").removeprefix("no-")
        readers = readers_of(setting.replace("-", "_"))
        if readers:
            return f"{error.option_name} is a setting of {', '.join(readers)}; leave it out"
        return super().describe_unknown(error, command)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of the settings, then the other options. The help shows them in this order."""
        if _SETTING_OPTIONS in ctx.meta:
            options = ctx.meta[_SETTING_OPTIONS]
        else:
            options = setting_options(_CONFIGURATIONS)
        return [*options, *super().get_params(ctx)]


@click.command("train", cls=_TrainCommand)
@click.argument("rankers", nargs=-1, required=True, metavar="RANKER...")
@option("--queries", metavar="FILE", group="Input", help="Queries, JSON lines.")
@option("--qrels", metavar="FILE", group="Input", help="Judgments to train on, BEIR or TREC.")
@option(
    "--dev-qrels",
    metavar="FILE",
    group="Input",
    help="Judgments for early stopping. Default: a tenth of the judged queries.",
)
@option(
    "--text-pairs",
    "text_pairs",
    metavar="FILE",
    group="Input",
    help="Pairs of texts for projections: JSON lines, or a .tsv file.",
)
@option(
    "--labeled-pairs",
    metavar="FILE",
    group="Input",
    help="Pairs of documents with labels for concept, TSV.",
)
@option("--dev-pairs", metavar="FILE", group="Input", help="Labeled pairs for early stopping of concept.")
@option(
    "--query-text",
    metavar="FILE",
    group="Input",
    help="Texts for word vectors of queries. Default: the queries.",
)
@first_stage_option(group="Input", default="the first stage of the workspace")
@ignore_categories_option
@infer_option("Candidates")
@option(
    "--preset",
    metavar="NAME",
    group="Training",
    help=f"Settings to start from: {', '.join(_PRESETS)}. Default: default.",
)
@option("--config", "config_file", metavar="FILE", group="Training", help="Settings in TOML.")
@option(
    "--as",
    "as_name",
    metavar="NAME",
    group="Training",
    help="Name of the trained ranker. Default: RANKER.",
)
@option("--restart", is_flag=True, group="Training", help="Discard an interrupted training.")
@workspace_option
@json_option
def command(
    folder: str,
    rankers: tuple[str, ...],
    queries: str | None,
    qrels: str | None,
    dev_qrels: str | None,
    text_pairs: str | None,
    labeled_pairs: str | None,
    dev_pairs: str | None,
    query_text: str | None,
    first_stage: str | None,
    ignore_categories: bool,
    infer: bool,
    preset: str | None,
    config_file: str | None,
    as_name: str | None,
    restart: bool,
    as_json: bool,
    **settings: object,
) -> None:
    """Train RANKER... and compute the features of the documents.

    RANKER is text, meta or joint (family cnn), lsi, cllsi, opca, cca or s2net (family projection), dense,
    adapter or concept. `rerank train RANKER --help` also lists its settings. dense learns from links
    or judged queries, concept from labeled pairs, the others from judged queries. Ctrl-C keeps the best
    epoch; the same command resumes.
    """
    workspace = rerank.Workspace.open(folder)
    chosen_configurations = click.get_current_context().meta[_CHOSEN_CONFIGURATIONS]
    config = given_settings(settings, chosen_configurations, config_file)
    report = rerank.train(
        workspace,
        rankers,
        queries=queries or (),
        qrels=qrels,
        dev_qrels=dev_qrels,
        pairs=text_pairs or (),
        labeled=labeled_pairs or (),
        dev_labeled=dev_pairs or (),
        config=config,
        preset=preset,
        as_name=as_name,
        restart=restart,
        first_stage=first_stage,
        query_text=query_text,
        ignore_categories=ignore_categories,
        infer=infer,
        progress=output.Bar(hidden=as_json),
    )
    interrupted = any(result.interrupted for result in report.rankers)
    if interrupted:
        _note_missing_rankers(rankers, report)
    output.print_report(report, _show, as_json=as_json)
    if interrupted:
        sys.exit(INTERRUPTED)


def _note_missing_rankers(rankers: Sequence[str], report: TrainReport) -> None:
    """Describe the work that an interruption left undone."""
    output.note("`rerank encode` computes the features of the documents")
    trained = {result.ranker.variant for result in report.rankers}
    not_trained = items_not_in(rankers, trained)
    if not_trained:
        output.note(f"not trained: {', '.join(not_trained)}; train again")


def _show(report: TrainReport) -> None:
    if report.train_queries:
        held_out = f", held out of the judgments: tune on {report.held_out}" if report.held_out else ""
        train_queries = count_of(report.train_queries, "train query")
        dev_queries = count_of(report.dev_queries, "dev query")
        click.echo(f"{train_queries}, {dev_queries}{held_out}; candidates by {report.first_stage}")
    if report.train_pairs:
        train_pairs = count_of(report.train_pairs, "train pair")
        dev_pairs = count_of(report.dev_pairs, "dev pair")
        click.echo(f"{train_pairs}, {dev_pairs}")
    _print_notes(report)
    for result in report.rankers:
        for remark in result.remarks:
            click.echo(remark)
        click.echo(f"{result.ranker.name} {result.ranker.version}: {_describe(result)}")


def _print_notes(report: TrainReport) -> None:
    """Print which judgments could not be used, and which queries got categories."""
    silent = f"{output.without_candidates(report.without_hits)}: {join_names(report.silent)}"
    counts = {
        output.not_in_query_file(report.unknown_queries): report.unknown_queries,
        output.not_in_workspace(report.unknown_documents): report.unknown_documents,
        silent: report.without_hits,
        output.inferred_categories(report.inferred_categories): report.inferred_categories,
    }
    output.note(*output.notes_of(counts))


def _describe(result: TrainingResult) -> str:
    text = f"{result.unit} {result.epoch} of {result.epochs} kept" if result.epochs else "fitted"
    if result.interrupted:
        text = f"interrupted, {text if result.epoch else 'the start is kept'}"
    if result.dev is None:
        return text
    text += f"; {result.measure} {result.dev:.4f}"
    if result.baseline_value is not None:
        text += f", {result.baseline_value:.4f} {result.baseline_name}"
    return text
