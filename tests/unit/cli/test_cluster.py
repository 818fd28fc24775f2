"""The clusters that a command connects to, and their credentials."""

from __future__ import annotations

import pytest
from click import UsageError

import cli.auto
from cli.cluster import connection_settings, ubi_settings

LOG = "https://log.example:9200"


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Two clusters: one with documents and one with a click log."""
    file = tmp_path / "profiles.toml"
    file.write_text(
        '[shop]\nurl = "https://shop.example:9200"\nindex = "articles"\n'
        'user = "shop"\npassword_file = "shop"\n'
        f'[log]\nurl = "{LOG}"\nuser = "log"\npassword_file = "log"\n',
        "utf-8",
    )
    monkeypatch.setenv("RERANK_PROFILES", str(file))


def user(settings):
    return settings.table().get("user")


def test_a_log_in_the_cluster_of_the_documents_has_its_credentials(profiles):
    documents = connection_settings((), None, "shop")
    assert user(ubi_settings("https://shop.example:9200/", None, documents)) == "shop"


def test_credentials_are_not_sent_to_another_cluster(profiles):
    documents = connection_settings((), None, "shop")
    settings = ubi_settings(LOG, None, documents)
    assert user(settings) is None
    assert settings.url == (LOG,)
    assert settings.index == "ubi_events"


def test_the_profile_of_the_log_is_preferred_to_the_documents(profiles):
    documents = connection_settings((), None, "shop")
    assert user(ubi_settings(LOG, "log", documents)) == "log"


def test_a_profile_for_a_log_needs_its_url(profiles):
    with pytest.raises(UsageError, match="--ubi-profile needs --ubi URL"):
        ubi_settings(None, "log", None, profile_option="--ubi-profile")


def test_auto_reads_the_log_by_its_own_profile(run, profiles, tmp_path, monkeypatch):
    """The profile of the log says nothing about the place of the documents."""
    connections = []

    def auto(source, folder, *, opensearch, ubi, **options):
        connections.append((opensearch, ubi))
        raise SystemExit(0)

    monkeypatch.setattr(cli.auto.rerank, "auto", auto, raising=False)
    run("auto", tmp_path, "-w", tmp_path / "new", "--ubi", LOG, "--ubi-profile", "log")
    run("auto", tmp_path, "-w", tmp_path / "new", "--ubi", LOG, "--profile", "shop")
    (local, with_profile), (cluster, without_profile) = connections
    assert local is None
    assert user(with_profile) == "log"
    assert cluster.index == "articles"
    assert user(without_profile) is None
