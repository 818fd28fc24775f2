"""``rerank query``: rank and explain documents for one query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
import msgspec

import rerank
from rerank.common.values import items_in, items_not_in, without_empty, without_none
from rerank.documents.text import count_of, join_names

from . import output
from .options import (
    COUNT,
    LEXICAL,
    Command,
    filter_option,
    first_stage_option,
    infer_option,
    json_option,
    option,
    retrieve_option,
    then_option,
    top_option,
    workspace_option,
)

if TYPE_CHECKING:
    from rerank.scoring.scorer import Scorer


def _parse_params(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """Return the values of --param by name. A value is JSON, or else a text."""
    from rerank.common.files import parse_json

    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
        try:
            values[name] = parse_json(value)
        except ValueError:
            values[name] = value
    return values


@click.command("query", cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="TEXT")
@option(
    "--stack",
    metavar="STACK",
    group="Query",
    help="Signals, weights or a stack file. Default: the active stack.",
)
@option(
    "--category",
    "categories",
    metavar="NAME",
    multiple=True,
    group="Query",
    help="Category of the query. Repeatable. Default: inferred.",
)
@option(
    "--lang",
    metavar="TEXT",
    group="Query",
    help="Language of the query, for your own search. Default: unknown.",
)
@option("--lexical-text", metavar="TEXT", group="Query", help="Text for the lexical signals. Default: TEXT.")
@option(
    "--param",
    "params",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parse_params,
    group="Query",
    help="Slot of the search template. Repeatable.",
)
@option(
    "--depth",
    metavar="N",
    type=COUNT,
    group="Candidates",
    help="Number of candidates to rerank. Default: of the stack.",
)
@first_stage_option(group="Candidates")
@retrieve_option
@filter_option("Candidates")
@then_option
@top_option
@option(
    "--then-ms",
    metavar="N",
    type=COUNT,
    group="Candidates",
    help="Milliseconds until the order of the stack is kept. Default: 2000.",
)
@infer_option("Candidates")
@option(
    "--min-score",
    metavar="P",
    type=float,
    group="Output",
    help="Smallest probability of relevance of a shown document.",
)
@option(
    "-k", "count", metavar="N", type=COUNT, default=10, group="Output", help="Number of documents to show."
)
@option(
    "--explain", is_flag=True, group="Output", help="Show the score of each signal and the change of rank."
)
@option("--timings", is_flag=True, group="Output", help="Show the time of each step.")
@workspace_option
@json_option
def command(
    folder: str,
    words: tuple[str, ...],
    stack: str | None,
    categories: tuple[str, ...],
    lang: str | None,
    lexical_text: str | None,
    params: dict[str, Any],
    depth: int | None,
    first_stage: str | None,
    retrieve: tuple[str, ...],
    filter: tuple[str, ...],
    cross_encoder: str | None,
    top: int | None,
    then_ms: int | None,
    infer: bool,
    min_score: float | None,
    count: int,
    explain: bool,
    timings: bool,
    as_json: bool,
) -> None:
    """Rank documents for TEXT."""
    from rerank.documents.filters import filters_of

    workspace = rerank.Workspace.open(folder)
    query = _make_query(" ".join(words), categories, lang, params, lexical_text)
    chosen_stack = _choose_stack(workspace, stack, first_stage, retrieve, depth)
    chosen_stack = _with_second_phase(chosen_stack, cross_encoder, top, then_ms)
    if params:
        check_params(params, chosen_stack)
    filters = filters_of(filter)
    pipeline = workspace.pipeline_of(chosen_stack, infer_categories=infer)
    answer = pipeline.answer(query, chosen_stack, filters=filters, min_score=min_score)
    _print_notes(workspace, pipeline, chosen_stack, answer, count)
    hits = pipeline.hits(answer, count)
    if as_json:
        seconds = {"seconds": dict(answer.seconds)} if timings else {}
        output.print_json({**answer.to_json(hits), **seconds})
        return
    show(answer, chosen_stack, hits, explain, filtered=bool(filters))
    if timings:
        click.echo("  ".join(f"{stage} {1000 * value:.1f} ms" for stage, value in answer.seconds.items()))


def _make_query(
    text: str,
    categories: tuple[str, ...],
    lang: str | None,
    params: Mapping[str, Any],
    lexical_text: str | None,
) -> rerank.Query:
    """Return the query. Raises UsageError for an empty text, or an invalid language code."""
    from rerank.documents.text import language

    language(lang)  # raises for a text that is no language code
    if not text.strip():
        raise click.UsageError("the query is empty; give some words to search for")
    return rerank.Query("query", text, categories, lang, params, lexical_text or None)


def _choose_stack(
    workspace: rerank.Workspace,
    text: str | None,
    first_stage: str | None,
    retrieve: tuple[str, ...],
    depth: int | None,
) -> rerank.Stack:
    """Return the stack of --stack with the other options. Without it, a first stage ranks without rankers."""
    if text is None and first_stage is not None:
        text = first_stage if first_stage in LEXICAL else "search"
    stack = workspace.stack(text or workspace.default_stack)
    if first_stage is not None:
        stack = _with_first_stage(workspace, stack, first_stage)
    changes: dict[str, Any] = {"retrieve": retrieve, "depth": depth}
    return replace(stack, **without_empty(changes))


def _with_first_stage(workspace: rerank.Workspace, stack: rerank.Stack, first_stage: str) -> rerank.Stack:
    """Return the stack with another first stage: a signal, or a search of the user."""
    signal, search = workspace.first_stage_of(first_stage)
    if search is not None and search.kind == "run":
        raise click.UsageError(
            "--first-stage run:FILE is for `tune` and `evaluate`: a run has only its queries"
        )
    return replace(stack, first_stage=signal) if search is None else stack.with_template(search)


def _with_second_phase(
    stack: rerank.Stack, cross_encoder: str | None, top: int | None, milliseconds: int | None
) -> rerank.Stack:
    """Return the stack with the second phase of --then, --top and --then-ms."""
    from rerank.stack.file import parse_second_phase

    if cross_encoder is not None:
        return replace(stack, second_phase=parse_second_phase(cross_encoder, top, milliseconds))
    changes = without_none({"top": top, "ms": milliseconds})
    if not changes:
        return stack
    if stack.second_phase is None:
        raise click.UsageError(f"the stack {stack} has no second phase; give --then cross-encoder:FOLDER")
    return replace(stack, second_phase=msgspec.structs.replace(stack.second_phase, **changes))


def _print_notes(
    workspace: rerank.Workspace,
    pipeline: rerank.Pipeline,
    stack: rerank.Stack,
    answer: rerank.SearchResult,
    count: int,
) -> None:
    """Print what limits the answer. Raises UsageError for unknown categories. count: documents to show."""
    scorer = pipeline.scorer(stack.signals, stack.first_stage)
    check_categories(scorer, answer.unknown_categories)
    if count > stack.depth and len(answer.ranking) >= stack.depth:
        output.note(f"reranked {count_of(stack.depth, 'candidate')}; for more raise --depth")
    output.note(*_outdated_rankers(workspace, pipeline, stack))
    output.note(*_missing_features(workspace, pipeline, stack, answer))
    if answer.case == "given" and not _uses_categories(stack, scorer):
        output.note(f"--category has no effect: no signal of {stack} reads categories")


def _uses_categories(stack: rerank.Stack, scorer: Scorer) -> bool:
    """Return whether a signal or the search template of a stack reads the categories of the query."""
    return stack.search is not None or any(signal.uses_categories for signal in scorer.signals)


def _outdated_rankers(
    workspace: rerank.Workspace, pipeline: rerank.Pipeline, stack: rerank.Stack
) -> Iterator[str]:
    """Describe the rankers that were trained after the stack was tuned."""
    tune = f"`rerank tune --stack {','.join(stack.tuned_for)} --queries QUERIES --qrels QRELS`"
    installed_versions = workspace.installed_versions(stack)
    for name in workspace.outdated(stack):
        used_version = (
            f"; it uses {name} {pipeline.rankers[name].version}" if name in installed_versions else ""
        )
        yield f"{name} was trained again after this stack was tuned{used_version}; run {tune}"


def _missing_features(
    workspace: rerank.Workspace, pipeline: rerank.Pipeline, stack: rerank.Stack, answer: rerank.SearchResult
) -> Iterator[str]:
    """Describe the work of the query that could not be done, or was done late."""
    from rerank.stack.parse import retriever_depths

    if answer.ranking.late:
        yield "the second phase took too long: this is the stack's order; raise --then-ms or lower --top"
    for name, count in answer.recomputed.items():
        yield output.computed_features(count, name)
    for name in items_in(retriever_depths(stack.retrieve), pipeline.rankers):
        missing = workspace.engine.count_missing_vectors(name, pipeline.rankers[name].version)
        if missing:
            yield output.cannot_be_retrieved(missing, name)


def check_categories(scorer: Scorer, unknown: Sequence[str]) -> None:
    """Raise UsageError for categories that no signal knows. The message names similar ones."""
    if not unknown:
        return
    similar = dict.fromkeys(chain.from_iterable(map(scorer.similar_categories, unknown)))
    hint = "the documents have others"
    if similar:
        hint = f"did you mean {' or '.join(map(repr, list(similar)[:3]))}?"
    names = join_names([repr(category) for category in unknown])
    raise click.UsageError(f"--category: no signal knows {names}; {hint}")


def check_params(params: Mapping[str, Any], stack: rerank.Stack) -> None:
    """Raise UsageError for parameters that the search template of the stack does not have."""
    from rerank.formats.templates import fields_of
    from rerank.stack.signals import SEARCH

    if stack.first_stage != SEARCH:
        raise click.UsageError("--param is for your own search; give --first-stage template:FILE")
    if stack.search is None or not stack.search.source:
        return
    slots = fields_of(stack.search)
    problem = f"has the slots {', '.join(sorted(slots))}" if slots else "has no such slots"
    unknown = items_not_in(params, slots)
    if unknown:
        raise click.UsageError(f"--param {unknown[0]}: {stack.search} {problem}; leave it out")


def show(
    answer: rerank.SearchResult,
    stack: rerank.Stack,
    hits: Sequence[Mapping[str, Any]],
    explain: bool,
    *,
    filtered: bool = False,
) -> None:
    """Print a table of documents. filtered: the candidates had to meet conditions."""
    removed = answer.ranking.removed
    if removed:
        output.note(f"left out {count_of(removed, 'candidate')} with a smaller probability than --min-score")
    if not hits:
        click.echo(_describe_no_hits(stack, removed, filtered))
        return
    if explain:
        _show_stack(answer, stack)
    for hit in hits:
        position = f"{hit['rank']:>3}  {hit['score']:.4f}  {hit['id']}  "
        title = output.cut(hit["title"], len(position))
        click.echo(f"{position}{title}".rstrip())
        if explain:
            _show_signals(hit, stack, several_retrievers=len(answer.found) > 1)


def _describe_no_hits(stack: rerank.Stack, removed: int, filtered: bool) -> str:
    if removed:
        return "no document has the probability that --min-score asks for"
    document = "document that meets the filters" if filtered else "document"
    if len(stack.retrievers) == 1:
        return f"no {document} shares a word with this query"
    return f"{', '.join(stack.retrievers)} found no {document} for this query"


def _show_stack(answer: rerank.SearchResult, stack: rerank.Stack) -> None:
    """Print the weights, the number of candidates, and the categories of the query."""
    retrieved_by = f" by {stack.retrievers[0]}"
    if len(answer.found) > 1:
        retrieved_by = f": {', '.join(_counts_of_retrievers(answer))}"
    combiner = answer.stack.combiner
    candidates = f"{count_of(len(answer.ranking), 'candidate')}{retrieved_by}"
    cases = (answer.case,) if stack.combiner.cases else ()
    click.echo(output.weights_line(str(combiner), f"{combiner.normalization}, {candidates}", *cases))
    if not answer.ranking.late:
        output.show_second_phase(stack)
    if answer.query.categories:
        origin = "inferred from the first candidates" if answer.inferred else "given"
        click.echo(f"categories {origin}: {', '.join(answer.query.categories)}")


def _counts_of_retrievers(answer: rerank.SearchResult) -> list[str]:
    """Describe how many candidates each retriever contributed, and which of them searched approximately."""
    counts = []
    for name, count in answer.found.items():
        note = " (approximate)" if name in answer.approximate else ""
        counts.append(f"{count} by {name}{note}")
    return counts


def _show_signals(hit: Mapping[str, Any], stack: rerank.Stack, *, several_retrievers: bool) -> None:
    """Print the change of rank of a document, and a row for each of its signals."""
    retrieved_by = f", found by {', '.join(hit['found_by'])}" if several_retrievers else ""
    click.echo(f"       {_describe_move(hit, stack.first_stage)}{retrieved_by}")
    width = max(8, *map(len, hit["signals"]))
    click.echo(f"       {'signal':<{width}} {'raw':>8} -> normalized -> weighted")
    for name, signal in hit["signals"].items():
        raw = f"{signal['raw']:>8.4f}"
        normalized = f"{signal['normalized']:>10.4f}"
        weighted = f"{signal['weighted']:>8.4f}"
        click.echo(f"       {name:<{width}} {raw} -> {normalized} -> {weighted}")


def _describe_move(hit: Mapping[str, Any], first_stage: str) -> str:
    """Compare the rank of a document with its rank in the first stage."""
    if hit["found_by"] and first_stage not in hit["found_by"]:
        return f"not retrieved by {first_stage}"
    ranks_gained = hit["first_stage_rank"] - hit["rank"]
    move = "unmoved"
    if ranks_gained > 0:
        move = f"up {ranks_gained}"
    elif ranks_gained < 0:
        move = f"down {-ranks_gained}"
    return f"{move} from rank {hit['first_stage_rank']} of {first_stage}"
