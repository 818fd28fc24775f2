"""``rerank train``: judged queries, pairs of texts or links -> fitted rankers."""

from __future__ import annotations

import dataclasses
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from rerank.rankers.registry import Family, Source, families, families_of
from rerank.text import join_names, plural

from . import INTERRUPTED, config_options, options, output

if TYPE_CHECKING:
    from rerank.workflows.train import FittedReport, TrainReport
    from rerank.workspace import Workspace

_JUDGED: tuple[Source, ...] = ("judgments",)
_INPUTS: tuple[tuple[tuple[Source, ...], Any], ...] = (
    (_JUDGED, click.option("--queries", metavar="FILE", help="Queries, JSON lines (plain or .gz).")),
    (_JUDGED, click.option("--qrels", metavar="FILE", help="Judgments to train on, BEIR or TREC.")),
    (
        _JUDGED,
        click.option(
            "--dev-qrels",
            metavar="FILE",
            help="Judgments that stop the training. Default: a tenth held out.",
        ),
    ),
    (
        ("pairs", "labeled pairs"),
        click.option(
            "--pairs",
            metavar="FILE",
            help="Texts that belong together (JSON lines), beside the judgments or instead; for concept,"
            " labeled pairs of documents (TSV).",
        ),
    ),
    (
        ("labeled pairs",),
        click.option(
            "--dev-pairs",
            metavar="FILE",
            help="Labeled pairs that concept is measured by. Default: none, the last step is kept.",
        ),
    ),
    (
        _JUDGED,
        click.option(
            "--query-text", metavar="FILE", help="More text in the queries' language, for word vectors."
        ),
    ),
    (
        _JUDGED,
        click.option(
            "--query-categories", metavar="FILE", help="The queries' own category graph, if they have one."
        ),
    ),
    (_JUDGED, options.first_stage_of_training),
    (_JUDGED, options.ignore_categories),
    (_JUDGED, options.infer),
    (_JUDGED, options.conflicts),
)
"""What rankers learn from -> the options that say where it is."""


def _function(trained: list[Family], run: Any) -> Any:
    """Add the inputs of trainings of families to a function."""
    sources = {source for family in trained for source in family.learns_from}
    for of, option in reversed(_INPUTS):
        if sources & {*of}:
            run = option(run)
    if any(family.resumes for family in trained):
        run = click.option("--restart", is_flag=True, help="Discard interrupted trainings.")(run)
    name = click.option(
        "--as", "as_name", metavar="NAME", help="A name of its own for the one ranker that is trained."
    )
    return options.common(name(run))


def _run(rankers: tuple[str, ...], folder: str, as_json: bool, as_name: str | None, **values: Any) -> None:
    from rerank.workflows.train import train
    from rerank.workspace import Workspace

    config = config_options.given(values)
    sources = {source for family in families_of(rankers).values() for source in family.learns_from}
    _check(values, sources)
    workspace = Workspace.open(folder)
    report = train(
        workspace,
        rankers,
        config=config,
        preset=values.get("preset"),
        as_name=as_name,
        restart=values.get("restart", False),
        first_stage=values.get("first_stage"),
        infer=values.get("infer", True),
        progress=output.Bar(quiet=as_json),
        **_judged(values),
        **_pairs(values, sources, workspace),
    )
    if as_json:
        output.print_json(report)
    else:
        _show(report)
    if any(fitted.interrupted for fitted in report.rankers):
        output.note("`rerank encode` stores the document sides")
        left = [name for name in rankers if name not in {fitted.variant for fitted in report.rankers}]
        if left:
            were = "was" if len(left) == 1 else "were"
            output.note(f"{' and '.join(left)} {were} not reached: train again")
        sys.exit(INTERRUPTED)


def _check(values: dict[str, Any], sources: set[Source]) -> None:
    """Raise UsageError for inputs that do not fit together."""
    queries, qrels = values.get("queries"), values.get("qrels")
    if bool(queries) != bool(qrels) or (values.get("dev_qrels") and not qrels):
        raise click.UsageError("give --queries and --qrels, or --pairs, or both")
    if values.get("dev_pairs") and "labeled pairs" not in sources:
        raise click.UsageError("--dev-pairs is for concept only; leave it out")
    if values.get("pairs") and {"labeled pairs", "pairs"} <= sources:
        raise click.UsageError(
            "concept learns from labeled pairs, the projections from texts that belong together; train them"
            " one after the other"
        )


def _judged(values: dict[str, Any]) -> dict[str, Any]:
    """Read the judged queries, and what else is known of the queries."""
    from rerank.formats import read_categories, read_corpus, read_qrels, read_queries
    from rerank.records import Query

    queries, qrels, dev, text, edges = (
        values.get(name) for name in ("queries", "qrels", "dev_qrels", "query_text", "query_categories")
    )
    asked = read_queries(queries) if queries else []
    if values.get("ignore_categories"):
        asked = [dataclasses.replace(query, categories=()) for query in asked]
    return {
        "queries": asked,
        "qrels": read_qrels(qrels, conflicts=values["conflicts"]) if qrels else None,
        "dev_qrels": read_qrels(dev, conflicts=values["conflicts"]) if dev else None,
        "query_text": (Query(d.id, d.content) for d in read_corpus(text)) if text else None,
        "query_category_edges": read_categories(edges) if edges else None,
    }


