"""The settings of ``rerank serve``: limits, address, tokens."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rerank.errors import InputError, UsageError

TOKEN_VARIABLE = "RERANK_SERVICE_TOKEN"

NAMES = ("rerank", "search", "rerank_ids", "hook")
"""The endpoints, as tokens and ``only`` name them."""


@dataclass(frozen=True)
class Token:
    """The token of a client. only: its endpoints; empty: all, and the counters."""

    secret: str = field(repr=False)
    only: tuple[str, ...] = ()

    def opens(self, name: str) -> bool:
        """Whether it is good for an endpoint, or for something else."""
        return not self.only or name in self.only


@dataclass(frozen=True)
class Settings:
    """The settings of the service.

    folder:         the workspace.
    host, port:     where to listen; port 0: any that is free.
    workers:        processes; threads: that score at the same time in each of them.
    stack:          of requests that name none; None: the workspace's. May be a file.
    tokens:         bearer tokens; every request must send one of them. Empty: none is needed.
    only:           endpoints that are served (of NAMES); empty: all, but see :func:`withheld`.
    max_body:       bytes of a request's body.
    max_candidates: documents, hits or depth of a request.
    max_encoded:    documents without stored features that one search of the hook encodes.
    max_requests:   that each worker has in hand, waiting or working.
    deadline:       seconds from when a request has come to its answer.
    request_timeout: seconds for a request's line and headers to come, for its body, and for its answer to be
                    taken.
    max_connections: that each worker has open.
    hosts:          names of this service, beside this machine's, that requests without a token may ask for.
    infer_categories: guess the categories of queries that bring none.
    log_queries:    write the words of queries to the log.
    """

    folder: str
    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 1
    threads: int = 4
    stack: str | None = None
    tokens: tuple[Token, ...] = ()
    only: tuple[str, ...] = ()
    max_body: int = 16 * 2**20
    max_encoded: int = 4
    max_candidates: int = 1000
    max_requests: int = 64
    deadline: float = 10.0
    request_timeout: float = 10.0
    max_connections: int = 1024
    hosts: tuple[str, ...] = ()
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


def read_tokens(path: str | None) -> tuple[Token, ...]:
    """Read tokens as :func:`read_token` does; a file may hold several, and what each is good for.

    A line is a token, or a token and endpoints: ``7f3a hook,rerank_ids``. A remark begins with ``#``.

    Raises InputError when the file cannot be read, holds no token, or names what is no endpoint.
    """
    if path is None:
        token = read_token(None)
        return (Token(token),) if token else ()
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the token cannot be read ({error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        only = tuple(words[1].split(",")) if len(words) > 1 else ()
        if len(words) > 2 or not (words[0].isascii() and words[0].isprintable()):
            raise InputError(
                f"{path}:{number}: a token is one word of printable ASCII characters; endpoints may follow,"
                f" as in TOKEN {','.join(NAMES[:2])}"
            )
        check_names(only, f"{path}:{number}")
        found.append(Token(words[0], only))
    if not found:
        raise InputError(f"{path}: holds no token; write one line of letters and digits")
    if len({token.secret for token in found}) < len(found):
        raise InputError(f"{path}: a token comes twice; write each once, with all of its endpoints")
    return tuple(found)


def check_names(names: Iterable[str], where: str) -> None:
    """Raise InputError for what is no endpoint."""
    for name in names:
        if name not in NAMES:
            raise InputError(f"{where}: {name!r} is no endpoint; there are {', '.join(NAMES)}")


def withheld(settings: Settings, shared: bool) -> tuple[str, ...]:
    """Endpoints that are not served. shared: the documents are in a cluster, whose nodes have a token.

    A search returns what the service's own user may see. Whoever has the token of the nodes could read all of
    that, so it is served there only if ``only`` names it, or the nodes' token is good for less.

    >>> withheld(Settings("."), True), withheld(Settings(".", only=("hook",)), True)
    ((), ('rerank', 'search', 'rerank_ids'))
    >>> withheld(Settings(".", tokens=(Token("a"),)), True)
    ('search',)
    >>> withheld(Settings(".", tokens=(Token("a"), Token("b", ("hook",)))), True)
    ()
    """
    if settings.only:
        return tuple(name for name in NAMES if name not in settings.only)
    good_for_all = bool(settings.tokens) and all(not token.only for token in settings.tokens)
    return ("search",) if shared and good_for_all else ()


def check_exposure(host: str, token: bool, insecure: bool) -> None:
    """Raise UsageError for an address that others can reach, without a token."""
    if token or insecure or is_loopback(host):
        return
    raise UsageError(
        f"--host {host} can be reached from elsewhere: give a token with"
        f" --token-file or {TOKEN_VARIABLE}, or say --insecure"
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
