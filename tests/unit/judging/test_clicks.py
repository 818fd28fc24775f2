"""Judgments from clicks: formulas by hand and by plain loops, and everything that is dropped."""

from __future__ import annotations

import json
import random
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank import Document, Workspace
from rerank.common.errors import InputError
from rerank.formats.click_log import Event
from rerank.judging.clicks import is_for_tuning, judge_clicks
from rerank.judging.grades import count_clicks, training_grades, tuning_grades
from rerank.judging.log import ClickOptions
from rerank.judging.page_views import Shown
from rerank.judging.srw import SrwCounts
from tests.support.click_logs import FOUR_PAGES, dropped, event, grades_by_loops, judgments, page, write

UBI = Path(__file__).parents[4] / "shared" / "data" / "ubi" / "ubi_queries_events.ndjson.gz"


def texts(*, tuning: bool):
    """Yield texts whose judgments are in dev.tsv, or in train.tsv."""
    return (text for text in map("query {}".format, count()) if is_for_tuning(text) == tuning)


def test_four_page_views_by_hand(tmp_path):
    """The ratios for training are 1.0952, 1.0952, 0.7143 and 1.0952, all below 1.25."""
    names = {}
    for tuning, grade in ((True, 1), (False, 0)):
        generator = texts(tuning=tuning)
        names = {"a": next(generator), "b": next(generator)}
        log = [{**record, "user_query": names[record["user_query"]]} for record in FOUR_PAGES]
        report = judge_clicks([write(tmp_path / "log.ndjson", log)], tmp_path / "out")
        assert report.click_rates == [0.5, 0.25]
        part = judgments(tmp_path / "out")["dev" if tuning else "train"]
        assert part == {names["a"]: {"d1": 0, "d2": grade}, names["b"]: {"d3": 0, "d4": 0}}
        assert (report.page_views, report.impressions, report.clicks) == (4, 8, 3)
        assert report.several_ranks == 2  # d3 and d4


@pytest.mark.parametrize(
    ("max_rank", "ratings"),
    [(3, ["1.000", "2.000", "0.000", "1.000"]), (2, ["1.000", "0.000", "0.000", "1.000"])],
)
def test_ratings_of_search_relevance_workbench_by_hand(max_rank, ratings, tmp_path):
    """SRW has no click rate for the maximum rank."""
    log = write(tmp_path / "log.ndjson", FOUR_PAGES)
    options = ClickOptions(srw=str(tmp_path / "srw.json"), max_rank=max_rank)
    judge_clicks([log], tmp_path / "out", options)
    written = json.loads((tmp_path / "srw.json").read_text("utf-8"))
    assert written["type"] == "IMPORT_JUDGMENT"
    rows = [row for query in written["judgmentRatings"] for row in query["ratings"]]
    assert [query["query"] for query in written["judgmentRatings"]] == ["a", "b"]
    assert [(row["docId"], row["rating"]) for row in rows] == list(zip(["d1", "d2", "d3", "d4"], ratings))


def test_a_log_without_selected_events_says_what_it_has(tmp_path):
    day = "2026-01-{:02}T10:30:00Z"
    records = [{**event("click", "1", "d1", 1), "timestamp": day.format(number)} for number in (2, 9)]
    records.append({**event("click", "2", "d1", 1), "timestamp": 9 * 10**14})
    log = write(tmp_path / "log.ndjson", [{**record, "application": "shop"} for record in records])
    with pytest.raises(InputError, match="none of 3 events is of the application 'b'; the log has shop"):
        judge_clicks([log], tmp_path / "out", ClickOptions(application="b"))
    with pytest.raises(InputError, match=r"from 2026-01-02T10:30 to 9999-12-31T23:59 \(UTC\)"):
        judge_clicks([log], tmp_path / "out", ClickOptions(end=1000))


def test_a_log_of_impressions_only_is_refused(tmp_path):
    log = write(tmp_path / "log.ndjson", page("1", "a", ["d1", "d2"]))
    with pytest.raises(InputError, match=r"none of 2 events is a click .* only impressions were found"):
        judge_clicks([log], tmp_path / "out")


