"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from rerank.training.dense.config import DenseConfig

Function = TypeVar("Function", bound=Callable[..., Any])

workspace = click.option(
    "-w",
    "--workspace",
    "folder",
    default=".rerank",
    show_default=True,
    envvar="RERANK_WORKSPACE",
    metavar="DIR",
    help="The workspace; also RERANK_WORKSPACE.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything random."
)
queries = click.option("--queries", required=True, metavar="FILE", help="Queries, JSON lines (plain or .gz).")
first_stage = click.option(
    "--first-stage",
    type=click.Choice(["tfidf", "bm25"]),
    default=None,
    help="What retrieves the candidates. Default: the stack's own; without one, the workspace's.",
)
retrieve = click.option(
    "--retrieve",
    metavar="NAME[,NAME[:N]...]",
    help="Who retrieves the candidates, the depth each: tfidf, bm25, and rankers such as s2net;"
    " s2net:200 for a depth of its own."
    " Default: the stack's retrievers.",
)
ignore_categories = click.option(
    "--ignore-categories", is_flag=True, help="Act as if the queries brought no categories."
)
infer = click.option(
    "--infer-categories/--no-infer-categories",
    "infer",
    default=True,
    show_default=True,
    help="Guess the categories of queries that bring none from their first ten candidates.",
)


def common(function: Function) -> Function:
    """Add --workspace and --json."""
    return workspace(as_json(function))


def _choice(*names: str) -> click.Choice[str]:
    return click.Choice(names)


