"""The settings of ``rerank serve``."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from rerank.common.config import Options, option
from rerank.common.errors import InputError, UsageError
from rerank.common.files import unreadable_text
from rerank.common.values import items_not_in

TOKEN_VARIABLE = "RERANK_SERVICE_TOKEN"

Endpoint = Literal["rerank", "search", "rerank_ids", "hook"]
NAMES: tuple[Endpoint, ...] = get_args(Endpoint)
"""The endpoints, as tokens and ``only`` name them."""

METRICS = "metrics"
"""The name of ``/metrics`` in tokens."""
JUDGE = "judge"
"""The name of ``/judge`` in tokens. Only the option ``judge`` serves it."""


@dataclass(frozen=True)
class Token:
    """A client's token. only: its endpoints; empty: everything."""

    secret: str = field(repr=False)
    only: tuple[str, ...] = ()

    def opens(self, name: str) -> bool:
        """Return whether the token is valid for an endpoint, or for a path such as ``metrics``."""
        return not self.only or name in self.only


class ServeOptions(Options, frozen=True):
    """The options of ``rerank serve``. only: empty: all endpoints, but see :func:`withheld`."""

    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, option("Port; 0: any free port.", ge=0, le=65_535)] = 8765
    workers: Annotated[int, option("Number of processes.", ge=1)] = 1
    threads: Annotated[int, option("Requests that a process scores at the same time.", ge=1)] = 4
    stack: Annotated[str | None, option("Stack of requests that name none, not the active stack.")] = None
    only: Annotated[tuple[Endpoint, ...], option(f"Endpoints of {', '.join(NAMES)}; none: all.")] = ()
    judge: Annotated[
        str | None, option("Pool of `rerank judge pool` to judge on the page /judge.", metavar="FILE")
    ] = None
    infer_categories: Annotated[bool, option("Infer the categories of queries without categories.")] = True
    allow_host: Annotated[tuple[str, ...], option("Host names of a service without a token.")] = ()
    log_queries: Annotated[bool, option("Write the words of queries to the log.")] = False
    ubi_log: Annotated[str | None, option("File for a UBI query record of each search.", metavar="FILE")] = (
        None
    )
    max_body: Annotated[int, option("Largest body of a request, in bytes.", ge=1)] = 16 * 2**20
    max_candidates: Annotated[int, option("Most documents of a request.", ge=1, le=100_000)] = 1000
    max_encoded: Annotated[int, option("Most documents without features to encode for a request.", ge=0)] = 4
    max_requests: Annotated[int, option("Most requests of a process at the same time.", ge=1)] = 64
    deadline: Annotated[float, option("Seconds for an answer.", gt=0, le=3600)] = 10.0
    request_timeout: Annotated[float, option("Seconds for each transfer.", gt=0, le=3600)] = 10.0


class Settings(ServeOptions, frozen=True, kw_only=True):
    """The settings of a service. tokens: empty: none needed."""

    folder: str
    tokens: tuple[Token, ...] = ()


def read_token(path: str | None) -> str:
    """Return the one token that a client sends, or "" if there is none; see :func:`read_tokens`.

    Raises InputError for several tokens.
    """
    tokens = read_tokens(path)
    if len(tokens) > 1:
        raise InputError(f"{path}: the file has several tokens; name a file with the token to send")
    return tokens[0].secret if tokens else ""


def read_tokens(path: str | None) -> tuple[Token, ...]:
    """Return the tokens of a file, else of RERANK_SERVICE_TOKEN; none if neither is set.

    A line is a token, optionally with endpoints: ``7f3a hook,rerank_ids``, or with ``metrics`` or
    ``judge`` for these pages. ``#`` begins a comment.

    Raises InputError for a file that is unreadable, has no token or an unknown endpoint.
    """
    source = path or TOKEN_VARIABLE
    text = _read_text(path)
    tokens: dict[str, Token] = {}  # by secret
    for location, words in _lines_with_tokens(text, source):
        token = _parse_token(words, location)
        if token.secret in tokens:
            raise InputError(f"{source}: duplicate token; write each token once, with all of its endpoints")
        tokens[token.secret] = token
    is_source_set = bool(path or text.strip())
    if is_source_set and not tokens:
        raise InputError(f"{source}: no token; write one line of letters and digits")
    return tuple(tokens.values())


def _read_text(path: str | None) -> str:
    """Return the text of a file with tokens, or of the environment. Raises InputError."""
    if not path:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = unreadable_text(error)
        raise InputError(f"{path}: the token cannot be read ({reason}); name a file with a token") from error


def _lines_with_tokens(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the location and the words of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield f"{source}:{number}", words


def _parse_token(words: Sequence[str], location: str) -> Token:
    """Return the token of a line: its secret, and perhaps its endpoints. Raises InputError."""
    secret, *endpoints = words
    is_usable = secret.isascii() and secret.isprintable()
    if len(endpoints) > 1 or not is_usable:
        raise InputError(
            f"{location}: a token is one word of printable ASCII characters; endpoints may follow, as in"
            f" TOKEN {','.join(NAMES[:2])}"
        )
    if not endpoints:
        return Token(secret)
    return Token(secret, _parse_endpoints(endpoints[0], location))


def _parse_endpoints(text: str, location: str) -> tuple[str, ...]:
    """Return the endpoints of a list with commas. Raises InputError for an unknown one."""
    names = (*NAMES, METRICS, JUDGE)
    endpoints = tuple(text.split(","))
    unknown = items_not_in(endpoints, names)
    if unknown:
        raise InputError(f"{location}: unknown endpoint {unknown[0]!r}; use {', '.join(names)}")
    return endpoints


def withheld(settings: Settings, shared: bool) -> tuple[str, ...]:
    """Return the endpoints that are not served.

    shared: the documents are in a cluster, whose nodes have a token.

    A search has the permissions of the service. So it is served to a cluster only if ``only`` names it or a
    token is limited.

    >>> withheld(Settings(folder="."), True), withheld(Settings(folder=".", only=("hook",)), True)
    ((), ('rerank', 'search', 'rerank_ids'))
    >>> withheld(Settings(folder=".", tokens=(Token("a"),)), True)
    ('search',)
    """
    if settings.only:
        return tuple(items_not_in(NAMES, settings.only))
    if not shared or not settings.tokens:
        return ()
    has_limited_token = any(token.only for token in settings.tokens)
    return () if has_limited_token else ("search",)


def check_exposure(host: str, token: bool, insecure: bool) -> None:
    """Check that other machines cannot reach a service without a token.

    host:     address that the service listens on.
    token:    whether requests need a token.
    insecure: whether the user accepts to do without.

    Raises UsageError if other machines can reach it, and neither ``token`` nor ``insecure`` is set.
    """
    if token or insecure or is_loopback(host):
        return
    raise UsageError(
        f"--host {host}: other machines can reach it; set --token-file or {TOKEN_VARIABLE}, or --insecure"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address of a service.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