def test_numbers_of_clicks_are_refused(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("session,query,document,rank,clicks\ns1,wolf,d1,1,7\n", "utf-8")
    with pytest.raises(InputError, match=r"log.csv:2: .*'7'.* one line per shown document, not a number"):
        judge_clicks([log], tmp_path / "out")


def test_srw_rounds_half_up_and_rates_other_actions():
    """Sixteen impressions and one click at a rank with click rate 1: 0.0625 is 0.063 in Java."""
    counts = SrwCounts(20)
    for number in range(16):
        counts.add(Event("", "impression", str(number), "x", {"object_id": "rare"}, 1))
    for number in range(15):
        counts.add(
            Event("", "click", str(number), None, {"object_id": "rare"}, 1)
        )  # no text: only in the rate
    counts.add(Event("", "click", "0", "x", {"object_id": "rare"}, 1))
    counts.add(Event("", "hover", "0", "x", {"object_id": "seen"}, 1))
    assert counts.ratings() == {"x": {"rare": "0.063", "seen": "0.000"}}


def shown(rows):
    """Page views of one document: (text, document, rank, clicked)."""
    text, document, rank, clicked = (np.array(column) for column in zip(*rows))
    numbers = np.arange(len(text))
    return Shown(numbers, np.zeros(len(text), np.int64), text, document, rank, clicked.astype(bool))


def test_grades_for_training_by_hand():
    """mu = .2: 20 impressions with 12, 10, 9 and 0 clicks have ratios 2.6, 2.2, 2.0 and .2."""
    rows = []
    for document, clicks in enumerate([12, 10, 9, 0]):
        rows += [(0, document, 1, number < clicks) for number in range(20)]
    rows += [(1, 4, 1, number < 9) for number in range(120)]  # 40 clicks of 200 impressions
    counts = count_clicks(shown(rows))
    assert counts.clicks.sum() / counts.impressions.sum() == 0.2
    assert training_grades(counts).tolist() == [2, 2, 0, 0, 0]


documents = st.sampled_from("abcde")
hits = st.lists(documents, min_size=1, max_size=5, unique=True)
page_views = st.lists(
    st.tuples(st.sampled_from(["x", "y", "z", "query 9"]), hits, st.sets(documents)), min_size=1
)


def as_log(pages):
    """Return the events of pages, and the pages for the loops. Pages of bots are not used."""
    events, used = [], []
    for number, (text, names, clicked) in enumerate(pages):
        chosen = [name for name in names if name in clicked]
        events += page(str(number), text, names, chosen)
        if len(chosen) < 3 or 2 * len(chosen) <= len(names):
            used.append((text, {name: rank for rank, name in enumerate(names, 1)}, set(chosen)))
    return events, used


@given(pages=page_views, seed=st.integers(0, 1000))
def test_grades_equal_plain_loops_in_every_order(pages, seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    events, used = as_log(pages)
    if not any(clicked for _, _, clicked in used):
        with pytest.raises(InputError):
            judge_clicks([write(folder / "log.ndjson", events)], folder / "out")
        return
    report = judge_clicks([write(folder / "log.ndjson", events)], folder / "out")
    train, dev = grades_by_loops(used)
    files = judgments(folder / "out")
    assert files["train"] == {text: row for text, row in train.items() if not is_for_tuning(text)}
    assert files["dev"] == {text: row for text, row in dev.items() if is_for_tuning(text)}

    random.Random(seed).shuffle(events)
    half = len(events) // 2
    parts = [
        write(folder / "1.ndjson", events[half:]),
        write(folder / "2.ndjson", events[:half] or events[:1]),
    ]
    again = judge_clicks(parts, folder / "again")
    for name in ("queries.jsonl", "train.tsv", "dev.tsv"):
        assert (folder / "again" / name).read_bytes() == (folder / "out" / name).read_bytes()
    if half:
        assert dropped(again) == dropped(report)
        assert again.applications == report.applications


def test_the_training_formula_ignores_ranks_and_the_tuning_formula_does_not():
    """Two documents with equal clicks; one is always last, where clicks are rare."""
    rows = [(0, 0, 1, number < 10) for number in range(20)]
    rows += [(0, 1, 2, number < 10) for number in range(20)]
    rows += [(1, 2, 2, False) for number in range(60)]
    counts = count_clicks(shown(rows))
    train = training_grades(counts)
    assert train[0] == train[1] > 0
    dev = tuning_grades(counts)
    assert dev[0] == 0 < dev[1]  # 11/11 and 11/3.5


def test_old_positions_repeated_events_and_other_cases_are_one_page_view(tmp_path):
    """UBI before 1.3 writes positions as objects."""
    log = [
        event("impression", "1", "d1", {"index": 1}, user_query="Grey  Wolf"),
        event("VIEW", "1", "d1", 2, user_query="grey wolf"),
        event("impression", "1", 7, 3, user_query="grey wolf "),
        event("click", "1", "d1", {"index": 2}, user_query="GREY wolf"),
        event("click_through", "1", "d1", user_query="grey wolf"),
    ]
    report = judge_clicks([write(tmp_path / "log.ndjson", log)], tmp_path / "out")
    assert (report.page_views, report.impressions, report.clicks) == (1, 2, 1)
    assert report.click_rates == [1.0, 0.0, 0.0]  # at the lowest rank of the impressions
    assert dropped(report) == {"repeated impressions in a page view": 1, "repeated clicks in a page view": 1}
    files = judgments(tmp_path / "out")
    (row,) = (files["train"] | files["dev"]).values()
    assert row.keys() == {"d1", "7"}


def test_everything_that_is_dropped_is_counted(tmp_path):
    now = round(time.time() * 1000)
    good = page("1", "wolf", ["d1", "d2", "d3"], ["d2"])
    searches = [
        {"query_id": "5", "user_query": "one"},
        {"query_id": "5", "user_query": "two"},
        {"query_id": "6", "user_query": " Owl "},
        {"query_id": "6", "user_query": "owl"},
        {"query_id": "6", "user_query": ""},
    ]
    bad = {
        "other actions": event("hover", "1", "d1", 1),
        "events without a query id": event("click", "", "d1", 1),
        "events without a document": event("click", "1", None, 1),
        "events in the future": event("click", "1", "d1", 1, timestamp=now + 3 * 86_400_000),
        "records that are not of UBI": {"something": "else"},
        "events without a text, and with an unknown query id": event("click", "unknown", "d1", 1),
        "events without a text, and with a query id of several texts": event("click", "5", "d1", 1),
        "impressions without a rank": event("impression", "1", "d5", user_query="wolf"),
        "impressions below the first or above the maximum rank": event(
            "impression", "1", "d6", 21, user_query="wolf"
        ),
        "clicks without an impression and without a rank": event("click", "1", "d7", user_query="wolf"),
        "clicks without an impression, used with the rank of the click": event("click", "6", "d8", 2),
        "clicks of applications without impressions": event(
            "click", "9", "d9", 1, user_query="x", application="z"
        ),
    }
    log = write(tmp_path / "log.ndjson", [*good, *searches, *bad.values()])
    report = judge_clicks([log], tmp_path / "out")
    assert dropped(report) == dict.fromkeys(bad, 1)
    assert all(part.example for part in report.dropped)
    lines = log.read_text("utf-8").splitlines()
    for part in report.dropped:
        if part.example.startswith(str(log)):
            number = int(part.example.removeprefix(f"{log}:").split(":")[0])
            assert json.loads(lines[number - 1]) == bad[part.reason]
    assert (report.impressions, report.clicks) == (4, 2)
    assert (tmp_path / "out" / "report.json").exists()


def test_page_views_of_bots_are_not_used(tmp_path):
    people = page("1", "wolf", ["d1", "d2", "d3"], ["d2"])
    robot = [{**record, "client_id": "GoogleBot"} for record in page("2", "wolf", ["d1"], ["d1"])]
    eager = page("3", "wolf", ["d1", "d2", "d3", "d4", "d5"], ["d1", "d2", "d3"])
    busy = []
    for number in range(201):
        for record in page(f"busy {number}", "wolf", ["d1"], ["d1"]):
            busy.append({**record, "client_id": "c", "timestamp": f"2026-01-01T{number % 24:02}:00:00Z"})
    report = judge_clicks(
        [write(tmp_path / "log.ndjson", [*people, *robot, *eager, *busy])], tmp_path / "out"
    )
    assert (report.page_views, report.clicks) == (1, 1)
    assert sorted(part.count for part in report.dropped) == [1, 1, 201]
    assert any("bots" in warning for warning in report.warnings)


def test_ranks_from_zero_are_found_by_application(tmp_path):
    """A stray rank 0 does not make ranks from 1 start from 0."""
    log = [{**record, "application": "zero"} for record in page("1", "x", ["a", "b"], ["b"], first=0)]
    for number in range(11):
        log += [{**record, "application": "one"} for record in page(f"one {number}", "x", ["a", "b"])]
    log.append(event("impression", "stray", "a", 0, user_query="x", application="one"))
    log.append(event("page_exit", "none", "a", 7, application="none"))
    report = judge_clicks([write(tmp_path / "log.ndjson", log)], tmp_path / "out")
    assert {part.name: part.first_rank for part in report.applications} == {"zero": 0, "one": 1, "none": None}
    assert report.applications[2].click_rates == [0.0, 1.0]
    selected = judge_clicks([tmp_path / "log.ndjson"], tmp_path / "out", ClickOptions(application="zero"))
    assert (selected.page_views, selected.impressions) == (1, 2)


def test_the_first_rank_can_be_named(tmp_path):
    log = write(tmp_path / "log.ndjson", page("1", "x", ["a", "b"], ["b"], first=2))
    with pytest.raises(InputError, match=r"lowest rank of an impression is 2.*--first-rank"):
        judge_clicks([log], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = judge_clicks([log], tmp_path / "out", ClickOptions(first_rank=1))
    assert report.click_rates == [0.0, 0.0, 1.0]


def test_dates_select_events(tmp_path):
    log = []
    for day in (1, 2, 3):
        for record in page(str(day), "x", ["a", "b"], ["b"]):
            log.append({**record, "timestamp": f"2026-01-0{day}T10:00:00+0000"})
    options = ClickOptions(start=1_767_312_000_000, end=1_767_398_400_000)  # 2026-01-02 and 2026-01-03, 0:00
    report = judge_clicks([write(tmp_path / "log.ndjson", log)], tmp_path / "out", options)
    assert (report.events, report.page_views) == (9, 1)


@pytest.fixture
def collection(tmp_path):
    workspace = Workspace.create(tmp_path / "workspace", lang="en")
    workspace.engine.write([Document(f"d{number}", text="a text") for number in range(1, 13)])
    return workspace


def test_documents_that_the_workspace_does_not_have_are_not_judged(collection, tmp_path):
    log = write(tmp_path / "log.ndjson", page("1", "x", ["d1", "d2", "gone"], ["d2"]))
    report = judge_clicks([log], tmp_path / "out", None, collection)
    (part,) = report.dropped
    assert (part.count, part.example) == (1, "gone")
    assert report.impressions == 2


def test_the_field_of_the_ids_is_the_one_that_the_workspace_has(collection, tmp_path):
    log = page("1", "x", ["one", "two", "three"], ["two"])
    for record in log:
        fields = record["event_attributes"]["object"]
        fields["internal_id"] = {"one": "d1", "two": "d2", "three": "d3"}[fields["object_id"]]
        fields["code"] = fields["internal_id"]
    path = write(tmp_path / "log.ndjson", log)
    for options in (None, ClickOptions(id_field="code")):
        assert judge_clicks([path], tmp_path / "out", options, collection).impressions == 3
    with pytest.raises(InputError, match=r"3 of 3 documents .* 'one' \(field object_id of the log"):
        judge_clicks([path], tmp_path / "out", ClickOptions(id_field="object_id"), collection)


def hits_log(names, clicked):
    """A log without impressions: the hits of a query, and clicks without a position."""
    search = {"query_id": "1", "user_query": "x", "query_response_hit_ids": names}
    return [search, *(event("click", "1", name) for name in clicked)]


def test_hits_replace_missing_impressions_down_to_the_lowest_click(collection, tmp_path):
    names = [f"d{number}" for number in range(1, 13)]
    report = judge_clicks(
        [write(tmp_path / "log", hits_log(names, ["d11"]))], tmp_path / "out", None, collection
    )
    assert (report.source, report.impressions) == ("hits", 11)
    report = judge_clicks(
        [write(tmp_path / "log", hits_log(names, ["d2"]))], tmp_path / "out", None, collection
    )
    assert (report.source, report.impressions, report.click_rates[:3]) == ("hits", 10, [0.0, 1.0, 0.0])


def test_lucene_numbers_are_not_hits(collection, tmp_path):
    log = hits_log(["17", "3", "5"], ["d2"])
    for number in range(2, 7):
        log.append(event("click", str(number), "d3" if number < 5 else "d2", user_query="x"))
    report = judge_clicks([write(tmp_path / "log", log)], tmp_path / "out", None, collection)
    assert (report.source, report.dev) == ("clicks", None)
    assert "Lucene" in report.warnings[0]
    assert not (tmp_path / "out" / "dev.tsv").exists()
    assert judgments(tmp_path / "out")["train"] == {"x": {"d2": 1, "d3": 1}}
    log += [event("click", str(number), "d2", user_query="x") for number in range(7, 9)]
    judge_clicks([write(tmp_path / "log", log)], tmp_path / "out", None, collection)
    assert judgments(tmp_path / "out")["train"] == {"x": {"d2": 2, "d3": 1}}
