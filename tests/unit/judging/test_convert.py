"""Judgments of Search Relevance Workbench (SRW) and Quepid, read and written."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank import Qrels, Query
from rerank.common.errors import InputError, UsageError
from rerank.documents.text import query_key
from rerank.formats import read_qrels, read_queries, write_qrels
from rerank.formats.inputs import as_qrels
from rerank.judging.convert import convert_judgments
from tests.support.cli import write_json_lines

QUERIES = [Query("q1", "Grey wolf"), Query("q2", 'say "owl", twice')]
GRADES = {"q1": {"a": 3, "b,c": 0}, "q2": {"d": 1}}
IMPORT = {
    "name": "ESCI",
    "description": "made elsewhere",
    "type": "IMPORT_JUDGMENT",
    "judgmentRatings": [
        {
            "query": "grey  WOLF",
            "ratings": [{"docId": "a", "rating": "3.000"}, {"docId": "b,c", "rating": 0}],
        },
        {
            "query": 'say "owl", twice',
            "ratings": [{"docId": "d", "rating": 1.0}, {"docId": "e", "rating": None}],
        },
        {"query": "unrated"},
    ],
}


def write(path: Path, body: Any, indent: int | None = None) -> Path:
    path.write_text(json.dumps(body, indent=indent), "utf-8")
    return path


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "body",
    [
        IMPORT,
        {"_index": "judgment", "_source": {"id": "1", **IMPORT, "status": "COMPLETED"}},
        {"took": 3, "hits": {"total": {"value": 1}, "hits": [{"_id": "1", "_source": IMPORT}]}},
    ],
    ids=["import", "hit", "answer"],
)
def test_judgments_of_srw_are_read_by_the_texts_of_queries(tmp_path, body, indent):
    qrels = read_qrels(write(tmp_path / "judgments.json", body, indent))
    assert qrels == {"grey  WOLF": GRADES["q1"], 'say "owl", twice': GRADES["q2"]}
    assert as_qrels(tmp_path / "judgments.json", QUERIES) == GRADES


def test_judgments_of_quepid_are_read_by_the_texts_of_queries(tmp_path):
    path = tmp_path / "quepid.csv"
    path.write_text(
        'query,docid,rating\ngrey wolf,a,3\nGrey wolf,"b,c",0\n"say ""owl"", twice",d,1\n', "utf-8"
    )
    assert as_qrels(path, QUERIES) == GRADES


def test_ids_come_before_texts_and_equal_texts_share_judgments():
    queries = [Query("wolf", "owl"), Query("q2", "wolf"), Query("q3", "OWL")]
    assert as_qrels({"wolf": {"a": 1}}, queries) == {"wolf": {"a": 1}}
    assert as_qrels({"owl": {"a": 1}, "other": {"b": 1}}, queries) == {
        "wolf": {"a": 1},
        "q3": {"a": 1},
        "other": {"b": 1},
    }


def test_two_grades_for_one_text_are_refused():
    with pytest.raises(UsageError, match="two grades"):
        as_qrels({"Owl": {"a": 1}, "owl": {"a": 2}}, [Query("q", "owl")])


@pytest.mark.parametrize("rating", ["1.538", 0.5])
def test_fractions_name_the_command_that_makes_grades(tmp_path, rating):
    body = {"judgmentRatings": [{"query": "wolf", "ratings": [{"docId": "a", "rating": rating}]}]}
    with pytest.raises(InputError, match=r"query 'wolf': grade '.*' is not an integer.*rerank judge clicks"):
        read_qrels(write(tmp_path / "srw.json", body))
    (tmp_path / "quepid.csv").write_text(f"query,docid,rating\nwolf,a,{rating}\n")
    with pytest.raises(InputError, match=r"quepid.csv:2: .*rerank judge clicks"):
        read_qrels(tmp_path / "quepid.csv")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"judgmentRatings": [', "truncated|not judgments or queries"),
        ('{"judgmentRatings": {"query": 3}}', "Expected array"),
        ('{"judgmentRatings": [{"query": "a", "ratings": [{"rating": 1}]}]}', "docId"),
        ('{"querySetQueries": []}', "judgmentRatings"),
        ('{"judgmentRatings": []}', "no judgments"),
        ('{"_id": "q1", "text": "wolf"}', "looks like"),
    ],
)
def test_other_content_is_refused_in_one_line(tmp_path, text, problem):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=problem) as raised:
        read_qrels(tmp_path / "x.json")
    assert "\n" not in str(raised.value)
    assert str(tmp_path / "x.json") in str(raised.value)


@pytest.mark.parametrize(
    "entries", [[{"queryText": "Grey wolf"}, {"queryText": "owl"}], ["Grey wolf", "owl"]]
)
def test_a_query_set_has_the_ids_of_its_texts(tmp_path, monkeypatch, entries):
    body = {"name": "Queries", "sampling": "manual", "querySetQueries": entries}
    queries = read_queries(write(tmp_path / "set.json", body, indent=2))
    assert [query.text for query in queries] == ["Grey wolf", "owl"]
    again = read_queries(write(tmp_path / "again.json", {"querySetQueries": ["OWL", "grey  wolf"]}))
    assert {query.id for query in again} == {query.id for query in queries}
    monkeypatch.setattr("rerank.formats.query_ids.text_digest", lambda text: "0" * 10 + text)
    alike = read_queries(tmp_path / "again.json")
    assert [query.text for query in alike] == ["OWL", "grey  wolf"]
    assert len({query.id for query in alike}) == 2


def test_queries_with_a_field_of_such_a_name_are_still_json_lines(tmp_path):
    lines = [{"_id": "q1", "text": "wolf", "hits": 3}, {"_id": "q2", "text": "owl", "hits": 0}]
    queries = read_queries(write_json_lines(tmp_path / "queries.jsonl", lines))
    assert [query.params for query in queries] == [{"hits": 3}, {"hits": 0}]


def converted(folder: Path, source: Path, to: str, **more: Any) -> Path:
    convert_judgments(source, folder / f"out.{to}", queries=QUERIES, to=to, **more)
    return folder / f"out.{to}"


@pytest.mark.parametrize("to", ["srw", "quepid", "trec"])
def test_a_round_trip_keeps_all_grades(tmp_path, to):
    path = converted(tmp_path, write(tmp_path / "in.json", IMPORT), to)
    assert as_qrels(path, QUERIES) == GRADES


def test_the_forms_of_other_tools(tmp_path):
    source = write(tmp_path / "in.json", IMPORT)
    body = json.loads(converted(tmp_path, source, "srw").read_text())
    assert body["type"] == "IMPORT_JUDGMENT"
    assert body["judgmentRatings"][0] == {
        "query": "Grey wolf",
        "ratings": [{"docId": "a", "rating": "3.000"}, {"docId": "b,c", "rating": "0.000"}],
    }
    queries = json.loads(converted(tmp_path, source, "queryset").read_text())
    assert queries["querySetQueries"] == [{"queryText": query.text} for query in QUERIES]
    rows = list(csv.reader(converted(tmp_path, source, "quepid").read_text().splitlines()))
    assert rows == [
        ["query", "docid", "rating"],
        ["Grey wolf", "a", "3"],
        ["Grey wolf", "b,c", "0"],
        ['say "owl", twice', "d", "1"],
    ]
    requests = json.loads(converted(tmp_path, source, "rank-eval", index="shop").read_text())["requests"]
    assert requests[0]["ratings"][0] == {"_index": "shop", "_id": "a", "rating": 3}


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda text: text.strip())


@given(
    grades=st.dictionaries(
        st.integers(0, 5), st.dictionaries(texts.map(str.strip), st.integers(0, 3), min_size=1), min_size=1
    ),
    words=st.lists(texts, min_size=6, max_size=6, unique_by=lambda text: " ".join(text.lower().split())),
    to=st.sampled_from(["srw", "quepid"]),
)
def test_any_text_survives_a_round_trip(tmp_path_factory, grades, words, to):
    if len({query_key(word) for word in words}) < len(words):
        return
    folder = tmp_path_factory.mktemp("round")
    queries = [Query(f"q{i}", word) for i, word in enumerate(words)]
    qrels = Qrels({f"q{number}": row for number, row in grades.items()})
    source = folder / "qrels.tsv"
    write_qrels(source, qrels)
    convert_judgments(source, folder / "out", queries=queries, to=to)
    assert as_qrels(folder / "out", queries) == as_qrels(source, queries)


def test_the_median_of_several_judges_counts(tmp_path, run):
    lines = [
        {"query_id": "q1", "id": "a", "grade": grade, "by": by, "note": "", "at": "2026-01-31T09:30:00Z"}
        for by, grade in (("ann", 3), ("ben", 0), ("cat", 1), ("ben", 2))  # ben has changed the grade
    ]
    source = write_json_lines(tmp_path / "pool.judged.jsonl", lines)
    queries = write_json_lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "Grey wolf"}])
    done = run("judge", "convert", source, tmp_path / "out", "--queries", queries, "--to", "trec").ok()
    assert (tmp_path / "out").read_text() == "q1 0 a 2\n"
    assert "different grades" in done.err
    report = run(
        "judge", "convert", source, tmp_path / "out", "--queries", queries, "--to", "trec", "--json"
    ).json
    assert (report["queries"], report["judgments"]) == (1, 1)


def test_bad_input_gets_one_line(tmp_path, run):
    source = write(tmp_path / "in.json", IMPORT)
    queries = write_json_lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "Grey wolf"}])
    out = tmp_path / "out"

    def convert(*options: object):
        return run("judge", "convert", source, out, "--queries", queries, *options)

    convert("--to", "srw").fails(1, "1 judged query", 'say "owl", twice', "--queries")
    assert not out.exists()
    convert("--to", "rank-eval").fails(2, "--index")
    write_json_lines(Path(queries), [{"_id": query.id, "text": query.text} for query in QUERIES])
    out.write_text("important\n")
    convert("--to", "srw").fails(2, "exists and has other content")
    convert("--to", "trec").fails(2, "exists and has other content")
    out.write_text("tea 0 EUR\n")
    convert("--to", "trec").fails(2, "exists and has other content")
    assert out.read_text() == "tea 0 EUR\n"
    run("judge", "convert", tmp_path / "no", out, "--queries", queries, "--to", "srw").fails(
        1, "no such file"
    )


def test_notes_say_what_other_tools_do_with_large_grades(tmp_path, run):
    body = {"judgmentRatings": [{"query": "Grey wolf", "ratings": [{"docId": "a", "rating": "100.000"}]}]}
    source = tmp_path / "in.json.gz"
    source.write_bytes(gzip.compress(json.dumps(body).encode()))
    queries = write(tmp_path / "set.json", {"querySetQueries": ["grey wolf"]})
    done = run("judge", "convert", source, tmp_path / "out", "--queries", queries, "--to", "srw").ok()
    assert "2^rating - 1" in done.err
    assert "100.000" in (tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("to", "judgment"),
    [
        ("srw", '"rating": "0.000"'),
        ("quepid", "Grey wolf,d7,0\n"),
        ("rank-eval", '"rating": 0\n'),
        ("trec", "q1 0 d7 -2\n"),
    ],
)
def test_only_trec_has_negative_grades(tmp_path, to, judgment):
    source = tmp_path / "in.tsv"
    source.write_text("query-id\tcorpus-id\tscore\nq1\td7\t-2\n")
    report = convert_judgments(source, tmp_path / "out", queries=QUERIES, to=to, index="shop")
    assert judgment in (tmp_path / "out").read_text()
    assert ("negative" in "".join(report.warnings)) == (to != "trec")


def test_an_id_with_a_space_cannot_be_written_as_trec(tmp_path):
    path = tmp_path / "qrels.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq1\ta b\t1\n")
    with pytest.raises(UsageError, match="'a b' has a space"):
        convert_judgments(path, tmp_path / "out", queries=QUERIES, to="trec")
