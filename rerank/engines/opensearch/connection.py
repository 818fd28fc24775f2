"""The connection to a cluster."""

from __future__ import annotations

import logging
import math
import re
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from opensearchpy import JSONSerializer, OpenSearch, Transport
from opensearchpy import exceptions as client_errors
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from rerank.engines.opensearch.auth import client_options
from rerank.engines.opensearch.errors import translate_client_errors
from rerank.errors import EngineError, InputError, UsageError
from rerank.files import parse_json

OLDEST = (2, 19)
"""The oldest version of OpenSearch that is supported."""

# The client warns of every failed request, with a traceback; here a failure is one line.
logging.getLogger("opensearch").addHandler(logging.NullHandler())


class Settings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The table ``[opensearch]`` of ``rerank.toml``, without secrets.

    url: one or more nodes, http or https.
    index: an alias or index.
    shards, replicas: of new indices.
    search_type: ``query_then_fetch``, or ``dfs_query_then_fetch`` for idf over all shards.
    timeout: seconds per request.
    ca_file: trusted certificates; empty: the system's.
    user: with RERANK_OPENSEARCH_PASSWORD or ``password_file``.
    token_file: bearer token; also RERANK_OPENSEARCH_TOKEN.
    client_cert, client_key: client certificate.
    aws_region, aws_service: AWS Signature Version 4 with the usual credentials (extra ``aws``).
    """

    url: Annotated[tuple[str, ...], Meta(min_length=1)]
    index: Annotated[str, Meta(min_length=1)]
    shards: Annotated[int, Meta(ge=1)] = 1
    replicas: Annotated[int, Meta(ge=0)] = 1
    search_type: Literal["query_then_fetch", "dfs_query_then_fetch"] = "query_then_fetch"
    timeout: Annotated[float, Meta(gt=0, le=1e9)] = 60.0
    ca_file: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    aws_region: str = ""
    aws_service: str = "es"

    @classmethod
    def read(cls, table: Mapping[str, Any], settings_file: str) -> Settings:
        """Check the values of a table. Raises UsageError with the setting and the file."""
        url = table.get("url")
        urls = url or ()
        if isinstance(url, str):
            urls = [url] if url else []
        values = {**table, "url": urls}
        for name in ("url", "index"):
            if not values.get(name):
                raise UsageError(f"{settings_file}: {name} is missing; add it")
        try:
            settings = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at ")
            name = path.strip("`").removeprefix("$.").partition("[")[0]
            if name:
                raise UsageError(f"{settings_file}: {name}: {problem}") from error
            names = ", ".join(cls.__struct_fields__)
            raise UsageError(f"{settings_file}: {problem}; the settings are {names}") from error
        problem = settings._problem_of_url() or settings._problem()
        if problem:
            raise UsageError(f"{settings_file}: {problem}")
        return settings

    def _problem_of_url(self) -> str:
        for url in self.url:
            if re.search("[@?#]", url):  # not quoted: it may be a secret
                return "a URL must not contain a password, ? or #; set `user` and RERANK_OPENSEARCH_PASSWORD"
        for url in self.url:
            if not is_url(url):
                return f"{url!r} is not the URL of a node; for example http://127.0.0.1:9200"
        return ""

    def _problem(self) -> str:
        """Return the first problem of the other settings, or an empty text."""
        name = self.index
        if name != name.lower() or re.search(r'^[-_+.]|[\s\\/*?"<>|,#:]', name) or len(name.encode()) > 240:
            return f"{name!r} is not the name of an index; use lower-case letters, digits, - and _"
        if math.isnan(self.timeout):
            return "timeout: expected a number, got nan"
        if ":" in self.user:
            return "a user name has no colon; the password is never in the settings"
        if self.client_key and not self.client_cert:
            return "client_key is set without client_cert; set both"
        return ""

    def table(self) -> dict[str, Any]:
        """Return the table for :meth:`read`, without defaults."""
        url = self.url[0] if len(self.url) == 1 else list(self.url)
        return {**msgspec.to_builtins(self), "url": url}

    @property
    def where(self) -> str:
        """The nodes, for messages."""
        return ", ".join(self.url)


def is_url(url: str) -> bool:
    """Whether a client can use this http or https URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
        HTTPConnectionPool(parse_url(url).host or "")  # as the client does; does not connect yet
    except (ValueError, LocationParseError):
        return False
    return parts.scheme in ("http", "https") and port != 0 and not re.search(r"[\s\\]", url)


