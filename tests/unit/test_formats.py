"""Readers and writers: what they take, and that every refusal says where and what."""

from __future__ import annotations

import gzip
import io
import json
import sys

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from rerank.errors import InputError, UsageError
from rerank.formats import read_categories, read_corpus, read_qrels, read_queries, read_run, write_run
from rerank.formats.trec import strictly_decreasing
from rerank.records import Document, Query


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(path, reader, where_and_what):
    """The reader's message starts with the file, the line and the problem, and has an action."""
    with pytest.raises(InputError) as caught:
        list(reader(path))
    assert str(caught.value).startswith(f"{path}{where_and_what}")
    assert "; " in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- documents


def test_a_document_with_everything(tmp_path):
    line = '{"_id": "1", "title": "T", "text": "x", "categories": ["a", " b ", "a", ""], "links": [2],'
    path = put(tmp_path, "c.jsonl", line + ' "lang": "en", "year": 1962, "metadata": {"k": null}}\n')
    extra = {"year": 1962, "metadata": {"k": None}}
    assert list(read_corpus(path)) == [Document("1", "T", "x", ("a", "b"), ("2",), "en", extra)]


def test_missing_null_single_and_integer_values(tmp_path):
    path = put(
        tmp_path,
        "c.jsonl",
        '\ufeff{"_id": 7}\n\n   \n'
        '{"_id": "8", "title": null, "text": null, "categories": null, "links": null, "lang": null}\r\n'
        '{"_id": "9", "categories": "solo", "links": "8"}',
    )
    assert list(read_corpus(path)) == [
        Document("7"),
        Document("8"),
        Document("9", categories=("solo",), links=("8",)),
    ]


def test_gzip_is_known_by_its_content_and_ids_stay_unicode(tmp_path):
    line = '{"_id": "é\u2028x"}\n'.encode()
    assert [d.id for d in read_corpus(put(tmp_path, "c.jsonl", gzip.compress(line, mtime=0)))] == ["é\u2028x"]
    assert [d.id for d in read_corpus(put(tmp_path, "c.jsonl.gz", line))] == ["é\u2028x"]
    two = gzip.compress(line, mtime=0) + gzip.compress(b'{"_id": "b"}\n', mtime=0)
    assert len(list(read_corpus(put(tmp_path, "two", two)))) == 2


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(monkeypatch, pack):
    class Stdin:
        buffer = io.BytesIO(pack(b'{"_id": "a"}\n{"_id": 1.5}\n'))

    monkeypatch.setattr(sys, "stdin", Stdin)
    documents = read_corpus("-")
    assert next(documents).id == "a"
    with pytest.raises(InputError, match=r"^<stdin>:2: _id: expected integer or string, got number"):
        next(documents)


def test_documents_are_streamed(tmp_path):
    path = put(tmp_path, "c.jsonl", '{"_id": "a"}\nbroken\n')
    assert next(read_corpus(path)).id == "a"


BAD_RECORDS = [
    ("not json", "invalid JSON"),
    ('{"_id": "1",', "invalid JSON"),
    ('{"text": "no id"}', "missing field _id"),
    ('{"_id": null}', "_id: expected integer or string, got null"),
    ('{"id": "1", "text": "x"}', 'missing field _id; rename "id" to "_id"'),
    ('{"_id": " "}', "_id is empty"),
    ('{"_id": true}', "_id: expected integer or string, got boolean"),
    ('{"_id": ["1"]}', "_id: expected integer or string, got list"),
    ('{"_id": "1", "title": 3}', "title: expected"),
    ('{"_id": "1", "text": ["a"]}', "text: expected"),
    ('{"_id": "1", "lang": {}}', "lang: expected"),
    ('{"_id": "1", "categories": 5}', "categories: expected"),
    ('{"_id": "1", "categories": ["a", null]}', "categories[1]: expected"),
    ('{"_id": "1", "links": {"a": 1}}', "links: expected"),
    ("[1, 2]", "not a JSON object"),
    ("null", "not a JSON object"),
    ('{"_id": "1", "text": "\\ud800"}', "invalid JSON"),
    (b'{"_id": "caf\xe9"}', "byte 13 (0xe9) is not UTF-8"),
    ('{"_id": ' + "9" * 5000 + "}", "invalid JSON"),
    ("[" * 200_000, "invalid JSON"),
    ('{"_id": "1", "year": NaN}', "invalid JSON"),
    ('{"_id": "1", "year": [{"a": -Infinity}]}', "invalid JSON"),
    ('{"_id": "1", "year": 1e400}', "invalid JSON"),
]


