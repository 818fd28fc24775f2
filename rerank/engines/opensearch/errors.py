"""Every failure of a cluster as one clear line."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opensearchpy import exceptions as client_errors

from rerank.errors import EngineError

if TYPE_CHECKING:
    from rerank.engines.opensearch.connection import Settings

MAKE_IT_ANEW = (
    "check the name, or make it anew with `rerank ingest CORPUS --replace`; one that was"
    " attached, where it comes from"
)
"""The hint for a missing index."""


@contextmanager
def asking(settings: Settings, doing: str) -> Iterator[None]:
    """Turn errors of the client into EngineError, with the action, the place, the problem and a hint."""
    try:
        yield
    except client_errors.OpenSearchException as error:
        raise explain(error, settings, doing) from error
    except client_errors.ImproperlyConfigured as error:
        raise EngineError(f"{settings.where}: {error}") from error
    except (ssl.SSLError, OSError) as error:  # certificate files that are none
        raise EngineError(f"{doing}: {settings.where}: {error}") from error


def explain(error: Exception, settings: Settings, doing: str) -> EngineError:
    """Return the error of a client in one clear line."""
    problem = _connection_problem(error, settings)
    if problem is None:
        status = getattr(error, "status_code", None)
        kind, reason = cause(getattr(error, "info", None), str(getattr(error, "error", error)))
        window = re.search(r"less than or equal to: \[(\d+)\] but was \[(\d+)\]", reason)
        if window and status not in (401, 403):
            return EngineError(
                f"a depth of {window[2]} is more than the {window[1]} that index {settings.index!r} returns"
                " at once; choose a smaller depth, or raise its setting index.max_result_window"
            )
        problem = (
            _index_problem(status, kind, reason, settings)
            or _server_problem(status, kind, settings)
            or f"{settings.where} refuses ({status}): {reason}"
        )
    return EngineError(f"{doing}: {problem}")


def _connection_problem(error: Exception, settings: Settings) -> str | None:
    """The reason why OpenSearch did not answer; None if it did."""
    where = settings.where
    if isinstance(error, client_errors.ConnectionTimeout):
        return f"no answer from {where} within {settings.timeout:g} s; check the cluster, or raise `timeout`"
    if isinstance(error, client_errors.SSLError):
        return f"{where}: no trusted TLS connection ({_tls(str(error.info))})"
    if isinstance(error, client_errors.ConnectionError):
        return f"{where} cannot be reached ({_reason(str(error.info))})"
    if isinstance(error, client_errors.SerializationError):
        return f"{where} does not answer as OpenSearch does; is it one?"
    return None


def _index_problem(status: object, kind: str, reason: str, settings: Settings) -> str:
    """A refusal because of credentials, or because of the index's state; empty for another one."""
    where, index = settings.where, settings.index
    if status == 401:
        return f"{where} wants other credentials (401); check user, password or token"
    if blocked := block(reason):
        return blocked
    if status == 403:
        return f"{where} does not allow that (403): {reason}"
    if kind == "index_not_found_exception":
        return f"{where} has no index {index!r}; {MAKE_IT_ANEW}"
    if kind == "index_closed_exception":
        return f"index {index!r} is closed; open it, or lead the name elsewhere"
    if kind == "search_phase_execution_exception" or (status == 503 and "shard" in kind + reason):
        return (
            f"not all shards of {index!r} answer ({reason}); look at `GET _cluster/health`, and run again"
            " when they do"
        )
    return ""


def _server_problem(status: object, kind: str, settings: Settings) -> str:
    """A refusal by a proxy, or by a server that is busy; empty for another one."""
    where = settings.where
    if isinstance(status, int) and 300 <= status < 400:
        return f"{where} sends us elsewhere ({status}); check scheme, host and path"
    if status == 413:
        return f"{where} finds the request too large (413)"
    if status == 429:
        return f"{where} is too busy (429); run again later"
    if status in (502, 503, 504) and not kind:
        return f"what stands before the cluster at {where} gets no answer from it ({status}); check the nodes"
    return ""


