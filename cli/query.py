"""``rerank query``: one query, ranked and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rerank.wording import amount, listed

from . import options, output

if TYPE_CHECKING:
    from rerank.records import Query
    from rerank.scoring.pipeline import Answer
    from rerank.scoring.scorer import Scorer
    from rerank.stack.stack import Stack


@click.command("query")
@click.argument("words", nargs=-1, required=True, metavar="TEXT")
@options.common
@click.option(
    "--stack", "stack", metavar="STACK", help="Signals, or a stack file. Default: the stack in use."
)
@click.option(
    "--category", "categories", multiple=True, metavar="C", help="A category of the query; repeatable."
)
@click.option("-k", "count", type=click.IntRange(min=1), default=10, show_default=True, help="Hits to show.")
@click.option("--depth", type=click.IntRange(min=1), help="Candidates to rerank. Default: the stack's.")
@click.option(
    "--explain", is_flag=True, help="Show each signal, raw -> normalised -> weighted, and each hit's move."
)
@click.option("--timings", is_flag=True, help="Show where the time went.")
@click.option(
    "--lexical-text", metavar="TEXT", help="What the lexical signals look for instead, as a translation."
)
@click.option(
    "--lang",
    metavar="TEXT",
    help="Language of the query: for stacks with weights for each, or a search of your own.",
)
@click.option(
    "--param",
    "params",
    multiple=True,
    callback=options.params,
    metavar="NAME=VALUE",
    help="A further field of the query, for a search of your own: JSON, or text; repeatable.",
)
@options.first_stage
@options.retrieve
@options.filters
@options.infer
def command(
    words: tuple[str, ...],
    folder: str,
    as_json: bool,
    stack: str | None,
    categories: tuple[str, ...],
    count: int,
    depth: int | None,
    explain: bool,
    timings: bool,
    lexical_text: str | None,
    lang: str | None,
    params: dict[str, Any],
    first_stage: str | None,
    retrieve: tuple[str, ...],
    filter: tuple[str, ...],
    infer: bool,
) -> None:
    """Rank documents for TEXT."""
    from dataclasses import replace

    from rerank.errors import action_hint
    from rerank.filters import filters_of
    from rerank.records import Query
    from rerank.stack.parse import retriever_depths
    from rerank.workspace import Workspace

    from .hints import located

    text = " ".join(words)
    if not text.strip():
        raise click.UsageError("the query is empty; give some words to search for")
    workspace = Workspace.open(folder)
    lexical = first_stage if first_stage in options.LEXICAL else None
    stack = stack or lexical or ("search" if first_stage else workspace.default_stack)
    found = workspace.stack(stack)
    search = workspace.first_stage_of(first_stage)[1] if first_stage else None
    if search is not None:
        found, first_stage = found.with_template(search), None
    changes: dict[str, Any] = {"depth": depth, "first_stage": first_stage, "retrieve": retrieve}
    found = replace(found, **{name: value for name, value in changes.items() if value})
    if params:
        check_params(params, found)
    versions = workspace.versions(found)
    pipeline = workspace.pipeline(
        found.signals, retrieve=found.retrieve, infer_categories=infer, versions=versions
    )
    asked = Query("query", text, categories, lang, params, lexical_text or None)
    filters = filters_of(filter)
    check_categories(pipeline.scorer(found.signals, found.first_stage), asked)
    answer = pipeline.answer(asked, found, filters=filters)
    if count > found.depth and len(answer.ranking) >= found.depth:
        told = amount(found.depth, "candidate[ is|s are] reranked")
        output.note(f"{told}, so there are no more hits: raise --depth")
    hits = pipeline.hits(answer, count)
    again = located(
        f"run {action_hint('tune', stack=','.join(found.tuned_for), queries='QUERIES', qrels='QRELS')}"
    )
    for name in workspace.outdated(found):
        goes_on = (
            f"; it goes on with {name} {versions[name]}" if name in workspace.versions_here(found) else ""
        )
        output.note(f"{name} was trained again after this stack was tuned{goes_on}; {again}")
    for name, n in answer.recomputed.items():
        output.note(output.recomputed(n, name))
    for name in retriever_depths(found.retrieve):
        if name in pipeline.rankers:
            lacking = workspace.engine.prepared(name, pipeline.rankers[name].version)
            if lacking:
                output.note(output.lacking(lacking, name))
    if as_json:
        result = answer.to_json(hits)
        if timings:
            result["seconds"] = dict(answer.seconds)
        output.print_json(result)
        return
    show(answer, found, hits, explain, filtered=bool(filters))
    if timings:
        click.echo("  ".join(f"{stage} {1000 * value:.1f} ms" for stage, value in answer.seconds.items()))


def check_categories(scorer: Scorer, query: Query) -> None:
    """Raise UsageError for categories that no signal knows; it names similar ones."""
    _, unknown = scorer.with_known_categories(query)
    if not unknown:
        return
    similar = list(dict.fromkeys(name for one in unknown for name in scorer.similar_categories(one)))
    hint = f"did you mean {' or '.join(map(repr, similar[:3]))}?" if similar else "the documents have others"
    raise click.UsageError(f"--category: no signal knows {listed([repr(one) for one in unknown])}; {hint}")


def check_params(params: dict[str, Any], stack: Stack) -> None:
    """Raise UsageError for values that nothing takes."""
    from rerank.formats.templates import fields_of
    from rerank.stack.signals import SEARCH

    if stack.first_stage != SEARCH:
        raise click.UsageError(
            f"--param fills slots of a search of your own, but {stack.first_stage} finds the candidates;"
            " leave it out, or give --first-stage template:FILE"
        )
    known = fields_of(stack.search) if stack.search is not None and stack.search.source else {*params}
    for name in params:
        if name not in known:
            there = f"has {', '.join(sorted(known))}" if known else "has slots for the words alone"
            raise click.UsageError(f"--param {name}: {stack.search} {there}; name one of its slots")


def show(
    answer: Answer, stack: Stack, hits: list[dict[str, Any]], explain: bool, *, filtered: bool = False
) -> None:
    """Print hits for a person."""
    if not hits:
        document = "document that the filters leave" if filtered else "document"
        click.echo(
            f"no {document} shares a word with this query"
            if len(stack.retrievers) == 1
            else f"none of {', '.join(stack.retrievers)} finds a {document} for this query"
        )
        return
    if explain:
        by = ", ".join(f"{count} by {name}" for name, count in answer.found.items())
        by = f": {by}" if len(answer.found) > 1 else f" by {stack.retrievers[0]}"
        candidates = amount(len(answer.ranking), "candidate[|s]")
        how = f"{answer.stack.normalisation}, {candidates}{by}"
        click.echo(output.weights_of(str(answer.stack), how, *([answer.case] if stack.cases else [])))
        if answer.query.categories:
            how = "inferred from the first candidates" if answer.inferred else "given"
            click.echo(f"categories {how}: {', '.join(answer.query.categories)}")
    for hit in hits:
        place = f"{hit['rank']:>3}  {hit['score']:.4f}  {hit['id']}  "
        click.echo((place + output.cut(hit["title"], output.room(len(place)))).rstrip())
        if explain:
            moved = hit["first_stage_rank"] - hit["rank"]
            way = f"up {moved}" if moved > 0 else f"down {-moved}" if moved else "unmoved"
            found_by = f", found by {', '.join(hit['found_by'])}" if len(answer.found) > 1 else ""
            click.echo(f"       {way} from rank {hit['first_stage_rank']} of {stack.first_stage}{found_by}")
            for name, s in hit["signals"].items():
                click.echo(
                    f"       {name:<8} {s['raw']:>8.4f} -> {s['normalised']:>7.4f} -> {s['weighted']:>7.4f}"
                )