@pytest.mark.parametrize(("line", "what"), BAD_RECORDS, ids=[what for _, what in BAD_RECORDS])
def test_a_bad_record_says_file_line_what_and_what_to_do(tmp_path, line, what):
    line = line if isinstance(line, bytes) else line.encode()
    path = put(tmp_path, "c.jsonl", b'{"_id": "ok"}\n\n' + line + b'\n{"_id": "last"}\n')
    message = refused(path, read_corpus, f":3: {what}")
    errors: list[InputError] = []
    kept = list(read_corpus(path, skip_invalid=True, invalid=errors.append))
    assert [document.id for document in kept] == ["ok", "last"]
    assert [str(error) for error in errors] == [message]


READERS = [read_corpus, read_queries, read_qrels, read_categories, read_run]


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_file_and_a_folder(tmp_path, reader):
    with pytest.raises(InputError, match=r"none: no such file; check the path$"):
        list(reader(tmp_path / "none"))
    with pytest.raises(InputError, match=r"is a folder"):
        list(reader(tmp_path))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch, pack):
    """A few MB of gzip unpack to as many GB."""
    monkeypatch.setattr("rerank.formats.lines._LONGEST", 1000)
    whole = b'{"_id": "a", "text": "%s"}' % (b"x" * 974)
    assert [d.id for d in read_corpus(put(tmp_path, "fits", pack(whole + b"\n")))] == ["a"]
    path = put(tmp_path, "bomb", pack(whole + b"\n" + b"x" * 1002))
    with pytest.raises(InputError, match=r"bomb:2: a line of more than 1,000 bytes"):
        list(read_corpus(path))


@pytest.mark.parametrize("reader", READERS)
def test_truncated_and_corrupt_gzip(tmp_path, reader):
    random = np.random.default_rng(0).integers(0, 10**9, 2000).tolist()
    lines = {
        read_corpus: "".join(f'{{"_id": "{n}"}}\n' for n in random),
        read_queries: "".join(f'{{"_id": "{i}", "text": "{n}"}}\n' for i, n in enumerate(random)),
        read_qrels: "".join(f"q{i} 0 d{n} 1\n" for i, n in enumerate(random)),
        read_categories: "".join(f"{n}\t{i}\n" for i, n in enumerate(random)),
        read_run: "".join(f"q{i} Q0 d{n} 1 0.5 t\n" for i, n in enumerate(random)),
    }[reader]
    packed = gzip.compress(lines.encode(), mtime=0)
    with pytest.raises(InputError, match=r"cut:\d+: the gzip file ends too early; copy or download"):
        list(reader(put(tmp_path, "cut", packed[:-20])))
    damaged = packed[:200] + bytes(b ^ 0xFF for b in packed[200:260]) + packed[260:]
    with pytest.raises(InputError, match=r"bad:\d+: (damaged gzip|byte|invalid|\d+ filled columns)"):
        list(reader(put(tmp_path, "bad", damaged)))
    with pytest.raises(InputError, match=r"crc:\d+: damaged gzip \(CRC"):
        list(reader(put(tmp_path, "crc", packed[:-8] + b"\0\0\0\0" + packed[-4:])))


def test_damaged_gzip_is_never_skipped(tmp_path):
    path = put(tmp_path, "c.gz", gzip.compress(b'{"_id": "a"}\n' * 2, mtime=0)[:-9])
    with pytest.raises(InputError, match="ends too early"):
        list(read_corpus(path, skip_invalid=True))


def test_an_empty_file_holds_no_documents(tmp_path):
    assert list(read_corpus(put(tmp_path, "c.jsonl", ""))) == []


# ------------------------------------------------------------------------------------------------ queries


def test_queries(tmp_path):
    path = put(
        tmp_path,
        "q",
        '{"_id": 1, "text": "a b", "lexical_text": "c", "categories": "x", "lang": "it"}\n'
        '{"_id": "2", "text": "", "lexical_text": ""}',
    )
    assert read_queries(path) == [Query("1", "a b", ("x",), "it", lexical_text="c"), Query("2", "")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"_id": "2"}', "missing field text"),
        ('{"_id": "2", "text": null}', "text: expected string, got null"),
        ('{"_id": "2", "text": 3}', "text: expected"),
        ('{"_id": "2", "text": "a", "lexical_text": ["b"]}', "lexical_text: expected"),
        ('{"_id": 1, "text": "again"}', "query id '1' is already on line 1"),
        ('{"text": "a"}', "missing field _id"),
        ("{", "invalid JSON"),
    ],
)
def test_bad_queries(tmp_path, line, what):
    path = put(tmp_path, "q.jsonl", '{"_id": "1", "text": "a"}\n' + line)
    refused(path, read_queries, f":2: {what}")


