"""OpenSearch in tests: documents on a node, and an HTTP server in front of it that fails on purpose."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import secrets
import ssl
import subprocess
import tempfile
import threading
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.cli import console_script
from tests.support.processes import output
from tools.opensearch_node import VERSION, Node, cache, cache_lock, distribution, java_home

RIGHTS = Path(__file__).resolve().parent / "rights_plugin"


def unavailable(reason: object) -> NoReturn:
    """Skip the test with this reason. In CI, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(reason))
    pytest.skip(str(reason))


@dataclass(frozen=True)
class Request:
    """A request of a client. path: with the query. headers: names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def bulk(self) -> bool:
        """Whether the request writes documents."""
        return self.path.split("?")[0].endswith("/_bulk")


@dataclass(frozen=True)
class Answer:
    """An answer. cut: the connection ends in the middle of the body."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


Rule = Callable[[Request], "Answer | None"]


class Proxy:
    """A proxy that answers at ``url`` while it is open. requests: all received requests, in order."""

    def __init__(self, port: int = 0, *, tls: ssl.SSLContext | None = None, rule: Rule | None = None) -> None:
        """port: port of the node on the loopback interface."""
        self.rule: Rule = rule or (lambda request: None)
        self.requests: list[Request] = []
        self._port = port
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # a client that disconnects, or refuses the certificate
                    super().handle()

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                outer.requests.append(request)
                answer = outer.rule(request)
                self._send(outer.forward(request) if answer is None else answer)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve

            def _send(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(answer.body)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if answer.cut:
                    self.wfile.write(answer.body[: len(answer.body) // 2])
                    self.close_connection = True
                elif self.command != "HEAD":
                    self.wfile.write(answer.body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        if tls is not None:
            # The thread of the connection makes the handshake with its first read.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def forward(self, request: Request) -> Answer:
        """Send the request to the node."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            kept = {
                name: value for name, value in request.headers.items() if name in ("content-type", "accept")
            }
            connection.request(request.method, request.path, request.body or None, kept)
            answer = connection.getresponse()
            return Answer(
                answer.status, answer.read(), answer.headers.get("Content-Type", "application/json")
            )
        except OSError:
            return Answer(502, b"<html>bad gateway</html>", "text/html")
        finally:
            connection.close()

    def bulks(self) -> int:
        """Return the number of received bulk requests."""
        return sum(request.bulk for request in self.requests)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def basic(user: str, password: str) -> Rule:
    """Require basic authentication."""
    wanted = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    return _authorized(lambda request: request.headers.get("authorization") == wanted)


def bearer(token: str) -> Rule:
    """Require a token."""
    return _authorized(lambda request: request.headers.get("authorization") == f"Bearer {token}")


def aws(key: str, secret: str, region: str, service: str) -> Rule:
    """Require a signature by AWS Signature Version 4, which is computed again from the request."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    def right(request: Request) -> bool:
        headers = request.headers
        given = headers.get("authorization", "")
        if not given.startswith("AWS4-HMAC-SHA256 "):
            return False
        parts = dict(part.split("=", 1) for part in given.split(" ", 1)[1].split(", "))
        if not {"host", "x-amz-date"} <= set(parts["SignedHeaders"].split(";")):
            return False
        signed = {name: headers[name] for name in parts["SignedHeaders"].split(";")}
        again = AWSRequest(
            request.method, f"http://{headers['host']}{request.path}", data=request.body, headers=signed
        )
        again.context["timestamp"] = headers["x-amz-date"]
        signer = SigV4Auth(Credentials(key, secret), service, region)
        scope = signer.scope(again)
        text = signer.string_to_sign(again, signer.canonical_request(again))
        return parts["Credential"] == scope and hmac.compare_digest(
            parts["Signature"], signer.signature(text, again)
        )

    return _authorized(right, 403)


def _authorized(right: Callable[[Request], bool], status: int = 401) -> Rule:
    def rule(request: Request) -> Answer | None:
        return None if right(request) else Answer(status, b"Unauthorized", "text/plain")

    return rule


def only_bulks(rule: Rule) -> Rule:
    """Apply a rule to requests that write documents."""
    return lambda request: rule(request) if request.bulk else None


def first(count: int, rule: Rule) -> Rule:
    """Apply a rule to the first requests for which it returns an answer, and forward the others."""
    left, lock = count, threading.Lock()

    def limited(request: Request) -> Answer | None:
        nonlocal left
        with lock:
            if left <= 0 or (answer := rule(request)) is None:
                return None
            left -= 1
        return answer

    return limited


def answering(**answer: Any) -> Rule:
    """Give the same answer to all requests."""
    return lambda request: Answer(**answer)


def slow(seconds: float) -> Rule:
    """Forward requests with a delay."""
    return lambda request: time.sleep(seconds)


class Gate:
    """A rule that forwards this number of bulk requests, and holds others back until it is opened."""

    def __init__(self, through: int) -> None:
        self._left, self._lock = through, threading.Lock()
        self.reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer | None:
        if request.bulk:
            with self._lock:
                self._left -= 1
                held = self._left < 0
            if held:
                self.reached.set()
                self._opened.wait(300)
        return None

    def open(self) -> None:
        """Forward all requests."""
        self._opened.set()


class Authority:
    """Creates certificates. file: the certificate of the authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key, self._certificate = _signed("rerank tests", None, None, [])
        self.file = self._write("ca.pem", self._certificate)
        self.count = 0

    def issue(self, host: str = "127.0.0.1", days: float = 1) -> tuple[Path, Path]:
        """Create a certificate for a host or a client. Return the files of the certificate and the key."""
        self.count += 1
        key, certificate = _signed(host, self._key, self._certificate, [host], days)
        return self._write(f"{self.count}.pem", certificate), self._write(f"{self.count}.key", key)

    def server(self, host: str = "127.0.0.1", *, clients: bool = False, days: float = 1) -> ssl.SSLContext:
        """Return the TLS context of a server. clients: require a certificate of the client."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(host, days))
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.file)
        return context

    def _write(self, name: str, what: Any) -> Path:
        from cryptography.hazmat.primitives import serialization as forms

        pem = forms.Encoding.PEM
        if hasattr(what, "private_bytes"):
            data = what.private_bytes(pem, forms.PrivateFormat.PKCS8, forms.NoEncryption())
        else:
            data = what.public_bytes(pem)
        path = self.folder / name
        path.write_bytes(data)
        return path


def _signed(name: str, signer: Any, issuer: Any, hosts: list[str], days: float = 1) -> tuple[Any, Any]:
    """Return a key and its certificate. Without a signer it is self-signed, and may sign others."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    until = now + datetime.timedelta(days=days)
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment"), False)
    usage |= dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - datetime.timedelta(days=1))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key((signer or key).public_key()), critical=False
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=issuer is None, crl_sign=issuer is None, **usage
            ),
            critical=True,
        )
    )
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return key, builder.sign(signer or key, hashes.SHA256())


REFUSED = answering(
    status=403,
    body=json.dumps(
        {"error": {"type": "security_exception", "reason": "no permissions for [indices:data/write/bulk]"}}
    ).encode(),
)
BUSY = answering(status=429, body=b'{"error": {"type": "rejected", "reason": "queue full"}}')


def lines(n: int, start: int = 0, word: str = "cell") -> bytes:
    return b"".join(
        json.dumps({"_id": f"n{i}", "text": f"{word} number {i}"}).encode() + b"\n" for i in range(start, n)
    )


MANY = 2_500  # five requests


def at(url: str, name: str) -> tuple[str, ...]:
    return ("--url", url, "--index", name, "--replicas", "0")


def profile(**settings: object) -> tuple[str, ...]:
    """Write a profile with connection settings; return the options that use it."""
    lines = [
        f"{name} = {json.dumps(value if isinstance(value, int) else str(value))}\n"
        for name, value in settings.items()
    ]
    Path(os.environ["RERANK_PROFILES"]).write_text("".join(["[test]\n", *lines]), "utf-8")
    return ("--profile", "test")


def indices(node: Node, name: str) -> dict[str, Any]:
    return node.request("GET", f"/{name}*?expand_wildcards=all")


def count(node: Node, name: str) -> int:
    node.request("POST", f"/{name}/_refresh")
    return int(node.request("GET", f"/{name}/_count")["count"])


def documents(node: Node, name: str) -> dict[str, str]:
    """Return id -> text of all documents of an index or alias, or {} if it does not exist."""
    try:
        there = count(node, name)
    except ValueError:
        return {}
    body = {"size": 10_000, "_source": ["text"]}
    hits = node.request("POST", f"/{name}/_search", body)["hits"]["hits"]
    assert there == len(hits)
    return {hit["_id"]: hit["_source"]["text"] for hit in hits}


def texts(n: int, word: str) -> dict[str, str]:
    return {f"n{i}": f"{word} number {i}" for i in range(n)}


def edit(folder: Path, **settings: Any) -> None:
    """Add or replace settings in the table [opensearch] of a workspace."""
    file = folder / "rerank.toml"
    kept = [line for line in file.read_text().splitlines() if line.split(" = ")[0] not in settings]
    place = kept.index("[opensearch]") + 1
    kept[place:place] = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    file.write_text("\n".join(kept) + "\n")


def other_scheme(url: str) -> str:
    return url.replace("https:", "http:") if url.startswith("https:") else url.replace("http:", "https:")


def reading_commands(few: Path) -> list[list[Any]]:
    """Return commands that need the index."""
    return [["status"], ["query", "cell"], ["ingest", few], ["ingest", "--delete", "n1"]]


def start_command(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*console_script(), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@cache_lock()
def rights(version: str = VERSION) -> Path:
    """Return the zip of a plugin that hides documents and fields by user (tests/support/rights_plugin)."""
    java, home = java_home(version), distribution(version)
    digest = hashlib.sha256(f"{version} {java}".encode())
    for path in sorted(RIGHTS.iterdir()):
        digest.update(path.read_bytes())
    kept = cache() / "plugins" / f"rights-{digest.hexdigest()[:16]}.zip"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder)
        options = ("--release", "21", "-nowarn", "-cp", home / "lib" / "*", "-d", compiled / "classes")
        output(java / "bin" / "javac", *options, RIGHTS / "RightsPlugin.java")
        with zipfile.ZipFile(compiled / "rights.jar", "w") as jar:
            for path in (compiled / "classes").rglob("*.class"):
                jar.write(path, path.relative_to(compiled / "classes"))
        about = (RIGHTS / "plugin-descriptor.properties").read_text("utf-8").replace("VERSION", version)
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(".new")
        with zipfile.ZipFile(fresh, "w") as archive:
            archive.write(compiled / "rights.jar", "rights.jar")
            archive.writestr("plugin-descriptor.properties", about)
        fresh.rename(kept)
    return kept


@contextlib.contextmanager
def foreign_index(node: Node, documents: list[dict[str, Any]], *, graph: bool) -> Iterator[str]:
    """Create an index with other field names, and with k-NN if ``graph``."""
    index = f"attached-{secrets.token_hex(4)}"
    fields = {name: {"type": "text"} for name in ("name", "body")}
    node.request("PUT", f"/{index}", {"settings": {"index.knn": graph}, "mappings": {"properties": fields}})
    try:
        for one in documents:
            source = {"name": one["title"], "body": one.get("text", "")}
            node.request("PUT", f"/{index}/_doc/{one['_id']}", source)
        node.request("POST", f"/{index}/_refresh")
        yield index
    finally:
        node.request("DELETE", f"/{index}")
