"""The errors of a cluster, one line each."""

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

CREATE_AGAIN = (
    "check the name, or create it again with `rerank ingest CORPUS --replace`, or, if it was attached, where"
    " its documents come from"
)
"""The hint for a missing index."""

_BLOCKS = (
    (
        "flood-stage|read-only-allow-delete",
        "the cluster's disk is full above its flood stage, and the index is read-only; free space on the"
        " nodes, then remove index.blocks.read_only_allow_delete if OpenSearch has not",
    ),
    ("index read-only|FORBIDDEN/[589]/", "the index is read-only (index.blocks); remove the block to write"),
    (
        "create-index blocked",
        "the cluster creates no new index, its disks are nearly full; free space on the nodes",
    ),
    (
        "cluster_manager.*block|block.*cluster_manager|state not recovered",
        "the cluster has no cluster manager now; look at `GET _cluster/health`, and run again",
    ),
)
_CONNECTION = (
    ("Connection refused", "connection refused; is it running, and is the port right?"),
    ("Name or service not known|nodename nor servname|Temporary failure in name|No address", "no such host"),
    ("Remote end closed", "it closes the connection without an answer; is it https?"),
    ("timed out", "no answer; check host and port"),
    ("BadStatusLine", "it does not speak HTTP; is it https?"),
    ("Connection reset", "it resets the connection"),
    ("IncompleteRead", "its answer is incomplete"),
    ("codec can't decode", "its answer is not text"),
)
_TLS = (
    (
        "self.signed|unable to get local issuer",
        "the signer of its certificate is unknown; set ca_file to the certificate of the signer",
    ),
    ("Hostname mismatch|doesn't match|IP address mismatch", "its certificate is for another host"),
    ("certificate has expired", "its certificate has expired"),
    ("WRONG_VERSION_NUMBER|record layer failure", "it does not speak TLS; is it http?"),
    # Servers report a missing client certificate in several ways.
    (
        "certificate required|alert|EOF occurred",
        "it ends the handshake; does it need another client certificate (client_cert)?",
    ),
)


@contextmanager
def asking(settings: Settings, doing: str) -> Iterator[None]:
    """Turn client errors into EngineError: action, place, problem, hint."""
    try:
        yield
    except client_errors.OpenSearchException as error:
        raise explain(error, settings, doing) from error
    except client_errors.ImproperlyConfigured as error:
        raise EngineError(f"{settings.where}: {error}") from error
    except (ssl.SSLError, OSError) as error:  # invalid certificate files
        raise EngineError(f"{doing}: {settings.where}: {error}") from error


def explain(error: Exception, settings: Settings, doing: str) -> EngineError:
    """Return a client error as one line."""
    where, info = settings.where, str(getattr(error, "info", ""))
    if isinstance(error, client_errors.ConnectionTimeout):
        problem = (
            f"no answer from {where} within {settings.timeout:g} s; check the cluster, or raise `timeout`"
        )
    elif isinstance(error, client_errors.SSLError):
        problem = f"{where}: no trusted TLS connection ({_match(_TLS, info)})"
    elif isinstance(error, client_errors.ConnectionError):
        problem = f"{where} cannot be reached ({_match(_CONNECTION, info)})"
    elif isinstance(error, client_errors.SerializationError):
        problem = f"{where} does not answer as OpenSearch does; is it OpenSearch?"
    else:
        problem = _refusal(error, settings)
    return EngineError(f"{doing}: {problem}")


def _refusal(error: Exception, settings: Settings) -> str:
    where, index, status = settings.where, settings.index, getattr(error, "status_code", None)
    kind, reason = cause(getattr(error, "info", None), str(getattr(error, "error", error)))
    window = re.search(r"less than or equal to: \[(\d+)\] but was \[(\d+)\]", reason)
    simple = {
        401: f"{where} needs other credentials (401); check user, password or token",
        403: f"{where} does not allow that (403): {reason}",
        413: f"{where}: the request is too large (413)",
        429: f"{where} is too busy (429); run again later",
    }
    if status == 401:
        return simple[status]
    if blocked := block(reason):
        return blocked
    if window and status != 403:
        return (
            f"a depth of {window[2]} is more than the {window[1]} that index {index!r} returns at once;"
            " choose a smaller depth, or raise its setting index.max_result_window"
        )
    if kind == "index_not_found_exception":
        return f"{where} has no index {index!r}; {CREATE_AGAIN}"
    if kind == "index_closed_exception":
        return f"index {index!r} is closed; open it, or move the alias"
    if kind == "search_phase_execution_exception" or (status == 503 and "shard" in kind + reason):
        return (
            f"not all shards of {index!r} answer ({reason}); look at `GET _cluster/health`, and run again"
            " when they do"
        )
    if isinstance(status, int) and 300 <= status < 400:
        return f"{where} redirects to another address ({status}); check scheme, host and path"
    if status in (502, 503, 504) and not kind:
        return f"a proxy at {where} gets no answer from the cluster ({status}); check the nodes"
    return simple.get(status or 0, f"{where} refuses ({status}): {reason}")


def block(reason: str) -> str:
    """Explain a block of an index or cluster; "" for other reasons."""
    return next((plain for signs, plain in _BLOCKS if re.search(signs, reason)), "")


def cause(info: object, otherwise: str = "") -> tuple[str, str]:
    """Return type and reason of the innermost cause."""
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
    """Return a text as one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def _match(table: Sequence[tuple[str, str]], text: str) -> str:
    return next((plain for signs, plain in table if re.search(signs, text)), one_line(text, 150))
