"""Whether searches get the documents that the rankers of a stack retrieve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rerank.common.errors import UsageError
from rerank.documents.text import join_names
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.search_request import cannot_retrieve
from rerank.hook.options import HookOptions
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import ranker_names
from rerank.stack.stack import Stack


def retrieving_rankers(stack: Stack) -> list[str]:
    """Return the rankers of a stack that retrieve candidates; the first stage is not one of them."""
    return list(ranker_names(retriever_depths(stack.retrieve)))


def retrieval_problems(engine: OpenSearchEngine, stack: Stack, config: Mapping[str, Any]) -> list[str]:
    """Return why a pipeline does not add the documents that a stack was tuned with.

    config: the settings of the pipeline. If ``retrieve`` is false, the user has decided against these
        documents, and no problem is reported. If it is missing, the user has not decided.
    """
    names = retrieving_rankers(stack)
    retrieves = config.get("retrieve")
    if retrieves is None and names:
        return [f"the stack retrieves with {join_names(names)}; install with --retrieve to add its documents"]
    if not retrieves:
        return []
    if not names:
        return [f"the pipeline adds documents, but the stack {stack.name} has no ranker that retrieves"]

    problems = []
    for name in names:
        version = stack.versions.get(name, "")
        if engine.count_missing_vectors(name, version) is None:
            problems.append(str(cannot_retrieve(name)))
    words = config.get("words", ())
    if set(words) != set(engine.condition_words):
        problems.append(
            f"the pipeline has the words {join_names(words) or 'of no field'}, the workspace of"
            f" {join_names(engine.condition_words)}; install it again"
        )
    supported = {*names, stack.first_stage}
    unsupported = [name for name in retriever_depths(stack.retrieve) if name not in supported]
    if unsupported:
        problems.append(
            f"searches do not get the documents that {join_names(unsupported)} retrieves; tune the stack"
            f" without {join_names(unsupported)}"
        )
    return problems


def decide_retrieval(
    options: HookOptions, engine: OpenSearchEngine, stack: Stack | None, adds_documents: bool
) -> tuple[HookOptions, list[str]]:
    """Return the options with a decision about retrieval, and notes for the user.

    By default, searches get the documents that the rankers of the stack retrieve. With
    ``retrieve=False`` the user has decided against it and gets no note.

    stack:          None if it cannot be read here. Then the decision of the user is not checked.
    adds_documents: whether the route can add these documents.

    Raises UsageError if the stack or one of its rankers cannot retrieve.
    """
    if options.retrieve is False:
        return options, []
    with_words = replace(options, words=tuple(engine.condition_words))
    if stack is None:
        return with_words if options.retrieve else options, []
    names = retrieving_rankers(stack)
    if not names:
        if options.retrieve:
            raise UsageError(
                f"--retrieve: the stack {stack.name} has no ranker that retrieves; tune it with"
                f" `--retrieve {stack.first_stage},NAME:100`"
            )
        return options, []
    rankers = join_names(names)
    if not adds_documents:
        return options, [f"the stack retrieves with {rankers}; use the route plugin to add its documents"]

    config = {"words": with_words.words, "retrieve": True}
    problems = retrieval_problems(engine, stack, config)
    if problems:
        raise UsageError("; ".join(problems))
    note = f"searches get documents that {rankers} retrieves; --no-retrieve leaves them out"
    return replace(with_words, retrieve=True), [note]
