"""Passwords, tokens and signatures are sent to the cluster, and appear nowhere in output or files.

A proxy (``tests/support/opensearch.py``) in front of a real node requires them.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.support.opensearch import (
    REFUSED,
    Proxy,
    answering,
    at,
    aws,
    basic,
    bearer,
    documents,
    edit,
    only_bulks,
    profile,
    texts,
)


def leaks(secret: str, *places: object) -> bool:
    """Return whether a secret is in the printed text or in a file of a folder, also in Base64."""
    forms = [secret.encode(), b64encode(secret.encode()).rstrip(b"="), json.dumps(secret)[1:-1].encode()]
    contents: list[bytes] = []
    for place in places:
        if isinstance(place, Path):
            contents += [path.read_bytes() for path in place.rglob("*") if path.is_file()]
        else:
            contents.append(repr(place).encode())
    return any(form in content for form in forms for content in contents)


def run_all_commands(run: Any, few: Path, folder: Path, url: str, name: str, *more: object) -> list[Any]:
    """Run the commands that connect to the cluster."""
    return [
        run("ingest", few, "-w", folder, *at(url, name), *more),
        run("ingest", few, "-w", folder, "--replace"),
        run("query", "cell", "-w", folder, "--timings"),
        run("status", "-w", folder, "--json"),
        run("encode", "-w", folder),
    ]


PASSWORD = "pä\\s'w\"örd: €/@ 1"


def test_a_password_is_sent_and_not_printed_or_stored(run, few, node, name, tmp_path, monkeypatch):
    folder, hidden = tmp_path / "ws", tmp_path / "password"
    hidden.write_text(PASSWORD + "\n", "utf-8")
    with Proxy(node.port, rule=basic("me", PASSWORD)) as proxy:
        command = ("ingest", few, "-w", folder, *at(proxy.url, name))
        run(*command).fails(1, "(401); check user, password or token")
        run(*command, *profile(user="me")).fails(2, "user 'me' has no password")
        monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", "wrong-secret")
        done = run(*command, *profile(user="me"))
        done.fails(1, "(401)")
        assert not leaks("wrong-secret", done)
        assert not folder.exists()
        monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", PASSWORD)
        done = run_all_commands(run, few, folder, proxy.url, name, *profile(user="me"))
        monkeypatch.delenv("RERANK_OPENSEARCH_PASSWORD")
        monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD_FILE", str(hidden))
        done.append(run("status", "-w", folder))
        monkeypatch.delenv("RERANK_OPENSEARCH_PASSWORD_FILE")
        edit(folder, password_file=str(hidden))
        done.append(run("status", "-w", folder))
        assert [d.code for d in done] == [0] * 7, done
        # This also holds for an ingest that fails.
        proxy.rule = only_bulks(answering(status=401))
        changed = tmp_path / "changed.jsonl"
        changed.write_text(Path(few).read_text("utf-8").replace('"text": "', '"text": "Now '), "utf-8")
        done.append(run("ingest", changed, "-w", folder))
        done[-1].fails(1, "writing documents", "(401)", "run the same command again")
    assert not leaks(PASSWORD, folder, *done)
    assert not leaks(f"me:{PASSWORD}", folder, *done)
    assert 'user = "me"' in (folder / "rerank.toml").read_text()


def test_a_token_is_sent_and_not_printed_or_stored(run, few, node, name, tmp_path, monkeypatch):
    folder, hidden, token = tmp_path / "ws", tmp_path / "token", "eyJhbGciOi.J9-very_secret"
    hidden.write_text(f"\n{token}\n")
    with Proxy(node.port, rule=bearer(token)) as proxy:
        done = run_all_commands(run, few, folder, proxy.url, name, *profile(token_file=hidden))
        edit(folder, token_file="")
        for variable, value in (("TOKEN_FILE", str(hidden)), ("TOKEN", token)):
            monkeypatch.setenv(f"RERANK_OPENSEARCH_{variable}", value)
            done.append(run("status", "-w", folder))
        assert [d.code for d in done] == [0] * 7, done
        proxy.rule = bearer("another")
        done.append(run("status", "-w", folder))
        done[-1].fails(1, "needs other credentials (401)")
    assert not leaks(token, folder, *done)
    monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", "x")
    run("ingest", few, "-w", tmp_path / "x", *at(node.url, "x"), *profile(user="me")).fails(
        2, "user and token are set; authenticate in one way"
    )


def test_invalid_secrets_are_refused_without_printing_them(run, few, node, name, tmp_path, monkeypatch):
    command = ("ingest", few, "-w", tmp_path / "ws", *at(node.url, name))
    for bad in ("sesame\nsecond", "sesame\r", "sésame"):
        monkeypatch.setenv("RERANK_OPENSEARCH_TOKEN", bad)
        done = run(*command)
        done.fails(1, "RERANK_OPENSEARCH_TOKEN: the token has invalid characters")
        assert not leaks(bad, done)
        assert "same" not in done.err
    monkeypatch.delenv("RERANK_OPENSEARCH_TOKEN")
    for content, what in ((b"", "is empty"), (b" \n", "is empty"), (b"caf\xe9", "cannot be read (not")):
        (tmp_path / "token").write_bytes(content)
        run(*command, *profile(token_file=tmp_path / "token")).fails(1, f"token: the token {what}")
    run(*command, *profile(token_file=tmp_path / "none")).fails(
        1, "none: the token cannot be read (No such file"
    )
    monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD_FILE", str(tmp_path / "none"))
    run(*command, *profile(user="me")).fails(1, "none: the password cannot be read")
    monkeypatch.setenv("RERANK_OPENSEARCH_PASSWORD", "sesame\nopen")
    done = run(*command, *profile(user="me"))
    done.fails(1, "RERANK_OPENSEARCH_PASSWORD: the password has invalid characters")
    assert "sesame" not in done.err
    assert not (tmp_path / "ws").exists()


def test_a_url_with_a_password_is_refused(run, few, node, name, tmp_path):
    """tests/unit/test_opensearch_settings.py covers other forms of such URLs."""
    secret = "sesame"
    url = f"http://me:{secret}@127.0.0.1:{node.port}"
    for command in (["ingest", few], ["attach", "text=text"]):
        done = run(*command, "-w", tmp_path / "ws", "--url", url, "--index", name)
        done.fails(2, "password")
        assert secret not in done.err
    assert not (tmp_path / "ws").exists()
    # A URL that the user wrote into rerank.toml.
    assert run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).code == 0
    edit(tmp_path / "ws", url=url)
    for command in (
        ["status"],
        ["query", "x"],
        ["encode"],
        ["ingest", few],
        ["ingest", few, *at("http://h", "x")],
    ):
        done = run(*command, "-w", tmp_path / "ws")
        done.fails(2, "rerank.toml: a URL must not contain a password")
        assert secret not in done.err


def test_missing_permissions_are_reported(run, few, node, name, tmp_path):
    with Proxy(node.port, rule=REFUSED) as proxy:
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", proxy.url, "--index", name).fails(
                1, "connecting: ", "does not allow that (403): no permissions for [indices:data/write/bulk]"
            )
        assert not (tmp_path / "ws").exists()
        proxy.rule = lambda request: REFUSED(request) if request.method == "PUT" else None
        run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name)).fails(
            1, "creating the index: ", "(403)"
        )
        assert not (tmp_path / "ws").exists()
        proxy.rule = only_bulks(REFUSED)
        run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name)).fails(
            1, "writing documents: ", "does not allow that (403)", "run the same"
        )
        assert documents(node, name) == {}
        proxy.rule = lambda request: None
        done = run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name))
        assert "20 added, 0 updated, 0 deleted: 20 documents" in done.out
    assert documents(node, name) == texts(20, "cell")


@pytest.mark.parametrize("service", ["es", "aoss"])
def test_requests_are_signed_for_aws(run, few, node, tmp_path, monkeypatch, service):
    name = f"faults-{secrets.token_hex(4)}-ü"
    folder, key, secret = tmp_path / "ws", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    options = profile(aws_region="eu-west-1", aws_service=service)
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
            done = [run(*command), run("status", "-w", folder, "--json")]
            assert [d.code for d in done] == [0, 0], done
            assert all("x-amz-security-token" in request.headers for request in proxy.requests[-3:])
        finally:
            node.request("DELETE", "/faults-*-%C3%BC-*")
    assert not leaks(secret, folder, *done)
    assert not leaks("session-secret", folder, *done)
    assert not leaks(key, folder, *done)
