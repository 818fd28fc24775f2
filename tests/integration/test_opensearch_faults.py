"""Everything that goes wrong between a user and a cluster: one line, the exit code, nothing lost.

On real nodes. What a node does not do by itself (TLS, credentials, answers that break off) a real proxy
in front of it does: tests/proxy.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rerank import Workspace
from rerank.engines.opensearch import bulk
from tests.commands import console_script
from tests.node import CannotRunError, Node, running
from tests.proxy import (
    Answer,
    Authority,
    Gate,
    Proxy,
    answering,
    aws,
    basic,
    bearer,
    first,
    only_bulks,
    slow,
)
from tests.unavailable import unavailable

REFUSED = answering(
    status=403,
    body=json.dumps(
        {"error": {"type": "security_exception", "reason": "no permissions for [indices:data/write/bulk]"}}
    ).encode(),
)
BUSY = answering(status=429, body=b'{"error": {"type": "rejected", "reason": "queue full"}}')


@pytest.fixture
def name(node: Node) -> Iterator[str]:
    """A name for an index that no other test uses."""
    chosen = f"faults-{secrets.token_hex(4)}"
    yield chosen
    node.request("DELETE", f"/{chosen}*?expand_wildcards=all")


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the person who runs the tests."""
    for variable in ("PASSWORD", "PASSWORD_FILE", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"RERANK_OPENSEARCH_{variable}", raising=False)
    for variable in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{variable}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up at once what is otherwise tried again for two minutes."""
    monkeypatch.setattr(bulk, "PATIENCE", 0.5)


def lines(n: int, start: int = 0, word: str = "cell") -> bytes:
    return b"".join(
        json.dumps({"_id": f"n{i}", "text": f"{word} number {i}"}).encode() + b"\n" for i in range(start, n)
    )


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    path.write_bytes(lines(20))
    return path


MANY = 10_000  # five chunks


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.jsonl"
    path.write_bytes(lines(MANY, word="gene"))
    return path


def at(url: str, name: str) -> tuple[str, ...]:
    return ("--url", url, "--index", name, "--replicas", "0")


def indices(node: Node, name: str) -> dict[str, Any]:
    return node.request("GET", f"/{name}*?expand_wildcards=all")


def documents(node: Node, name: str) -> dict[str, str]:
    """Id -> text of all documents behind a name; {} when there is no such name."""
    try:
        node.request("POST", f"/{name}/_refresh")
    except ValueError:
        return {}
    body = {"size": 10_000, "_source": ["text"]}
    hits = node.request("POST", f"/{name}/_search", body)["hits"]["hits"]
    assert node.request("GET", f"/{name}/_count")["count"] == len(hits)
    return {hit["_id"]: hit["_source"]["text"] for hit in hits}


def texts(n: int, word: str) -> dict[str, str]:
    return {f"n{i}": f"{word} number {i}" for i in range(n)}


def fails_again(done: Any, *parts: str) -> None:
    """It failed with one line, after the remark that something is being finished, if there was anything."""
    assert (done.code, done.out) == (1, ""), done
    *before, last = done.err.splitlines()
    assert before in ([], ["finishing the ingest that was interrupted"]), done
    assert last.startswith("rerank: "), done
    for part in parts:
        assert part in last, done


def edit(folder: Path, **settings: Any) -> None:
    """Add settings to the table [opensearch] of a workspace; one that is there is replaced."""
    file = folder / "rerank.toml"
    kept = [line for line in file.read_text().splitlines() if line.split(" = ")[0] not in settings]
    place = kept.index("[opensearch]") + 1
    kept[place:place] = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    file.write_text("\n".join(kept) + "\n")


# ------------------------------------------------------------------------------------------ reaching a node


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


BAD_URLS = [
    "127.0.0.1:9200",
    "localhost",
    "ftp://x",
    "http://",
    "http://h:99999",
    "http://h:x",
    "http://[::1",
]
BAD_URLS += ["http://h h", "http://h/?x=1", "http://h/#x", ""]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_is_none(run, few, tmp_path, url):
    for command in (["ingest", few], ["attach", "text=text"]):
        run(*command, "-w", tmp_path / "ws", "--url", url, "--index", "x").fails(2, "the command: ", "URL")
    assert not (tmp_path / "ws").exists()


@pytest.mark.parametrize("index", ["Upper", "a b", "a*", "a,b", "_x", "-x", "x" * 241, "a/b", "#", ""])
def test_an_index_name_that_is_none(run, few, tmp_path, index):
    for command in (["ingest", few], ["attach", "text=text"]):
        run(*command, "-w", tmp_path / "ws", "--url", "http://127.0.0.1:1", "--index", index).fails(
            2, "index" if index else "--index is missing"
        )
    assert not (tmp_path / "ws").exists()


def test_nobody_answers(run, few, tmp_path):
    port = closed_port()
    for url, what in (
        (f"http://127.0.0.1:{port}", "cannot be reached (connection refused; is it running, and is the port"),
        (
            f"https://127.0.0.1:{port}",
            "cannot be reached (connection refused; is it running, and is the port",
        ),
        ("http://no.such.host.invalid:9200", "cannot be reached (no such host)"),
    ):
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", url, "--index", "x").fails(1, url, what)
    assert not (tmp_path / "ws").exists()


def test_a_port_that_takes_connections_and_says_nothing(run, few, node, name, tmp_path):
    assert run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).code == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        edit(tmp_path / "ws", url=url, timeout=0.3)
        for command in (["status"], ["query", "cell"], ["ingest", few], ["ingest", "--delete", "n1"]):
            begun = time.monotonic()
            run(*command, "-w", tmp_path / "ws").fails(1, f"no answer from {url} within 0.3 s; check the")
            assert time.monotonic() - begun < 5
    edit(tmp_path / "ws", url=node.url)
    assert run("status", "-w", tmp_path / "ws", "--json").json["documents"] == 20


def test_a_node_that_freezes(run, few, node, name, tmp_path, impatient):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    edit(folder, timeout=0.5)
    node.pause()
    try:
        for command in (["status"], ["query", "cell"], ["ingest", few]):
            run(*command, "-w", folder).fails(1, "no answer from", "within 0.5 s")
    finally:
        node.resume()
    edit(folder, timeout=30)
    assert run("ingest", few, "-w", folder, "--json").json["unchanged"] == 20


ODD_ANSWERS = {
    "a page": ({"body": b"<html>hi</html>", "kind": "text/html"}, "answers, but not as OpenSearch does"),
    "plain text": ({"body": b"hello", "kind": "text/plain"}, "answers, but not as OpenSearch does"),
    "another object": ({"body": b"{}"}, "answers, but not as OpenSearch does"),
    "a list": ({"body": b"[]"}, "answers, but not as OpenSearch does"),
    "nothing": ({}, "answers, but not as OpenSearch does"),
    "half an object": ({"body": b'{"version": {"numb'}, "answers, but not as OpenSearch does"),
    "half an answer": ({"body": b'{"version": {"number": "3.6.0"}}', "cut": True}, "its answer breaks off"),
    "no UTF-8": ({"body": b"\xff\xfe"}, "its answer is no text"),
    "a redirect": ({"status": 301, "headers": {"Location": "https://x"}}, "sends us elsewhere (301); check"),
    "not found": ({"status": 404, "body": b"no", "kind": "text/plain"}, "not as OpenSearch does; check host"),
    "a bad gateway": ({"status": 502, "body": b"<b>x</b>", "kind": "text/html"}, "no answer from it (502)"),
    "too many requests": ({"status": 429}, "too busy (429); run again later"),
    "an error": ({"status": 500, "body": b"oops", "kind": "text/plain"}, "refuses (500): oops"),
    "Elasticsearch": (
        {"body": b'{"version": {"number": "8.15.0", "build_flavor": "default"}, "tagline": "You Know"}'},
        "is not OpenSearch (version 8.15.0 of another product); rerank needs OpenSearch 2.19 or later",
    ),
    "an old version": (
        {"body": b'{"version": {"number": "2.18.0", "distribution": "opensearch"}}'},
        "is OpenSearch 2.18.0; rerank needs 2.19 or later",
    ),
    "a version that is none": (
        {"body": b'{"version": {"number": null, "distribution": "opensearch"}}'},
        "rerank needs 2.19 or later",
    ),
}


@pytest.mark.parametrize("kind", ODD_ANSWERS)
def test_it_is_not_opensearch(run, few, tmp_path, kind):
    answer, what = ODD_ANSWERS[kind]
    with Proxy(rule=answering(**answer)) as proxy:
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", proxy.url, "--index", "x").fails(1, proxy.url, what)
    assert not (tmp_path / "ws").exists()


def test_another_path_of_the_right_host(run, few, node, tmp_path):
    run("ingest", few, "-w", tmp_path / "ws", "--url", f"{node.url}/api", "--index", "x").fails(
        1, "answers, but not as OpenSearch does; check host, port and path"
    )
    assert not (tmp_path / "ws").exists()


def test_answers_that_break_in_the_middle_of_things(run, few, node, name, tmp_path, impatient):
    folder = tmp_path / "ws"
    (tmp_path / "old.jsonl").write_bytes(lines(20, 0, "old cell"))
    assert run("ingest", tmp_path / "old.jsonl", "-w", folder, *at(node.url, name)).code == 0
    with Proxy(node.port) as proxy:
        edit(folder, url=proxy.url)
        for answer in ({"body": b'{"hits": ['}, {"body": b"<html>", "kind": "text/html"}):
            proxy.rule = answering(**answer)
            run("query", "cell", "-w", folder).fails(1, "searching: ", "does not answer as OpenSearch does")
            proxy.rule = only_bulks(answering(**answer))
            fails_again(
                run("ingest", few, "-w", folder),
                "does not answer as OpenSearch does",
                "0 of 20 documents are in: run the same command again to go on",
            )
        proxy.rule = only_bulks(answering(body=b"{}"))
        fails_again(run("ingest", few, "-w", folder), "does not answer as OpenSearch does")
        proxy.rule = lambda request: None
        assert run("ingest", few, "-w", folder, "--json").json["updated"] == 20
    assert documents(node, name) == texts(20, "cell")


# ------------------------------------------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def other_scheme(url: str) -> str:
    return url.replace("https:", "http:") if url.startswith("https:") else url.replace("http:", "https:")


def test_http_and_https_confused(run, few, node, tmp_path, authority):
    run("ingest", few, "-w", tmp_path / "ws", *at(other_scheme(node.url), "x")).fails(
        1, "no trusted TLS connection (it does not speak TLS; is it http?)"
    )
    with Proxy(node.port, tls=authority.server()) as proxy:
        run("ingest", few, "-w", tmp_path / "ws", *at(other_scheme(proxy.url), "x")).fails(
            1, "closes the connection without an answer; is it https?"
        )
    assert not (tmp_path / "ws").exists()


def test_certificates_of_the_server(run, few, node, name, tmp_path, authority, stranger):
    folder = tmp_path / "ws"
    unknown = "its certificate is signed by nobody known; name the signer's with --ca-file"
    with Proxy(node.port, tls=authority.server()) as proxy:
        command = ("ingest", few, "-w", folder, *at(proxy.url, name))
        run(*command).fails(1, unknown)
        run(*command, "--ca-file", stranger.file).fails(1, unknown)
        run(*command, "--ca-file", tmp_path / "none").fails(1, "none: no such file; it is set as ca_file")
        run(*command, "--ca-file", few).fails(1, "few.jsonl: holds no certificate in PEM (ca_file)")
        assert not folder.exists()
        assert run(*command, "--ca-file", authority.file, "--json").json["added"] == 20
        # The workspace remembers it, from any folder.
        assert run("query", "cell", "-w", folder, "--json").json["hits"]
    for host, days, what in (
        ("example.org", 1.0, "its certificate is for another host"),
        ("127.0.0.2", 1.0, "its certificate is for another host"),
        ("127.0.0.1", -0.5, "its certificate has expired"),
    ):
        with Proxy(node.port, tls=authority.server(host, days=days)) as proxy:
            edit(folder, url=proxy.url)
            run("status", "-w", folder).fails(1, what)
    with Proxy(node.port, tls=authority.server("localhost")) as proxy:
        edit(folder, url=proxy.url.replace("127.0.0.1", "localhost"))
        assert run("status", "-w", folder, "--json").json["documents"] == 20
    run("ingest", few, "-w", tmp_path / "x", *at(node.url, "x"), "--ca-file", authority.file).fails(
        2, "certificates are set, but the URL is not https"
    )


def test_certificates_of_the_client(run, few, node, name, tmp_path, authority, stranger):
    folder = tmp_path / "ws"
    certificate, key = authority.issue("me")
    _, another_key = authority.issue("me")
    wrong = [str(path) for path in stranger.issue("me")]
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", key, "-out", encrypted, "-passout", "pass:secret"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    with Proxy(node.port, tls=authority.server(clients=True)) as proxy:
        command = ("ingest", few, "-w", folder, *at(proxy.url, name), "--ca-file", authority.file)
        wanted = "does it want a client certificate (--client-cert), or another one?"
        run(*command).fails(1, wanted)
        run(*command, "--client-cert", wrong[0], "--client-key", wrong[1]).fails(1, wanted)
        run(*command, "--client-key", key).fails(2, "client_key is set without client_cert")
        run(*command, "--client-cert", tmp_path / "x", "--client-key", key).fails(1, "no such file")
        run(*command, "--client-cert", certificate, "--client-key", tmp_path / "x").fails(
            1, "no such file; it is set as client_key"
        )
        for pair in (
            [certificate],
            [certificate, another_key],
            [certificate, encrypted],
            [certificate, few],
            [few, key],
        ):
            options = [value for pair in zip(("--client-cert", "--client-key"), pair) for value in pair]
            run(*command, *options).fails(1, "no client certificate in PEM with its own key, unencrypted")
        assert not folder.exists()
        done = run(*command, "--client-cert", certificate, "--client-key", key, "--json")
        assert done.json["added"] == 20
        assert run("status", "-w", folder, "--json").json["documents"] == 20
        edit(folder, client_cert=str(both), client_key="")
        assert run("query", "cell", "-w", folder, "--json").json["hits"]


# --------------------------------------------------------------------------------------- credentials, secrets


def leaks(secret: str, *places: object) -> bool:
    """Whether a secret is in what was printed, or in a file below a folder, as it is or in Base64."""
    forms = [secret.encode(), b64encode(secret.encode()).rstrip(b"="), json.dumps(secret)[1:-1].encode()]
    contents: list[bytes] = []
    for place in places:
        if isinstance(place, Path):
            contents += [path.read_bytes() for path in place.rglob("*") if path.is_file()]
        else:
            contents.append(repr(place).encode())
    return any(form in content for form in forms for content in contents)


def everything(run: Any, few: Path, folder: Path, url: str, name: str, *more: object) -> list[Any]:
    """Run the commands that reach the cluster."""
    return [
        run("ingest", few, "-w", folder, *at(url, name), *more),
        run("ingest", few, "-w", folder, "--replace"),
        run("query", "cell", "-w", folder, "--timings"),
        run("status", "-w", folder, "--json"),
        run("encode", "-w", folder),
    ]


PASSWORD = "pä\\s'w\"örd: €/@ 1"


@pytest.mark.parametrize("by", ["environment", "file", "file in rerank.toml"])
def test_a_user_with_a_password(run, few, node, name, tmp_path, monkeypatch, by):
    folder = tmp_path / "ws"
    hidden = tmp_path / "password"
    hidden.write_text(PASSWORD + "\n", "utf-8")
    with Proxy(node.port, rule=basic("me", PASSWORD)) as proxy:
        command = ("ingest", few, "-w", folder, *at(proxy.url, name))
        denied = "wants other credentials (401); check user, password or token"
        run(*command).fails(1, denied)
        run(*command, "--user", "me").fails(
            2, "user 'me' has no password; set RERANK_OPENSEARCH_PASSWORD, or RERANK_OPENSEARCH_PASSWORD_FILE"
        )
        monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", "wrong-secret")
        done = run(*command, "--user", "me")
        done.fails(1, denied)
        assert not leaks("wrong-secret", done)
        monkeypatch.delenv("RERANK_OPENSEARCH_PASSWORD")
        assert not folder.exists()
        if by == "environment":
            monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", PASSWORD)
        else:
            monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD_FILE", str(hidden))
        done = everything(run, few, folder, proxy.url, name, "--user", "me")
        assert [d.code for d in done] == [0] * 5, done
        if by == "file in rerank.toml":
            monkeypatch.delenv("RERANK_OPENSEARCH_PASSWORD_FILE")
            edit(folder, password_file=str(hidden))
            done.append(run("status", "-w", folder))
            assert done[-1].code == 0
        # Also when it breaks off and leaves an unfinished ingest behind.
        proxy.rule = only_bulks(answering(status=401))
        changed = tmp_path / "changed.jsonl"
        changed.write_text(Path(few).read_text("utf-8").replace('"text": "', '"text": "Now '), "utf-8")
        done.append(run("ingest", changed, "-w", folder))
        done[-1].fails(1, "writing documents", "(401)", "run the same command again")
        assert list((folder / "engine" / "unfinished").iterdir())
    assert not leaks(PASSWORD, folder, *done)
    assert not leaks(f"me:{PASSWORD}", folder, *done)
    assert 'user = "me"' in (folder / "rerank.toml").read_text()


@pytest.mark.parametrize("by", ["environment", "file", "option"])
def test_a_token(run, few, node, name, tmp_path, monkeypatch, by):
    folder, token = tmp_path / "ws", "eyJhbGciOi.J9-very_secret"
    hidden = tmp_path / "token"
    hidden.write_text(f"\n{token}\n")
    more: list[object] = []
    if by == "environment":
        monkeypatch.setenv("RERANK_OPENSEARCH_TOKEN", token)
    elif by == "file":
        monkeypatch.setenv("RERANK_OPENSEARCH_TOKEN_FILE", str(hidden))
    else:
        more = ["--token-file", hidden]
    with Proxy(node.port, rule=bearer(token)) as proxy:
        done = everything(run, few, folder, proxy.url, name, *more)
        assert [d.code for d in done] == [0] * 5, done
        proxy.rule = bearer("another")
        done.append(run("status", "-w", folder))
        done[-1].fails(1, "wants other credentials (401)")
    assert not leaks(token, folder, *done)
    monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", "x")
    monkeypatch.setenv("RERANK_OPENSEARCH_TOKEN", token)
    run("ingest", few, "-w", tmp_path / "x", *at(node.url, "x"), "--user", "me").fails(
        2, "user and token are set; authenticate in one way"
    )


def test_secrets_that_cannot_be_used(run, few, node, name, tmp_path, monkeypatch):
    command = ("ingest", few, "-w", tmp_path / "ws", *at(node.url, name))
    for bad in ("sesame\nsecond", "sesame\r", "sésame"):
        monkeypatch.setenv("RERANK_OPENSEARCH_TOKEN", bad)
        done = run(*command)
        done.fails(1, "RERANK_OPENSEARCH_TOKEN: the token has characters that no token has")
        assert not leaks(bad, done)
        assert "same" not in done.err
    monkeypatch.delenv("RERANK_OPENSEARCH_TOKEN")
    for content, what in ((b"", "is empty"), (b" \n", "is empty"), (b"caf\xe9", "cannot be read (it is no")):
        (tmp_path / "token").write_bytes(content)
        run(*command, "--token-file", tmp_path / "token").fails(1, f"token: the token {what}")
    run(*command, "--token-file", tmp_path / "none").fails(1, "none: the token cannot be read (No such file")
    monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD_FILE", str(tmp_path / "none"))
    run(*command, "--user", "me").fails(1, "none: the password cannot be read")
    monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", "sesame\nopen")
    done = run(*command, "--user", "me")
    done.fails(1, "RERANK_OPENSEARCH_PASSWORD: the password has characters that no password has")
    assert "sesame" not in done.err
    assert not (tmp_path / "ws").exists()


def test_a_url_with_a_password_is_refused(run, few, node, name, tmp_path):
    secret = "sesame"
    for url in (
        f"http://me:{secret}@127.0.0.1:{node.port}",
        f"http://me:{secret}/x@127.0.0.1",
        f"me:{secret}@127.0.0.1:9200",
        f"https://:{secret}@h",
        f"http://h/?token={secret}",
        f"http://h/#{secret}",
    ):
        for command in (["ingest", few], ["attach", "text=text"]):
            done = run(*command, "-w", tmp_path / "ws", "--url", url, "--index", name)
            done.fails(2)
            assert "must not hold a password; give the user with --user" in done.err or "has more" in done.err
            assert secret not in done.err
        assert not (tmp_path / "ws").exists()
    # Written into rerank.toml by hand.
    assert run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).code == 0
    edit(tmp_path / "ws", url=f"http://me:{secret}@127.0.0.1:{node.port}")
    for command in (
        ["status"],
        ["query", "x"],
        ["encode"],
        ["ingest", few],
        ["ingest", few, *at("http://h", "x")],
    ):
        done = run(*command, "-w", tmp_path / "ws")
        done.fails(2, "rerank.toml: a URL must not hold a password")
        assert secret not in done.err


def test_not_allowed(run, few, node, name, tmp_path):
    with Proxy(node.port, rule=REFUSED) as proxy:
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", proxy.url, "--index", name).fails(
                1, "connecting: ", "does not allow that (403): no permissions for [indices:data/write/bulk]"
            )
        assert not (tmp_path / "ws").exists()
        proxy.rule = lambda request: REFUSED(request) if request.method == "PUT" else None
        run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name)).fails(
            1, "making the index: ", "(403)"
        )
        assert not (tmp_path / "ws").exists()
        proxy.rule = only_bulks(REFUSED)
        run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name)).fails(
            1, "writing documents: ", "does not allow that (403)", "0 of 20 documents are in: run the same"
        )
        assert documents(node, name) == {}
        proxy.rule = lambda request: None
        done = run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name))
        assert "finishing the ingest that was interrupted" in done.err
        assert "20 added, 0 updated, 0 deleted: 20 documents" in done.out
    assert documents(node, name) == texts(20, "cell")


@pytest.mark.parametrize("service", ["es", "aoss"])
def test_signed_for_aws(run, few, node, tmp_path, monkeypatch, service):
    name = f"faults-{secrets.token_hex(4)}-ü"
    folder, key, secret = tmp_path / "ws", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    options = ("--aws-region", "eu-west-1", "--aws-service", service)
    with Proxy(node.port, rule=aws(key, secret, "eu-west-1", service)) as proxy:
        command = ("ingest", few, "-w", folder, *at(proxy.url, name), *options)
        run(*command).fails(2, "no AWS credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        run(*command).fails(2, "no AWS credentials: ", "nobody")
        monkeypatch.delenv("AWS_PROFILE")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        run(*command).fails(2, "no AWS credentials: ")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        run(*command).fails(1, "does not allow that (403)")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "session-secret")
        assert not folder.exists()
        try:
            done = everything(run, few, folder, proxy.url, name, *options)
            assert [d.code for d in done] == [0] * 5, done
            assert all("x-amz-security-token" in request.headers for request in proxy.requests[-3:])
        finally:
            node.request("DELETE", "/faults-*-%C3%BC-*")
    assert not leaks(secret, folder, *done)
    assert not leaks("session-secret", folder, *done)
    assert not leaks(key, folder, *done)


# ------------------------------------------------------------------------------------- an index that is not


def reading(few: Path) -> list[list[Any]]:
    """Commands that need the index."""
    return [["status"], ["query", "cell"], ["ingest", few], ["ingest", "--delete", "n1"]]


def test_an_index_deleted_behind_our_back(run, few, node, name, tmp_path):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    node.request("DELETE", f"/{name}-*")
    for command in reading(few):
        run(*command, "-w", folder).fails(
            1, f"no index '{name}'; check the name, or make it anew with `rerank ingest CORPUS --replace`"
        )
    assert indices(node, name) == {}
    assert run("ingest", few, "--replace", "-w", folder, "--json").json["added"] == 20
    assert documents(node, name) == texts(20, "cell")


def test_a_name_that_is_taken(run, few, node, name, tmp_path):
    node.request("PUT", f"/{name}", {"mappings": {"properties": {"text": {"type": "text"}}}})
    before = indices(node, name)
    run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).fails(
        1, f"has an index '{name}' already; choose another name, `rerank attach` it"
    )
    assert not (tmp_path / "ws").exists()
    assert indices(node, name) == before


def test_the_name_of_the_next_index_is_taken(run, few, node, name, tmp_path):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (current,) = indices(node, name)
    taken = f"{name}-{int(current[-6:]) + 1:06}"
    node.request("PUT", f"/{taken}", {})
    run("ingest", few, "--replace", "-w", folder).fails(1, f"'{taken}' that is in use; remove or rename it")
    assert documents(node, name) == texts(20, "cell")
    assert set(indices(node, name)) == {current, taken}


def test_an_index_that_rerank_has_not_made_in_rerank_toml(run, few, node, name, tmp_path):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    node.request("PUT", f"/{name}-other", {"mappings": {"properties": {"text": {"type": "text"}}}})
    edit(folder, index=f"{name}-other")
    run("ingest", few, "-w", folder).fails(1, "was not made by rerank; use it as it is with `rerank attach`")
    assert node.request("GET", f"/{name}-other/_count")["count"] == 0


# ----------------------------------------------------------------------------------------------------- attach


MAPPING = {
    "dynamic": "strict",
    "_meta": {"owner": "somebody"},
    "properties": {
        "head": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "body": {"properties": {"main": {"type": "text"}, "notes": {"type": "text", "analyzer": "english"}}},
        "tags": {"type": "nested", "properties": {"name": {"type": "keyword"}}},
        "when": {"type": "date"},
        "code": {"type": "keyword"},
    },
}
FIELDS = ["--field", "title=head", "text=body.main,body.notes", "categories=tags.name"]


def attachable(node: Node, index: str, records: list[dict[str, Any]], **body: Any) -> None:
    """An index of a user, with documents that have routing."""
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    node.request("PUT", f"/{index}", {"settings": settings, "mappings": MAPPING, **body})
    body = []
    for record in records:
        source = {
            "head": record["title"],
            "body": {"main": [record["text"][:50], record["text"][50:]], "notes": None},
            "tags": [{"name": category} for category in record["categories"]],
            "when": "2024-01-01",
        }
        # Keys with dots in them are objects too.
        if len(record["_id"]) % 2:
            source["body.main"] = source.pop("body")["main"]
        where = {"_id": record["_id"].replace(":", "-"), "routing": str(len(record["text"]))}
        body += [json.dumps({"index": where}), json.dumps(source)]
    url = f"{node.url}/{index}/_bulk?refresh=true"
    data, kind = "\n".join([*body, ""]).encode(), {"Content-Type": "application/x-ndjson"}
    with urllib.request.urlopen(urllib.request.Request(url, data, kind)) as answer:
        assert json.load(answer)["errors"] is False


def whole(node: Node, index: str) -> dict[str, Any]:
    """All there is to an index but the documents' own state."""
    (about,) = node.request("GET", f"/{index}").values()
    return about


