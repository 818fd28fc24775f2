"""The settings of ``rerank serve``."""

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
    """A client's token. only: its endpoints; empty: everything."""

    secret: str = field(repr=False)
    only: tuple[str, ...] = ()

    def opens(self, name: str) -> bool:
        """Whether the token is valid for an endpoint or path."""
        return not self.only or name in self.only


@dataclass(frozen=True)
class Settings:
    """The settings of the service; ``rerank serve --help-all`` describes them.

    tokens: empty: none needed. only: empty: all endpoints, but see :func:`withheld`.
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
    """Return the one token that :func:`read_tokens` finds, or "". Raises InputError for several."""
    tokens = read_tokens(path)
    if len(tokens) > 1:
        raise InputError(f"{path}: the file has several tokens; name a file with the token to send")
    return tokens[0].secret if tokens else ""


def read_tokens(path: str | None) -> tuple[Token, ...]:
    """Return the tokens of a file, else of RERANK_SERVICE_TOKEN.

    A line is a token, optionally with endpoints: ``7f3a hook,rerank_ids``. ``#`` begins a comment.
    Raises InputError for a file that is unreadable, has no token or an unknown endpoint.
    """
    where = path or TOKEN_VARIABLE
    try:
        text = Path(path).read_text("utf-8") if path else os.environ.get(TOKEN_VARIABLE, "")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the token cannot be read ({error})") from error
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        word, *more = line.split() or ("#",)
        if word.startswith("#"):
            continue
        if len(more) > 1 or not word.isascii() or not word.isprintable():
            raise InputError(
                f"{where}:{number}: a token is one word of printable ASCII characters; endpoints may follow,"
                f" as in TOKEN {','.join(NAMES[:2])}"
            )
        only = tuple(more[0].split(",")) if more else ()
        check_names(only, f"{where}:{number}")
        tokens.append(Token(word, only))
    if not tokens and (path or text.strip()):
        raise InputError(f"{where}: no token; write one line of letters and digits")
    if len({token.secret for token in tokens}) < len(tokens):
        raise InputError(f"{where}: duplicate token; write each token once, with all of its endpoints")
    return tuple(tokens)


def check_names(names: Iterable[str], where: str) -> None:
    """Raise InputError for an unknown endpoint."""
    for name in names:
        if name not in NAMES:
            raise InputError(f"{where}: unknown endpoint {name!r}; choose from {', '.join(NAMES)}")


def withheld(settings: Settings, shared: bool) -> tuple[str, ...]:
    """The endpoints that are not served. shared: the documents are in a cluster, whose nodes have a token.

    A search has the permissions of the service. So it is served to a cluster only if ``only`` names it or a
    token is limited.

    >>> withheld(Settings("."), True), withheld(Settings(".", only=("hook",)), True)
    ((), ('rerank', 'search', 'rerank_ids'))
    >>> withheld(Settings(".", tokens=(Token("a"),)), True)
    ('search',)
    """
    if settings.only:
        return tuple(name for name in NAMES if name not in settings.only)
    unlimited = bool(settings.tokens) and all(not token.only for token in settings.tokens)
    return ("search",) if shared and unlimited else ()


def check_exposure(host: str, token: bool, insecure: bool) -> None:
    """Raise UsageError if other machines can reach the address without a token."""
    if token or insecure or is_loopback(host):
        return
    raise UsageError(
        f"--host {host}: other machines can reach this address; give a token with"
        f" --token-file or {TOKEN_VARIABLE}, or pass --insecure"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