def _pairs(values: dict[str, Any], sources: set[Source], workspace: Workspace) -> dict[str, Any]:
    """Read the pairs: of texts, or of documents with labels."""
    from rerank.formats import read_labeled_pairs, read_pairs

    pairs, dev = values.get("pairs"), values.get("dev_pairs")
    if "labeled pairs" not in sources:
        return {"pairs": read_pairs(pairs)} if pairs else {}
    files = {"labeled": pairs, "dev_labeled": dev}
    return {
        name: read_labeled_pairs(file, workspace.engine.contains, remark=output.note)
        for name, file in files.items()
        if file
    }


def _show(report: TrainReport) -> None:
    """Print what was learned from, and the rankers."""
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
            click.echo(_history(history, fitted.epoch, fitted.details.get("share", 1)))
        click.echo(f"{fitted.name} {fitted.version}: {_described(fitted)}")


def _described(fitted: FittedReport) -> str:
    """Describe which state of a ranker is kept, and its measure."""
    text = f"{fitted.unit} {fitted.epoch} of {fitted.epochs} kept" if fitted.epochs else "fitted"
    if fitted.interrupted:
        text = f"interrupted, {text if fitted.epoch else 'what it started from is kept'}"
    if fitted.dev is not None:
        text += f"; {fitted.measure} {fitted.dev:.4f}"
        if fitted.baseline is not None:
            text += f", {fitted.baseline:.4f} {fitted.without}"
    return text


def _history(rows: list[dict[str, Any]], best: int, share: float) -> str:
    """A table of what was measured, a row each time."""
    names = [name for name in dict.fromkeys(n for row in rows for n in row) if name not in ("step", "share")]
    cells = [
        [
            _state(row["step"], row["share"]),
            *("" if row.get(name) is None else f"{row[name]:.4f}" for name in names),
            "kept" if (row["step"], row["share"]) == (best, share) else "",
        ]
        for row in rows
    ]
    return output.table(["step", *names, ""], cells)


def _state(step: int, share: float) -> str:
    """Name the weights that were measured."""
    if not step:
        return "untrained"
    return f"{step}" if share == 1 else f"{share:.2f} of the way to {step}"


def _of_a_family(family: Family) -> click.Command:
    """Make ``rerank train FAMILY``."""
    one = len(family.rankers) == 1

    def run(rankers: tuple[str, ...] = family.rankers, **values: Any) -> None:
        for name in rankers:
            if name not in family.rankers:
                raise click.UsageError(f"{name!r} is no ranker of {family.name}: {', '.join(family.rankers)}")
        _run(rankers, **values)

    run = _function([family], run)
    if not one:
        run = _RANKERS(run)
    names = f"{', '.join(family.rankers[:-1])} or {family.rankers[-1]}"
    which = family.rankers[0] if one else f"RANKER... ({names})"
    made = click.command(
        family.name,
        cls=config_options.Command,
        families={family.name: family.options_class()},
        help=f"Train {which} on {' or '.join(family.learns_from)}, and store the document sides.",
    )(run)
    return made


class _Train(config_options.Command, click.Group):
    """The rankers of all families, and a subcommand for each family."""

    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Take ``cnn text meta`` for the subcommand, and ``text lsi`` or ``dense text`` for rankers."""
        named = list(takewhile(lambda one: not one.startswith("-"), args))
        family = families().get(named[0]) if named else None
        if family is None or family.name not in self.commands or not {*named[1:]} <= {*family.rankers}:
            return super().make_context(info_name, args, parent, **extra)
        return self.commands[family.name].make_context(
            f"{info_name} {family.name}", args[1:], parent, **extra
        )


def _every(rankers: tuple[str, ...], **values: Any) -> None:
    """Train RANKER... and store the document sides.

    RANKER is text, meta or joint (CNN), a projection (lsi, cllsi, opca, cca, s2net), dense or concept. All
    learn from judged queries but dense, which learns from the documents' links, and concept, which learns
    from labeled pairs. `rerank train FAMILY --help` shows all settings of a family.

    Ctrl-C ends the ranker that is being trained and keeps its best epoch so far. The same command resumes an
    interrupted training of a CNN ranker, dense or concept.
    """
    _run(rankers, **values)


_ALL = [one for one in families().values() if one.fitter]
_RANKERS = click.argument("rankers", nargs=-1, required=True, metavar="RANKER...")
command = click.command(
    "train",
    cls=_Train,
    families={family.name: family.options_class() for family in _ALL},
    invoke_without_command=True,
    subcommand_metavar="",
)(_RANKERS(_function(_ALL, _every)))
for _family in _ALL:
    command.add_command(_of_a_family(_family))