_STRUCTURE = (
    click.option(
        "--model",
        default="minilm",
        show_default=True,
        metavar="NAME",
        help="dense, encoder: a folder, or a model on this machine.",
    ),
    click.option(
        "--layers", type=click.IntRange(min=1), help="dense, encoder: keep the first N layers only."
    ),
    click.option(
        "--random-weights",
        is_flag=True,
        help="dense, encoder: the model's shape, none of what it has learned.",
    ),
    click.option(
        "--pooling",
        type=_choice("mean", "cls"),
        default="mean",
        show_default=True,
        help="dense, encoder: of token vectors.",
    ),
    click.option(
        "--fragment-tokens",
        type=click.IntRange(min=8),
        default=128,
        show_default=True,
        help="dense, encoder: tokens of a fragment.",
    ),
    click.option(
        "--fragments",
        type=click.IntRange(1, 100),
        default=8,
        show_default=True,
        help="dense, encoder: of a document, at most.",
    ),
    click.option(
        "--structure-from",
        type=_choice("links", "categories", "cocitation"),
        default="links",
        show_default=True,
        help="dense, structure: what relates documents: links, shared categories, or a document that links to"
        " both.",
    ),
    click.option(
        "--leave-out",
        multiple=True,
        metavar="QRELS",
        help="dense, structure: do not learn from links between documents that these judgements give the same"
        " query; for judgements that were made from links. Repeat it for several files.",
    ),
    click.option(
        "--held-out",
        type=click.FloatRange(0, 0.9),
        default=0.1,
        show_default=True,
        help="dense, structure: share of the related pairs that stops the training.",
    ),
    click.option(
        "--direction",
        type=_choice("sym", "out", "in"),
        default="sym",
        show_default=True,
        help="dense, structure: links both ways, as given, or turned round.",
    ),
    click.option(
        "--alpha",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.15,
        show_default=True,
        help="dense, structure: restart probability of the intimacy.",
    ),
    click.option(
        "--axis",
        type=_choice("row", "column"),
        default="row",
        show_default=True,
        help="dense, structure: of the intimacy; column favours documents with many links.",
    ),
    click.option(
        "--tolerance",
        type=click.FloatRange(min=0, min_open=True),
        default=0.001,
        show_default=True,
        help="dense, structure: largest error of the intimacy in large components.",
    ),
    click.option(
        "--positives",
        type=_choice("hierarchical", "row"),
        default="hierarchical",
        show_default=True,
        help="dense, structure: drawn level by level, or from all linked documents alike.",
    ),
    click.option(
        "--related",
        type=click.IntRange(min=0),
        default=64,
        show_default=True,
        help="dense, structure: related documents of each, at most; 0: all that are reachable.",
    ),
    click.option(
        "--grey",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="dense, structure: so many more are neither positives nor negatives.",
    ),
    click.option(
        "--max-level", type=click.IntRange(min=1), help="dense, structure: draw no higher level than this."
    ),
    click.option("--level", type=click.IntRange(min=1), help="dense, structure: draw this level alone."),
    click.option(
        "--objective",
        type=_choice("quintuplet", "contrastive", "structure", "semantics", "fixed-margin", "triplet"),
        default="contrastive",
        show_default=True,
        help="dense, loss: which one.",
    ),
    click.option(
        "--anchors",
        type=_choice("document", "fragment"),
        default="document",
        show_default=True,
        help="dense, loss: what an epoch has as an anchor once.",
    ),
    click.option(
        "--isolated",
        type=_choice("semantic", "skip"),
        default="semantic",
        show_default=True,
        help="dense, loss: documents without related ones: semantic half alone, or left out.",
    ),
    click.option(
        "--mask-related/--no-mask-related",
        default=True,
        show_default=True,
        help="dense, loss: related documents of a batch are no negatives.",
    ),
    click.option(
        "--corrupted",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.25,
        show_default=True,
        help="dense, loss: share of the tokens of the semantic positive that are replaced.",
    ),
    click.option(
        "--corruption",
        type=_choice("mixed", "random", "mask"),
        default="mixed",
        show_default=True,
        help="dense, loss: by random tokens, the mask token, or either.",
    ),
    click.option(
        "--same-fragment",
        is_flag=True,
        help="dense, loss: the semantic positive is made of the anchor's own fragment, not of any of its"
        " document.",
    ),
)
_TRAINING = (
    click.option(
        "--train-layers",
        type=click.IntRange(min=0),
        help="dense, encoder: train the last N layers alone, the others keep their weights; 0: all. Default:"
        " 3, or all where there are no more.",
    ),
    click.option(
        "--structural-margin",
        type=click.FloatRange(min=0),
        default=2.0,
        show_default=True,
        help="dense, loss: at level 1.",
    ),
    click.option(
        "--margin",
        type=_choice("harmonic", "geometric", "constant"),
        default="harmonic",
        show_default=True,
        help="dense, loss: structural margin at level l: m / l, m / 2^(l-1), m.",
    ),
    click.option(
        "--semantic-margin",
        type=click.FloatRange(min=0),
        default=0.5,
        show_default=True,
        help="dense, loss: of the semantic half.",
    ),
    click.option(
        "--pool",
        type=_choice("anchors", "all"),
        default="anchors",
        show_default=True,
        help="dense, loss: where in the batch the nearest other text is looked for.",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0, min_open=True),
        default=0.05,
        show_default=True,
        help="dense, loss: of the softmax (contrastive).",
    ),
    click.option(
        "--accumulate",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="dense, training: encode a batch in so many parts, to save memory.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(min=1),
        help="dense, training: at most this many, instead of --epochs.",
    ),
    click.option(
        "--warmup",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        help="dense, training: share of the steps in which the rate rises.",
    ),
    click.option(
        "--every",
        type=click.IntRange(min=1),
        help="dense, training: steps between measurements. Default: half an epoch.",
    ),
    click.option(
        "--patience",
        type=click.IntRange(min=1),
        default=6,
        show_default=True,
        help="dense, training: measurements without gain that end it.",
    ),
    click.option(
        "--average/--no-average",
        default=True,
        show_default=True,
        help="dense, training: at the end, also try weights between the untrained and the last ones.",
    ),
    click.option(
        "--precision",
        type=_choice("auto", "fp32", "bf16"),
        default="auto",
        show_default=True,
        help="dense, training: of the numbers; auto: bf16 where the hardware multiplies it.",
    ),
    click.option(
        "--best",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        help="dense, training: fragments whose cosines make a document's score.",
    ),
    click.option(
        "--normalise/--no-normalise",
        default=True,
        show_default=True,
        help="dense, training: divide a document's score by the weights of its fragments.",
    ),
    click.option(
        "--restart", is_flag=True, help="dense, training: drop the checkpoint of an interrupted one."
    ),
)
PRESET = click.Choice(["default", "paper"])


def structure(function: Function) -> Function:
    """Add what decides the quintuplets of the ranker dense."""
    for option in reversed(_STRUCTURE):
        function = option(function)
    return function


def dense(function: Function) -> Function:
    """Add what the ranker dense is made of."""
    for option in reversed((*_STRUCTURE, *_TRAINING)):
        function = option(function)
    return function


def dense_config(values: Mapping[str, Any], *, preset: str, seed: int, **shared: Any) -> DenseConfig:
    """Settings of ``dense``: the preset's, but for what was given on the command line.

    ``shared`` are values of options that other rankers have too, None: not given.
    """
    from rerank.training.dense.config import dense_config

    context = click.get_current_context()
    default = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    given = {n: value for n, value in values.items() if context.get_parameter_source(n) not in default}
    return dense_config(preset, **given, **shared, seed=seed)


class Sections(click.Command):
    """A command with many options: its help has a section for those whose help begins with ``NAME: ``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            names, text = record
            found = re.match(r"(Projections|CNN|s2net|dense(?:, \w+)?): ", text)
            title = found[1] if found else "Options"
            rest = text[found.end() :] if found else text
            sections.setdefault(title, []).append((names, rest[:1].upper() + rest[1:]))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