class _Json(JSONSerializer):
    """Faster than the client's JSON."""

    def loads(self, s: str) -> Any:
        try:
            return msgspec.json.decode(s)
        except (msgspec.DecodeError, RecursionError):  # half of a surrogate pair, or no JSON
            try:
                return parse_json(s)
            except ValueError as error:
                raise client_errors.SerializationError(s[:200], error) from error


_ANSWERS = {"_search": "hits", "_msearch": "responses", "_mget": "docs", "_count": "count", "_bulk": "items"}
"""The key that an answer of OpenSearch has; another server may answer anything."""


class _Transport(Transport):
    """Avoids nodes that time out, and checks that OpenSearch answers."""

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        self._thread = threading.local()

    def get_connection(self) -> Any:
        self._thread.last_connection = super().get_connection()
        return self._thread.last_connection

    def perform_request(self, method: str, url: str, *positional: Any, **options: Any) -> Any:
        try:
            answer = super().perform_request(method, url, *positional, **options)
        except client_errors.ConnectionTimeout:
            self.mark_dead(self._thread.last_connection)
            raise
        if method != "HEAD" and not (isinstance(answer, dict) and _has_part(answer, url)):
            raise client_errors.SerializationError(f"no answer to {url}")
        return answer


def _has_part(answer: Mapping[str, Any], url: str) -> bool:
    key = _ANSWERS.get(url.rpartition("/")[2], "")
    if key == "hits":
        answer = answer.get("hits") or {}
    return not key or key in answer


def _certificates(settings: Settings) -> dict[str, Any]:
    files = {name: getattr(settings, name) for name in ("ca_file", "client_cert", "client_key")}
    for name, file in files.items():
        if file and not Path(file).is_file():
            raise InputError(f"{file}: no such file; it is set as {name}")
    files["ca_certs"] = files.pop("ca_file") or ssl.get_default_verify_paths().cafile
    return {name: file for name, file in files.items() if file}


def connect(settings: Settings) -> OpenSearch:
    """Return a client; sends nothing."""
    options: dict[str, Any] = {}
    if any(urlsplit(url).scheme == "https" for url in settings.url):
        options = _certificates(settings)
    elif settings.client_cert or settings.ca_file:
        raise UsageError(f"{settings.where}: certificates are set, but the URL is not https; correct the URL")
    return OpenSearch(
        hosts=[url.rstrip("/") for url in settings.url],
        transport_class=_Transport,
        timeout=settings.timeout,
        max_retries=max(3, len(settings.url)),
        retry_on_status=(502, 503, 504) if len(settings.url) > 1 else (),
        pool_maxsize=10,
        serializer=_Json(),
        serializers={"text/plain": _Json()},
        **options,
        **client_options(settings),
    )


def check(client: OpenSearch, settings: Settings) -> None:
    """Raise EngineError unless the cluster is OpenSearch of a supported version."""
    with translate_client_errors(settings, "connecting"):
        try:
            info = client.info()
        except (  # a page, or another path than OpenSearch's
            client_errors.SerializationError,
            client_errors.NotFoundError,
            client_errors.RequestError,
        ):
            info = None
    version = info.get("version") if isinstance(info, dict) else None
    if not isinstance(version, dict) or "number" not in version:
        raise EngineError(f"{settings.where} answers, but not as OpenSearch does; check host, port and path")
    product = version.get("distribution")
    numbers = re.match(r"(\d+)\.(\d+)", str(version["number"]))
    if product != "opensearch" or numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        name = "OpenSearch" if product == "opensearch" else "another product, version"
        raise EngineError(
            f"{settings.where} is {name} {version['number']}; rerank needs OpenSearch 2.19 or later"
        )
