"""What a pipeline asks of its stack, of the service and of the index, and they may lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rerank.engines.base import Engine
from rerank.engines.opensearch.index import Index
from rerank.errors import InputError, UsageError, action_hint, setting_hint
from rerank.scoring.fields import check_fields
from rerank.stack.normalise import PER_QUERY
from rerank.stack.parse import parse_stack
from rerank.stack.scale import strange
from rerank.stack.signals import FieldSignal, is_field, learned
from rerank.stack.stack import Stack
from rerank.wording import amount


def unlike(about: Mapping[str, Any]) -> list[str]:
    """Stacks that add up scores as they are, and whose searches were of another scale.

    about: what a service says at ``/readyz``. Stacks that do not hang on the scale are not among the counts.

    >>> unlike({"recent": {"bm25*0.5 + text*0.5": {"same": 95, "other": 5}}})
    []
    """
    problems = []
    for stack, counts in (about.get("recent") or {}).items():
        other, of = counts["other"], counts["same"] + counts["other"]
        if strange(counts["same"], other):
            problems.append(
                f"has had {other:,} of the last {of:,} searches for {stack} whose first-stage scores are not"
                " like those it was tuned on, and it adds them up as they are; tune it on the search that is"
                f" really sent ({action_hint('tune', first_stage='template:FILE')}), or with"
                f" {setting_hint('normalisation', 'min-max')}"
            )
    return problems


def unsure(stack: Stack) -> list[str]:
    """What to know of a stack whose weights hold for scores of one scale alone.

    >>> len(unsure(Stack.parse("bm25*0.5 + text*0.5", normalisation="none")))
    1
    """
    if not any(one.hangs_on_scale for one in stack.variants):
        return []
    other = setting_hint("normalisation", "min-max")
    return [
        f"the stack {stack} adds up scores as they are ({stack.normalisation}): it is right for searches"
        f" whose scores are of one scale alone; {action_hint('tune')} it with {other}"
    ]


def unsure_of(about: Mapping[str, Any] | None, stack: str | None) -> list[str]:
    """The same of a service's own stack, of what it says at ``/readyz``, where a pipeline names none.

    >>> len(unsure_of({"stack": "bm25*0.5 + text*0.5", "normalisation": "none"}, None))
    1
    """
    if stack is not None or about is None or about.get("normalisation", PER_QUERY[0]) in PER_QUERY:
        return []
    return unsure(Stack.parse(about["stack"], normalisation="none"))


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
            engine.numbers([], [signal.field for signal in signals])
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
