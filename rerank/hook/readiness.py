"""Checks of the service and the index. Each problem is one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import urllib3

from rerank.engines.base import Engine, cannot_retrieve
from rerank.engines.opensearch import OpenSearchEngine
from rerank.errors import EngineError, InputError, UsageError, WorkspaceError
from rerank.files import parse_json
from rerank.stack.parse import parse_stack, retriever_depths
from rerank.stack.signals import FieldSignal, is_field, ranker_names
from rerank.stack.stack import Stack
from rerank.text import count_of, join_names
from rerank.workspace import Workspace

_JSON, _HIT = 2**20, 600
"""Most bytes of the JSON of a call, and bytes of a candidate: its numbers, and its id and categories."""

PATIENCE = 5.0
"""Seconds that the service, or one node, may take to answer."""


def check_service(
    url: str, token: str, versions: Mapping[str, str], stack: str | None, depth: int
) -> tuple[dict[str, Any] | None, list[str]]:
    """A service's answer to ``/readyz`` or None, and its problems.

    versions, stack, depth: see :func:`service_problems`.
    """
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urllib3.PoolManager(retries=False, timeout=PATIENCE) as pool:
            answer = pool.request("GET", f"{url}/readyz", headers=headers)
        about = parse_json(answer.data) if answer.status == 200 else {}
    except (urllib3.exceptions.HTTPError, ValueError):
        return None, [f"no service answers at {url} from here; start it"]
    if not isinstance(about, dict) or not about.get("ready"):
        return None, [f"the server at {url} is not a service that is ready (status {answer.status})"]
    return about, [f"the service at {url} {text}" for text in service_problems(about, versions, stack, depth)]


def service_problems(
    about: Mapping[str, Any], versions: Mapping[str, str], stack: str | None, depth: int
) -> list[str]:
    """Why a service does not fit a workspace and a pipeline.

    about: answer to ``/readyz``; without rankers, the token is missing.
    versions: ranker -> version in the workspace.

    >>> about = {"rankers": {"text": "v1"}, "tuned": [], "max_candidates": 50}
    >>> service_problems(about, {"text": "v2"}, None, 50)
    ['has other versions of text']
    """
    if "rankers" not in about:
        return []
    served, problems = about["rankers"], []
    others = sorted(name for name in versions if served.get(name) != versions[name])
    if others:
        problems.append(f"has other versions of {', '.join(others)}")
    if stack is not None:
        try:
            names, weights = parse_stack(stack)
        except (UsageError, InputError) as error:
            return [*problems, f"cannot use the stack {stack!r}: {error}"]
        absent = [name for name in ranker_names(names) if name not in served]
        tuned = [set(signals.split(",")) for signals in about.get("tuned") or ()]
        if absent:
            problems.append(f"has no signal {', '.join(absent)} of the stack {stack!r}")
        elif weights is None and len(names) > 1 and set(names) not in tuned:
            problems.append(f"has no tuned stack {stack!r}; tune it in the workspace of the service")
    most = about.get("max_candidates")
    if isinstance(most, int) and depth > most:
        problems.append(
            f"takes {count_of(most, 'candidate')}, but the depth is {depth}: no search would be reranked;"
            f" start it with --max-candidates {depth}, or install with --depth {most}"
        )
    problems += _size_problems(about, stack, depth)
    return problems


def _size_problems(about: Mapping[str, Any], stack: str | None, depth: int) -> list[str]:
    """Whether the features of all candidates fit into a call."""
    most, stored = about.get("max_body"), about.get("stored_bytes", {})
    try:
        names, _ = parse_stack(stack or str(about.get("stack")))
    except (UsageError, InputError):
        return []  # reported elsewhere
    hit = _HIT + sum(4 + stored[name] for name in names if name in stored)
    size = _JSON + depth * hit
    if not isinstance(most, int) or size <= most:
        return []
    fitting = max((most - _JSON) // hit, 1)
    return [
        f"takes bodies of {most:,} bytes, but {count_of(depth, 'candidate')} with features can have"
        f" {size:,}; start it with --max-body {size}, or install with --depth {fitting}"
    ]


def field_problems(engine: Engine, stack: str | None) -> list[str]:
    """Problems with the number fields of a stack."""
    try:
        signals = [FieldSignal(name) for name in parse_stack(stack or "")[0] if is_field(name)]
    except (UsageError, InputError):
        return []  # reported elsewhere
    try:
        if signals:
            engine.field_values([], [signal.field for signal in signals])
        for signal in signals:
            signal.check(engine)
    except UsageError as error:
        return [str(error)]
    return []


def retrieving_rankers(stack: Stack) -> list[str]:
    """Return the rankers that retrieve candidates of a stack."""
    return list(ranker_names(retriever_depths(stack.retrieve)))


def retrieval_problems(engine: OpenSearchEngine, stack: Stack, config: Mapping[str, Any]) -> list[str]:
    """Return why a pipeline does not add the documents that a stack was tuned with. config: its settings."""
    names = retrieving_rankers(stack)
    retrieves = config.get("retrieve")
    if not retrieves:
        is_decided = retrieves is not None
        missing = (
            f"the stack retrieves with {join_names(names)}; install with --retrieve to add its documents"
        )
        return [missing] if names and not is_decided else []
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
    others = [name for name in retriever_depths(stack.retrieve) if name not in (*names, stack.first_stage)]
    if others:
        problems.append(
            f"searches do not get the documents that {join_names(others)} retrieves; tune the stack without"
        )
    return problems


def index_problems(
    workspace: Workspace, engine: OpenSearchEngine, indices: Sequence[str], default_of: Sequence[str]
) -> list[str]:
    """Problems of a workspace's indices. default_of: indices that use the hook by default."""
    if not indices:
        return [f"{engine.settings.where} has no index {engine.settings.index!r}"]
    problems = []
    without = [index for index in indices if index not in default_of]
    if default_of and without:
        problems.append(
            f"searches of {', '.join(without)} do not use the pipeline; install it as the default again"
        )
    try:
        engine.index.check()
        count, lacking = engine.missing_features, "without features of {}"
        if engine.attached_features is not None:  # moved documents with the same text make searches slower
            count = engine.attached_features.changed
            lacking = "new, moved, or written since {} was encoded"
        for name, version in workspace.versions().items():
            missing = count(name, version)
            if missing:
                problems.append(f"{count_of(missing, 'document')} {lacking.format(name)}; encode them")
    except (EngineError, UsageError, WorkspaceError) as error:
        problems.append(str(error))
    return problems
