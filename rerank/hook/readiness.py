"""Checks of the service and the index. Each problem is one sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import urllib3

from rerank.common.errors import EngineError, InputError, RerankError, UsageError, WorkspaceError
from rerank.common.files import parse_json
from rerank.common.values import as_mapping
from rerank.documents.text import count_of
from rerank.engines.base import Engine
from rerank.engines.opensearch import OpenSearchEngine
from rerank.stack.parse import parse_stack
from rerank.stack.relevance import check_min_score
from rerank.stack.signals import FieldSignal, is_field, ranker_names
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace

_JSON_BYTES = 2**20
"""Upper limit of the JSON of a call."""

ServiceState = dict[str, Any]
"""The answer of a service to ``/readyz``. Without a valid token, it has no ``rankers``."""

_HIT_BYTES = 600
"""Bytes of a candidate in a call: its numbers, its id and its categories."""

PATIENCE = 5.0
"""Seconds that the service, or one node, may take to answer."""


class ServiceCheck(NamedTuple):
    """The state of the services of a pipeline.

    service:     the first answer to ``/readyz``; None: no service answers.
    problems:    why a service that answers cannot be used.
    unreachable: the services that do not answer, as problems.
    """

    service: ServiceState | None
    problems: list[str]
    unreachable: list[str]


def check_services(
    urls: Sequence[str], token: str, versions: Mapping[str, str], stack: str | None, depth: int
) -> ServiceCheck:
    """Ask the services of a pipeline for their states. See :func:`check_service`."""
    states: list[ServiceState] = []
    problems: list[str] = []
    unreachable: list[str] = []
    for url in urls:
        state, problems_of_one = check_service(url, token, versions, stack, depth)
        if state is None:
            unreachable += problems_of_one
        else:
            states.append(state)
            problems += problems_of_one
    first_state = next(iter(states), None)
    return ServiceCheck(first_state, problems, unreachable)


def check_service(
    url: str, token: str, versions: Mapping[str, str], stack: str | None, depth: int
) -> tuple[ServiceState | None, list[str]]:
    """Ask a service for its state. Return its answer to ``/readyz``, or None, and its problems.

    url:   address of the service.
    token: token of the service; empty: none is sent.
    versions, stack, depth: see :func:`service_problems`.
    """
    try:
        status, service = _read_state(url, token)
    except (urllib3.exceptions.HTTPError, ValueError):
        return None, [f"no service answers at {url} from here; start it"]
    is_ready = as_mapping(service).get("ready")
    if not is_ready:
        return None, [f"the server at {url} is not a service that is ready (status {status})"]
    problems = service_problems(service, versions, stack, depth)
    return service, [f"the service at {url} {problem}" for problem in problems]


def _read_state(url: str, token: str) -> tuple[int, Any]:
    """Return the status and the JSON of ``/readyz``; the JSON is {} if the status is not 200."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib3.PoolManager(retries=False, timeout=PATIENCE) as pool:
        answer = pool.request("GET", f"{url}/readyz", headers=headers)
    if answer.status != 200:
        return answer.status, {}
    return answer.status, parse_json(answer.data)


def service_problems(
    service: ServiceState, versions: Mapping[str, str], stack: str | None, depth: int
) -> list[str]:
    """Return why a service does not fit a workspace and a pipeline. Each problem follows "the service".

    service:  its answer to ``/readyz``. Without rankers nothing is checked, because the token is missing.
    versions: ranker -> version in the workspace.
    stack:    the stack of the pipeline; None: the stack of the service.
    depth:    number of candidates that the pipeline sends.

    >>> service = {"rankers": {"text": "v1"}, "tuned": [], "max_candidates": 50}
    >>> service_problems(service, {"text": "v2"}, None, 50)
    ['has other versions of text']
    """
    if "rankers" not in service:
        return []
    problems = []
    served = service["rankers"]
    outdated = sorted(name for name in versions if served.get(name) != versions[name])
    if outdated:
        problems.append(f"has other versions of {', '.join(outdated)}")
    if stack is not None:
        problems += _stack_problems(service, stack)
    limit = service.get("max_candidates")
    if isinstance(limit, int) and depth > limit:
        problems.append(
            f"takes {count_of(limit, 'candidate')}, but the depth is {depth}: no search would be reranked;"
            f" start it with --max-candidates {depth}, or install with --depth {limit}"
        )
    problems += _size_problems(service, stack, depth)
    return problems


