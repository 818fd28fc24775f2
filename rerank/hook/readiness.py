"""Checks of the service and of the index that a pipeline needs; each problem is one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import urllib3

from rerank.engines.base import Engine
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.index import Index
from rerank.errors import EngineError, InputError, UsageError, WorkspaceError
from rerank.files import parse_json
from rerank.search.fields import check_fields
from rerank.stack.parse import parse_stack
from rerank.stack.signals import FieldSignal, is_field, learned
from rerank.text import plural
from rerank.workspace import Workspace

PATIENCE = 5.0
"""Seconds that the service, or one node, may take to answer."""


def ask_service(url: str, token: str) -> dict[str, Any] | str:
    """Return the answer of a service to ``/readyz``, or the problem if it is not ready."""
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urllib3.PoolManager(retries=False, timeout=PATIENCE) as pool:
            answer = pool.request("GET", f"{url}/readyz", headers=headers)
        about = parse_json(answer.data) if answer.status == 200 else {}
    except (urllib3.exceptions.HTTPError, ValueError):
        return f"no service answers at {url} from here; start it"
    if not isinstance(about, dict) or not about.get("ready"):
        return f"the server at {url} is no service that is ready (status {answer.status})"
    return about


def service_problems(
    about: Mapping[str, Any], here: Mapping[str, str], stack: str | None, depth: int
) -> list[str]:
    """Why a service does not fit a workspace and a pipeline.

    about: its answer to ``/readyz``; without rankers, it wants a token and nothing can be checked.
    here: ranker -> version in the workspace.

    >>> about = {"rankers": {"text": "v1"}, "tuned": [], "max_candidates": 50}
    >>> service_problems(about, {"text": "v2"}, None, 50)
    ['has other versions of text']
    """
    if "rankers" not in about:
        return []
    served, problems = about["rankers"], []
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
            f"takes {plural(most, 'candidate[|s]')}, fewer than the depth of {depth}: no search would be"
            f" reranked; give it max_candidates {depth}, or install with depth {most}"
        )
    return problems


def field_problems(engine: Engine, stack: str | None) -> list[str]:
    """Fields that a stack reads as numbers, and that are no numbers in the index."""
    try:
        signals = [FieldSignal(name) for name in parse_stack(stack or "")[0] if is_field(name)]
    except (UsageError, InputError):
        return []  # reported elsewhere
    try:
        if signals:
            engine.field_values([], [signal.field for signal in signals])
        check_fields(engine, signals)
    except UsageError as error:
        return [str(error)]
    return []


def word_problems(index: Index, fields: Sequence[str]) -> list[str]:
    """Fields that the workspace lists in ``words`` and that the index does not have."""
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


def index_problems(
    workspace: Workspace, engine: OpenSearchEngine, indices: Sequence[str], default_of: Sequence[str]
) -> list[str]:
    """Problems of the indices behind the name of a workspace, which may have moved.

    default_of: the indices whose default pipeline is the hook's.
    """
    if not indices:
        return [f"{engine.settings.where} has no index {engine.settings.index!r}"]
    problems = []
    without = [index for index in indices if index not in default_of]
    if default_of and without:
        problems.append(
            f"searches of {', '.join(without)} do not use the pipeline, which is the default of"
            f" {', '.join(default_of)}; install it as the default again"
        )
    try:
        engine.index.check()
        lacking, since = "document[ has|s have] no features of", ""
        if engine.attached_features is not None:  # by sequence numbers: an unread text may be the same
            lacking, since = "document[ is|s are] new, or [was|were] written since", " was encoded"
        problems += word_problems(engine.index, workspace.words)
        for name, version in workspace.versions().items():
            missing = engine.missing_features(name, version)
            if missing:
                problems.append(f"{plural(missing, lacking)} {name}{since}; encode them")
    except (EngineError, UsageError, WorkspaceError) as error:
        problems.append(str(error))
    return problems