def state(node: Node, index: str) -> dict[str, Any]:
    """Id -> source, version, sequence number, routing."""
    body = {"size": 1000, "version": True, "seq_no_primary_term": True}
    hits = node.request("POST", f"/{index}/_search", body)["hits"]["hits"]
    return {hit["_id"]: {key: hit[key] for key in hit if key not in ("_score", "sort")} for hit in hits}


@pytest.mark.slow
def test_attach_and_everything_after_it(run, small, node, name, tmp_path, authority):
    """On an alias over two indices with routing, nested fields, keys with dots, and arrays."""
    folder, alias = tmp_path / "ws", f"{name}-all"
    halves = {f"{name}-a": small.documents[::2], f"{name}-b": small.documents[1::2]}
    for index, records in halves.items():
        attachable(node, index, records, aliases={alias: {}})
    before = {index: (whole(node, index), state(node, index)) for index in halves}
    command = ("attach", *FIELDS, "-w", folder, "--url", node.url, "--index", alias, "--lang", "en")

    # A dry run says what a real one does, and does nothing.
    dry = run(*command, "--dry-run")
    assert dry.code == 0, dry.err
    assert dry.out.endswith(f"200 documents of {name}-a, {name}-b; nothing was made\n")
    assert {index: (whole(node, index), state(node, index)) for index in halves} == before
    assert not folder.exists()

    done = run(*command)
    assert done.code == 0, done.err
    assert f"200 documents of {name}-a, {name}-b are ready" in done.out
    assert {index: (whole(node, index), state(node, index)) for index in halves} == before
    run(*command).fails(1, "a workspace already; choose another folder with -w")

    # Documents are what the fields say.
    wanted = small.documents[3]
    engine = Workspace.open(folder).engine
    (found,) = engine.get([wanted["_id"].replace(":", "-")])
    assert found is not None
    assert (found.title, found.text.replace("\n", "")) == (wanted["title"], wanted["text"])
    assert sorted(found.categories) == sorted(wanted["categories"])
    assert len(engine) == len(list(engine.documents())) == len(engine.ids()) == 200

    # Everything else runs with bm25, and says so where somebody asks for more.
    files = ("--queries", small.queries, "--qrels", tmp_path / "qrels.tsv", "-w", folder)
    rows = (small.folder / "train.tsv").read_text() + "".join(
        f"{line}\n"
        for split in ("dev", "test")
        for line in (small.folder / f"{split}.tsv").read_text().splitlines()[1:]
    )
    (tmp_path / "qrels.tsv").write_text(
        "\n".join(
            "\t".join([q, d.replace(":", "-"), *rest])
            for q, d, *rest in (r.split("\t") for r in rows.splitlines())
        )
    )
    assert run("query", "cells", "-w", folder, "--json").json["stack"] == "bm25*1.00"
    no_tfidf = f"index '{alias}' has no tfidf (only indices that rerank makes do); use bm25"
    run("query", "cells", "--stack", "tfidf", "-w", folder).fails(2, no_tfidf)
    run("query", "cells", "--first-stage", "tfidf", "-w", folder).fails(2, no_tfidf)
    run("train", "text", "--first-stage", "tfidf", *files).fails(2, no_tfidf)
    run("ingest", small.corpus, "-w", folder).fails(
        2, f"index '{alias}' is written by others (`rerank attach`): change documents there"
    )
    done = run("train", "meta", *files, "--epochs", 1, "--seed", 3, "--json")
    assert done.json["encoded"] == {"meta": 200}
    run("tune", "--stack", "tfidf,meta", *files).fails(2, no_tfidf)
    assert run("tune", "--stack", "bm25,meta", *files).code == 0
    done = run("evaluate", "--stack", "bm25,meta", *files, "--json")
    assert done.json["baseline"] == "bm25"
    answer = run("query", "cells", "--stack", "bm25,meta", "-w", folder, "--json").json
    assert answer["recomputed"] == {}
    assert answer["hits"]
    assert run("status", "-w", folder, "--json").json["rankers"][0]["missing_features"] == 0
    assert {index: (whole(node, index), state(node, index)) for index in halves} == before

    # What somebody changes is encoded again: a partial update of words, and of what is no word.
    changed = node.request("GET", f"/{name}-a/_search?size=2")["hits"]["hits"]
    for hit, doc in zip(changed, ({"tags": [{"name": "new"}]}, {"code": "x"})):
        path = f"/{name}-a/_update/{hit['_id']}?refresh=true&routing={hit['_routing']}"
        node.request("POST", path, {"doc": doc})
    assert "2 features missing: run `rerank encode`" in run("status", "-w", folder).out
    query = ["query", changed[0]["_source"]["head"], "--stack", "bm25,meta", "-w", folder, "--json"]
    assert run(*query).json["recomputed"]["meta"] >= 1
    assert run("encode", "-w", folder, "--json").json == {"encoded": {"meta": 1}}
    assert "features stored" in run("status", "-w", folder).out
    assert run(*query).json["recomputed"] == {}

    # A write block stops nothing: the index is only read.
    node.request("PUT", f"/{name}-a/_settings", {"index.blocks.write": True})
    assert run("encode", "--force", "-w", folder, "--json").json == {"encoded": {"meta": 200}}
    assert run(*query).json["recomputed"] == {}


