"""``rerank query``: rank and explain one query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.text import join_names, plural

from . import options, output
from .options import Output, option

if TYPE_CHECKING:
    from rerank.scoring.scorer import Scorer


@options.command(
    "query",
    options.argument("words", nargs=-1, required=True, metavar="TEXT"),
    "Query",
    option("--stack STACK", "Signals, weights or a stack file. Default: the active stack."),
    option("--category NAME...", "Category of the query. Repeatable. Default: inferred.", dest="categories"),
    option("--lang TEXT", "Language of the query, for your own search. Default: unknown."),
    option("--lexical-text TEXT", "Text for the lexical signals. Default: TEXT."),
    option(
        "--param NAME=VALUE...",
        "Slot of the search template. Repeatable.",
        dest="params",
        callback=options.params,
    ),
    "Candidates",
    option("--depth N", "Number of candidates to rerank. Default: of the stack."),
    options.first_stage("the first stage of the stack"),
    options.retrieve,
    options.filters,
    options.then,
    options.top,
    option("--then-ms N", "Milliseconds until the order of the stack is kept. Default: 2000."),
    options.infer,
    "Output",
    option("--min-score P", "Smallest probability of relevance of a shown document.", type=float),
    option("-k N", "Number of documents to show.", dest="count", default=10),
    option("--explain", "Show the score of each signal and the change of rank."),
    option("--timings", "Show the time of each step."),
)
def command(
    workspace: rerank.Workspace,
    progress: output.Bar,
    words: tuple[str, ...],
    categories: tuple[str, ...],
    count: int,
    explain: bool,
    timings: bool,
    lexical_text: str | None,
    lang: str | None,
    params: dict[str, Any],
    filter: tuple[str, ...],
    infer: bool,
    then: str | None,
    top: int | None,
    then_ms: int | None,
    min_score: float | None,
    **changes: Any,
) -> Iterator[Output]:
    """Rank documents for TEXT."""
    from rerank.filters import filters_of
    from rerank.text import language

    language(lang)  # raises for a text that is no language code
    text = " ".join(words)
    if not text.strip():
        raise click.UsageError("the query is empty; give some words to search for")
    stack = _then(_stack(workspace, **changes), then, top, then_ms)
    if params:
        check_params(params, stack)
    filters = filters_of(filter)
    pipeline = workspace.pipeline(
        stack.signals, retrieve=stack.retrieve, infer_categories=infer, versions=workspace.versions(stack)
    )
    query = rerank.Query("query", text, categories, lang, params, lexical_text or None)
    answer = pipeline.answer(query, stack, filters=filters, min_score=min_score)
    scorer = pipeline.scorer(stack.signals, stack.first_stage)
    check_categories(scorer, answer.unknown_categories)
    hits = pipeline.hits(answer, count)
    if count > stack.depth and len(answer.ranking) >= stack.depth:
        output.note(f"{plural(stack.depth, 'candidate[ is|s are] reranked')}; for more raise --depth")
    for line in _remarks(workspace, scorer, pipeline, stack, answer):
        output.note(line)
    yield Output(answer.to_json(hits) | ({"seconds": dict(answer.seconds)} if timings else {}))
    show(answer, stack, hits, explain, filtered=bool(filters))
    if timings:
        click.echo("  ".join(f"{stage} {1000 * value:.1f} ms" for stage, value in answer.seconds.items()))


def _stack(
    workspace: rerank.Workspace, stack: str | None, first_stage: str | None, **changes: Any
) -> rerank.Stack:
    if stack is None and first_stage:
        stack = first_stage if first_stage in options.LEXICAL else "search"
    found = workspace.stack(stack or workspace.default_stack)
    search = workspace.first_stage_of(first_stage)[1] if first_stage else None
    if search is not None:
        found, first_stage = found.with_template(search), None
    changes["first_stage"] = first_stage
    return replace(found, **{name: value for name, value in changes.items() if value})


def _then(stack: rerank.Stack, then: str | None, top: int | None, ms: int | None) -> rerank.Stack:
    from msgspec.structs import replace as changed

    from rerank.stack.file import second_phase

    if then is not None:
        return replace(stack, then=second_phase(then, top, ms))
    if top is None and ms is None:
        return stack
    if stack.then is None:
        raise click.UsageError(f"the stack {stack} has no second phase; give --then cross-encoder:FOLDER")
    return replace(stack, then=changed(stack.then, top=top or stack.then.top, ms=ms or stack.then.ms))


def _remarks(
    workspace: rerank.Workspace,
    scorer: Scorer,
    pipeline: rerank.Pipeline,
    stack: rerank.Stack,
    answer: rerank.SearchResult,
) -> Iterator[str]:
    from rerank.stack.parse import retriever_depths

    tune = f"`rerank tune --stack {','.join(stack.tuned_for)} --queries QUERIES --qrels QRELS`"
    here = workspace.installed_versions(stack)
    for name in workspace.outdated(stack):
        used = f"; it uses {name} {pipeline.rankers[name].version}" if name in here else ""
        yield f"{name} was trained again after this stack was tuned{used}; run {tune}"
    if answer.ranking.late:
        yield "the second phase took too long: this is the stack's order; raise --then-ms or lower --top"
    for name, count in answer.recomputed.items():
        yield plural(count, output.recomputed(name))
    for name in retriever_depths(stack.retrieve):
        if name in pipeline.rankers:
            missing = workspace.engine.count_missing_vectors(name, pipeline.rankers[name].version)
            if missing:
                yield plural(missing, output.lacking(name))
    read = any(signal.uses_categories for signal in scorer.signals)
    if answer.case == "given" and not read and stack.search is None:
        yield f"--category has no effect: no signal of {stack} reads categories"


def check_categories(scorer: Scorer, unknown: tuple[str, ...]) -> None:
    """Raise UsageError for unknown categories, naming similar ones."""
    if not unknown:
        return
    similar = list(dict.fromkeys(name for one in unknown for name in scorer.similar_categories(one)))
    hint = f"did you mean {' or '.join(map(repr, similar[:3]))}?" if similar else "the documents have others"
    raise click.UsageError(
        f"--category: no signal knows {join_names([repr(one) for one in unknown])}; {hint}"
    )


def check_params(params: dict[str, Any], stack: rerank.Stack) -> None:
    """Raise UsageError for unknown parameters."""
    from rerank.formats.templates import fields_of
    from rerank.stack.signals import SEARCH

    if stack.first_stage != SEARCH:
        raise click.UsageError("--param is for your own search; give --first-stage template:FILE")
    known = fields_of(stack.search) if stack.search is not None and stack.search.source else {*params}
    for name in params:
        if name not in known:
            slots = f"has the slots {', '.join(sorted(known))}" if known else "has no such slots"
            raise click.UsageError(f"--param {name}: {stack.search} {slots}; leave it out")


def show(
    answer: rerank.SearchResult,
    stack: rerank.Stack,
    hits: list[dict[str, Any]],
    explain: bool,
    *,
    filtered: bool = False,
) -> None:
    """Print a table of documents."""
    if answer.ranking.removed:
        count = answer.ranking.removed
        output.note(f"{plural(count, 'candidate[ has|s have]')} a smaller probability than --min-score")
    if not hits and answer.ranking.removed:
        click.echo("no document has the probability that --min-score asks for")
        return
    if not hits:
        document = "document that meets the filters" if filtered else "document"
        click.echo(
            f"no {document} shares a word with this query"
            if len(stack.retrievers) == 1
            else f"{', '.join(stack.retrievers)} found no {document} for this query"
        )
        return
    if explain:
        _show_stack(answer, stack)
    for hit in hits:
        place = f"{hit['rank']:>3}  {hit['score']:.4f}  {hit['id']}  "
        click.echo((place + output.cut(hit["title"], len(place))).rstrip())
        if explain:
            _show_signals(hit, stack, several=len(answer.found) > 1)


def _show_stack(answer: rerank.SearchResult, stack: rerank.Stack) -> None:
    by = ", ".join(f"{count} by {name}" for name, count in answer.found.items())
    by = f": {by}" if len(answer.found) > 1 else f" by {stack.retrievers[0]}"
    combiner = answer.stack.combiner
    how = f"{combiner.normalization}, {plural(len(answer.ranking), 'candidate[|s]')}{by}"
    case = [answer.case] if stack.combiner.cases else []
    click.echo(output.weights_line(str(combiner), how, *case))
    if not answer.ranking.late:
        output.show_second_phase(stack)
    if answer.query.categories:
        how = "inferred from the first candidates" if answer.inferred else "given"
        click.echo(f"categories {how}: {', '.join(answer.query.categories)}")


def _show_signals(hit: dict[str, Any], stack: rerank.Stack, *, several: bool) -> None:
    moved = hit["first_stage_rank"] - hit["rank"]
    way = f"up {moved}" if moved > 0 else f"down {-moved}" if moved else "unmoved"
    way += f" from rank {hit['first_stage_rank']} of {stack.first_stage}"
    if hit["found_by"] and stack.first_stage not in hit["found_by"]:
        way = f"not retrieved by {stack.first_stage}"
    found_by = f", found by {', '.join(hit['found_by'])}" if several else ""
    click.echo(f"       {way}{found_by}")
    width = max(8, *map(len, hit["signals"]))
    click.echo(f"       {'signal':<{width}} {'raw':>8} -> normalized -> weighted")
    for name, s in hit["signals"].items():
        click.echo(
            f"       {name:<{width}} {s['raw']:>8.4f} -> {s['normalized']:>10.4f} -> {s['weighted']:>8.4f}"
        )
