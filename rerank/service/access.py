"""Access control: tokens, and requests that web pages make a browser send.

A web page can send requests to this machine: with its name in ``Host`` (by DNS rebinding, and then it also
reads the answers), with its name in ``Origin``, and with the content types of forms. So a service without a
token answers only under known names and to no other origin. Every service accepts only JSON, which a page
cannot send to another origin without permission.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from starlette.types import Scope

from rerank.service.settings import Settings, Token

JSON = ("application/json",)
"""A web page needs permission to send these content types."""


class Access:
    """The rules of one service."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = [(token.secret.encode(), token) for token in settings.tokens]
        self._hosts = {name.lower().rstrip(".") for name in ("localhost", settings.host, *settings.hosts)}

    @property
    def open(self) -> bool:
        """Whether no token is needed."""
        return not self._tokens

    def token(self, scope: Scope) -> Token | None:
        """The token of a request, if it is one of the service's."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, secret = (given[0] if len(given) == 1 else b"").partition(b" ")
        right = scheme.lower() == b"bearer"
        secret = secret.strip()
        # All are compared, so that the time reveals nothing.
        found = [token for known, token in self._tokens if hmac.compare_digest(secret, known)]
        return found[0] if right and found else None

    def foreign(self, scope: Scope) -> str | None:
        """The problem of a request without a token, by its host and origin; None if there is none."""
        headers = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) > 1 or not all(map(self._known, hosts)):
            return "the request's Host is no name of this service; name it when the service is started"
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        if any(origin.partition("://")[2] not in hosts for origin in origins):
            return "this service does not answer to pages of other origins"
        return None

    def _known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.lower().rstrip(".")
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True  # a page's own name is never an address


def is_json(headers: Iterable[tuple[bytes, bytes]], others: tuple[str, ...] = ()) -> bool:
    """Whether the content type is JSON, or another accepted one."""
    given = [value.decode("latin-1") for name, value in headers if name == b"content-type"]
    kinds = {value.partition(";")[0].strip().lower() for value in given}
    return bool(kinds) and kinds <= {*JSON, *others}