def test_what_cannot_be_attached(run, node, name, tmp_path):
    folder = tmp_path / "ws"

    def attach(*fields: str) -> Any:
        return run("attach", *fields, "-w", folder, "--url", node.url, "--index", name)

    def index(**mappings: Any) -> None:
        node.request("PUT", f"/{name}", {"mappings": {**MAPPING, **mappings}})

    attach("text=head").fails(1, f"{node.url} has no index '{name}'; check the name")
    index()
    before = whole(node, name)
    attach("text=nothing").fails(
        2, "has no field 'nothing' (text); there are body.main, body.notes, code, head,"
    )
    attach("text=head", "categories=tag.name").fails(
        2, "has no field 'tag.name' (categories); there are body.main"
    )
    attach("text=code").fails(
        2, "field 'code' of index", "is of type keyword, and text needs one of type text"
    )
    attach("title=when").fails(2, "is of type date, and title needs one of type text")
    attach("categories=code").fails(2, "neither title nor text is given; say which field holds the words")
    attach("body=head").fails(
        2, "'body' is no field of a document; there are title, text, categories, links,"
    )
    attach("text").fails(2, "'text' is not NAME=FIELD, for example text=body")
    attach("text=").fails(2, "is not NAME=FIELD")
    attach("text=,").fails(2, "field 'text' needs the name of a field of the index")
    attach().fails(
        2,
        "was not made by rerank: say with --field which fields hold title, text,",
        "it has body.main (text), body.notes",
    )
    assert whole(node, name) == before
    node.request("DELETE", f"/{name}")

    for source, what in (
        ({"enabled": False}, "keeps no _source, so its documents cannot be read; reindex it"),
        ({"excludes": ["head"]}, "leaves head out of _source, so it cannot be read; name other fields"),
        ({"excludes": ["he*"]}, "leaves head out of _source"),
        ({"includes": ["code"]}, "leaves head out of _source"),
    ):
        index(_source=source)
        attach("text=head").fails(1, what)
        node.request("DELETE", f"/{name}")
    assert not folder.exists()


