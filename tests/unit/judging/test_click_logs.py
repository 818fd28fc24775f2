"""The files of click logs: their forms, invalid ones, a real export, and dates."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.common.errors import InputError, UsageError
from rerank.formats.click_log import Event, Malformed, Search, milliseconds_of_date, read_click_log
from rerank.judging.clicks import judge_clicks
from rerank.judging.log import ClickOptions
from tests.support.click_logs import FOUR_PAGES, event, judgments, write
from tests.support.opensearch import unavailable

UBI = Path(__file__).parents[4] / "shared" / "data" / "ubi" / "ubi_queries_events.ndjson.gz"

FORMS = ["lines", "bulk", "array", "response", "pretty response", "hits", "gzip"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_ubi_export_gives_the_same_files(form, tmp_path):
    searches = [{"query_id": str(number), "user_query": "a", "application": "shop"} for number in (1, 2)]
    events = [{**record, "application": "shop"} for record in FOUR_PAGES]
    for record in events[:6]:
        del record["user_query"]  # from ubi_queries
    records = [("ubi_queries", record) for record in searches] + [("ubi_events", record) for record in events]
    found = [{"_index": index, "_id": str(number), "_source": r} for number, (index, r) in enumerate(records)]
    content = {
        "lines": [record for _, record in records],
        "bulk": [part for index, record in records for part in ({"index": {"_index": index}}, record)],
        "array": [[record for _, record in records]],
        "response": [{"took": 3, "hits": {"total": 1, "hits": found}}],
        "hits": found,
    }
    if form == "pretty response":
        text = json.dumps(content["response"][0], indent=2)
    else:
        text = "\n".join(map(json.dumps, content.get(form, content["lines"])))
    data = gzip.compress(text.encode()) if form == "gzip" else text.encode()
    (tmp_path / "log").write_bytes(data)
    judge_clicks([tmp_path / "log"], tmp_path / "out")
    judge_clicks([write(tmp_path / "reference", FOUR_PAGES)], tmp_path / "reference-out")
    for name in ("queries.jsonl", "train.tsv", "dev.tsv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "reference-out" / name).read_bytes()


def test_a_table_of_impressions_gives_the_same_files(tmp_path):
    rows = [
        ("1", "a", "d1 d2", "d1"),
        ("2", "a", "d1 d2", "d2"),
        ("3", "b", "d3 d4", ""),
        ("4", "b", "d4 d3", "d4"),
    ]
    lines = ["rank;session;query;document;clicked"]
    for session, query, names, clicked in rows:
        for rank, name in enumerate(names.split(), 1):
            lines.append(f"{rank};{session};{query};{name};{'yes' if name == clicked else 'no'}")
    (tmp_path / "log.csv").write_text("\n".join(lines))
    judge_clicks([tmp_path / "log.csv"], tmp_path / "out")
    judge_clicks([write(tmp_path / "log.ndjson", FOUR_PAGES)], tmp_path / "reference")
    for name in ("queries.jsonl", "train.tsv", "dev.tsv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "reference" / name).read_bytes()


def test_a_table_of_clicks_counts_them(tmp_path):
    """One click is too few for a grade; five are grade 2."""
    rows = ["query,document", *["Wolf,d1"] * 5, *["wolf,d2"] * 2, "wolf,d3"]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    report = judge_clicks([tmp_path / "log.csv"], tmp_path / "out")
    assert (report.source, report.clicks, report.dev) == ("clicks", 8, None)
    assert judgments(tmp_path / "out")["train"] == {"wolf": {"d1": 2, "d2": 1}}


BAD_LOGS = {
    "empty": ("", "empty"),
    "no events": ('{"query_id": "1", "user_query": "x"}', "no events"),
    "no clicks": (json.dumps(event("search", "1", "d", 1)), "other actions"),
    "a table in JSON": (json.dumps(FOUR_PAGES[0]) + "\ns1,x,d1,1,1\n", r"log:2: .*separate files"),
    "JSON in a table": (
        "session,query,document,rank,clicked\n" + json.dumps(FOUR_PAGES[0]),
        r"log:2: .*separate",
    ),
    "other columns": ("query,document,clicked\nx,d1,1\n", "no column session, rank"),
    "not a yes or no": ("session,query,document,rank,clicked\ns,x,d,1,maybe\n", "log:2: clicked is 'maybe'"),
    "not a rank": ("session,query,document,rank,clicked\ns,x,d,first,1\n", "log:2: rank is 'first'"),
    "no number of JSON": (
        '{"action_name": "click", "timestamp": NaN}',
        r"log:1: .*NaN is not a number of JSON",
    ),
    "the future": (
        json.dumps(event("click", "1", "d", 1, user_query="x", timestamp=10**14)),
        "in the future",
    ),
}


@pytest.mark.parametrize("name", BAD_LOGS)
def test_bad_logs_are_reported_in_one_line(name, tmp_path):
    content, problem = BAD_LOGS[name]
    (tmp_path / "log").write_text(content)
    with pytest.raises(InputError, match=problem) as error:
        judge_clicks([tmp_path / "log"], tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_not_utf8_names_its_line(tmp_path):
    (tmp_path / "log").write_bytes(b'{"query_id": "1"}\n{"action_name": "click", "query_id": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"log:2: .*UTF-8"):
        judge_clicks([tmp_path / "log"], tmp_path / "out")


def test_numbers_that_are_too_large_are_missing(tmp_path):
    line = {
        "action_name": "click",
        "timestamp": "9" * 5000,
        "event_attributes": {"position": {"ordinal": {"index": 10**400}}},
    }
    (click,) = read_click_log(write(tmp_path / "log", [line]))
    assert (click.time, click.ordinal) == (None, None)


def test_a_truncated_file_writes_nothing(tmp_path):
    whole = gzip.compress("\n".join(map(json.dumps, FOUR_PAGES * 200)).encode())
    (tmp_path / "log.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="truncated"):
        judge_clicks([tmp_path / "log.gz"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_of_others_are_not_replaced(tmp_path):
    log = write(tmp_path / "log.ndjson", FOUR_PAGES)
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "by hand"}\n')
    with pytest.raises(UsageError, match=r"queries\.jsonl would be replaced"):
        judge_clicks([log], tmp_path)
    assert "by hand" in (tmp_path / "queries.jsonl").read_text()


def test_records_keep_the_fields_of_the_log(tmp_path):
    lines = [
        {
            "query_id": 7,
            "user_query": "x",
            "client_id": "c",
            "timestamp": 1717527762025,
            "query_response_hit_ids": [3],
        },
        {
            "action_name": "click",
            "query_id": None,
            "event_attributes": None,
            "timestamp": "2024-06-04T19:02:42.025Z",
        },
        {"action_name": "click", "event_attributes": "broken"},
    ]
    search, click, broken = read_click_log(write(tmp_path / "log", lines))
    assert isinstance(search, Search)
    assert (search.query_id, search.hits) == ("7", ["3"])
    assert isinstance(click, Event)
    assert click.time == search.time == 1717527762025
    assert isinstance(broken, Malformed)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.sampled_from(["click", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["object", "object_id", "position", "ordinal", "index"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
fields = [
    "action_name",
    "query_id",
    "user_query",
    "event_attributes",
    "timestamp",
    "client_id",
    "application",
]


@given(records=st.lists(st.dictionaries(st.sampled_from(fields), values), max_size=4))
def test_records_of_any_types_are_counted_or_refused(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    log = write(folder / "log.ndjson", [*FOUR_PAGES, *records])
    report = judge_clicks([log], folder / "out")
    assert report.clicks >= 3


def test_a_real_export_of_three_applications(tmp_path):
    """The counts are those of plain loops over the file."""
    if not UBI.exists():
        unavailable("../shared/data/ubi is missing")
    lines = gzip.decompress(UBI.read_bytes()).splitlines()
    records = [json.loads(line) for line in lines[1::2]]
    events = [record for record in records if "action_name" in record]
    texts: dict[str, set[str]] = {}
    for record in records:
        if "action_name" not in record and record["user_query"].split():
            texts.setdefault(record["query_id"], set()).add(" ".join(record["user_query"].lower().split()))
    views: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for record in events:
        text = " ".join(record.get("user_query", "").lower().split())
        own = texts.get(record["query_id"], set())
        text = text or (min(own) if len(own) == 1 else "")
        if record["action_name"] in ("click", "impression") and text:
            document = record["event_attributes"]["object"]["object_id"]
            views.setdefault((record["query_id"], text), Counter())[document, record["action_name"]] += 1
    clicked = shown_documents = 0
    for seen in views.values():
        names = {document for document, _ in seen}
        chosen = {document for document, action in seen if action == "click"}
        if len(chosen) < 3 or 2 * len(chosen) <= len(names):
            clicked += len(chosen)
            shown_documents += len(names)

    report = judge_clicks([UBI], tmp_path / "out", ClickOptions(srw=str(tmp_path / "srw.json")))
    assert (report.events, report.searches) == (3448, 473)
    assert {part.name: part.first_rank for part in report.applications} == {
        "Chorus": 1,
        "esci_ubi_sample": 0,
        "ubi-demo": None,
    }
    assert (report.impressions, report.clicks) == (shown_documents, clicked)
    # ranks from 1: the maximum rank always has rating 0
    ratings = json.loads((tmp_path / "srw.json").read_text("utf-8"))["judgmentRatings"]
    assert sum(len(query["ratings"]) for query in ratings) > 1000


@pytest.mark.parametrize(
    "text", ["2026-01-31", "20260131", " 2026-01-31 ", "2026-01-31T00:00:00Z", "2026-01-31T01:00+01:00"]
)
def test_a_date_of_the_user_is_the_start_of_this_day(text):
    assert milliseconds_of_date(text) == 1769817600000


@pytest.mark.parametrize("text", ["", "2026", "202601", "1769817600", "1769817600000", "20261331"])
def test_a_number_of_another_form_is_not_a_date(text):
    assert milliseconds_of_date(text) is None


def test_a_period_without_a_moment_is_refused():
    with pytest.raises(UsageError, match="--to is not after --from"):
        ClickOptions(start=5, end=5)
    assert ClickOptions(start=5, end=6).end == 6
