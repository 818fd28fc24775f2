"""Authentication, and the hosts that may receive secrets.

``rerank.toml`` may be untrusted. Secrets go only to hosts that the user named: when creating the workspace
(``~/.config/rerank/hosts``) or in RERANK_OPENSEARCH_HOSTS.
"""

from __future__ import annotations

import os
import warnings
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rerank.errors import InputError, NotInstalledError, RerankError, UsageError
from rerank.files import write_text

if TYPE_CHECKING:
    from rerank.engines.opensearch.connection import Settings

HOSTS = "RERANK_OPENSEARCH_HOSTS"
"""Trusted hosts, comma-separated: ``search.example.org``, with or without a port, or a URL. If it is set, no
other hosts are trusted."""

_PASSWORD, _TOKEN = "RERANK_OPENSEARCH_PASSWORD", "RERANK_OPENSEARCH_TOKEN"
_LOCAL = ("127.0.0.1", "localhost", "::1")


class SecretWarning(UserWarning):
    """A secret is sent unencrypted."""


def trust(settings: Settings) -> None:
    """Store that the user named these hosts."""
    path = _hosts_file()
    known = _lines(path)
    fresh = [url for url in map(_origin, settings.url) if url not in known]
    if fresh:
        with suppress(OSError, RerankError):  # without a home folder, the environment can still name them
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_text(path, "".join(f"{line}\n" for line in [*known, *fresh]), follow=True)


def check_trust(settings: Settings, where: str) -> None:
    """Raise UsageError if a secret would go to a host that the user never named. Warn if it is unencrypted.

    where: the settings file. Files of other users must not name secret files.
    """
    secret = _secret_of(settings)
    if not secret:
        return
    named = os.environ.get(HOSTS, "")
    names = named.split(",") if named else _lines(_hosts_file())
    known = {name.strip().rstrip("/").lower() for name in names}
    for url in settings.url:
        parts = urlsplit(url)
        if not known & ({_origin(url), parts.netloc.lower(), (parts.hostname or "").lower()} - {""}):
            raise UsageError(
                f"{where}: sends {secret} to {_origin(url)}, which this user has never named; if that is"
                f" right, set {HOSTS}={parts.netloc}, or add the line {_origin(url)} to {_hosts_file()}"
            )
    files = [name for name in ("password_file", "token_file", "client_key") if getattr(settings, name)]
    owner = _owner(where)
    if files and owner not in (0, os.geteuid(), None):
        raise UsageError(
            f"{where}: belongs to another user (uid {owner}) and names a file with a secret ({files[0]});"
            " pass the secret in the environment, or become the owner of the file"
        )
    for url in settings.url:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname not in _LOCAL:
            message = f"{_origin(url)}: secrets are sent there unencrypted; use https"
            warnings.warn(message, SecretWarning, stacklevel=2)


def client_options(settings: Settings) -> dict[str, Any]:
    """Return the client's authentication. Raises UsageError or InputError without a secret."""
    password = _read_secret(_PASSWORD, settings.password_file, "password") if settings.user else ""
    token = _read_secret(_TOKEN, settings.token_file, "token")
    given = {"user": settings.user, "token": token, "aws": settings.aws_region}
    ways = [name for name, value in given.items() if value]
    if len(ways) > 1:
        raise UsageError(f"{settings.where}: {' and '.join(ways)} are set; authenticate in one way")
    if settings.user:
        if not password:
            raise UsageError(
                f"{settings.where}: user {settings.user!r} has no password; set {_PASSWORD}, or"
                f" {_PASSWORD}_FILE to a file that contains it"
            )
        # The client would encode it as Latin-1.
        basic = b64encode(f"{settings.user}:{password}".encode()).decode()
        return {"headers": {"Authorization": f"Basic {basic}"}}
    if token:
        return {"headers": {"Authorization": f"Bearer {token}"}}
    return {"http_auth": _aws(settings)} if settings.aws_region else {}


def _read_secret(variable: str, file: str, kind: str) -> str:
    place, value = variable, os.environ.get(variable, "")
    if not value:
        place = file or os.environ.get(f"{variable}_FILE", "")
        if not place:
            return ""
        try:
            if file and os.path.exists(file) and not os.path.isfile(file):  # a foreign setting may be a pipe
                raise InputError(f"{file}: the {kind} cannot be read (not a file); name a file")
            value = Path(place).read_text("utf-8").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"{place}: the {kind} cannot be read ({reason}); correct the file") from error
        if not value:
            raise InputError(f"{place}: the {kind} is empty; write it into the file")
    if not value.isprintable() or (kind == "token" and not value.isascii()):
        raise InputError(f"{place}: the {kind} has invalid characters, maybe a line break; remove them")
    return value


def _aws(settings: Settings) -> Any:
    from opensearchpy import Urllib3AWSV4SignerAuth

    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session
    except ImportError:
        raise NotInstalledError("botocore", "signing for AWS") from None
    try:
        credentials = get_session().get_credentials()
    except BotoCoreError as error:
        raise UsageError(f"no AWS credentials: {error}") from error
    if credentials is None:
        raise UsageError(
            "no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        )
    return Urllib3AWSV4SignerAuth(credentials, settings.aws_region, settings.aws_service)


def _secret_of(settings: Settings) -> str:
    """Name the secret to send; empty: none."""
    if settings.user:
        return f"the password of {settings.user}"
    if file := settings.token_file or settings.client_key:
        return f"the secret in {file}"
    if settings.aws_region:
        return "AWS credentials"
    return next((f"the token of {name}" for name in (_TOKEN, f"{_TOKEN}_FILE") if os.environ.get(name)), "")


def _hosts_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path(os.path.expanduser("~")) / ".config"
    return Path(base) / "rerank" / "hosts"


def _lines(path: Path) -> list[str]:
    """Empty, unless this user or root owns the file."""
    if _owner(path) not in (0, os.geteuid()):
        return []
    try:
        return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError):
        return []


def _owner(path: str | Path) -> int | None:
    try:
        return Path(path).stat().st_uid
    except OSError:
        return None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"
