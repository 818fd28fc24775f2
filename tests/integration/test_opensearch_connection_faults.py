"""Nodes that do not answer, hang, or answer invalidly, and certificates: one-line errors, no data loss.

A proxy (``tests/support/opensearch.py``) in front of a real node causes these faults.
"""

from __future__ import annotations

import socket
import subprocess
import time

import pytest
from opensearchpy.exceptions import ConnectionTimeout

from rerank.engines.opensearch import Settings
from rerank.engines.opensearch.connection import connect
from tests.support.opensearch import (
    Proxy,
    answering,
    at,
    documents,
    edit,
    lines,
    only_bulks,
    other_scheme,
    profile,
    texts,
)
from tools.opensearch_node import free_port


def test_a_service_that_does_not_answer(run, few, tmp_path):
    port = free_port()
    for url, what in (
        (f"http://127.0.0.1:{port}", "cannot be reached (Connection refused)"),
        (
            f"https://127.0.0.1:{port}",
            "cannot be reached (Connection refused)",
        ),
        ("http://no.such.host.invalid:9200", "no.such.host.invalid"),
    ):
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", url, "--index", "x").fails(1, url, what)
    assert not (tmp_path / "ws").exists()


def test_a_port_that_accepts_connections_but_does_not_answer(run, folder, few, node):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        edit(folder, url=url, timeout=0.3)
        for command in (["status"], ["query", "cell"], ["ingest", few], ["ingest", "--delete", "n1"]):
            begun = time.monotonic()
            run(*command, "-w", folder).fails(1, f"no answer from {url} within 0.3 s; check the")
            assert time.monotonic() - begun < 100  # without retries for two minutes
    edit(folder, url=node.url)
    assert run("status", "-w", folder, "--json").json["documents"] == 20


def test_a_node_that_hangs_causes_a_timeout(run, folder, few, node, impatient):
    edit(folder, timeout=0.5)
    node.pause()
    try:
        for command in (["status"], ["query", "cell"], ["ingest", few]):
            run(*command, "-w", folder).fails(1, "no answer from", "within 0.5 s")
    finally:
        node.resume()
    edit(folder, timeout=30)
    assert run("ingest", few, "-w", folder, "--json").json["unchanged"] == 20


def test_a_node_without_an_answer_is_avoided_later(node):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = f"http://127.0.0.1:{silent.getsockname()[1]}", node.url
        client, failed = connect(Settings(urls, "x", timeout=6)), 0
        for _ in range(6):
            try:
                client.info()
            except ConnectionTimeout:
                failed += 1
    assert failed <= 1


ODD_ANSWERS = {
    "a page": ({"body": b"<html>hi</html>", "kind": "text/html"}, "answers, but not as OpenSearch does"),
    "plain text": ({"body": b"hello", "kind": "text/plain"}, "answers, but not as OpenSearch does"),
    "another object": ({"body": b"{}"}, "answers, but not as OpenSearch does"),
    "a list": ({"body": b"[]"}, "answers, but not as OpenSearch does"),
    "nothing": ({}, "answers, but not as OpenSearch does"),
    "half an object": ({"body": b'{"version": {"numb'}, "answers, but not as OpenSearch does"),
    "half an answer": ({"body": b'{"version": {"number": "3.6.0"}}', "cut": True}, "IncompleteRead"),
    "no UTF-8": ({"body": b"\xff\xfe"}, "can't decode"),
    "a redirect": ({"status": 301, "headers": {"Location": "https://x"}}, "(301); check"),
    "not found": ({"status": 404, "body": b"no", "kind": "text/plain"}, "not as OpenSearch does; check host"),
    "a bad gateway": ({"status": 502, "body": b"<b>x</b>", "kind": "text/html"}, "(502)"),
    "too many requests": ({"status": 429}, "too busy (429); run again later"),
    "an error": ({"status": 500, "body": b"oops", "kind": "text/plain"}, "refuses (500): oops"),
    "Elasticsearch": (
        {"body": b'{"version": {"number": "8.15.0", "build_flavor": "default"}, "tagline": "You Know"}'},
        "is another product, version 8.15.0; rerank needs OpenSearch 2.19 or later",
    ),
    "an old version": (
        {"body": b'{"version": {"number": "2.18.0", "distribution": "opensearch"}}'},
        "is OpenSearch 2.18.0; rerank needs OpenSearch 2.19 or later",
    ),
    "a version that is none": (
        {"body": b'{"version": {"number": null, "distribution": "opensearch"}}'},
        "rerank needs OpenSearch 2.19 or later",
    ),
}


@pytest.mark.parametrize("kind", ODD_ANSWERS)
def test_another_server_than_opensearch_is_refused(run, few, tmp_path, kind):
    answer, what = ODD_ANSWERS[kind]
    with Proxy(rule=answering(**answer)) as proxy:
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", proxy.url, "--index", "x").fails(1, proxy.url, what)
    assert not (tmp_path / "ws").exists()