def block(reason: str) -> str:
    """Explain a block on an index; empty when ``reason`` is none."""
    if "flood-stage" in reason or "read-only-allow-delete" in reason:
        return (
            "the cluster's disk is full above its flood stage, and the index is read-only; free space on the"
            " nodes, then remove index.blocks.read_only_allow_delete if OpenSearch has not"
        )
    if "index read-only" in reason or re.search("FORBIDDEN/[589]/", reason):
        return "the index is set read-only (index.blocks); lift the block to write to it"
    if "create-index blocked" in reason:
        return "the cluster makes no new index now, for its disks are nearly full; free space on the nodes"
    if ("cluster_manager" in reason and "block" in reason) or "state not recovered" in reason:
        return "the cluster has no cluster manager right now; look at `GET _cluster/health`, and run again"
    return ""


def cause(info: object, otherwise: str = "") -> tuple[str, str]:
    """Type and reason of the innermost cause in an error's body."""
    found = info.get("error") if isinstance(info, Mapping) else None
    if isinstance(found, str):
        return "", one_line(found)
    if not isinstance(found, Mapping):
        return "", one_line(re.sub(r"<[^>]*>", " ", otherwise)) or "no reason given"
    kind = str(found.get("type", ""))
    inner: Any = found
    failed = found.get("failed_shards")
    if isinstance(failed, Sequence) and failed and isinstance(failed[0], Mapping) and "reason" in failed[0]:
        inner = failed[0]["reason"]
    elif found.get("root_cause"):
        inner = found["root_cause"][0]
    reasons = []
    while isinstance(inner, Mapping):
        reasons.append(str(inner.get("reason") or inner.get("type") or ""))
        inner = inner.get("caused_by")
    return kind, one_line(": ".join(dict.fromkeys(filter(None, reasons))) or otherwise or kind)


def one_line(text: str, most: int = 300) -> str:
    """Make one line of a server's text, and not a long one."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def _reason(text: str) -> str:
    for sign, plain in (
        ("Connection refused", "connection refused; is it running, and is the port right?"),
        ("Name or service not known", "no such host"),
        ("nodename nor servname", "no such host"),
        ("Temporary failure in name resolution", "no such host"),
        ("No address associated", "no such host"),
        ("Remote end closed", "it closes the connection without an answer; is it https?"),
        ("timed out", "no answer; check host and port"),
        ("BadStatusLine", "it does not speak HTTP; is it https?"),
        ("Connection reset", "it resets the connection"),
        ("IncompleteRead", "its answer breaks off"),
        ("codec can't decode", "its answer is no text"),
    ):
        if sign in text:
            return plain
    return one_line(text, 150)


_UNKNOWN_SIGNER = "its certificate is signed by nobody known; name the signer's with --ca-file"
_NO_CLIENT = "it ends the handshake; does it want a client certificate (--client-cert), or another one?"


def _tls(text: str) -> str:
    for sign, plain in (
        ("self-signed", _UNKNOWN_SIGNER),
        ("self signed", _UNKNOWN_SIGNER),
        ("unable to get local issuer", _UNKNOWN_SIGNER),
        ("Hostname mismatch", "its certificate is for another host"),
        ("doesn't match", "its certificate is for another host"),
        ("IP address mismatch", "its certificate is for another host"),
        ("certificate has expired", "its certificate has expired"),
        ("WRONG_VERSION_NUMBER", "it does not speak TLS; is it http?"),
        ("record layer failure", "it does not speak TLS; is it http?"),
        # A server without a certificate of ours says so, or says something else, or just hangs up.
        ("certificate required", _NO_CLIENT),
        ("alert", _NO_CLIENT),
        ("EOF occurred", _NO_CLIENT),
    ):
        if sign in text:
            return plain
    return one_line(text, 150)