def test_attach_an_index_of_ours(run, few, node, name, tmp_path):
    """As on a second machine: no fields to name, and both signals."""
    assert run("ingest", few, "-w", tmp_path / "first", *at(node.url, name)).code == 0
    before = indices(node, name)
    done = run("attach", "-w", tmp_path / "ws", "--url", node.url, "--index", name)
    assert done.code == 0, done.err
    assert indices(node, name) == before
    for stage in ("bm25", "tfidf"):
        assert len(run("query", "cell", "--stack", stage, "-w", tmp_path / "ws", "--json").json["hits"]) == 10
    assert run("ingest", few, "-w", tmp_path / "ws", "--json").json["unchanged"] == 20


def test_a_table_of_fields_that_is_none(run, few, node, name, tmp_path):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    attached = run("attach", "text=text", "-w", tmp_path / "b", "--url", node.url, "--index", name)
    assert attached.code == 0, attached.err
    file = tmp_path / "b" / "rerank.toml"
    right = file.read_text()
    for wrong in ("text = 5", 'text = ""', "text = []", "text = [1]", 'body = "x"'):
        file.write_text(right.replace('text = ["text"]', wrong))
        run("status", "-w", tmp_path / "b").fails(2, "rerank.toml: ")
    for wrong in (
        "url = 5",
        "url = [5]",
        "timeout = nan",
        "timeout = 0",
        'timeout = "1"',
        "shards = true",
        "x = 1",
    ):
        file.write_text(
            re.sub(r"(?m)^url = .*$", wrong, right)
            if "url" in wrong
            else right.replace("[opensearch]", f"[opensearch]\n{wrong}")
        )
        run("status", "-w", tmp_path / "b").fails(2, "rerank.toml: ")
    file.write_text('format = 1\nengine = "opensearch"\nopensearch = 5\n')
    run("status", "-w", tmp_path / "b").fails(2, "rerank.toml: opensearch = 5 is no table of settings")


