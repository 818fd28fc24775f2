"""``rerank query``: one query, ranked and explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rerank.text import join_names, plural

from . import options, output

if TYPE_CHECKING:
    from rerank.records import Query
    from rerank.search.pipeline import Answer, Pipeline
    from rerank.search.scorer import Scorer
    from rerank.stack.stack import Stack
    from rerank.workspace import Workspace


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
    "--explain", is_flag=True, help="Show each signal, raw -> normalized -> weighted, and each hit's move."
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
    from rerank.filters import filters_of
    from rerank.records import Query
    from rerank.workspace import Workspace

    text = " ".join(words)
    if not text.strip():
        raise click.UsageError("the query is empty; give some words to search for")
    workspace = Workspace.open(folder)
    found = _stack(workspace, stack, first_stage, depth, retrieve)
    if params:
        check_params(params, found)
    versions, filters = workspace.versions(found), filters_of(filter)
    pipeline = workspace.pipeline(
        found.signals, retrieve=found.retrieve, infer_categories=infer, versions=versions
    )
    query = Query("query", text, categories, lang, params, lexical_text or None)
    check_categories(pipeline.scorer(found.signals, found.first_stage), query)
    answer = pipeline.answer(query, found, filters=filters)
    hits = pipeline.hits(answer, count)
    if count > found.depth and len(answer.ranking) >= found.depth:
        reranked = plural(found.depth, "candidate[ is|s are] reranked")
        output.note(f"{reranked}, so there are no more hits: raise --depth")
    for line in _remarks(workspace, pipeline, found, answer, versions):
        output.note(line)
    if as_json:
        seconds = {"seconds": dict(answer.seconds)} if timings else {}
        output.print_json(answer.to_json(hits) | seconds)
        return
    show(answer, found, hits, explain, filtered=bool(filters))
    if timings:
        click.echo("  ".join(f"{stage} {1000 * value:.1f} ms" for stage, value in answer.seconds.items()))


def _stack(
    workspace: Workspace,
    text: str | None,
    first_stage: str | None,
    depth: int | None,
    retrieve: tuple[str, ...],
) -> Stack:
    """Return the stack that ranks: the named one or the one in use, as the other options change it."""
    from dataclasses import replace

    if text is None:
        text = first_stage if first_stage in options.LEXICAL else "search" if first_stage else None
    stack = workspace.stack(text or workspace.default_stack)
    search = workspace.first_stage_of(first_stage)[1] if first_stage else None
    if search is not None:
        stack, first_stage = stack.with_template(search), None
    changes: dict[str, Any] = {"depth": depth, "first_stage": first_stage, "retrieve": retrieve}
    return replace(stack, **{name: value for name, value in changes.items() if value})


def _remarks(
    workspace: Workspace, pipeline: Pipeline, stack: Stack, answer: Answer, versions: dict[str, str]
) -> Iterator[str]:
    """Yield what a user should know about the stack and the features, one line each."""

    from rerank.stack.parse import retriever_depths

    tune = f"`rerank tune --stack {','.join(stack.tuned_for)} --queries QUERIES --qrels QRELS`"
    here = workspace.versions_here(stack)
    for name in workspace.outdated(stack):
        used = f"; it uses {name} {versions[name]}" if name in here else ""
        yield f"{name} was trained again after this stack was tuned{used}; run {tune}"
    for name, count in answer.recomputed.items():
        yield output.recomputed(count, name)
    for name in retriever_depths(stack.retrieve):
        if name in pipeline.rankers:
            missing = workspace.engine.prepared(name, pipeline.rankers[name].version)
            if missing:
                yield output.lacking(missing, name)


def check_categories(scorer: Scorer, query: Query) -> None:
    """Raise UsageError for categories that no signal knows; it names similar ones."""
    _, unknown = scorer.with_known_categories(query)
    if not unknown:
        return
    similar = list(dict.fromkeys(name for one in unknown for name in scorer.similar_categories(one)))
    hint = f"did you mean {' or '.join(map(repr, similar[:3]))}?" if similar else "the documents have others"
    raise click.UsageError(
        f"--category: no signal knows {join_names([repr(one) for one in unknown])}; {hint}"
    )


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
        _show_stack(answer, stack)
    for hit in hits:
        place = f"{hit['rank']:>3}  {hit['score']:.4f}  {hit['id']}  "
        click.echo((place + output.cut(hit["title"], output.room(len(place)))).rstrip())
        if explain:
            _show_signals(hit, stack, several=len(answer.found) > 1)


def _show_stack(answer: Answer, stack: Stack) -> None:
    """Print the weights of the stack, the number of candidates, and the categories of the query."""
    by = ", ".join(f"{count} by {name}" for name, count in answer.found.items())
    by = f": {by}" if len(answer.found) > 1 else f" by {stack.retrievers[0]}"
    combiner = answer.stack.combiner
    how = f"{combiner.normalization}, {plural(len(answer.ranking), 'candidate[|s]')}{by}"
    case = [answer.case] if stack.combiner.cases else []
    click.echo(output.weights_line(str(combiner), how, *case))
    if answer.query.categories:
        how = "inferred from the first candidates" if answer.inferred else "given"
        click.echo(f"categories {how}: {', '.join(answer.query.categories)}")


def _show_signals(hit: dict[str, Any], stack: Stack, *, several: bool) -> None:
    """Print how far a hit moved, and its score by each signal. several: name the retrievers that found it."""
    moved = hit["first_stage_rank"] - hit["rank"]
    way = f"up {moved}" if moved > 0 else f"down {-moved}" if moved else "unmoved"
    found_by = f", found by {', '.join(hit['found_by'])}" if several else ""
    click.echo(f"       {way} from rank {hit['first_stage_rank']} of {stack.first_stage}{found_by}")
    for name, s in hit["signals"].items():
        click.echo(f"       {name:<8} {s['raw']:>8.4f} -> {s['normalized']:>7.4f} -> {s['weighted']:>7.4f}")
