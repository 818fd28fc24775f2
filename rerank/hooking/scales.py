"""What to know of a stack where the searches are not those that it was tuned on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rerank.errors import action_hint, setting_hint
from rerank.stack.normalise import PER_QUERY
from rerank.stack.stack import Stack

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
