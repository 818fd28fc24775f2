"""Access control: tokens, hosts and origins. Stops requests by foreign web pages."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from rerank.service.settings import Settings, Token

Headers = Iterable[tuple[bytes, bytes]]


class Access:
    """The rules of one service."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = [(token.secret.encode(), token) for token in settings.tokens]
        self._hosts = {
            name.lower().rstrip(".") for name in ("localhost", settings.host, *settings.allow_host)
        }
        self.open = not settings.tokens
        """Whether no token is needed."""

    def token(self, headers: Headers) -> Token | None:
        """The valid token of a request, or None."""
        values = [value for name, value in headers if name == b"authorization"]
        scheme, _, secret = (values[0] if len(values) == 1 else b"").partition(b" ")
        # Compare all tokens, so that the time reveals nothing.
        sent = secret.strip()
        valid = [token for valid_secret, token in self._tokens if hmac.compare_digest(sent, valid_secret)]
        return valid[0] if valid and scheme.lower() == b"bearer" else None

    def foreign(self, headers: Headers) -> str | None:
        """The problem with a host or origin without a token, or None."""
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) > 1 or not all(map(self._is_known, hosts)):
            return "the Host of the request is not a name of this service; start the service with its name"
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        if any(origin.partition("://")[2] not in hosts for origin in origins):
            return "this service does not answer pages of other origins"
        return None

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.lower().rstrip(".")
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True  # a page's own name is never an address


def has_kind(headers: Headers, kind: str) -> bool:
    """Whether the body has this content type."""
    values = [value.decode("latin-1") for name, value in headers if name == b"content-type"]
    return {value.partition(";")[0].strip().lower() for value in values} == {kind}
