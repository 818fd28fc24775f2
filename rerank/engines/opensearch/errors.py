"""The errors of a cluster, one line each."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError

if TYPE_CHECKING:
    from rerank.engines.opensearch.connection import Settings

CREATE_AGAIN = (
    "check the name, or create it again with `rerank ingest CORPUS --replace`, or, if it was attached, where"
    " its documents come from"
)
"""The hint for a missing index."""


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
    if isinstance(status, int) and 300 <= status < 400:
        return f"{urls} redirects to another address ({status}); check scheme, host and path"
    if status in (502, 503, 504) and not kind:
        return f"a proxy at {urls} gets no answer from the cluster ({status}); check the nodes"
    if status == 413:
        return f"{urls}: the request is too large (413)"
    if status == 429:
        return f"{urls} is too busy (429); run again later"
    return f"{urls} refuses ({status}): {reason}"


def _problem_of_search(error: Exception, kind: str, reason: str, index: str) -> str:
    """Return the problem of a search that the cluster refuses or cannot complete, or an empty text."""
    window = re.search(r"less than or equal to: \[(\d+)\] but was \[(\d+)\]", reason)
    if window:
        return (
            f"a depth of {window[2]} is more than the {window[1]} that index {index!r} returns at once;"
            " choose a smaller depth, or raise its setting index.max_result_window"
        )
    if re.search("too_many.*clauses|maxClauseCount", str(getattr(error, "info", ""))):
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
    error = info.get("error") if isinstance(info, Mapping) else None
    if isinstance(error, str):
        return "", one_line(error)
    if not isinstance(error, Mapping):
        return "", one_line(_without_tags(otherwise)) or "no reason given"
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
    failed_shards = error.get("failed_shards")
    if isinstance(failed_shards, Sequence) and failed_shards:
        first_shard = failed_shards[0]
        if isinstance(first_shard, Mapping) and "reason" in first_shard:
            return first_shard["reason"]
    return error["root_cause"][0] if error.get("root_cause") else error


def one_line(text: str, max_length: int = 300) -> str:
    """Return a text as one line, without line breaks, of at most ``max_length`` characters and ``…``."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[:max_length]}…"


def _innermost(error: BaseException) -> str:
    """Return the reason of the first exception in a chain."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        inner = next((arg for arg in error.args if isinstance(arg, BaseException)), error.__cause__)
    return one_line(getattr(error, "strerror", None) or str(error), 150)