# -------------------------------------------------------------------------------------------------- qrels


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td 1\t2\nq1\td2\t0\n",
        "q1\td 1\t2.0\nq1\td2\t0\nq1\td2\t0\n",
        b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r\nq1\td 1\t2\r\nq1\td2\t0\r\n",
        gzip.compress(b"query-id\tcorpus-id\tscore\nq1\td 1\t2\nq1\td2\t0\n", mtime=0),
        "query-id,corpus-id,score\nq1,d 1,2\nq1,d2,0\n",
        "q1,d 1,2.0\nq1,d2,0.0\n",
        "corpus-id,query-id,score\r\nd 1,q1,2\r\nd2,q1,0\r\n",
        'Relevance\t"doc_id"\tQuery ID\n2\td 1\tq1\n0\td2\tq1\n',
        "qid\twhat\tever\nq1\td 1\t2\nq1\td2\t0\n",
    ],
)
def test_beir_qrels(tmp_path, content):
    assert dict(read_qrels(put(tmp_path, "q.tsv", content))) == {"q1": {"d 1": 2, "d2": 0}}


def test_conflicting_judgments(tmp_path):
    path = put(tmp_path, "q", "".join(f"q 0 d{i} {g}\n" for g in (1, 3, 2) for i in range(3)))
    message = refused(path, read_qrels, ":4: document 'd0'")
    assert ":9 ('d2' for 'q': 1, now 2)" in message
    assert read_qrels(path, conflicts="max")["q"] == {"d0": 3, "d1": 3, "d2": 3}
    assert read_qrels(path, conflicts="first")["q"] == {"d0": 1, "d1": 1, "d2": 1}
    with pytest.raises(UsageError, match="conflicts 'least' is none of refuse, max, first"):
        read_qrels(path, conflicts="least")


@pytest.mark.parametrize("content", ["q1 0 d1 2\nq2  Q0\td2 -1\n", "q1\t0\td1\t2\n\nq2\t0\td2\t-1\n"])
def test_trec_qrels(tmp_path, content):
    assert dict(read_qrels(put(tmp_path, "q.txt", content))) == {"q1": {"d1": 2}, "q2": {"d2": -1}}


@pytest.mark.parametrize(
    ("content", "where_and_what"),
    [
        ("query-id\tcorpus-id\tscore\nq1\td1\n", ":2: 2 filled columns, not 3"),
        ("query-id\tcorpus-id\tscore\nq1\t\t1\n", ":2: 2 filled columns, not 3"),
        ("q1\td1\thigh\n", ":1: grade 'high' is not an integer"),
        ("q1 0 d1 1\nq1 0 d2 1.5\n", ":2: grade '1.5' is not an integer"),
        ("score\tquery-id\tcorpus-id\nhigh\tq1\td1\n", ":2: grade 'high' is not an integer"),
        ("score\tquery-id\tcorpus-id\n2000\tq1\td1\n", ":2: grade '2000' is above"),
        ("q1 d1 1\n", ":1: 3 filled columns, not 4"),
        (b"q1 0 d1 1\nq1 0 \xff 1\n", ":2: byte 6 (0xff) is not UTF-8"),
        ("", ": no judgments; write"),
        ("query-id\tcorpus-id\tscore\n", ": no judgments; write"),
    ],
)
def test_bad_qrels(tmp_path, content, where_and_what):
    refused(put(tmp_path, "q", content), read_qrels, where_and_what)


# --------------------------------------------------------------------------------------------- categories


@pytest.mark.parametrize("header", ["", "child\tparent\n", "Child\tParent\r\n"])
def test_categories(tmp_path, header):
    path = put(tmp_path, "c.tsv", header + "a::b\ta\n x y \tx\na::b\ta\nloop\tloop\n")
    assert read_categories(path) == [("a::b", "a"), ("x y", "x"), ("loop", "loop")]


@pytest.mark.parametrize("line", ["alone", "a\t", "\ta", "a\tb\tc"])
def test_bad_categories(tmp_path, line):
    refused(put(tmp_path, "c.tsv", "child\tparent\na\tb\n" + line), read_categories, ":3: ")


# --------------------------------------------------------------------------------------------------- runs


def trec_eval_order(run):
    """How trec_eval reads a run: 32-bit scores descending, ties by document id descending."""
    return {
        query: [id for id, _ in sorted(hits, key=lambda hit: (np.float32(hit[1]), hit[0]), reverse=True)]
        for query, hits in run.items()
    }


score = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-12, 0.1, -3.0, 1e-45, -1e-45, 1e300, -1e300]),
    st.floats(-1e3, 1e3),
)


@given(st.lists(score, max_size=40))
def test_written_scores_decrease_strictly_and_move_little(values):
    values = sorted(values, reverse=True)
    written = strictly_decreasing(values)
    assert written.dtype == np.float32
    assert np.isfinite(written).all()
    assert (np.diff(written) < 0).all()
    limit = float(np.finfo(np.float32).max)
    single = np.clip(values, -limit, limit).astype(np.float32).tolist()
    if len(set(single)) == len(single):
        assert written.tolist() == single


def test_written_scores_take_the_next_float_below():
    one = np.float32(1)
    below = np.nextafter(one, np.float32(0))
    assert strictly_decreasing([1.0, 1.0, 1.0]).tolist() == [one, below, np.nextafter(below, np.float32(0))]
    assert strictly_decreasing([]).tolist() == []
    with pytest.raises(ValueError, match="NaN"):
        strictly_decreasing([float("nan")])


@given(st.lists(st.sampled_from([0.0, 0.25, 0.25 + 1e-10, 0.5, 7.0]), min_size=1, max_size=30))
def test_a_run_makes_the_round_trip_through_trec_eval(tmp_path_factory, values):
    values = sorted(values, reverse=True)
    run = {"q1": [(f"d{n:03d}", value) for n, value in enumerate(values)]}
    path = tmp_path_factory.mktemp("runs") / "run.txt"
    write_run(path, run, "mine")
    with path.open() as file:
        parsed = pytrec_eval.parse_run(file)
    ours = [id for id, _ in run["q1"]]
    assert trec_eval_order({"q1": list(parsed["q1"].items())})["q1"] == ours
    assert [id for id, _ in read_run(path)["q1"]] == ours
    # And by trec_eval itself: a document is at rank k exactly if its reciprocal rank is 1/k.
    for place, id in enumerate(ours, 1):
        evaluator = pytrec_eval.RelevanceEvaluator({"q1": {id: 1}}, {"recip_rank"})
        assert evaluator.evaluate(parsed)["q1"]["recip_rank"] == pytest.approx(1 / place)


def test_the_run_file(tmp_path):
    path = tmp_path / "run.txt"
    write_run(path, {"q1": [("a", 1.5), ("b", 1.5)], "q2": [], "q3": [("c", -1)]}, "tag")
    assert path.read_text() == "q1 Q0 a 1 1.5 tag\nq1 Q0 b 2 1.49999988 tag\nq3 Q0 c 1 -1 tag\n"


@pytest.mark.parametrize(
    ("run", "tag", "what"),
    [
        ({"q 1": [("a", 1.0)]}, "t", "query id 'q 1'"),
        ({"q1": [("a\u00a0b", 1.0)]}, "t", "document id 'a\\xa0b'"),
        ({"q1": [("", 1.0)]}, "t", "document id ''"),
        ({"q1": [("a", 1.0)]}, "my run", "tag 'my run'"),
    ],
)
def test_ids_that_no_run_can_hold(tmp_path, run, tag, what):
    with pytest.raises(InputError) as caught:
        write_run(tmp_path / "run.txt", run, tag)
    assert str(caught.value).startswith(f"{what} is empty or contains white space")
    assert list(tmp_path.iterdir()) == []


def test_unordered_scores_are_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="descending"):
        write_run(tmp_path / "run.txt", {"q1": [("a", 1.0), ("b", 2.0)]})


def test_reading_a_run_orders_it_our_way(tmp_path):
    path = put(tmp_path, "run", "q1 Q0 b 1 1 t\nq1 Q0 a 9 1.0 t\nq1 Q0 c 3 2e0 t\n")
    assert read_run(path) == {"q1": [("c", 2.0), ("a", 1.0), ("b", 1.0)]}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("q1 Q0 b 1 1", "5 filled columns, not 6"),
        ("q1 Q0 b 1 high t", "score 'high' is not a number"),
        ("q1 Q0 b 1 nan t", "score 'nan' is not a number"),
        ("q1 Q0 a 2 0.5 t", "document 'a' was already retrieved for query 'q1'"),
    ],
)
def test_bad_runs(tmp_path, line, what):
    refused(put(tmp_path, "run", "q1 Q0 a 1 1 t\n" + line), read_run, f":2: {what}")


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=20)), max_size=5))
def test_any_text_survives_json_lines(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("any") / "c.jsonl"
    pairs = [(id, text) for id, text in pairs if id.strip()]
    path.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in pairs))
    assert [(document.id, document.text) for document in read_corpus(path)] == pairs
