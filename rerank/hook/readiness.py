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

_JSON_BYTES = 2**20
"""Upper limit of the JSON of a call."""

_HIT_BYTES = 600
"""Bytes of a candidate in a call: its numbers, its id and its categories."""

PATIENCE = 5.0
"""Seconds that the service, or one node, may take to answer."""


def check_service(
    url: str, token: str, versions: Mapping[str, str], stack: str | None, depth: int
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the answer of a service to ``/readyz``, or None, and its problems.

    versions, stack, depth: see :func:`service_problems`.
    """
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urllib3.PoolManager(retries=False, timeout=PATIENCE) as pool:
            answer = pool.request("GET", f"{url}/readyz", headers=headers)
        service = parse_json(answer.data) if answer.status == 200 else {}
    except (urllib3.exceptions.HTTPError, ValueError):
        return None, [f"no service answers at {url} from here; start it"]
    if not isinstance(service, dict) or not service.get("ready"):
        return None, [f"the server at {url} is not a service that is ready (status {answer.status})"]
    problems = service_problems(service, versions, stack, depth)
    return service, [f"the service at {url} {problem}" for problem in problems]


def service_problems(
    service: Mapping[str, Any], versions: Mapping[str, str], stack: str | None, depth: int
) -> list[str]:
    """Return why a service does not fit a workspace and a pipeline.

    service:  its answer to ``/readyz``; without rankers, the token is missing.
    versions: ranker -> version in the workspace.

    >>> service = {"rankers": {"text": "v1"}, "tuned": [], "max_candidates": 50}
    >>> service_problems(service, {"text": "v2"}, None, 50)
    ['has other versions of text']
    """
    if "rankers" not in service:
        return []
    served = service["rankers"]
    problems = []
    outdated = sorted(name for name in versions if served.get(name) != versions[name])
    if outdated:
        problems.append(f"has other versions of {', '.join(outdated)}")
    if stack is not None:
        try:
            names, weights = parse_stack(stack)
        except (UsageError, InputError) as error:
            return [*problems, f"cannot use the stack {stack!r}: {error}"]
        absent = [name for name in ranker_names(names) if name not in served]
        tuned = [set(signals.split(",")) for signals in service.get("tuned") or ()]
        if absent:
            problems.append(f"has no signal {', '.join(absent)} of the stack {stack!r}")
        elif weights is None and len(names) > 1 and set(names) not in tuned:
            problems.append(f"has no tuned stack {stack!r}; tune it in the workspace of the service")
    limit = service.get("max_candidates")
    if isinstance(limit, int) and depth > limit:
        problems.append(
            f"takes {count_of(limit, 'candidate')}, but the depth is {depth}: no search would be reranked;"
            f" start it with --max-candidates {depth}, or install with --depth {limit}"
        )
    problems += _size_problems(service, stack, depth)
    return problems


def _size_problems(service: Mapping[str, Any], stack: str | None, depth: int) -> list[str]:
    """Return the problem that the features of all candidates may not fit into a call, or no problem."""
    limit = service.get("max_body")
    stored = service.get("stored_bytes", {})
    try:
        names, _ = parse_stack(stack or str(service.get("stack")))
    except (UsageError, InputError):
        return []  # reported elsewhere
    hit_bytes = _HIT_BYTES + sum(4 + stored[name] for name in names if name in stored)
    size = _JSON_BYTES + depth * hit_bytes
    if not isinstance(limit, int) or size <= limit:
        return []
    fitting = max((limit - _JSON_BYTES) // hit_bytes, 1)
    return [
        f"takes bodies of {limit:,} bytes, but {count_of(depth, 'candidate')} with features can have"
        f" {size:,}; start it with --max-body {size}, or install with --depth {fitting}"
    ]


def field_problems(engine: Engine, stack: str | None) -> list[str]:
    """Return the problems with the number fields of a stack."""
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
        if not names or retrieves is not None:  # the user has decided
            return []
        return [f"the stack retrieves with {join_names(names)}; install with --retrieve to add its documents"]
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


def index_problems(
    workspace: Workspace, engine: OpenSearchEngine, indices: Sequence[str], default_of: Sequence[str]
) -> list[str]:
    """Return the problems of a workspace's indices. default_of: indices that use the hook by default."""
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
        count_missing = engine.missing_features
        reason = "without features of {}"
        if engine.attached_features is not None:  # moved documents with the same text make searches slower
            count_missing = engine.attached_features.changed
            reason = "new, moved, or written since {} was encoded"
        for name, version in workspace.versions().items():
            missing = count_missing(name, version)
            if missing:
                problems.append(f"{count_of(missing, 'document')} {reason.format(name)}; encode them")
    except (EngineError, UsageError, WorkspaceError) as error:
        problems.append(str(error))
    return problems
