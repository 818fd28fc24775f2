"""Secrets are only sent to hosts that the user has named; a file in a folder cannot name them.

A workspace's ``rerank.toml`` may be anybody's: cloned, unpacked, or left in a shared folder. So a secret (of
the environment, or in a file that it names) goes only to nodes that this user has named: when the workspace
was made, which is remembered in ``~/.config/rerank/hosts``, or in ``RERANK_OPENSEARCH_HOSTS``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from rerank.engines.opensearch.connection import Settings
from rerank.errors import RerankError, UsageError
from rerank.files import write_text

HOSTS = "RERANK_OPENSEARCH_HOSTS"
"""Names hosts: ``search.example.org``, with a port or without, or a URL; commas between. Where it is set, no
others are trusted."""

_FILES = ("password_file", "token_file", "client_key")
_VARIABLES = ("RERANK_OPENSEARCH_TOKEN", "RERANK_OPENSEARCH_TOKEN_FILE")
_HERE = ("127.0.0.1", "localhost", "::1")


class SecretWarning(UserWarning):
    """A secret goes over the network unencrypted."""


def remember(settings: Settings) -> None:
    """Note that the user has named these nodes himself."""
    path = _remembered()
    known = _lines(path)
    fresh = [url for url in map(_origin, settings.url) if url not in known]
    if fresh:
        with suppress(OSError, RerankError):  # no home: the environment can still name them
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_text(path, "".join(f"{line}\n" for line in [*known, *fresh]), follow=True)


def check(settings: Settings, where: str) -> None:
    """Raise UsageError if a secret would be sent to nodes that this user has never named.

    where: the file that the settings are in; that of another user must not name files with secrets either.
    """
    secret = _secret(settings)
    if not secret:
        return
    named = os.environ.get(HOSTS, "")
    known = [name.strip() for name in named.split(",")] if named else _lines(_remembered())
    for url in settings.url:
        if not _among(url, known):
            raise UsageError(
                f"{where}: would have {secret} sent to {_origin(url)}, which this user has never named;"
                f" if that is right, set {HOSTS}={urlsplit(url).netloc}, or add the line {_origin(url)} to"
                f" {_remembered()}"
            )
    owner = _owner(where)
    file = next((name for name in _FILES if getattr(settings, name)), None)
    if file is not None and owner not in (0, os.geteuid(), None):
        raise UsageError(
            f"{where}: belongs to another user (uid {owner}) and names a file with a secret ({file});"
            " give the secret by the environment, or make the file yours"
        )


def warn(settings: Settings) -> None:
    """Warn of a secret that goes over the network unencrypted."""
    if _secret(settings):
        for url in settings.url:
            parts = urlsplit(url)
            if parts.scheme == "http" and parts.hostname not in _HERE:
                said = f"{_origin(url)}: secrets go there unencrypted; use https"
                warnings.warn(said, SecretWarning, stacklevel=2)


def _secret(settings: Settings) -> str:
    """Name the secret that would be sent; "" if there is none."""
    if settings.user:
        return f"the password of {settings.user}"
    for name in (*_FILES[1:], "aws_region"):
        if getattr(settings, name):
            return "AWS credentials" if name == "aws_region" else f"what is in {getattr(settings, name)}"
    return next((f"the token of {name}" for name in _VARIABLES if os.environ.get(name)), "")


def _remembered() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path(os.path.expanduser("~")) / ".config"
    return Path(base) / "rerank" / "hosts"


def _lines(path: Path) -> list[str]:
    try:
        about, text = path.stat(), path.read_text("utf-8")
    except (OSError, UnicodeError):
        return []
    if about.st_uid not in (0, os.geteuid()):
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _owner(where: str) -> int | None:
    try:
        return Path(where).stat().st_uid
    except OSError:
        return None


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _among(url: str, known: Sequence[str]) -> bool:
    parts = urlsplit(url)
    mine = {_origin(url), parts.netloc.lower(), (parts.hostname or "").lower()}
    return any(name.rstrip("/").lower() in mine for name in known if name)
