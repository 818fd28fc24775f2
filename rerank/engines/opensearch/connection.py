"""How to reach a cluster: settings, authentication, and the client."""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
import threading
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from opensearchpy import JSONSerializer, OpenSearch, Transport
from opensearchpy import exceptions as client_errors
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from rerank.engines.opensearch.errors import asking
from rerank.errors import (
    EngineError,
    InputError,
    NotInstalledError,
    UsageError,
)
from rerank.files import parse_json

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
                value = (value,) if isinstance(value, str) else value
                if not isinstance(value, (list, tuple)) or not all(isinstance(url, str) for url in value):
                    raise UsageError(f"{where}: url = {value!r} is neither a URL nor a list of them")
                value = tuple(value)
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
            if "@" in url:
                raise UsageError(
                    f"{where}: a URL must not hold a password; give the user with --user and"
                    " set RERANK_OPENSEARCH_PASSWORD"
                )
            if "?" in url or "#" in url:
                raise UsageError(f"{where}: the URL has more than scheme, host, port and path")
            if not _usable(url):
                raise UsageError(f"{where}: {url!r} is no URL of a node; for example http://127.0.0.1:9200")
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
        if self.shards < 1 or self.replicas < 0 or not 0 < self.timeout < math.inf:
            raise UsageError(f"{where}: shards and timeout must be above 0, and replicas not below 0")
        if ":" in self.user:
            raise UsageError(f"{where}: a user's name has no colon; the password is never among the settings")
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


def _usable(url: str) -> bool:
    """Whether a URL names a scheme, a host and maybe a port that there can be."""
    try:
        parts = urlsplit(url)
        port = parts.port
        parse_url(url)  # what the client does with it
        HTTPConnectionPool(parts.hostname or "")  # connects to nobody yet
    except (ValueError, LocationParseError):
        return False
    spaces = any(c.isspace() for c in url)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not spaces


class _Json(JSONSerializer):
    """JSON by msgspec, which takes a third of the time for a thousand features."""

    def loads(self, s: str) -> Any:
        try:
            return msgspec.json.decode(s)
        except (msgspec.DecodeError, RecursionError):  # half of a surrogate pair, or no JSON at all
            try:
                return parse_json(s)
            except ValueError as error:
                raise client_errors.SerializationError(s[:200], error) from error


_ANSWERS = {"_search": "hits", "_msearch": "responses", "_mget": "docs", "_count": "count", "_bulk": "items"}
"""What an answer of OpenSearch has; some other server may answer anything."""


class _Transport(Transport):
    """Asks the other nodes for a while when one has not answered in time, and looks whether it is OpenSearch.

    The client itself leaves out only nodes that refuse a connection; a frozen one would keep its turn.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._asked = threading.local()

    def get_connection(self) -> Any:
        self._asked.last = super().get_connection()
        return self._asked.last

    def perform_request(self, method: str, url: str, *given: Any, **options: Any) -> Any:
        try:
            answer = super().perform_request(method, url, *given, **options)
            part = _ANSWERS.get(url.rpartition("/")[2], "")
            if isinstance(answer, dict) and _has(answer, part):
                return answer
            if method == "HEAD" or url.startswith("/_cat/"):
                return answer
            raise client_errors.SerializationError(f"no {part}")
        except client_errors.ConnectionTimeout:
            self.mark_dead(self._asked.last)
            raise


def _has(answer: Mapping[str, Any], part: str) -> bool:
    if part == "hits":
        return isinstance(answer.get(part), dict) and isinstance(answer[part].get(part), list)
    return not part or part in answer


def _secret(variable: str, file: str, what: str) -> str:
    """Read a secret from the environment or from a file."""
    place, value = variable, os.environ.get(variable, "")
    if not value:
        place = file or os.environ.get(f"{variable}_FILE", "")
        if not place:
            return ""
        try:
            if file and os.path.exists(file) and not os.path.isfile(file):  # somebody's setting may be a pipe
                raise InputError(f"{file}: the {what} cannot be read (it is no file)")
            value = Path(place).read_text("utf-8").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise InputError(f"{place}: the {what} cannot be read ({reason})") from error
        if not value:
            raise InputError(f"{place}: the {what} is empty")
    if not value.isprintable() or (what == "token" and not value.isascii()):
        raise InputError(f"{place}: the {what} has characters that no {what} has, a line break maybe")
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
        # The client would encode it as Latin-1.
        basic = b64encode(f"{settings.user}:{password}".encode()).decode()
        return {"headers": {"Authorization": f"Basic {basic}"}}
    if token:
        return {"headers": {"Authorization": f"Bearer {token}"}}
    if settings.aws_region:
        return {"http_auth": _aws(settings)}
    return {}


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


def _certificates(settings: Settings) -> dict[str, Any]:
    """The client's options for TLS; InputError for files that hold no certificate or no key."""
    options: dict[str, Any] = {}
    for name in ("ca_file", "client_cert", "client_key"):
        if file := getattr(settings, name):
            if not Path(file).is_file():
                raise InputError(f"{file}: no such file; it is set as {name}")
            options[name] = file
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ca_file:
        try:
            context.load_verify_locations(settings.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise InputError(f"{settings.ca_file}: holds no certificate in PEM (ca_file)") from error
    if settings.client_cert:
        try:
            context.load_cert_chain(settings.client_cert, settings.client_key or None, password="")
        except (ssl.SSLError, OSError) as error:
            raise InputError(
                f"{settings.client_cert}: no client certificate in PEM with its own key, unencrypted, beside"
                " it or in client_key"
            ) from error
    certificates = options.pop("ca_file", "") or ssl.get_default_verify_paths().cafile
    return {**options, "ca_certs": certificates} if certificates else options


def connect(settings: Settings, connections: int = 10) -> OpenSearch:
    """Make a client. Nothing is sent yet; :func:`check` does that."""
    options: dict[str, Any] = {}
    if any(urlsplit(url).scheme == "https" for url in settings.url):
        options = _certificates(settings)
    elif settings.client_cert or settings.ca_file:
        raise UsageError(f"{settings.where}: certificates are set, but the URL is not https")
    return OpenSearch(
        hosts=[url.rstrip("/") for url in settings.url],
        transport_class=_Transport,
        timeout=settings.timeout,
        max_retries=max(3, len(settings.url)),
        retry_on_status=(502, 503, 504) if len(settings.url) > 1 else (),
        pool_maxsize=connections,
        serializer=_Json(),
        serializers={"text/plain": _Json()},
        **options,
        **_authentication(settings),
    )


def check(client: OpenSearch, settings: Settings) -> tuple[int, int]:
    """Return the version (major, minor) of the cluster; EngineError when it is none that can be used."""
    with asking(settings, "connecting"):
        try:
            about = client.info()
        except (  # a page, or another path than OpenSearch's
            client_errors.SerializationError,
            client_errors.NotFoundError,
            client_errors.RequestError,
        ):
            about = None
    version = about.get("version") if isinstance(about, dict) else None
    if not isinstance(version, dict) or "number" not in version:
        raise EngineError(
            f"{settings.where} answers, but not as OpenSearch does; check host, port and path of the URL"
        )
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