def _stack_problems(service: ServiceState, stack: str) -> list[str]:
    """Return why a service cannot score by the stack of a pipeline, or no problem."""
    try:
        names, weights = parse_stack(stack)
    except (UsageError, InputError) as error:
        return [f"cannot use the stack {stack!r}: {error}"]
    absent = sorted(set(ranker_names(names)) - service["rankers"].keys())
    if absent:
        return [f"has no signal {', '.join(absent)} of the stack {stack!r}"]
    needs_weights = weights is None and len(names) > 1
    if needs_weights and not _is_tuned(service, names):
        return [f"has no tuned stack {stack!r}; tune it in the workspace of the service"]
    return []


def _is_tuned(service: ServiceState, names: Collection[str]) -> bool:
    """Return whether a service has a tuned stack of these signals."""
    tuned = service.get("tuned") or ()
    signals_of_stacks = [set(signals.split(",")) for signals in tuned]
    return set(names) in signals_of_stacks


def _size_problems(service: ServiceState, stack: str | None, depth: int) -> list[str]:
    """Return the problem that the features of all candidates may not fit into a call, or no problem."""
    limit = service.get("max_body")
    if not isinstance(limit, int):
        return []
    try:
        names, _ = parse_stack(stack or str(service.get("stack")))
    except (UsageError, InputError):
        return []  # reported elsewhere

    hit_bytes = _HIT_BYTES
    for name, feature_bytes in service.get("stored_bytes", {}).items():
        if name in names:
            hit_bytes += 4 + feature_bytes
    size = _JSON_BYTES + depth * hit_bytes
    if size <= limit:
        return []
    fitting = max((limit - _JSON_BYTES) // hit_bytes, 1)
    return [
        f"takes bodies of {limit:,} bytes, but {count_of(depth, 'candidate')} with features can have"
        f" {size:,}; start it with --max-body {size}, or install with --depth {fitting}"
    ]


def field_problems(engine: Engine, stack: str | None) -> list[str]:
    """Return why the number fields of a stack cannot be used, or no problem.

    stack: its signals, as in ``bm25,text,field:year``; None: the stack of the service, which is not checked.
    """
    signals = _field_signals(stack or "")
    if not signals:
        return []
    problems: list[str] = []
    with as_problem(problems, UsageError):
        engine.field_values([], [signal.field for signal in signals])
        for signal in signals:
            signal.check(engine)
    return problems


@contextmanager
def as_problem(problems: list[str], *kinds: type[RerankError]) -> Iterator[None]:
    """Add the message of an error in the block to a list of problems. kinds: types of errors to add."""
    try:
        yield
    except kinds as error:
        problems.append(str(error))


def _field_signals(stack: str) -> list[FieldSignal]:
    """Return the signals of number fields. A text that is not a stack has none; another check reports it."""
    try:
        names, _ = parse_stack(stack)
    except (UsageError, InputError):
        return []
    return [FieldSignal(name) for name in names if is_field(name)]


def index_problems(
    workspace: Workspace, engine: OpenSearchEngine, indices: Sequence[str], default_of: Sequence[str]
) -> list[str]:
    """Return the problems of a workspace's indices.

    indices:    names of the indices.
    default_of: names of the indices that use the hook by default.
    """
    if not indices:
        return [f"{engine.settings.where} has no index {engine.settings.index!r}"]
    problems: list[str] = []
    without_default = [index for index in indices if index not in default_of]
    if default_of and without_default:
        problems.append(
            f"searches of {', '.join(without_default)} do not use the pipeline; install it as the default"
            " again"
        )
    with as_problem(problems, EngineError, UsageError, WorkspaceError):
        engine.index.check()
        for name, version in workspace.versions().items():
            problems += _missing_features(engine, name, version)
    return problems


def _missing_features(engine: OpenSearchEngine, name: str, version: str) -> list[str]:
    """Return the problem that documents lack a feature of a ranker, or no problem."""
    if engine.attached_features is None:
        count = engine.missing_features(name, version)
        reason = f"without features of {name}"
    else:  # moved documents with the same text have features, but make searches slower
        count = engine.attached_features.changed(name, version)
        reason = f"new, moved, or written since {name} was encoded"
    if not count:
        return []
    return [f"{count_of(count, 'document')} {reason}; encode them"]


def min_score_problems(min_score: float, stack: Stack) -> list[str]:
    """Return why a pipeline cannot remove hits with a small probability of relevance.

    min_score: smallest probability, from 0 to 1. stack: its calibration gives the probabilities.
    """
    problems: list[str] = []
    with as_problem(problems, UsageError):
        check_min_score(min_score, stack.relevance)
    return problems
