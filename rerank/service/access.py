"""Access control: tokens, hosts and origins. Stops requests by foreign web pages."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable

from rerank.service.settings import Settings, Token

Headers = Iterable[tuple[bytes, bytes]]

_PORT = re.compile(r":\d+\Z")


class Access:
    """The rules of one service."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = [(token.secret.encode(), token) for token in settings.tokens]
        self._hosts = {_host_name(host) for host in ("localhost", settings.host, *settings.allow_host)}
        self.open = not settings.tokens
        """Whether no token is needed."""

    def token(self, headers: Headers) -> Token | None:
        """Return the valid token that a request sends, or None.

        headers: names in lower case, and values.
        """
        values = header_values(headers, b"authorization")
        if len(values) != 1:
            return None
        scheme, _, secret = values[0].partition(" ")
        sent = secret.encode("latin-1").strip()
        valid: Token | None = None
        for valid_secret, token in self._tokens:  # compare all, so that the time reveals nothing
            if hmac.compare_digest(sent, valid_secret):
                valid = token
        return valid if scheme.lower() == "bearer" else None

    def foreign(self, headers: Headers) -> str | None:
        """Return why a request without a token may come from a foreign web page, or None.

        Such a page sends its own origin, or has a name that leads to this machine.
        """
        hosts = header_values(headers, b"host")
        if len(hosts) > 1 or not all(map(self._is_own, hosts)):
            return "the Host of the request is not a name of this service; start the service with its name"
        for origin in header_values(headers, b"origin"):
            if origin.partition("://")[2] not in hosts:
                return "this service does not answer pages of other origins"
        return None

    def _is_own(self, host: str) -> bool:
        """Return whether a ``Host`` header names this service, by a name or by an address."""
        name = _host_name(_PORT.sub("", host))
        return name in self._hosts or _is_address(name)  # a page's own name is never an address


def _host_name(host: str) -> str:
    return host.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def header_values(headers: Headers, name: bytes) -> list[str]:
    """Return the values of all headers of one name, which is in lower case."""
    return [value.decode("latin-1") for header, value in headers if header == name]


def has_kind(headers: Headers, kind: str) -> bool:
    """Return whether the body of a request has this content type, whatever its parameters.

    kind: for example ``application/json``.
    """
    kinds = {value.partition(";")[0].strip().lower() for value in header_values(headers, b"content-type")}
    return kinds == {kind}
