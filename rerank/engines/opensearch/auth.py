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

from rerank.common.errors import InputError, NotInstalledError, RerankError, UsageError
from rerank.common.files import unreadable_text, write_text
from rerank.common.values import without_empty

if TYPE_CHECKING:
    from rerank.engines.opensearch.connection import Settings

HOSTS = "RERANK_OPENSEARCH_HOSTS"
"""Trusted hosts, comma-separated: ``search.example.org``, with or without a port, or a URL. If it is set, no
other hosts are trusted."""

_PASSWORD = "RERANK_OPENSEARCH_PASSWORD"
_TOKEN = "RERANK_OPENSEARCH_TOKEN"
_LOCAL = ("127.0.0.1", "localhost", "::1")


class SecretWarning(UserWarning):
    """A secret is sent unencrypted."""


def trust(settings: Settings) -> None:
    """Store that the user named the hosts of these settings, so that secrets may be sent to them."""
    path = _hosts_file()
    trusted_hosts = _lines(path)
    hosts = map(_origin, settings.url)
    new_hosts = [host for host in hosts if host not in trusted_hosts]
    if not new_hosts:
        return
    with suppress(OSError, RerankError):  # without a home folder, the environment can still name them
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_text(path, "".join(f"{host}\n" for host in [*trusted_hosts, *new_hosts]), follow=True)


def check_trust(settings: Settings, settings_file: str) -> None:
    """Check the hosts and files of settings that send a secret, and warn if it is sent unencrypted.

    settings_file: the file of the settings, for messages and for its owner.

    Raises UsageError if the user never named the host, or if a file of another user names a file with a
    secret.
    """
    secret = _secret_of(settings)
    if not secret:
        return
    trusted_hosts = _trusted_hosts()
    for url in settings.url:
        if trusted_hosts.isdisjoint(_names_of_host(url)):
            raise UsageError(
                f"{settings_file}: sends {secret} to {_origin(url)}, which this user has never named; if that"
                f" is right, set {HOSTS}={urlsplit(url).netloc}, or add the line {_origin(url)} to"
                f" {_hosts_file()}"
            )
    _check_owner(settings, settings_file)

    for url in settings.url:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname not in _LOCAL:
            message = f"{_origin(url)}: secrets are sent there unencrypted; use https"
            warnings.warn(message, SecretWarning, stacklevel=2)


def _trusted_hosts() -> set[str]:
    """Return the hosts that the user named, in lower case: in the environment, else in the file."""
    hosts_in_environment = os.environ.get(HOSTS, "")
    names = hosts_in_environment.split(",") if hosts_in_environment else _lines(_hosts_file())
    return {name.strip().rstrip("/").lower() for name in names}


def _names_of_host(url: str) -> set[str]:
    """Return the ways to name the host of a URL: with scheme and port, with port, and only the host."""
    parts = urlsplit(url)
    return {_origin(url), parts.netloc.lower(), (parts.hostname or "").lower()} - {""}


def client_options(settings: Settings) -> dict[str, Any]:
    """Return the options of the client that authenticate: a header, or a signer for AWS.

    Raises UsageError for several ways to authenticate, UsageError or InputError for a secret that is missing
    or cannot be read.
    """
    password = _read_secret(_PASSWORD, settings.password_file, "password") if settings.user else ""
    token = _read_secret(_TOKEN, settings.token_file, "token")
    _check_one_method(settings, token)

    if settings.user:
        return {"headers": {"Authorization": _basic(settings, password)}}
    if token:
        return {"headers": {"Authorization": f"Bearer {token}"}}
    if settings.aws_region:
        return {"http_auth": _aws(settings)}
    return {}


def _check_one_method(settings: Settings, token: str) -> None:
    """Raise UsageError for settings that authenticate in several ways."""
    credentials = {"user": settings.user, "token": token, "aws": settings.aws_region}
    methods = list(without_empty(credentials))
    if len(methods) > 1:
        raise UsageError(f"{settings.where}: {' and '.join(methods)} are set; authenticate in one way")


