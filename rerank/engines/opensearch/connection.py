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

from rerank.common.errors import EngineError, InputError, UsageError
from rerank.common.files import parse_json
from rerank.common.values import as_mapping, without_empty
from rerank.engines.opensearch.auth import client_options
from rerank.engines.opensearch.errors import translate_client_errors

OLDEST = (2, 19)
"""The oldest version of OpenSearch that is supported."""

# The client warns of every failed request, with a traceback; here a failure is one line.
logging.getLogger("opensearch").addHandler(logging.NullHandler())


class Settings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The table ``[opensearch]`` of ``rerank.toml``: the connection to a cluster, without secrets.

    url:              URLs of one or more nodes, http or https.
    index:            name of an alias or index.
    shards, replicas: numbers for indices that rerank makes.
    search_type:      ``query_then_fetch``, or ``dfs_query_then_fetch`` for an idf over all shards.
    timeout:          seconds that a request may take.
    ca_file:          file of trusted certificates; empty: the certificates of the system.
    user:             name of a user, whose password is in RERANK_OPENSEARCH_PASSWORD or ``password_file``.
    token_file:       file with a bearer token, which can also be in RERANK_OPENSEARCH_TOKEN.
    client_cert, client_key: files of a client certificate and its key.
    aws_region, aws_service: for AWS Signature Version 4 with the usual credentials (extra ``aws``).
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
        """Check the values of a table, and return them as settings.

        Raises UsageError, which names the setting and the file.
        """
        urls = table.get("url") or ()
        if isinstance(urls, str):
            urls = [urls]
        values = {**table, "url": urls}
        for name in ("url", "index"):
            if not values.get(name):
                raise UsageError(f"{settings_file}: {name} is missing; add it")
        try:
            settings = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"{settings_file}: {cls._describe_invalid(error)}") from error
        problem = settings._problem_of_urls() or settings._problem()
        if problem:
            raise UsageError(f"{settings_file}: {problem}")
        return settings

    @classmethod
    def _describe_invalid(cls, error: msgspec.ValidationError) -> str:
        """Return the problem of a value with the name of its setting, or with the names of all settings."""
        problem, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.").partition("[")[0]
        if name:
            return f"{name}: {problem}"
        return f"{problem}; the settings are {', '.join(cls.__struct_fields__)}"

    def _problem_of_urls(self) -> str:
        """Return the first problem of the URLs, or an empty text. A URL with a secret is not quoted."""
        may_have_secret = re.search("[@?#]", " ".join(self.url)) is not None
        if may_have_secret:
            return "a URL must not contain a password, ? or #; set `user` and RERANK_OPENSEARCH_PASSWORD"
        for url in self.url:
            if not is_url(url):
                return f"{url!r} is not the URL of a node; for example http://127.0.0.1:9200"
        return ""

    def _problem(self) -> str:
        """Return the first problem of the other settings, or an empty text."""
        if not _is_index_name(self.index):
            return f"{self.index!r} is not the name of an index; use lower-case letters, digits, - and _"
        if math.isnan(self.timeout):
            return "timeout: expected a number, got nan"
        if ":" in self.user:
            return "a user name has no colon; the password is never in the settings"
        if self.client_key and not self.client_cert:
            return "client_key is set without client_cert; set both"
        return ""

    def table(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, as a table for :meth:`read`."""
        url = self.url[0] if len(self.url) == 1 else list(self.url)
        return {**msgspec.to_builtins(self), "url": url}

    @property
    def where(self) -> str:
        """The URLs of the nodes, separated by commas, for messages."""
        return ", ".join(self.url)


def _is_index_name(name: str) -> bool:
    """Return whether OpenSearch accepts the name for an index, also with a number at its end."""
    has_sign = re.search(r'^[-_+.]|[\s\\/*?"<>|,#:]', name) is not None
    is_lower_case = name == name.lower()
    is_short = len(name.encode()) <= 240
    return is_lower_case and is_short and not has_sign


def is_url(url: str) -> bool:
    """Return whether a client can use this text as the URL of a node: http or https, host and port."""
    try:
        parts = urlsplit(url)
        port = parts.port
        HTTPConnectionPool(parse_url(url).host or "")  # as the client does; does not connect yet
    except (ValueError, LocationParseError):
        return False
    is_http = parts.scheme in ("http", "https")
    has_spaces = re.search(r"[\s\\]", url) is not None
    return is_http and port != 0 and not has_spaces


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

    def __init__(self, hosts: object, **options: Any) -> None:
        super().__init__(hosts, **options)
        self._thread = threading.local()

    def get_connection(self) -> Any:
        self._thread.last_connection = super().get_connection()
        return self._thread.last_connection

    def perform_request(self, method: str, url: str, **options: Any) -> Any:  # type: ignore[override]
        try:
            answer = super().perform_request(method, url, **options)
        except client_errors.ConnectionTimeout:
            self.mark_dead(self._thread.last_connection)
            raise
        if method == "HEAD":
            return answer
        if not isinstance(answer, dict) or not _has_part(answer, url):
            raise client_errors.SerializationError(f"no answer to {url}")
        return answer


def _has_part(answer: Mapping[str, Any], url: str) -> bool:
    """Return whether an answer has the part that OpenSearch always sends for this kind of request."""
    kind = url.rpartition("/")[2]
    if kind not in _ANSWERS:
        return True
    key = _ANSWERS[kind]
    if key == "hits":
        answer = answer.get("hits") or {}
    return key in answer


def _certificates(settings: Settings) -> dict[str, str]:
    """Return the options of the client for certificates. Raises InputError for a missing file."""
    files = {
        "ca_file": settings.ca_file,
        "client_cert": settings.client_cert,
        "client_key": settings.client_key,
    }
    for name, file in without_empty(files).items():
        if not Path(file).is_file():
            raise InputError(f"{file}: no such file; it is set as {name}")
    options = {
        "ca_certs": settings.ca_file or ssl.get_default_verify_paths().cafile,
        "client_cert": settings.client_cert,
        "client_key": settings.client_key,
    }
    return without_empty(options)


def connect(settings: Settings) -> OpenSearch:
    """Return a client for the cluster of these settings. It sends nothing yet.

    Raises UsageError or InputError for certificates or secrets that cannot be used.
    """
    options: dict[str, Any] = {}
    schemes = {urlsplit(url).scheme for url in settings.url}
    if "https" in schemes:
        options = _certificates(settings)
    elif settings.client_cert or settings.ca_file:
        raise UsageError(f"{settings.where}: certificates are set, but the URL is not https; correct the URL")
    has_several_nodes = len(settings.url) > 1
    return OpenSearch(
        hosts=[url.rstrip("/") for url in settings.url],
        transport_class=_Transport,
        timeout=settings.timeout,
        max_retries=max(3, len(settings.url)),
        retry_on_status=(502, 503, 504) if has_several_nodes else (),
        pool_maxsize=10,
        serializer=_Json(),
        serializers={"text/plain": _Json()},
        **options,
        **client_options(settings),
    )


def check(client: OpenSearch, settings: Settings) -> None:
    """Ask the cluster for its version, and raise EngineError unless it is a supported one of OpenSearch."""
    with translate_client_errors(settings, "connecting"):
        try:
            info = client.info()
        except (  # a page, or another path than OpenSearch's
            client_errors.SerializationError,
            client_errors.NotFoundError,
            client_errors.RequestError,
        ):
            info = None
    version = as_mapping(as_mapping(info).get("version"))
    if "number" not in version:
        raise EngineError(f"{settings.where} answers, but not as OpenSearch does; check host, port and path")

    is_opensearch = version.get("distribution") == "opensearch"
    numbers = re.match(r"(\d+)\.(\d+)", str(version["number"]))
    is_supported = numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST
    if not is_opensearch or not is_supported:
        name = "OpenSearch" if is_opensearch else "another product, version"
        raise EngineError(
            f"{settings.where} is {name} {version['number']}; rerank needs OpenSearch 2.19 or later"
        )
