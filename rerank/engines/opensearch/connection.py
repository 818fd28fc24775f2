"""How to reach a cluster: settings, authentication, and every failure as one clear line."""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from opensearchpy import JSONSerializer, OpenSearch
from opensearchpy import exceptions as client_errors

from rerank.errors import EngineError, InputError, UsageError

OLDEST = (2, 19)
"""The oldest version of OpenSearch that is supported."""

# The client warns of every failed request, with a traceback; here a failure is one line of ours.
logging.getLogger("opensearch").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Settings:
    """The table ``[opensearch]`` of a workspace's ``rerank.toml``. It never holds a secret.

    url:         one node or several (any of them answers), http or https.
    index:       the name to search and write: an alias, or an index.
    shards, replicas: of the indices that rerank makes.
    search_type: ``query_then_fetch``, or ``dfs_query_then_fetch`` for idf over all shards.
    timeout:     seconds that one request may take.
    ca_file:     certificates that the server's is checked against; empty: the system's.
    user:        for basic authentication, with the password from RERANK_OPENSEARCH_PASSWORD or
                 ``password_file``.
    token_file:  file with a bearer token; also RERANK_OPENSEARCH_TOKEN.
    client_cert, client_key: files of a client certificate.
    aws_region, aws_service: sign requests by AWS Signature Version 4 (needs the extra ``aws``; credentials
                 come from where the AWS tools find them).
    """

    url: tuple[str, ...]
    index: str
    shards: int = 1
    replicas: int = 1
    search_type: str = "query_then_fetch"
    timeout: float = 60.0
    ca_file: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    aws_region: str = ""
    aws_service: str = "es"

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> Settings:
        """Check a table of settings; UsageError names the setting and ``where`` it stands."""
        types = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name not in types:
                raise UsageError(f"{where}: {name!r} is no setting; there are {', '.join(types)}")
            if name == "url":
                value = (value,) if isinstance(value, str) else tuple(value)
            elif name == "timeout" and isinstance(value, int):
                value = float(value)
            expected = {"int": int, "float": float, "str": str}.get(types[name])
            if expected is not None and (not isinstance(value, expected) or isinstance(value, bool)):
                raise UsageError(f"{where}: {name} = {value!r} is not of type {types[name]}")
            values[name] = value
        for name in ("url", "index"):
            if not values.get(name):
                raise UsageError(f"{where}: {name} is missing; say where the documents are")
        settings = cls(**values)
        settings._check(where)
        return settings

    def _check(self, where: str) -> None:
        for url in self.url:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise UsageError(
                    f"{where}: {redacted(url)!r} is no URL of a node; for example http://127.0.0.1:9200"
                )
            if parts.username or parts.password:
                raise UsageError(
                    f"{where}: a URL must not hold a password; give the user with --user and set"
                    " RERANK_OPENSEARCH_PASSWORD"
                )
            if parts.query or parts.fragment:
                raise UsageError(f"{where}: {url!r} has more than scheme, host, port and path")
        name = self.index
        if (
            name != name.lower()
            or name.startswith(("-", "_", "+", "."))
            or re.search(r'[\s\\/*?"<>|,#:]', name)
            or len(name.encode()) > 240
        ):
            raise UsageError(
                f"{where}: {name!r} is no name of an index; use lower-case letters, digits, - and _"
            )
        if self.search_type not in ("query_then_fetch", "dfs_query_then_fetch"):
            raise UsageError(
                f"{where}: search_type {self.search_type!r} is unknown; use query_then_fetch or"
                " dfs_query_then_fetch"
            )
        if self.shards < 1 or self.replicas < 0 or self.timeout <= 0:
            raise UsageError(f"{where}: shards and timeout must be above 0, and replicas not below 0")
        if bool(self.client_key) and not self.client_cert:
            raise UsageError(f"{where}: client_key is set without client_cert")

    def table(self) -> dict[str, Any]:
        """What :meth:`read` reads: every setting that is not at its default."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        kept = {f.name: values[f.name] for f in fields(self) if values[f.name] != f.default}
        kept["url"] = self.url[0] if len(self.url) == 1 else list(self.url)
        return kept

    @property
    def where(self) -> str:
        """The nodes' addresses, for messages."""
        return ", ".join(self.url)


def redacted(url: str) -> str:
    """Leave out what may be a password."""
    return re.sub(r"//[^/@]*@", "//…@", url)


class _Json(JSONSerializer):
    """JSON by orjson, which takes a third of the time for a thousand features."""

    def loads(self, s: str) -> Any:
        try:
            return orjson.loads(s)
        except ValueError:  # an integer above 64 bits, or no JSON at all
            return json.loads(s)


def _secret(variable: str, file: str, what: str) -> str:
    """Read a secret from the environment or from a file."""
    if value := os.environ.get(variable):
        return value
    path = file or os.environ.get(f"{variable}_FILE", "")
    if not path:
        return ""
    try:
        value = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: the {what} cannot be read ({reason})") from error
    if not value:
        raise InputError(f"{path}: the {what} is empty")
    return value


