"""The errors of a cluster, one line each."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError
from rerank.common.values import as_mapping, is_list

if TYPE_CHECKING:
    from rerank.engines.opensearch.connection import Settings

CREATE_AGAIN = (
    "check the name, or create it again with `rerank ingest CORPUS --replace`, or, if it was attached, where"
    " its documents come from"
)
"""The hint for a missing index."""

_PROBLEMS: Mapping[object, str] = {
    413: "{urls}: the request is too large (413)",
    429: "{urls} is too busy (429); run again later",
    **dict.fromkeys(
        range(300, 400), "{urls} redirects to another address ({status}); check scheme, host and path"
    ),
}
"""Status of an answer -> the problem that it reports."""

_REFUSED = "{urls} refuses ({status}): {reason}"
"""The problem that any other status reports."""

_PROXY_STATUS = (502, 503, 504)
"""Status of a proxy that gets no answer. OpenSearch also sends 503, with the type of its error."""


@contextmanager
def translate_client_errors(settings: Settings, doing: str) -> Iterator[None]:
    """Turn errors of the client into EngineError, with action, address, problem and remedy."""
    try:
        yield
    except client_errors.OpenSearchException as error:
        raise explain(error, settings, doing) from error
    except client_errors.ImproperlyConfigured as error:
        raise EngineError(f"{settings.where}: {error}") from error
    except (ssl.SSLError, OSError) as error:  # invalid certificate files
        raise EngineError(f"{doing}: {settings.where}: {error}") from error


def explain(error: Exception, settings: Settings, doing: str) -> EngineError:
    """Return the error to raise for an error of the client: one line with the action and the problem.

    doing: the action, such as "reading documents".
    """
    urls = settings.where
    if isinstance(error, client_errors.ConnectionTimeout):
        problem = f"no answer from {urls} within {settings.timeout:g} s; check the cluster, or raise timeout"
    elif isinstance(error, client_errors.SSLError):
        problem = f"{urls}: no trusted TLS connection ({_innermost(error)}); check ca_file and client_cert"
    elif isinstance(error, client_errors.ConnectionError):
        problem = f"{urls} cannot be reached ({_innermost(error)}); check scheme, host and port"
    elif isinstance(error, client_errors.SerializationError):
        problem = f"{urls} does not answer as OpenSearch does; is it OpenSearch?"
    else:
        problem = _refusal(error, settings)
    return EngineError(f"{doing}: {problem}")


def _refusal(error: Exception, settings: Settings) -> str:
    """Return the problem that a cluster, or a proxy before it, reports by a status above 299."""
    urls = settings.where
    status = getattr(error, "status_code", None)
    kind, reason = root_cause(getattr(error, "info", None), str(getattr(error, "error", error)))
    if status == 401:
        return f"{urls} needs other credentials (401); check user, password or token"
    block = describe_block(reason)
    if block:
        return block
    if status == 403:
        return f"{urls} does not allow that (403): {reason}"

    problem = _problem_of_search(error, kind, reason, settings.index)
    if problem:
        return problem
    if kind == "index_not_found_exception":
        return f"{urls} has no index {settings.index!r}; {CREATE_AGAIN}"
    if status in _PROXY_STATUS and not kind:
        return f"a proxy at {urls} gets no answer from the cluster ({status}); check the nodes"
    problem = _PROBLEMS.get(status, _REFUSED)
    return problem.format(urls=urls, status=status, reason=reason)


def _problem_of_search(error: Exception, kind: str, reason: str, index: str) -> str:
    """Return the problem of a search that the cluster refuses or cannot complete, or an empty text."""
    window = re.search(r"less than or equal to: \[(\d+)\] but was \[(\d+)\]", reason)
    if window:
        return (
            f"a depth of {window[2]} is more than the {window[1]} that index {index!r} returns at once;"
            " choose a smaller depth, or raise its setting index.max_result_window"
        )
    answer = str(getattr(error, "info", ""))
    if re.search("too_many.*clauses|maxClauseCount", answer):
        return "the query has too many terms; shorten it, or raise indices.query.bool.max_clause_count"
    if kind == "index_closed_exception":
        return f"index {index!r} is closed; open it, or move the alias"
    lacks_shards = getattr(error, "status_code", None) == 503 and "shard" in kind + reason
    if kind == "search_phase_execution_exception" or lacks_shards:
        return f"not all shards of {index!r} answer ({reason}); look at `GET _cluster/health`, and run again"
    return ""


def describe_block(reason: str) -> str:
    """Return what to do about a block of an index or cluster; empty for other reasons."""
    if not re.search("FORBIDDEN/|flood-stage|read-only", reason):
        return ""
    return f"{reason}; remove the block, after freeing disk space if the disks are full"


def root_cause(info: object, otherwise: str = "") -> tuple[str, str]:
    """Return the type of an error, and the reasons from its outermost to its innermost cause.

    info:      the answer of the cluster.
    otherwise: the reason if the answer has none, such as the page of a proxy.
    """
    error = as_mapping(info).get("error")
    if isinstance(error, str):
        return "", one_line(error)
    if not isinstance(error, Mapping):
        text = one_line(_without_tags(otherwise))
        return "", text or "no reason given"
    kind = str(error.get("type", ""))
    reasons = ": ".join(_reasons(_first_cause(error)))
    return kind, one_line(reasons or otherwise or kind)


def _without_tags(page: str) -> str:
    """Return the text of an HTML page."""
    return re.sub(r"<[^>]*>", " ", page)


def _reasons(cause: object) -> list[str]:
    """Return the different reasons of a cause and its causes, from the outermost to the innermost one."""
    reasons: dict[str, None] = {}
    while isinstance(cause, Mapping):
        reason = cause.get("reason") or cause.get("type")
        if reason:
            reasons[str(reason)] = None
        cause = cause.get("caused_by")
    return list(reasons)


def _first_cause(error: Mapping[str, Any]) -> object:
    """Return the reason of the first failed shard, else the first root cause, else the error itself."""
    first_shard = _first_object(error.get("failed_shards"))
    if "reason" in first_shard:
        return first_shard["reason"]
    return _first_object(error.get("root_cause")) or error


def _first_object(items: object) -> Mapping[str, Any]:
    """Return the first item of a list; without an item, or for an item that is not an object, {}."""
    objects = items if is_list(items) else []
    first = next(iter(objects), None)
    return as_mapping(first)


def one_line(text: str, max_length: int = 300) -> str:
    """Return a text as one line, without line breaks, of at most ``max_length`` characters and ``…``."""
    line = " ".join(text.split())
    if len(line) <= max_length:
        return line
    return f"{line[:max_length]}…"


def _innermost(error: BaseException) -> str:
    """Return the reason of the first exception in a chain."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        inner = _inner_exception(error)
    reason = getattr(error, "strerror", None) or str(error)
    return one_line(reason, 150)


def _inner_exception(error: BaseException) -> BaseException | None:
    """Return the first exception among the arguments of an exception, or else its cause."""
    exceptions = (argument for argument in error.args if isinstance(argument, BaseException))
    return next(exceptions, error.__cause__)
