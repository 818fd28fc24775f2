"""Find the stack that a user names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rerank.errors import InputError
from rerank.records import SearchTemplate
from rerank.stack.parse import parse_stack
from rerank.stack.signals import SEARCH, first_stages, learned
from rerank.stack.stack import Stack


def find_stack(
    text: str,
    check: Callable[[str], object],
    tuned: Callable[[tuple[str, ...]], Stack | None],
    first_stage: str,
) -> Stack:
    """Return the stack for signal names, with or without weights.

    check: raises for unknown rankers. tuned: signals -> stack, or None. first_stage: the default.

    Raises InputError for several signals without tuned weights.
    """
    names, weights = parse_stack(text)
    for name in learned(names):
        check(name)
    first = (*first_stages(names), first_stage)[0]
    if weights is not None or len(names) == 1:
        return Stack.parse(text, first_stage=first)
    found = tuned(names)
    if found is None:
        wanted = text if first_stages(names) else f"{first},{text}"
        tune = f"`rerank tune --stack {wanted} --queries QUERIES --qrels QRELS`"
        raise InputError(
            f"stack {text!r} is not tuned; tune it with {tune}, or give weights: "
            + f"--stack '{' + '.join(f'{name}*{1 / len(names):.2f}' for name in names)}'"
        )
    return found


def with_search(stack: Stack, search: SearchTemplate | None) -> Stack:
    """Add the workspace's search to a stack that needs one."""
    if stack.first_stage != SEARCH or stack.search is not None:
        return stack
    return replace(stack, search=search)