def _authentication(settings: Settings) -> dict[str, Any]:
    password = (
        _secret("RERANK_OPENSEARCH_PASSWORD", settings.password_file, "password") if settings.user else ""
    )
    token = _secret("RERANK_OPENSEARCH_TOKEN", settings.token_file, "token")
    ways = [
        name
        for name, given in (("user", settings.user), ("token", token), ("aws", settings.aws_region))
        if given
    ]
    if len(ways) > 1:
        raise UsageError(f"{settings.where}: {' and '.join(ways)} are set; authenticate in one way")
    if settings.user:
        if not password:
            raise UsageError(
                f"{settings.where}: user {settings.user!r} has no password; set RERANK_OPENSEARCH_PASSWORD,"
                " or RERANK_OPENSEARCH_PASSWORD_FILE to a file that holds it"
            )
        return {"http_auth": (settings.user, password)}
    if token:
        return {"headers": {"Authorization": f"Bearer {token}"}}
    if settings.aws_region:
        return {"http_auth": _aws(settings)}
    return {}


def _aws(settings: Settings) -> Any:
    from opensearchpy import Urllib3AWSV4SignerAuth

    try:
        from botocore.session import get_session
    except ImportError:
        raise UsageError("signing for AWS needs botocore: pip install 'rerank[aws]'") from None
    credentials = get_session().get_credentials()
    if credentials is None:
        raise UsageError(
            "no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        )
    return Urllib3AWSV4SignerAuth(credentials, settings.aws_region, settings.aws_service)


def connect(settings: Settings, connections: int = 10) -> OpenSearch:
    """Make a client. Nothing is sent yet; :func:`check` does that."""
    options: dict[str, Any] = {}
    if any(urlsplit(url).scheme == "https" for url in settings.url):
        for name, file in (("ca_certs", settings.ca_file), ("client_cert", settings.client_cert)):
            if file:
                if not Path(file).is_file():
                    raise InputError(
                        f"{file}: no such file; it is set as {name.replace('ca_certs', 'ca_file')}"
                    )
                options[name] = file
        if settings.client_key:
            options["client_key"] = settings.client_key
        if "ca_certs" not in options and (system := ssl.get_default_verify_paths().cafile):
            options["ca_certs"] = system
    elif settings.client_cert or settings.ca_file:
        raise UsageError(f"{settings.where}: certificates are set, but the URL is not https")
    return OpenSearch(
        hosts=[url.rstrip("/") for url in settings.url],
        timeout=settings.timeout,
        max_retries=max(3, len(settings.url)),
        retry_on_status=(502, 503, 504) if len(settings.url) > 1 else (),
        pool_maxsize=connections,
        serializer=_Json(),
        **options,
        **_authentication(settings),
    )


def check(client: OpenSearch, settings: Settings) -> tuple[int, int]:
    """Return the version (major, minor) of the cluster; EngineError when it is none that can be used."""
    with asking(settings, "connecting"):
        try:
            about = client.info()
        except client_errors.SerializationError:
            about = None
    version = about.get("version") if isinstance(about, dict) else None
    if not isinstance(version, dict) or "number" not in version:
        raise EngineError(f"{settings.where} answers, but is not OpenSearch; check the URL")
    number = str(version["number"])
    if version.get("distribution") != "opensearch":
        raise EngineError(
            f"{settings.where} is not OpenSearch (version {number} of another product);"
            " rerank needs OpenSearch 2.19 or later"
        )
    found = re.match(r"(\d+)\.(\d+)", number)
    known = (int(found[1]), int(found[2])) if found else (0, 0)
    if known < OLDEST:
        raise EngineError(f"{settings.where} is OpenSearch {number}; rerank needs 2.19 or later")
    return known


@contextmanager
def asking(settings: Settings, doing: str) -> Iterator[None]:
    """Turn what the client raises into EngineError: what was done, where, what went wrong, what helps."""
    try:
        yield
    except client_errors.OpenSearchException as error:
        raise explain(error, settings, doing) from error
    except client_errors.ImproperlyConfigured as error:
        raise EngineError(f"{settings.where}: {error}") from error
    except (ssl.SSLError, OSError) as error:  # certificate files that are none
        raise EngineError(f"{doing}: {settings.where}: {error}") from error


def explain(error: Exception, settings: Settings, doing: str) -> EngineError:
    """Say in one line what a client's error means."""
    where = settings.where
    if isinstance(error, client_errors.ConnectionTimeout):
        return EngineError(
            f"{doing}: no answer from {where} within {settings.timeout:g} s; check the cluster, or raise"
            " `timeout`"
        )
    if isinstance(error, client_errors.SSLError):
        return EngineError(f"{doing}: {where}: no trusted TLS connection ({_tls(str(error.info))})")
    if isinstance(error, client_errors.ConnectionError):
        return EngineError(f"{doing}: {where} cannot be reached ({_reason(str(error.info))})")
    if isinstance(error, client_errors.SerializationError):
        return EngineError(f"{doing}: {where} does not answer in JSON; is it OpenSearch?")
    status = getattr(error, "status_code", None)
    kind, reason = cause(getattr(error, "info", None), str(getattr(error, "error", error)))
    if status == 401:
        return EngineError(f"{doing}: {where} wants other credentials (401); check user, password or token")
    blocked = block(reason)
    if blocked:
        return EngineError(f"{doing}: {blocked}")
    if status == 403:
        return EngineError(f"{doing}: {where} does not allow that (403): {reason}")
    if kind == "index_not_found_exception":
        return EngineError(
            f"{doing}: {where} has no index {settings.index!r}; ingest documents, or check the name"
        )
    window = re.search(r"less than or equal to: \[(\d+)\] but was \[(\d+)\]", reason)
    if window:
        return EngineError(
            f"a depth of {window[2]} is more than the {window[1]} that index {settings.index!r} returns at"
            " once; choose a smaller depth, or raise its setting index.max_result_window"
        )
    if kind == "search_phase_execution_exception" or (status == 503 and "shard" in kind + reason):
        return EngineError(
            f"{doing}: not all shards of {settings.index!r} answer ({reason});"
            " look at `GET _cluster/health`, and run again when they do"
        )
    if status == 413:
        return EngineError(f"{doing}: {where} finds the request too large (413)")
    return EngineError(f"{doing}: {where} refuses ({status}): {reason}")


def block(reason: str) -> str:
    """Explain a block on an index; empty when ``reason`` is none."""
    if "flood-stage" in reason or "read-only-allow-delete" in reason:
        return (
            "the cluster's disk is full above its flood stage, and the index is read-only; free space on the"
            " nodes, then remove index.blocks.read_only_allow_delete if OpenSearch has not"
        )
    if "index read-only" in reason or "FORBIDDEN/5/" in reason or "FORBIDDEN/8/" in reason:
        return "the index is set read-only (index.blocks); lift the block to write to it"
    if ("cluster_manager" in reason and "block" in reason) or "state not recovered" in reason:
        return "the cluster has no cluster manager right now; look at `GET _cluster/health`, and run again"
    return ""


def cause(info: object, otherwise: str = "") -> tuple[str, str]:
    """Type and reason of the innermost cause in an error's body."""
    found = info.get("error") if isinstance(info, Mapping) else None
    if isinstance(found, str):
        return "", one_line(found)
    if not isinstance(found, Mapping):
        return "", one_line(otherwise)
    kind = str(found.get("type", ""))
    inner: Any = found
    failed = found.get("failed_shards")
    if isinstance(failed, Sequence) and failed and isinstance(failed[0], Mapping) and "reason" in failed[0]:
        inner = failed[0]["reason"]
    elif found.get("root_cause"):
        inner = found["root_cause"][0]
    reasons = []
    while isinstance(inner, Mapping):
        reasons.append(str(inner.get("reason") or inner.get("type") or ""))
        inner = inner.get("caused_by")
    return kind, one_line(": ".join(dict.fromkeys(filter(None, reasons))) or otherwise or kind)


def one_line(text: str, most: int = 300) -> str:
    """Make one line of a server's text, and not a long one."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def _reason(text: str) -> str:
    for sign, plain in (
        ("Connection refused", "connection refused; is it running, and is the port right?"),
        ("Name or service not known", "no such host"),
        ("nodename nor servname", "no such host"),
        ("Temporary failure in name resolution", "no such host"),
        ("No address associated", "no such host"),
        ("Remote end closed", "it closes the connection without an answer; is it https?"),
        ("timed out", "no answer; check host and port"),
        ("BadStatusLine", "it does not speak HTTP; is it https?"),
        ("Connection reset", "it resets the connection"),
    ):
        if sign in text:
            return plain
    return one_line(text, 150)


def _tls(text: str) -> str:
    for sign, plain in (
        ("self-signed", "its certificate is signed by nobody known; name the signer's in ca_file"),
        ("self signed", "its certificate is signed by nobody known; name the signer's in ca_file"),
        (
            "unable to get local issuer",
            "its certificate is signed by nobody known; name the signer's in ca_file",
        ),
        ("Hostname mismatch", "its certificate is for another host"),
        ("doesn't match", "its certificate is for another host"),
        ("IP address mismatch", "its certificate is for another host"),
        ("certificate has expired", "its certificate has expired"),
        ("WRONG_VERSION_NUMBER", "it does not speak TLS; is it http?"),
        ("record layer failure", "it does not speak TLS; is it http?"),
        ("certificate required", "it wants a client certificate; set client_cert and client_key"),
        ("alert", "it refuses the handshake; does it want a client certificate?"),
    ):
        if sign in text:
            return plain
    return one_line(text, 150)
