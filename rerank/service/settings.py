"""What ``rerank serve`` is told: limits, address, token."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from rerank.errors import InputError, UsageError, setting_hint

TOKEN_VARIABLE = "RERANK_SERVICE_TOKEN"


@dataclass(frozen=True)
class Settings:
    """Everything the service is told.

    folder:         the workspace.
    host, port:     where to listen; port 0: any that is free.
    workers:        processes; threads: that score at the same time in each of them.
    stack:          of requests that name none; None: the workspace's. May be a file.
    token:          bearer token that every request must bring; empty: none.
    max_body:       bytes of a request's body.
    max_candidates: documents, hits or depth of a request.
    max_requests:   that each worker has in hand, waiting or working.
    deadline:       seconds from a request's arrival to its answer.
    infer_categories: guess the categories of queries that bring none.
    log_queries:    write the words of queries to the log.
    """

    folder: str
    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 1
    threads: int = 4
    stack: str | None = None
    token: str = field(default="", repr=False)
    max_body: int = 16 * 2**20
    max_candidates: int = 1000
    max_requests: int = 64
    deadline: float = 10.0
    infer_categories: bool = True
    log_queries: bool = False


def read_token(path: str | None) -> str:
    """Read the token from a file or, without one, from RERANK_SERVICE_TOKEN; empty when there is none.

    Raises InputError when the file cannot be read, or holds no token.
    """
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        where = TOKEN_VARIABLE
    else:
        where = path
        try:
            token = Path(path).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: the token cannot be read ({error})") from error
        if not token:
            raise InputError(f"{path}: holds no token; write one line of letters and digits")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(f"{where}: a token is one word of printable ASCII characters")
    return token


def check_exposure(host: str, token: str, insecure: bool) -> None:
    """Raise UsageError for an address that others can reach, without a token."""
    if token or insecure or is_loopback(host):
        return
    raise UsageError(
        f"{setting_hint('host')} {host} can be reached from elsewhere: give a token with"
        f" {setting_hint('token_file')} or {TOKEN_VARIABLE}, or say {setting_hint('insecure')}"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
