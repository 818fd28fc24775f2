"""What a pipeline asks of its stack, of the service and of the index, and they may lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rerank.engines.base import Engine
from rerank.engines.opensearch.index import Index
from rerank.errors import InputError, UsageError
from rerank.scoring.fields import check_fields
from rerank.stack.parse import parse_stack
from rerank.stack.signals import FieldSignal, is_field, learned
from rerank.wording import amount


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
        signals = [FieldSignal(name) for name in parse_stack(stack or "")[0] if is_field(name)]
    except (UsageError, InputError):
        return []  # said elsewhere
    try:
        if signals:
            engine.field_values([], [signal.field for signal in signals])
        check_fields(engine, signals)
    except UsageError as error:
        return [str(error)]
    return []


def no_words(index: Index, fields: Sequence[str]) -> list[str]:
    """Fields that hold the user's words, as the workspace says, and that the index has not got."""
    absent = []
    for field in fields:
        with index.asking("looking for fields"):
            known = index.client.field_caps(index=index.settings.index, params={"fields": field})
        absent += [] if known["fields"] else [field]
    if not absent:
        return []
    return [
        f"index {index.settings.index!r} has no field {', '.join(absent)}, which rerank.toml has in words"
    ]