# ------------------------------------------------------------------------------------------- blocks, refusals


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ("write", "the index is set read-only (index.blocks); lift the block to write to it"),
        ("read_only", "the index is set read-only (index.blocks); lift the block to write to it"),
        (
            "read_only_allow_delete",
            "disk is full above its flood stage, and the index is read-only; free space",
        ),
    ],
)
def test_a_read_only_index(run, few, node, name, tmp_path, block, what):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (tmp_path / "new.jsonl").write_bytes(lines(30, 10, "gene"))
    node.request("PUT", f"/{name}/_settings", {f"index.blocks.{block}": True})
    try:
        begun = time.monotonic()
        fails_again(
            run("ingest", tmp_path / "new.jsonl", "-w", folder), what, "run the same command again to go on"
        )
        assert time.monotonic() - begun < 10  # not tried again for two minutes
        fails_again(run("ingest", "--delete", "n1", "-w", folder), what)
        assert "an ingest was interrupted" in run("status", "-w", folder).out
        assert len(run("query", "cell", "-w", folder, "-k", 50, "--json").json["hits"]) == 20
    finally:
        node.request("PUT", f"/{name}/_settings", {f"index.blocks.{block}": None})
    report = run("ingest", tmp_path / "new.jsonl", "-w", folder, "--json").json
    assert (report["added"], report["updated"], report["documents"]) == (10, 10, 30)
    expected = {f"n{i}": f"{'cell' if i < 10 else 'gene'} number {i}" for i in range(30)}
    assert documents(node, name) == expected
    assert "interrupted" not in run("status", "-w", folder).out