def test_invalid_answers_during_commands_are_reported(run, few, node, name, tmp_path, impatient):
    folder = tmp_path / "ws"
    (tmp_path / "old.jsonl").write_bytes(lines(20, 0, "old cell"))
    assert run("ingest", tmp_path / "old.jsonl", "-w", folder, *at(node.url, name)).code == 0
    with Proxy(node.port) as proxy:
        edit(folder, url=proxy.url)
        for answer in ({"body": b'{"hits": ['}, {"body": b"<html>", "kind": "text/html"}):
            proxy.rule = answering(**answer)
            run("query", "cell", "-w", folder).fails(1, "searching: ", "does not answer as OpenSearch does")
            proxy.rule = only_bulks(answering(**answer))
            done = run("ingest", few, "-w", folder)
            done.fails(1, "does not answer as OpenSearch does", "run the same command again")
        proxy.rule = only_bulks(answering(body=b"{}"))
        run("ingest", few, "-w", folder).fails(1, "does not answer as OpenSearch does")
        proxy.rule = lambda request: None
        assert run("ingest", few, "-w", folder, "--json").json["updated"] == 20
    assert documents(node, name) == texts(20, "cell")


def test_a_wrong_scheme_is_reported(run, few, node, tmp_path, authority):
    run("ingest", few, "-w", tmp_path / "ws", *at(other_scheme(node.url), "x")).fails(
        1, "no trusted TLS connection"
    )
    with Proxy(node.port, tls=authority.server()) as proxy:
        run("ingest", few, "-w", tmp_path / "ws", *at(other_scheme(proxy.url), "x")).fails(1, "check scheme")
    assert not (tmp_path / "ws").exists()


def test_certificates_of_the_server_are_verified(run, few, node, name, tmp_path, authority, stranger):
    folder = tmp_path / "ws"
    unknown = "ca_file"
    with Proxy(node.port, tls=authority.server()) as proxy:
        command = ("ingest", few, "-w", folder, *at(proxy.url, name))
        run(*command).fails(1, unknown)
        run(*command, *profile(ca_file=stranger.file)).fails(1, unknown)
        run(*command, *profile(ca_file=tmp_path / "none")).fails(
            1, "none: no such file; it is set as ca_file"
        )
        run(*command, *profile(ca_file=few)).fails(1, "no trusted TLS connection", unknown)
        assert not folder.exists()
        assert run(*command, *profile(ca_file=authority.file), "--json").json["added"] == 20
        # The workspace stores the CA file, and works from any folder.
        assert run("query", "cell", "-w", folder, "--json").json["hits"]
    for host, days, what in (
        ("example.org", 1.0, "certificate verify failed"),
        ("127.0.0.2", 1.0, "certificate verify failed"),
        ("127.0.0.1", -0.5, "certificate has expired"),
    ):
        with Proxy(node.port, tls=authority.server(host, days=days)) as proxy:
            edit(folder, url=proxy.url)
            run("status", "-w", folder).fails(1, what)
    with Proxy(node.port, tls=authority.server("localhost")) as proxy:
        edit(folder, url=proxy.url.replace("127.0.0.1", "localhost"))
        assert run("status", "-w", folder, "--json").json["documents"] == 20
    run("ingest", few, "-w", tmp_path / "x", *at(node.url, "x"), *profile(ca_file=authority.file)).fails(
        2, "certificates are set, but the URL is not https"
    )


def test_certificates_of_the_client_are_sent(run, few, node, name, tmp_path, authority, stranger):
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
        command = ("ingest", few, "-w", folder, *at(proxy.url, name))
        ca = authority.file
        wanted = "client_cert"
        run(*command, *profile(ca_file=ca)).fails(1, wanted)
        run(*command, *profile(ca_file=ca, client_cert=wrong[0], client_key=wrong[1])).fails(1, wanted)
        run(*command, *profile(ca_file=ca, client_key=key)).fails(2, "client_key is set without client_cert")
        run(*command, *profile(ca_file=ca, client_cert=tmp_path / "x", client_key=key)).fails(
            1, "no such file"
        )
        run(*command, *profile(ca_file=ca, client_cert=certificate, client_key=tmp_path / "x")).fails(
            1, "no such file; it is set as client_key"
        )
        for pair in (
            [certificate],
            [certificate, another_key],
            [certificate, encrypted],
            [certificate, few],
            [few, key],
        ):
            options = profile(ca_file=ca, **dict(zip(("client_cert", "client_key"), pair)))
            run(*command, *options).fails(1, wanted)
        assert not folder.exists()
        done = run(*command, *profile(ca_file=ca, client_cert=certificate, client_key=key), "--json")
        assert done.json["added"] == 20
        assert run("status", "-w", folder, "--json").json["documents"] == 20
        edit(folder, client_cert=str(both), client_key="")
        assert run("query", "cell", "-w", folder, "--json").json["hits"]
