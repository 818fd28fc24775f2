"""Secrets are sent only to hosts that the user has named, not to hosts from a foreign ``rerank.toml``."""

from __future__ import annotations

import os
import warnings

import pytest

from rerank.common.errors import RerankError, UsageError
from rerank.engines.opensearch import Settings, auth
from rerank.workspace.workspace import Workspace
from tests.support.opensearch import Proxy, answering


@pytest.fixture(autouse=True)
def nobody_is_known(monkeypatch, tmp_path):
    monkeypatch.delenv(auth.HOSTS, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TOKEN", "TOKEN_FILE", "PASSWORD", "PASSWORD_FILE"):
        monkeypatch.delenv(f"RERANK_OPENSEARCH_{name}", raising=False)


@pytest.fixture
def listener():
    """A server of another owner."""
    with Proxy(rule=answering(status=401)) as proxy:
        yield proxy


def sent_credentials(listener):
    """Return the credentials that the server received."""
    return {request.headers.get("authorization") for request in listener.requests}


def write_foreign_config(folder, url, more=""):
    (folder / "ws").mkdir()
    text = (
        f'format = 1\nengine = "opensearch"\nlang = "en"\n\n[opensearch]\nurl = "{url}"\nindex = "a"\n{more}'
    )
    (folder / "ws" / "rerank.toml").write_text(text)
    return folder / "ws"


def test_a_foreign_config_gets_no_secret(run, listener, tmp_path, monkeypatch):
    url = listener.url
    mine = tmp_path / "key"
    mine.write_text("private")
    host = url.removeprefix("http://")
    for number, (more, variable, what) in enumerate(
        (
            (f'token_file = "{mine}"\n', None, f"the secret in {mine}"),
            (f'user = "me"\npassword_file = "{mine}"\n', None, "the password of me"),
            ("", "RERANK_OPENSEARCH_TOKEN", "the token of RERANK_OPENSEARCH_TOKEN"),
        )
    ):
        base = tmp_path / str(number)
        base.mkdir()
        folder = write_foreign_config(base, url, more)
        if variable:
            monkeypatch.setenv(variable, "sesame")
        for command in (("query", "wolf"), ("status",), ("encode",), ("ingest", "--delete", "x")):
            run(*command, "-w", folder).fails(
                2, f"rerank.toml: sends {what} to {url}, which this user has never named", host
            )
    assert not sent_credentials(listener)
    monkeypatch.setenv(auth.HOSTS, f"search.example.org, {host}")  # the user names the host
    run("query", "wolf", "-w", folder).fails(1, "needs other credentials (401)")
    assert sent_credentials(listener) == {"Bearer sesame"}
    monkeypatch.setenv(auth.HOSTS, "search.example.org")
    run("query", "wolf", "-w", folder).fails(2, "which this user has never named")


def test_a_host_that_the_user_named_is_trusted_later(listener, tmp_path, monkeypatch):
    url = listener.url
    monkeypatch.setenv("RERANK_OPENSEARCH_TOKEN", "sesame")
    with pytest.raises(RerankError, match="needs other credentials"):
        Workspace.create(tmp_path / "mine", engine="opensearch", settings={"url": url, "index": "a"})
    assert (tmp_path / "config" / "rerank" / "hosts").read_text() == f"{url}\n"
    listener.requests.clear()
    with pytest.raises(RerankError, match="needs other credentials"):
        len(Workspace.open(write_foreign_config(tmp_path, url)).engine)
    assert sent_credentials(listener)
    other = url.replace("127.0.0.1", "localhost")
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="never named"):
        _ = Workspace.open(write_foreign_config(tmp_path / "other", other)).engine


def test_without_a_secret_no_trust_is_needed(listener, tmp_path):
    with pytest.raises(RerankError, match="needs other credentials"):
        len(Workspace.open(write_foreign_config(tmp_path, listener.url)).engine)
    assert sent_credentials(listener) == {None}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_a_config_of_another_user_cannot_name_secret_files(listener, tmp_path, monkeypatch):
    monkeypatch.setenv(auth.HOSTS, "127.0.0.1")
    folder = write_foreign_config(tmp_path, listener.url, 'token_file = "/etc/hostname"\n')
    os.chown(folder / "rerank.toml", 65534, 65534)
    with pytest.raises(
        UsageError, match=r"belongs to another user \(uid 65534\) and names a file with a secret"
    ):
        _ = Workspace.open(folder).engine
    assert not sent_credentials(listener)


def test_a_secret_over_http_causes_a_warning(monkeypatch):
    monkeypatch.setenv("RERANK_OPENSEARCH_TOKEN", "sesame")
    for url, warned in (
        ("http://search.example.org:9200", True),
        ("https://search.example.org:9200", False),
        ("http://127.0.0.1:9200", False),
    ):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            monkeypatch.setenv(auth.HOSTS, "search.example.org,127.0.0.1")
            auth.check_trust(Settings((url,), "a"), "here")
        assert [str(one.message) for one in said] == [
            f"{url}: secrets are sent there unencrypted; use https"
        ] * warned