def test_no_new_index_may_be_made(run, few, node, name, tmp_path):
    node.request("PUT", "/_cluster/settings", {"persistent": {"cluster.blocks.create_index": True}})
    try:
        run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).fails(
            1, "the cluster makes no new index now", "free space on the nodes"
        )
        assert not (tmp_path / "ws").exists()
    finally:
        node.request("PUT", "/_cluster/settings", {"persistent": {"cluster.blocks.create_index": None}})


def test_documents_that_the_cluster_refuses(run, few, node, name, tmp_path, write_lines):
    folder = tmp_path / "ws"
    bad = [
        {"_id": "bad-1", "text": "cell", "": 1},
        {"_id": "bad-2", "text": "x", "y" * 60_000: 1},
    ]
    good = [{"_id": f"n{i}", "text": f"gene number {i}"} for i in range(30)]
    file = write_lines(tmp_path / "bad.jsonl", [*good[:10], *bad, *good[10:]])

    # A new collection: nothing is left of it.
    command = ("ingest", file, "-w", folder, *at(node.url, name))
    refused = "OpenSearch refuses 2 of 32 documents, {}: 'bad-1': "
    run(*command).fails(
        1,
        refused.format("nothing was changed"),
        "'bad-2': ",
        "or leave such documents out with --skip-invalid",
    )
    assert not folder.exists()
    assert indices(node, name) == {}
    # Replacing: the old one stays.
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    there = indices(node, name)
    run("ingest", file, "--replace", "-w", folder).fails(1, refused.format("nothing was changed"))
    assert documents(node, name) == texts(20, "cell")
    assert indices(node, name) == there
    # In place: the others are in.
    run("ingest", file, "-w", folder).fails(1, refused.format("the others are in"))
    assert documents(node, name) == texts(30, "gene")
    assert "interrupted" not in run("status", "-w", folder).out
    # Left out on request, and listed by id.
    for more in ([], ["--replace"]):
        done = run("ingest", file, "--skip-invalid", *more, "-w", folder)
        assert done.code == 0, done.err
        assert re.search(r"^skipped document 'bad-1': .+$", done.err, re.M), done.err
        assert re.search(r"^skipped document 'bad-2': .+$", done.err, re.M), done.err
        assert "2 invalid lines skipped" in done.err
        assert "30 documents" in done.out
        assert documents(node, name) == texts(30, "gene")


def test_ids_that_are_too_long(run, few, node, name, tmp_path, write_lines):
    folder = tmp_path / "ws"
    for id, size in (("x" * 513, 513), ("ü" * 257, 514)):
        file = write_lines(tmp_path / "long.jsonl", [{"_id": "ok", "text": "x"}, {"_id": id, "text": "x"}])
        run("ingest", file, "-w", folder, *at(node.url, name)).fails(
            1, f"document 2: its id has {size} bytes and OpenSearch takes 512: '{id[:40]}'"
        )
        assert not folder.exists()
    assert indices(node, name) == {}
    file = write_lines(
        tmp_path / "long.jsonl", [{"_id": "x" * 512, "text": "x"}, {"_id": "ü" * 256, "text": "x"}]
    )
    assert run("ingest", file, "-w", folder, *at(node.url, name), "--json").json["added"] == 2


def test_depth_beyond_the_window(run, few, node, name, tmp_path):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    assert run("attach", "text=text", "-w", tmp_path / "b", "--url", node.url, "--index", name).code == 0
    for workspace in (folder, tmp_path / "b"):
        assert run("query", "cell", "--depth", 10_000, "-w", workspace).code == 0
        run("query", "cell", "--depth", 10_001, "-w", workspace).fails(
            1, f"a depth of 10001 is more than the 10000 that index '{name}' returns at once; choose a",
            "or raise its setting index.max_result_window",
        )  # fmt: skip
    node.request("PUT", f"/{name}/_settings", {"index.max_result_window": 50_000})
    for workspace in (folder, tmp_path / "b"):
        assert (
            len(run("query", "cell", "--depth", 20_000, "-k", 30, "-w", workspace, "--json").json["hits"])
            == 20
        )
    node.request("PUT", f"/{name}/_settings", {"index.max_result_window": 15})
    assert (
        len(run("query", "cell", "--depth", 15, "-k", 30, "-w", tmp_path / "b", "--json").json["hits"]) == 15
    )
    run("query", "cell", "--depth", 16, "-w", folder).fails(1, "a depth of 16 is more than the 15 that index")


