"""``rerank judge interleaving``: winners of page views, counted by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rerank.common.errors import InputError, UsageError
from rerank.judging.interleaving import judge_interleaving
from tests.support.click_logs import event, write


def search(
    query_id: str | None, client: str | None, text: str, hits: str, teams: str, **more: Any
) -> dict[str, Any]:
    """A record of the log; each letter of ``hits`` is a document."""
    return {
        "query_id": query_id,
        "client_id": client,
        "user_query": text,
        "query_response_hit_ids": [*hits],
        "query_attributes": {"experiment": "new", "teams": teams},
        **more,
    }


def counts(report: Any) -> tuple[int, int, int, int]:
    return report.wins, report.losses, report.ties, report.unclicked


def dropped(report: Any) -> dict[str, int]:
    return {part.reason: part.count for part in report.dropped}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    searches = [
        search("s1", "c1", "wolf", "abcd", "ABBA", timestamp="2026-01-01T10:00:00Z"),
        search("s2", "c2", "wolf", "abcd", "BAAB"),
        search("s3", "c3", "wolf", "abcd", "ABAB"),
        search("s4", "c4", "wolf", "abcd", "AB--"),
        search("s5", "c1", " WOLF ", "abcd", "ABBA", timestamp="2026-01-01T11:00:00Z"),
        search("s6", "c1", "owl", "abcd", "ABBA", timestamp="2026-01-01T11:00:00Z"),
    ]
    return write(tmp_path / "log.ndjson", searches)


CLICKS = [
    *(event("click", "s1", one) for one in "bcb"),  # two documents of B
    *(event("click", "s2", one, user_query="Wolf") for one in "ad"),  # two of B
    *(event("CLICK", "s2", one) for one in "b"),  # one of A
    *(event("click_through", "s3", one) for one in "ab"),  # a tie
    event("click", "s4", "c"),  # no team
    event("click", "s5", "a"),  # the second search of the same client
    event("click", "s6", "a"),  # A
    event("click", "s6", "z"),
    event("click", "s6", "b", user_query="wolf"),
    event("impression", "s6", "b"),
    event("click", "other", "b"),
]


def test_winners_by_hand(log, tmp_path):
    """The page views: s1 B, s2 B, s3 tie, s4 tie (a click without a team), s6 A."""
    report = judge_interleaving([log], [write(tmp_path / "events.ndjson", CLICKS)])
    assert (report.experiment, report.searches) == ("new", 5)
    assert counts(report) == (2, 1, 2, 0)
    assert report.share == pytest.approx(2 / 3)
    assert report.p == 1.0
    assert report.winner is None
    assert dropped(report) == {
        "repeated searches of a client with the same words": 1,
        "clicks of other searches": 2,
        "clicks whose query has other words": 1,
        "clicks on documents that are not among the logged hits": 1,
        "clicks on documents without a team": 1,
    }


def test_actions_need_a_name(log, run):
    run("judge", "interleaving", log, "--ubi", log, "--clicks", ",").fails(2, "name one action or more")


def test_the_order_of_files_and_events_has_no_effect(log, tmp_path):
    lines = log.read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "a").write_text("".join(lines[3:][::-1]), "utf-8")
    (tmp_path / "b.gz").write_bytes(gzip.compress("".join(lines[:3]).encode()))
    parts = [write(tmp_path / "1", CLICKS[7:][::-1]), write(tmp_path / "2", CLICKS[:7][::-1])]
    one = judge_interleaving([log], [write(tmp_path / "events.ndjson", CLICKS)])
    assert counts(judge_interleaving([tmp_path / "a", tmp_path / "b.gz"], parts)) == counts(one)


def test_clients_without_an_id_are_different(tmp_path):
    log = write(tmp_path / "log", [search(f"s{i}", None, "wolf", "ab", "AB") for i in range(3)])
    assert judge_interleaving([log]).searches == 3


def test_a_clear_winner(tmp_path):
    """B wins 30 of 31 decided page views, or loses them if the teams are exchanged."""
    clicks = [event("click", f"s{i}", "a" if i == 0 else "b") for i in range(31)]
    events = write(tmp_path / "events", clicks)
    reports = []
    for teams in ("AB", "BA"):
        searches = [search(f"s{i}", f"c{i}", "wolf", "ab", teams) for i in range(40)]
        reports.append(judge_interleaving([write(tmp_path / "log", searches)], [events]))
    assert [counts(report) for report in reports] == [(30, 1, 0, 9), (1, 30, 0, 9)]
    assert [report.winner for report in reports] == ["B", "A"]
    assert reports[0].p == reports[1].p < 1e-4
    assert reports[0].needed == 0


def test_page_views_still_needed_by_hand(tmp_path):
    """60 wins and 40 losses need 194 page views, of which there are 100."""
    searches = [search(f"s{i}", f"c{i}", "wolf", "ab", "AB") for i in range(100)]
    clicks = [event("click", f"s{i}", "b" if i < 60 else "a") for i in range(100)]
    report = judge_interleaving([write(tmp_path / "log", searches)], [write(tmp_path / "events", clicks)])
    assert report.needed == 94
    assert report.interval == pytest.approx((0.502, 0.691), abs=5e-4)


def test_a_cut_line_of_a_full_disk_is_counted(log, tmp_path):
    text = log.read_text("utf-8")
    log.write_text(f"{text[:40]}\n{text}{text[:70]}", "utf-8")
    report = judge_interleaving([log], [write(tmp_path / "events.ndjson", CLICKS)])
    assert counts(report) == (2, 1, 2, 0)
    assert dropped(report)["damaged lines of the log"] == 2


def test_several_experiments_need_a_name(tmp_path):
    old = {"query_attributes": {"experiment": "old", "teams": "AB"}}
    searches = [search("s1", "c", "wolf", "ab", "AB"), search("s2", "c", "owl", "ab", "", **old)]
    log = write(tmp_path / "log", searches)
    with pytest.raises(UsageError, match="experiments new, old; choose one with --experiment"):
        judge_interleaving([log])
    with pytest.raises(UsageError, match="--experiment older: the logs have new, old"):
        judge_interleaving([log], experiment="older")
    assert judge_interleaving([log], experiment="old").searches == 1


@pytest.mark.parametrize(
    "record",
    [
        search(None, "c", "wolf", "ab", "AB"),
        search("s1", "c", "wolf", "ab", "AB", query_attributes={}),
        search("s1", "c", "wolf", "ab", "AB", query_attributes={"experiment": 3, "teams": ["A"]}),
    ],
)
def test_logs_without_a_usable_search_are_refused(tmp_path, record):
    with pytest.raises(InputError, match="no interleaved search with a query_id"):
        judge_interleaving([write(tmp_path / "log", [record])])


def test_a_log_that_is_a_json_array_is_read(tmp_path):
    log = tmp_path / "log.json"
    log.write_text(json.dumps([search("s1", "c", "wolf", "ab", "AB")]), "utf-8")
    events = write(tmp_path / "events.ndjson", [event("click", "s1", "b")])
    assert counts(judge_interleaving([log], [events])) == (1, 0, 0, 0)


def test_other_files_are_refused_with_the_reason(log, tmp_path):
    table = tmp_path / "clicks.csv"
    table.write_text("session,query,document,rank,clicked\ns1,wolf,a,1,1\n", "utf-8")
    with pytest.raises(InputError, match=r"damaged lines of the log: 2, first .*clicks.csv:1"):
        judge_interleaving([table])
    with pytest.raises(InputError, match=r"log.ndjson: no event; give records of ubi_events"):
        judge_interleaving([log], [log])


def test_the_command_prints_the_result(run, log, tmp_path):
    events = write(tmp_path / "events.ndjson", CLICKS)
    done = run("judge", "interleaving", log, "--ubi", events).ok()
    assert "B wins 66.7%" in done.out
    report = run("judge", "interleaving", log, "--ubi", events, "--json").json
    assert (report["wins"], report["losses"], report["ties"], report["p"]) == (2, 1, 2, 1.0)
    run("judge", "interleaving", log).fails(2, "--ubi")
    run("judge", "interleaving", log, "--ubi", tmp_path / "missing").fails(1, "missing", "no such file")
