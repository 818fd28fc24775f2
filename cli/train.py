"""``rerank train``: judged queries, or links, -> fitted rankers."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from . import options, output


@click.command("train", cls=options.Sections)
@click.argument("rankers", nargs=-1, required=True, metavar="RANKER...")
@options.common
@click.option("--queries", metavar="FILE", help="Queries, JSON lines (plain or .gz).")
@click.option("--qrels", metavar="FILE", help="Judgements to train on, BEIR or TREC.")
@click.option(
    "--dev-qrels", metavar="FILE", help="Judgements that stop the training. Default: a tenth held out."
)
@click.option(
    "--pairs",
    metavar="FILE",
    help="Texts that belong together (JSON lines), for projections: beside the judgements, or instead.",
)
@click.option(
    "--dim",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Projections: numbers in a vector.",
)
@click.option(
    "--init",
    metavar="START",
    default="auto",
    show_default=True,
    help="Where s2net starts: random, cllsi, opca, lsi, the folder of a fitted projection, or auto: the best"
    " of these four on dev.",
)
@click.option(
    "--letters",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Projections: length of the letter sequences that are terms beside words; 0: words only.",
)
@click.option(
    "--terms",
    type=click.IntRange(min=1),
    default=50000,
    show_default=True,
    help="Projections: at most so many.",
)
@click.option("--two-matrices", is_flag=True, help="Projections: a matrix of its own for each side.")
@click.option("--tanh", is_flag=True, help="s2net: a tanh after the projection.")
@click.option(
    "--loss",
    type=click.Choice(["logistic", "squared"]),
    default="logistic",
    show_default=True,
    help="s2net: over differences of cosines, or over cosines and labels.",
)
@click.option("--graded", is_flag=True, help="s2net: lower grades are pairs too, and stay below higher ones.")
@click.option("--both-sides", is_flag=True, help="s2net: compare each document with all queries too.")
@click.option(
    "--gamma",
    type=click.FloatRange(min=0),
    help="Factor of the cosines' differences (s2net, 10 unless told); weight of the semantic half, at most 1"
    " (dense, 0.5).",
)
@click.option(
    "--beta",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="s2net: weight of the squared distance from the start.",
)
@click.option(
    "--opca-ridge",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="Share of the mean noise variance.",
)
@click.option(
    "--cca-ridge",
    type=click.FloatRange(min=0),
    default=1e-4,
    show_default=True,
    help="Variance added to each term.",
)
@click.option(
    "--preset",
    type=options.PRESET,
    default="default",
    show_default=True,
    help="CNN: sizes; dense: settings of the paper.",
)
@click.option(
    "--head", type=click.Choice(["cosine", "mlp"]), help="Default: cosine; with --preset paper: mlp."
)
@click.option(
    "--sampling",
    type=click.Choice(["random", "first-stage", "mixed"]),
    default="mixed",
    show_default=True,
    help="Where irrelevant documents come from.",
)
@click.option(
    "--negatives",
    type=click.IntRange(min=1),
    help="Irrelevant documents for each relevant one; s2net: those of this many pairs, drawn anew now and"
    " then. Its default: all.",
)
@click.option("--epochs", type=click.IntRange(min=1), help="At most this many.")
@click.option("--batch", type=click.IntRange(min=2), help="Examples in a batch.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Learning rate.")
@click.option(
    "--tune-embeddings/--fixed-embeddings", default=None, help="Train word and category vectors too."
)
@click.option(
    "--query-text", metavar="FILE", help="More text in the queries' language (JSON lines), for word2vec."
)
@click.option(
    "--query-categories", metavar="FILE", help="The queries' own category graph, where they have another."
)
@options.dense
@options.first_stage
@options.ignore_categories
@options.infer
@options.seed
def command(
    rankers: tuple[str, ...],
    folder: str,
    as_json: bool,
    queries: str | None,
    qrels: str | None,
    dev_qrels: str | None,
    pairs: str | None,
    dim: int,
    init: str,
    letters: int,
    terms: int,
    two_matrices: bool,
    tanh: bool,
    loss: str,
    graded: bool,
    both_sides: bool,
    gamma: float | None,
    beta: float,
    opca_ridge: float,
    cca_ridge: float,
    preset: str,
    head: str | None,
    sampling: str,
    negatives: int | None,
    epochs: int | None,
    batch: int | None,
    rate: float | None,
    tune_embeddings: bool | None,
    query_text: str | None,
    query_categories: str | None,
    first_stage: str | None,
    ignore_categories: bool,
    infer: bool,
    seed: int,
    restart: bool,
    **dense: Any,
) -> None:
    """Train RANKER... and store the document sides.

    RANKER is text, meta or joint (CNN), a projection (lsi, cllsi, opca, cca, s2net), or dense. All learn from
    judged queries but dense, which learns from the documents' links.

    Ctrl-C ends the ranker that is being trained and keeps its best epoch so far.
    """
    from rerank.actions.train import train
    from rerank.formats import read_categories, read_documents, read_pairs, read_qrels, read_queries
    from rerank.rankers import FAMILIES, TRAINABLE
    from rerank.records import Query
    from rerank.workspace import Workspace

    for name in rankers:
        if name not in TRAINABLE:
            raise click.UsageError(f"{name!r} cannot be trained; choose from {', '.join(TRAINABLE)}")
    judged_rankers = [name for name in rankers if name != "dense"]
    if gamma is not None and "s2net" in rankers:
        if "dense" in rankers:
            raise click.UsageError(
                "--gamma means one thing for dense and another for s2net; train them one after the other"
            )
        if gamma == 0:
            raise click.UsageError("--gamma of s2net must be above 0")
    if "dense" in rankers:
        config = options.dense_config(
            dense, preset=preset, seed=seed, gamma=gamma, epochs=epochs, batch=batch, rate=rate
        )
        _dense(folder, config, restart, as_json and not judged_rankers)
        if not judged_rankers:
            return
    if bool(queries) != bool(qrels) or (dev_qrels and not qrels) or not (qrels or pairs):
        raise click.UsageError("give --queries and --qrels, or --pairs, or both")
    if negatives and "s2net" in rankers and set(rankers) & set(FAMILIES["cnn"]):
        raise click.UsageError(
            "--negatives means pairs that are compared for s2net, and documents for the CNN rankers; train"
            " them one after the other"
        )
    workspace = Workspace.open(folder)
    asked = read_queries(queries) if queries else []
    if ignore_categories:
        asked = [dataclasses.replace(query, categories=()) for query in asked]
    judged = read_qrels(qrels) if qrels else None
    dev = read_qrels(dev_qrels) if dev_qrels else None
    edges = read_categories(query_categories) if query_categories else None

    texts = read_pairs(pairs) if pairs else []

    cnn = projection = None
    if set(rankers) & set(FAMILIES["cnn"]):
        from rerank.training.cnn.fit import cnn_config

        cnn = cnn_config(
            preset,
            head,
            source=sampling,
            negatives=negatives,
            epochs=epochs,
            batch=batch,
            rate=rate,
            tune_embeddings=tune_embeddings,
            seed=seed,
        )
    if set(rankers) & set(FAMILIES["projection"]):
        from rerank.training.projection.fit import INITS, MOST, ProjectionConfig, start_from

        start = None if init in INITS else start_from(init)
        projection = ProjectionConfig(
            dim=dim,
            init="auto" if start else init,
            start=start,
            letters=letters,
            terms=terms,
            two=two_matrices,
            tanh=tanh,
            loss=loss,
            graded=graded,
            both=both_sides,
            gamma=10.0 if gamma is None else gamma,
            beta=beta,
            ridge=opca_ridge,
            kappa=cca_ridge,
            negatives=negatives,
            iterations=epochs or MOST,
            seed=seed,
        )
    report = train(
        workspace,
        judged_rankers,
        asked,
        judged,
        dev,
        config=cnn,
        projection=projection,
        pairs=texts,
        first_stage=first_stage or workspace.first_stage,
        query_text=(Query(d.id, d.content) for d in read_documents(query_text)) if query_text else None,
        query_category_edges=edges,
        infer=infer,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(report)
        return
    held = f", held out of the judgements: tune on {report.held_out}" if report.held_out else ""
    if judged is not None:
        click.echo(f"{report.train_queries} train queries, {report.dev_queries} dev queries{held}")
    if report.train_pairs:
        click.echo(f"{report.train_pairs} train pairs, {report.dev_pairs} dev pairs")
    for count, what in (
        (report.unknown_queries, "judged queries are not in the query file"),
        (report.unknown_documents, "relevant documents are not in the workspace"),
        (report.without_hits, "queries retrieve nothing"),
        (
            report.inferred_categories,
            "queries brought no categories and got them from their first candidates",
        ),
    ):
        if count:
            output.note(f"{count} {what}")
    for fitted in report.rankers:
        stop = "interrupted, " if fitted.interrupted else ""
        kept = f"epoch {fitted.epoch} of {fitted.epochs} kept; " if fitted.epochs else ""
        if judged is not None:
            found = (
                f"dev NDCG {fitted.dev:.4f} weighted with the first stage,"
                f" {fitted.dev_first_stage:.4f} without"
            )
        else:
            found = (
                f"mean reciprocal rank of dev pairs {fitted.dev:.4f}, {fitted.dev_first_stage:.4f} by terms"
            )
        click.echo(f"{fitted.name} {fitted.version}: {stop}{kept}{found}")


def _dense(folder: str, config: Any, restart: bool, as_json: bool) -> None:
    from rerank.actions.train_dense import train_dense

    from rerank.workspace import Workspace

    report = train_dense(Workspace.open(folder), config, restart=restart, progress=output.Bar(quiet=as_json))
    if report is None:  # one of several processes, not the first
        return
    if as_json:
        output.print_json(report)
        return
    output.left_out(report)
    click.echo(
        f"{report.documents} documents, {report.train_links} pairs {output.RELATED[report.structure_from]} to"
        f" learn from, {report.held_out} held out; {report.steps} steps at {report.rate:.1f} sequences/s"
    )
    shares = (
        (report.masked, "of the anchors had no structural pair"),
        (report.masked_semantic, "had no semantic negative"),
        (report.active_structural, "of the structural hinges were active"),
        (report.active_semantic, "of the semantic hinges were active"),
    )
    click.echo("; ".join(f"{share:.0%} {what}" for share, what in shares if share is not None))
    rows = [
        [
            _state(m["step"], m["share"]),
            "" if m["loss"] is None else f"{m['loss']:.4f}",
            *("" if m[name] is None else f"{m[name]:.4f}" for name in ("ndcg", "recall5", "recall10")),
            "kept" if (m["step"], m["share"]) == (report.best, report.share) else "",
        ]
        for m in report.history
    ]
    click.echo(output.table(["step", "loss", "NDCG", "R@5", "R@10", ""], rows))
    stop = "interrupted, " if report.interrupted else ""
    kept = "the untrained encoder was the best and is kept"
    if report.best:
        kept = f"{_state(report.best, report.share)} kept" if report.share < 1 else f"step {report.best} kept"
    click.echo(f"dense {report.version}: {stop}{kept}")


def _state(step: float | None, share: float | None) -> str:
    """Name the weights that were measured."""
    if not step:
        return "untrained"
    return f"{step:.0f}" if share == 1 else f"{share:.2f} of the way to {step:.0f}"
