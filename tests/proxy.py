"""A real HTTP or HTTPS server in front of a node. It can require credentials, break answers, or be slow.

``Proxy.rule`` gets each request, and returns None to forward it, or the answer.
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import http.client
import ipaddress
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


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
                self._opened.wait(60)
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
