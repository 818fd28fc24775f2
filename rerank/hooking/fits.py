"""What a pipeline asks of its stack, of the service and of the index, and they may lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rerank.engines.base import Engine
from rerank.errors import InputError, UsageError, action_hint, setting_hint
from rerank.stack.normalise import PER_QUERY
from rerank.stack.parse import parse_stack
from rerank.stack.signals import FieldSignal, is_field, learned
from rerank.stack.stack import Stack
from rerank.wording import amount

_FEW = 0.05
"""Share of searches of another scale that is no news."""


def unlike(about: Mapping[str, Any]) -> list[str]:
    """Stacks whose searches were of another scale, of what a service says at ``/readyz``.

    >>> unlike({"scales": {"bm25*0.5 + text*0.5": {"same": 95, "other": 5}}})
    []
    """
    problems = []
    for stack, counts in (about.get("scales") or {}).items():
        other, of = counts["other"], counts["same"] + counts["other"]
        if other > _FEW * of:
            problems.append(
                f"has had {other:,} of {of:,} searches for {stack} whose first-stage scores are not like"
                " those it was tuned on; tune it on the search that is really sent"
                f" ({action_hint('tune', first_stage='template:FILE')})"
            )
    return problems


def unsure(stack: Stack) -> list[str]:
    """What to know of a stack whose weights hold for scores of one scale alone.

    >>> len(unsure(Stack.parse("bm25*0.5 + text*0.5", normalisation="none")))
    1
    """
    if len(stack.signals) == 1 or stack.normalisation in PER_QUERY:
        return []
    other = setting_hint("normalisation", "min-max")
    return [
        f"the stack {stack} adds up scores as they are ({stack.normalisation}): it is right for searches"
        f" whose scores are of one scale alone; {action_hint('tune')} it with {other}"
    ]


def unfit(about: Mapping[str, Any], here: Mapping[str, str], stack: str | None, depth: int) -> list[str]:
    """Why a service does not fit a workspace and a pipeline, of what it says at ``/readyz``.

    here: ranker -> version in the workspace.

    >>> unfit({"rankers": {"text": "v1"}, "tuned": [], "max_candidates": 50}, {"text": "v2"}, None, 100)
    ['has other versions of text', 'takes 50 candidates, fewer than the depth of 100: no search would be \
reranked; give it max_candidates 100, or install with depth 50']
    """
    served = about.get("rankers") or {}
    problems = []
    others = sorted(name for name in here if served.get(name) != here[name])
    if others:
        problems.append(f"has other versions of {', '.join(others)}")
    if stack is not None:
        try:
            names, weights = parse_stack(stack)
        except (UsageError, InputError) as error:
            return [*problems, f"cannot have the stack {stack!r}: {error}"]
        absent = [name for name in learned(names) if name not in served]
        tuned = [set(signals.split(",")) for signals in about.get("tuned") or ()]
        if absent:
            problems.append(f"has no signal {', '.join(absent)}, so it cannot rerank by {stack!r}")
        elif weights is None and len(names) > 1 and set(names) not in tuned:
            problems.append(f"has no tuned stack {stack!r}; tune it in the service's workspace")
    most = about.get("max_candidates")
    if isinstance(most, int) and depth > most:
        problems.append(
            f"takes {amount(most, 'candidate[|s]')}, fewer than the depth of {depth}: no search would be"
            f" reranked; give it max_candidates {depth}, or install with depth {most}"
        )
    return problems


def no_numbers(engine: Engine, stack: str | None) -> list[str]:
    """Fields that a stack reads as numbers, and that are none in the index as it is now."""
    try:
        fields = [FieldSignal(name).field for name in parse_stack(stack or "")[0] if is_field(name)]
    except (UsageError, InputError):
        return []  # said elsewhere
    try:
        if fields:
            engine.numbers([], fields)
    except UsageError as error:
        return [str(error)]
    return []