def _basic(settings: Settings, password: str) -> str:
    """Return the value of the header for a user and a password. Raises UsageError without a password."""
    if not password:
        raise UsageError(
            f"{settings.where}: user {settings.user!r} has no password; set {_PASSWORD}, or"
            f" {_PASSWORD}_FILE to a file that contains it"
        )
    # The client would encode it as Latin-1.
    return f"Basic {b64encode(f'{settings.user}:{password}'.encode()).decode()}"


def _read_secret(variable: str, file: str, kind: str) -> str:
    """Return a secret of the environment, else of a file, else an empty text.

    variable: environment variable with the secret. ``VARIABLE_FILE`` can name its file.
    file:     file of the secret according to the settings; empty: not set.
    kind:     name of the secret, for messages.
    """
    source = variable
    secret = os.environ.get(variable, "")
    if not secret:
        source = file or os.environ.get(f"{variable}_FILE", "")
        if not source:
            return ""
        if file:
            _refuse_special_file(file, kind)
        secret = _read_secret_file(source, kind)
    _check_characters(secret, source, kind)
    return secret


def _check_characters(secret: str, source: str, kind: str) -> None:
    """Raise InputError for a secret that cannot be in a header. source: a variable or a file."""
    is_token = kind == "token"
    has_unusable_letters = is_token and not secret.isascii()
    if has_unusable_letters or not secret.isprintable():
        raise InputError(f"{source}: the {kind} has invalid characters, maybe a line break; remove them")


def _refuse_special_file(file: str, kind: str) -> None:
    """Raise InputError for a pipe or device: the settings may be another user's. It may be missing."""
    if os.path.exists(file) and not os.path.isfile(file):
        raise InputError(f"{file}: the {kind} cannot be read (not a file); name a file")


def _read_secret_file(file: str, kind: str) -> str:
    """Return the secret in a file, without whitespace around it. Raises InputError."""
    try:
        secret = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = unreadable_text(error)
        raise InputError(f"{file}: the {kind} cannot be read ({reason}); correct the file") from error
    if not secret:
        raise InputError(f"{file}: the {kind} is empty; write it into the file")
    return secret


def _aws(settings: Settings) -> object:
    """Return what signs requests with the AWS credentials of this machine. Raises UsageError."""
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
    """Return words for the secret that is sent, or an empty text if none is sent."""
    secrets = (
        (settings.user, f"the password of {settings.user}"),
        (settings.token_file, f"the secret in {settings.token_file}"),
        (settings.client_key, f"the secret in {settings.client_key}"),
        (settings.aws_region, "AWS credentials"),
        (os.environ.get(_TOKEN), f"the token of {_TOKEN}"),
        (os.environ.get(f"{_TOKEN}_FILE"), f"the token of {_TOKEN}_FILE"),
    )
    for setting, words in secrets:
        if setting:
            return words
    return ""


def _hosts_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path(os.path.expanduser("~")) / ".config"
    return Path(base) / "rerank" / "hosts"


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that this user or root owns. Other files have no lines."""
    if _owner(path) not in (0, os.geteuid()):
        return []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeError):
        return []
    return list(filter(None, map(str.strip, lines)))


def _owner(path: str | Path) -> int | None:
    try:
        return Path(path).stat().st_uid
    except OSError:
        return None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _check_owner(settings: Settings, settings_file: str) -> None:
    """Raise UsageError if a file of another user names a file with a secret."""
    files = {
        "password_file": settings.password_file,
        "token_file": settings.token_file,
        "client_key": settings.client_key,
    }
    secret_files = list(without_empty(files))
    owner = _owner(settings_file)
    is_of_another_user = owner not in (0, os.geteuid(), None)
    if secret_files and is_of_another_user:
        raise UsageError(
            f"{settings_file}: belongs to another user (uid {owner}) and names a file with a secret"
            f" ({secret_files[0]}); pass the secret in the environment, or become the owner of the file"
        )