def test_shards_that_are_away(run, many, node, name, tmp_path, impatient):
    """Half an answer is none: no wrong counts, no results from half of the documents, nothing replaced."""
    folder = tmp_path / "ws"
    assert run("ingest", many, "-w", folder, *at(node.url, name), "--shards", 2).code == 0
    (index,) = indices(node, name)
    (tmp_path / "new.jsonl").write_bytes(lines(10, 0, "cell"))

    def away(shard: int) -> None:
        node.request("PUT", f"/{index}/_settings", {"index.routing.allocation.require._name": "nobody"})
        cancel = {"index": index, "shard": shard, "node": "node-0", "allow_primary": True}
        node.request("POST", "/_cluster/reroute", {"commands": [{"cancel": cancel}]})

    for shards in ([1], [0]):
        for shard in shards:
            away(shard)
        assert node.request("GET", f"/_cluster/health/{index}")["status"] == "red"
        for command in (
            ["status"],
            ["query", "gene"],
            ["encode"],
            ["ingest", tmp_path / "new.jsonl"],
            ["ingest", "--delete", "n1"],
        ):
            done = run(*command, "-w", folder)
            if command == ["encode"] and done.code == 0:
                continue  # no ranker is trained, and nothing was asked
            done.fails(
                1, f"not all shards of '{name}' answer", "look at `GET _cluster/health`, and run again"
            )
    node.request("PUT", f"/{index}/_settings", {"index.routing.allocation.require._name": None})
    node.request("GET", f"/_cluster/health/{index}?wait_for_status=green&timeout=30s")
    assert run("status", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")
    assert set(indices(node, name)) == {index}


def test_a_shard_that_goes_while_documents_come_in(run, many, node, name, tmp_path, impatient):
    folder = tmp_path / "ws"
    (tmp_path / "few.jsonl").write_bytes(lines(2))
    assert run("ingest", tmp_path / "few.jsonl", "-w", folder, *at(node.url, name)).code == 0
    (index,) = indices(node, name)
    gone = threading.Event()

    def away(request: Any) -> None:
        if request.bulk and not gone.is_set():
            gone.set()
            node.request("PUT", f"/{index}/_settings", {"index.routing.allocation.require._name": "nobody"})
            cancel = {"index": index, "shard": 0, "node": "node-0", "allow_primary": True}
            node.request("POST", "/_cluster/reroute", {"commands": [{"cancel": cancel}]})

    with Proxy(node.port, rule=away) as proxy:
        edit(folder, url=proxy.url, timeout=2)  # a bulk waits for a primary for a minute
        done = run("ingest", many, "-w", folder)
        if done.code:  # else the cluster has given the shard back in time
            done.fails(1, "writing documents: ", "run the same command again to go on")
    assert gone.is_set()
    edit(folder, url=node.url, timeout=60)
    node.request("PUT", f"/{index}/_settings", {"index.routing.allocation.require._name": None})
    node.request("GET", f"/_cluster/health/{index}?wait_for_status=green&timeout=30s")
    assert run("ingest", many, "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


# ------------------------------------------------------------------------------- bulks that do not go through


BROKEN = {
    "too busy": only_bulks(BUSY),
    "a gateway without a node behind it": only_bulks(
        answering(status=503, body=b"<b>x</b>", kind="text/html")
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_it_is_tried_again(run, many, node, name, tmp_path, kind):
    with Proxy(node.port, rule=first(4, BROKEN[kind])) as proxy:
        done = run("ingest", many, "-w", tmp_path / "ws", *at(proxy.url, name), "--json")
        assert (done.json["added"], done.json["updated"]) == (MANY, 0)
        assert proxy.bulks() == 9
    assert documents(node, name) == texts(MANY, "gene")


def test_items_that_are_refused_for_the_queue(run, few, node, name, tmp_path):
    """Some of the documents of a bulk are taken, the others are sent again."""

    def rule(request: Any) -> Any:
        if not request.bulk or proxy.bulks() > 2:
            return None
        answer = proxy.forward(request)
        found = json.loads(answer.body)
        found["errors"] = True
        for item in found["items"][5:]:
            item["index"] = {
                "_id": item["index"]["_id"],
                "status": 429,
                "error": {"type": "rejected_execution_exception", "reason": "rejected execution of task"},
            }
        return replace(answer, body=json.dumps(found).encode())

    with Proxy(node.port, rule=rule) as proxy:
        done = run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name), "--json")
        assert done.json["added"] == 20
        assert [request.body.count(b'{"index"') for request in proxy.requests if request.bulk] == [20, 15, 10]
    assert documents(node, name) == texts(20, "cell")


def test_answers_to_bulks_that_break_off(run, many, node, name, tmp_path):
    """The cluster has the documents, we do not know: they are sent again, and are there once."""

    def cut(request: Any) -> Any:
        return replace(proxy.forward(request), cut=True)

    with Proxy(node.port) as proxy:
        proxy.rule = first(3, only_bulks(cut))
        folder = tmp_path / "ws"
        done = run("ingest", many, "-w", folder, *at(proxy.url, name), "--json")
        assert (done.json["added"], done.json["updated"], done.json["documents"]) == (MANY, 0, MANY)
        assert proxy.bulks() == 8
    assert documents(node, name) == texts(MANY, "gene")


def test_bulks_that_time_out(run, many, node, name, tmp_path, impatient):
    folder = tmp_path / "ws"
    (tmp_path / "few.jsonl").write_bytes(lines(2))
    assert run("ingest", tmp_path / "few.jsonl", "-w", folder, *at(node.url, name)).code == 0
    with Proxy(node.port, rule=only_bulks(slow(3))) as proxy:
        edit(folder, url=proxy.url, timeout=1)
        run("ingest", many, "-w", folder).fails(
            1, f"writing documents: no answer from {proxy.url} within 1 s; check the cluster, or raise",
            f"of {MANY:,} documents are in: run the same command again to go on",
        )  # fmt: skip
        status = run("status", "-w", folder)
        assert "an ingest was interrupted: run the same command again, or any other ingest" in status.out
        proxy.rule = lambda request: None
        edit(folder, timeout=60)
        assert run("ingest", many, "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


def test_requests_that_are_too_large(run, node, name, tmp_path, write_lines):
    def limit(request: Any) -> Any:
        return Answer(413, b"too large", "text/plain") if len(request.body) > 20_000 else None

    records = [{"_id": f"n{i}", "text": f"gene number {i}"} for i in range(1000)]
    file = write_lines(tmp_path / "large.jsonl", [*records, {"_id": "large", "text": "y" * 30_000}])
    with Proxy(node.port, rule=limit) as proxy:
        command = ("ingest", file, "-w", tmp_path / "ws", *at(proxy.url, name))
        run(*command).fails(
            1, "refuses 1 of 1,001 documents, nothing was changed: 'large': 30,", "too many for a"
        )
        done = run(*command, "--skip-invalid")
        assert "1000 added" in done.out
        assert "skipped document 'large': 30," in done.err
    assert documents(node, name) == texts(1000, "gene")


# ------------------------------------------------------------------------------------------ full disks, kills


def limited(size: int) -> Any:
    """Let no file grow beyond this size: writing fails as on a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return limit


@pytest.mark.parametrize("size", [0, 300, 100_000])
@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_full_disk_here(spawn, run, few, many, node, name, tmp_path, size, there):
    folder = tmp_path / "ws"
    if there:
        assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    before = indices(node, name), documents(node, name)
    done = spawn("ingest", many, "-w", folder, *at(node.url, name), preexec_fn=limited(size))
    done.fails(1, "cannot be ")
    assert "free space and run again" in done.err or "check the folder and the disk" in done.err, done
    assert (indices(node, name), documents(node, name)) == before
    assert folder.exists() == there
    done = run("ingest", many, "-w", folder, *at(node.url, name), "--json")
    assert done.json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


def test_the_log_of_what_was_sent_cannot_be_written(run, many, node, name, tmp_path):
    """The chunk that is under way then is sent again, and no other."""
    folder, gate = tmp_path / "ws", Gate(2)
    with Proxy(node.port, rule=gate) as proxy:
        process = started("ingest", many, "-w", folder, *at(proxy.url, name))
        assert gate.reached.wait(60)
        log = folder / "engine" / "unfinished" / "done"
        wait_for(lambda: log.exists() and log.read_bytes().count(b"chunk") == 2)
        process.kill()
        process.wait()
    log.write_bytes(log.read_bytes()[:-30])  # as a power cut leaves it
    for _ in range(2):
        with Proxy(node.port) as proxy:
            proxy.rule = only_bulks(first(1, answering(status=401)))
            edit(folder, url=proxy.url)
            done = run("ingest", many, "-w", folder)
            fails_again(done, "(401)")
            assert proxy.bulks() <= 5
    edit(folder, url=node.url)
    assert run("ingest", many, "-w", folder, "--json").json["added"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*console_script(), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(what: Any, seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@contextlib.contextmanager
def interrupted(
    node: Node, command: list[object], folder: Path, name: str, number: int, through: int = 2
) -> Iterator[None]:
    """End an ingest by a signal while it sends: so many chunks are in, the others are on their way."""
    gate = Gate(through)
    with Proxy(node.port, rule=gate) as proxy:
        if Workspace.exists(folder):
            edit(folder, url=proxy.url)
            process = started(*command, "-w", folder)
        else:
            process = started(*command, "-w", folder, *at(proxy.url, name))
        assert gate.reached.wait(60)
        wait_for(lambda: (folder / "engine" / "unfinished" / "done").read_bytes().count(b"chunk") >= through)
        process.send_signal(number)
        if number == signal.SIGINT:
            time.sleep(0.3)
            gate.open()
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out, err.strip()) == (130, "", "rerank: interrupted")
        else:
            assert process.wait(60) == -number
            process.communicate()
        yield
        gate.open()
    edit(folder, url=node.url)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-C"])
def test_a_first_ingest_cut_off(run, many, node, name, tmp_path, number):
    folder = tmp_path / "ws"
    with interrupted(node, ["ingest", many], folder, name, number):
        assert documents(node, name) == {}  # nothing shows before all of it does
        assert run("query", "gene", "-w", folder, "--json").json["hits"] == []
        status = run("status", "-w", folder)
        assert "0 documents" in status.out
        assert "an ingest was interrupted: run the same command again" in status.out
    with Proxy(node.port) as proxy:
        edit(folder, url=proxy.url)
        done = run("ingest", many, "-w", folder)
        assert "finishing the ingest that was interrupted" in done.err
        assert f"{MANY} added, 0 updated, 0 deleted: {MANY} documents" in done.out
        assert proxy.bulks() <= 3  # what was in is not sent again
    assert documents(node, name) == texts(MANY, "gene")
    (only,) = indices(node, name)
    assert list(indices(node, name)[only]["aliases"]) == [name]
    assert not (folder / "engine" / "unfinished").exists()


def test_another_command_after_one_that_was_cut_off(run, few, many, node, name, tmp_path):
    folder = tmp_path / "ws"
    (tmp_path / "first.jsonl").write_bytes(lines(50, 0, "old") + b'{"_id": "kept", "text": "old"}\n')
    assert run("ingest", tmp_path / "first.jsonl", "-w", folder, *at(node.url, name)).code == 0
    with interrupted(node, ["ingest", many, "--delete", "kept"], folder, name, signal.SIGKILL):
        pass
    done = run("ingest", few, "-w", folder)
    assert "finishing the ingest that was interrupted" in done.err
    assert f"0 added, 20 updated, 0 deleted: {MANY} documents" in done.out
    assert documents(node, name) == {**texts(MANY, "gene"), **texts(20, "cell")}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-C"])
def test_replacing_cut_off(run, few, many, node, name, tmp_path, number):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (old,) = indices(node, name)
    with interrupted(node, ["ingest", many, "--replace"], folder, name, number):
        assert documents(node, name) == texts(20, "cell")
        assert len(run("query", "cell", "-w", folder, "-k", 50, "--json").json["hits"]) == 20
        assert len(indices(node, name)) == 2
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")
    (new,) = indices(node, name)
    assert new != old


def test_what_is_left_of_an_abandoned_ingest_goes(run, few, many, node, name, tmp_path):
    """The workspace was put back to what it was before; the half index is nobody's."""
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    with interrupted(node, ["ingest", many, "--replace"], folder, name, signal.SIGKILL):
        pass
    shutil.rmtree(folder / "engine" / "unfinished")
    assert len(indices(node, name)) == 2
    (tmp_path / "new.jsonl").write_bytes(lines(30, 0, "new"))
    assert run("ingest", tmp_path / "new.jsonl", "--replace", "-w", folder, "--json").json["documents"] == 30
    assert documents(node, name) == texts(30, "new")
    assert len(indices(node, name)) == 1


def test_the_half_index_is_deleted_meanwhile(run, few, many, node, name, tmp_path):
    """What was sent into it is sent again."""
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (old,) = indices(node, name)
    with interrupted(node, ["ingest", many, "--replace"], folder, name, signal.SIGKILL):
        pass
    time.sleep(0.5)  # for what was on its way
    (half,) = indices(node, name).keys() - {old}
    node.request("DELETE", f"/{half}")
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


def test_the_half_index_is_deleted_while_documents_come_in(run, few, many, node, name, tmp_path):
    """The cluster makes it anew by itself, and wrong: the alias must not move there."""
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (old,) = indices(node, name)

    def delete(request: Any) -> None:
        if request.bulk and proxy.bulks() == 2:
            (half,) = indices(node, name).keys() - {old}
            node.request("DELETE", f"/{half}")

    with Proxy(node.port, rule=delete) as proxy:
        edit(folder, url=proxy.url)
        done = run("ingest", many, "--replace", "-w", folder)
        done.fails(1)  # the first says whoever notices first
        assert "nothing was replaced: remove it, and run again" in done.err or "no such index" in done.err, (
            done
        )
    edit(folder, url=node.url)
    assert documents(node, name) == texts(20, "cell")
    for half in indices(node, name).keys() - {old}:
        fails_again(
            run("ingest", many, "--replace", "-w", folder), f"'{half}'", "by others", "remove it, and run"
        )
        assert documents(node, name) == texts(20, "cell")
        node.request("DELETE", f"/{half}")
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


@pytest.mark.slow
def test_a_node_killed_while_documents_come_in(run, few, many, tmp_path):
    """Killed at any moment, and started again on the same data."""
    folder, name = tmp_path / "ws", "killed"
    with running(heap="512m") as own:
        assert run("ingest", few, "-w", folder, *at(own.url, name)).code == 0
        gate = Gate(2)
        with Proxy(own.port, rule=gate) as proxy:
            edit(folder, url=proxy.url)
            process = started("ingest", many, "--replace", "-w", folder)
            assert gate.reached.wait(60)
            own.kill()
            gate.open()
            time.sleep(2)
            own.start().wait()
            # The very process that was sending goes on when the node is back.
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err
            assert f"{MANY} documents" in out
        edit(folder, url=own.url)
        assert documents(own, name) == texts(MANY, "gene")
        assert len(indices(own, name)) == 1


# -------------------------------------------------------------------------------------------- other versions


@contextlib.contextmanager
def version(number: str) -> Iterator[Node]:
    try:
        with running(version=number, heap="512m") as other:
            yield other
    except CannotRunError as error:
        unavailable(error)


@pytest.mark.slow
def test_a_version_that_is_too_old(run, few, tmp_path):
    with version("2.18.0") as old:
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", old.url, "--index", "x").fails(
                1, f"{old.url} is OpenSearch 2.18.0; rerank needs 2.19 or later"
            )
        assert not (tmp_path / "ws").exists()
        assert indices(old, "x") == {}


@pytest.mark.slow
def test_the_oldest_version_that_is_supported(run, small, tmp_path):
    folder, name = tmp_path / "ws", "oldest"
    with version("2.19.5") as old:
        files = ("--queries", small.queries, "--qrels", small.train, "-w", folder)
        command = ("ingest", small.corpus, "--categories", small.categories, "-w", folder)
        assert run(*command, *at(old.url, name), "--shards", 2, "--json").json["added"] == 200
        done = run("train", "meta", *files, "--dev-qrels", small.dev, "--epochs", 1, "--json")
        assert done.json["encoded"] == {"meta": 200}
        assert run("tune", "--stack", "tfidf,meta", *files).code == 0
        for stack in ("bm25", "tfidf", "tfidf,meta"):
            answer = run("query", "gene expression in cells", "--stack", stack, "-w", folder, "--json").json
            assert len(answer["hits"]) == 10
            assert answer["recomputed"] == {}
        assert run("evaluate", "--stack", "tfidf,meta", *files).code == 0
        before = indices(old, name)
        report = run(*command, "--replace", "--json").json
        assert (report["documents"], report["encoded"]) == (200, {"meta": 200})
        assert run("query", "cells", "--stack", "tfidf,meta", "-w", folder, "--json").json["recomputed"] == {}
        assert len(indices(old, name)) == 1
        assert indices(old, name).keys() != before.keys()
        assert (
            run("ingest", "--delete", small.documents[0]["_id"], "-w", folder, "--json").json["deleted"] == 1
        )
        assert run("encode", "--slice", "1/2", "-w", folder, "--json").json == {"encoded": {"meta": 0}}
        attached = ("attach", "--field", "text=text", "-w", tmp_path / "b", "--url", old.url, "--index", name)
        assert run(*attached).code == 0
        assert len(run("query", "cells", "-w", tmp_path / "b", "--json").json["hits"]) == 10
        run("query", "cells", "--depth", 10_001, "-w", folder).fails(
            1, "raise its setting index.max_result_window"
        )
