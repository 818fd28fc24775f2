"""Readers and writers of file formats."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import unicodedata
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.common.errors import InputError
from rerank.documents.records import Document, LabeledPair, Qrels, Query
from rerank.formats import (
    lines,
    read_categories,
    read_corpus,
    read_labeled_pairs,
    read_pairs,
    read_qrels,
    read_queries,
    read_run,
    read_template,
    read_unlabeled_pairs,
    write_qrels,
    write_run,
)


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read_known_pairs(path):
    return read_labeled_pairs(path, find_ids=lambda ids: {*ids} & {"x", "y", "z"})


RECORD = '{"_id": "ok", "text": ""}\n'
PAIR = '{"query": "a", "document": "b"}\n'
QRELS, RUN, PAIRS = "q1 0 d1 1\n", "q1 Q0 a 1 1 t\n", "x\ty\t1\n"
HEADER = "query-id\tcorpus-id\tscore\n"
BAD = [
    (read_corpus, RECORD + "not json", ":2: invalid JSON"),
    (read_corpus, "q1 0 d1 1\n", ":1: not JSON, it looks like judgments (TREC)"),
    (
        read_queries,
        HEADER + "q1\td1\t1\n",
        ":1: the header has no column text and looks like judgments",
    ),
    (read_queries, "q1 Q0 a 1 1.5 t\n", ":1: not JSON, it looks like a TREC run"),
    (read_queries, RECORD.replace("text", "texte"), ':1: missing field text; rename "texte" to "text"'),
    (read_corpus, '<?xml version="1.0"?><article>', ":1: not JSON, it looks like XML"),
    (read_corpus, HEADER + "q1\td1\t1\n", ":1: the header has no column title or text and looks like"),
    (
        read_corpus,
        "sku,title,price\na,b,1\n",
        ":1: the header has no column _id; rename one of sku, price, or add it",
    ),
    (read_queries, "id,title\nq1,b\n", ":1: the header has no column text; rename title, or add it"),
    (
        read_corpus,
        '{"sku": "a", "name": "b"}',
        ":1: missing field _id; rename one of sku, name, or add it",
    ),
    (read_corpus, "id,text\na,b,c\n", ":2: 3 cells, but the header has 2"),
    (read_corpus, "id,text,text\na,b,c\n", ":1: the header has several columns 'text'"),
    (read_corpus, "id;Text;text;year\na;b;c;d\n", ":1: the header has several columns 'text'"),
    (read_queries, "id,text,tag,tag\na,b,c,d\n", ":1: the header has several columns 'tag'"),
    (read_corpus, "nr,titel,inhalt\n1,a,b\n", ":1: the first line of the table has no name of a column"),
    (read_corpus, "id,text\ra,b\rc,d\r", ":1: not a table (a carriage return inside a line)"),
    (read_corpus, 'id,text\na,b\nc,"d\ne', ":3: a quote is not closed"),
    (read_corpus, 'id,text\na,"b"c\n', ":2: text after a closing quote"),
    (read_corpus, b"id,text\na,caf\xe9\n", ":2: byte 6 (0xe9) is not UTF-8"),
    (read_corpus, b"PAR1\x15", ": the file is a Parquet file"),
    (read_queries, b"\xff\xfea", ": the file is not valid UTF-16"),
    (read_qrels, RECORD, ":1: not judgments, it looks like queries or documents"),
    (read_qrels, RUN, ":1: not judgments, it looks like a TREC run"),
    (read_qrels, HEADER + 'q1\t"d1\t1\n', ":2: a quote is not closed"),
    (read_run, QRELS, ":1: not a TREC run, it looks like judgments (TREC)"),
    (read_run, RUN + "q1 Q0 b 2 inf t", ":2: score 'inf' is too large"),
    (read_run, RUN + "q1 Q0 b 2 -1e39 t", ":2: score '-1e39' is too large"),
    (read_categories, QRELS, ":1: the file looks like judgments (TREC)"),
    (read_corpus, RECORD + '{"_id": "1",', ":2: invalid JSON"),
    (read_corpus, RECORD + '{"text": "no id"}', ":2: missing field _id"),
    (read_corpus, RECORD + '\n{"_id": null}', ":3: _id: expected integer or string, got null"),
    (read_corpus, '{"id": "1", "text": "x"}', ':1: missing field _id; rename "id" to "_id"'),
    (read_corpus, '{"_id": " "}', ":1: _id is empty"),
    (read_corpus, '{"_id": true}', ":1: _id: expected integer or string, got boolean"),
    (read_corpus, '{"_id": "1", "text": ["a"]}', ":1: text: expected"),
    (read_corpus, '{"_id": "1", "categories": ["a", null]}', ":1: categories[1]: expected"),
    (read_corpus, "[1, 2]", ": item 1: not a JSON object"),
    (read_corpus, '{"_id": "1", "text": "\\ud800"}', ":1: invalid JSON (half of a pair of surrogates"),
    (read_corpus, '{"_id": "1", "year": NaN}', ":1: invalid JSON (NaN is not a number of JSON"),
    (read_corpus, b'{"_id": "caf\xe9"}', ":1: byte 13 (0xe9) is not UTF-8"),
    (read_corpus, "[" * 200_000, ":1: not JSON"),
    (read_corpus, '{"_id": "1", "a": ' + "[" * 200_000, ":1: invalid JSON"),
    (read_corpus, '{"_id": "1", "year": [{"a": -Infinity}]}', ":1: invalid JSON (Infinity is not"),
    (read_queries, RECORD + '{"_id": "2"}', ":2: missing field text"),
    (read_queries, RECORD + '{"_id": "2", "text": null}', ":2: text: expected string, got null"),
    (read_queries, RECORD + '{"_id": "ok", "text": "again"}', ":2: query id 'ok' is already on line 1"),
    (read_queries, "", ": no queries; write"),
    (read_qrels, HEADER + "q1\td1\n", ":2: 2 filled columns, not 3"),
    (read_qrels, HEADER + "q1\t\t1\n", ":2: 2 filled columns, not 3"),
    (read_qrels, "q1\td1\thigh\n", ":1: grade 'high' is not an integer"),
    (read_qrels, QRELS + "q1 0 d2 1.5\n", ":2: grade '1.5' is not an integer"),
    (read_qrels, "score\tquery-id\tcorpus-id\n2000\tq1\td1\n", ":2: grade '2000' is above"),
    (read_qrels, "q1 d1 1\n", ":1: 3 filled columns; write"),
    (read_qrels, b"q1 0 d1 1\nq1 0 \xff 1\n", ":2: byte 6 (0xff) is not UTF-8"),
    (read_qrels, QRELS + "q1 0 d1 2\n", ":2: document 'd1' was already judged 1 for query 'q1', now 2"),
    (read_qrels, HEADER, ": no judgments; write"),
    (read_categories, "child\tparent\na\tb\nalone", ":3: 1 filled columns"),
    (read_categories, "a\tb\n\ta", ":2: 1 filled columns"),
    (read_categories, "a\tb\tc", ":1: 3 filled columns"),
    (read_run, RUN + "q1 Q0 b 1 1", ":2: 5 filled columns, not 6"),
    (read_run, RUN + "q1 Q0 b 1 high t", ":2: score 'high' is not a number"),
    (read_run, RUN + "q1 Q0 b 1 nan t", ":2: score 'nan' is not a number"),
    (read_run, RUN + "q1 Q0 a 2 0.5 t", ":2: document 'a' was already retrieved for query 'q1'"),
    (read_run, "", ": the run is empty"),
    (read_known_pairs, "x\ty\n", ":1: 2 filled columns, not 3"),
    (read_known_pairs, PAIRS + "x\tz\tno\n", ":2: the label 'no' is neither 1 (related) nor 0"),
    (read_known_pairs, PAIRS + "x\ty\t0\n", ":2: the pair of 'x' and 'y' was labeled 1 on line 1, now 0"),
    (read_known_pairs, PAIRS + "x\tx\t0\n", ":2: document 'x' is labeled as unrelated to itself"),
    (read_known_pairs, PAIRS + "x\tz\t1\n", ": 2 pairs, and all related; add unrelated pairs"),
    (read_known_pairs, "a\tb\trelated\n", ": no pairs"),
    (read_known_pairs, "x\tq\t1\nx\ty\t0\nx\tw\t1\n", ":1: unknown document 'q' (2 unknown ids"),
    (read_pairs, PAIR + "[1]", ":2: not a JSON object"),
    (read_pairs, PAIR + "{", ":2: invalid JSON"),
    (read_pairs, PAIR + '{"query": "a"}', ":2: missing field document"),
    (read_pairs, PAIR + '{"query": 3, "document": "b"}', ":2: query: expected"),
    (read_pairs, PAIR + '{"query": " ", "document": "b"}', ":2: query is empty"),
    (read_pairs, "\n", ": no pairs"),
    (read_unlabeled_pairs, "a\tb\n", ": no pairs"),
    (read_unlabeled_pairs, "x\ty\t1\tz\n", ":1: 4 filled columns, not 2"),
]


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_pairs_of_texts_can_be_a_table(tmp_path, name):
    path = tmp_path / name
    opened = gzip.open if name.endswith("gz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write("query\tdocument\nthe cat\tdie Katze\na dog\tein Hund\n")
    assert read_pairs(path) == [("the cat", "die Katze"), ("a dog", "ein Hund")]
    with opened(path, "wt", encoding="utf-8") as file:
        file.write("the cat\n")
    with pytest.raises(InputError, match=r":1: .*write each line as query, tab, document"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("reader", "content", "message"), BAD, ids=[f"{r.__name__}{m[:50]}" for r, _, m in BAD]
)
def test_bad_input_gives_one_line_with_place_problem_and_solution(tmp_path, reader, content, message):
    path = put(tmp_path, "file", content)
    with pytest.raises(InputError) as caught:
        list(reader(path))
    text = str(caught.value)
    assert text.startswith(f"{path}{message}")
    assert "; " in text
    assert "\n" not in text


READERS = {
    read_corpus: '{{"_id": "{0}"}}\n',
    read_queries: '{{"_id": "{0}", "text": ""}}\n',
    read_qrels: "q{0} 0 d 1\n",
    read_categories: "{0}\ta\n",
    read_run: "q{0} Q0 d 1 0.5 t\n",
}


@pytest.mark.parametrize(("reader", "line"), READERS.items())
def test_unreadable_files_are_reported(tmp_path, reader, line):
    packed = gzip.compress("".join(line.format(n * n) for n in range(2000)).encode(), mtime=0)
    damaged = packed[:200] + bytes(b ^ 0xFF for b in packed[200:260]) + packed[260:]
    put(tmp_path, "cut", packed[:-20])
    put(tmp_path, "bad", damaged)
    put(tmp_path, "crc", packed[:-8] + b"\0\0\0\0" + packed[-4:])
    for name, message in {
        "none": r"none: no such file; check the path",
        ".": "is a folder",
        "cut": r"cut:\d+: truncated or damaged",
        "bad": r"bad:\d+: (truncated or damaged|byte|invalid|\d filled)",
        "crc": r"crc:\d+: truncated or damaged file \(CRC",
    }.items():
        with pytest.raises(InputError, match=message):
            list(reader(tmp_path / name))


def test_invalid_records_can_be_skipped(tmp_path):
    path = put(tmp_path, "c.jsonl", '{"_id": "a"}\nbroken\n{"_id": "b"}\n')
    assert next(read_corpus(path)).id == "a"  # documents are streamed
    errors: list[InputError] = []
    assert [one.id for one in read_corpus(path, invalid=errors.append)] == ["a", "b"]
    assert [str(error).startswith(f"{path}:2: invalid JSON") for error in errors] == [True]
    cut = put(tmp_path, "c.gz", gzip.compress(path.read_bytes(), mtime=0)[:-9])
    with pytest.raises(InputError, match="truncated or damaged"):
        list(read_corpus(cut, invalid=errors.append))


def test_documents_are_read_with_all_fields(tmp_path):
    line = '{"_id": "1", "title": "T", "text": "x", "categories": ["a", " b ", "a", ""], "links": [2],'
    line += ' "lang": "en", "year": 1962, "metadata": {"k": null}}\r\n\n   \n'
    line += '{"_id": 8, "title": null, "text": null, "categories": "solo", "links": "8", "lang": null}'
    extra = {"year": 1962, "metadata": {"k": None}}
    assert list(read_corpus(put(tmp_path, "c.jsonl", "\ufeff" + line))) == [
        Document("1", "T", "x", ("a", "b"), ("2",), "en", extra),
        Document("8", categories=("solo",), links=("8",)),
    ]
    assert list(read_corpus(put(tmp_path, "c.jsonl", ""))) == []


PACKED = {
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "gz": gzip.compress,
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "utf-16 without a mark": lambda data: data.decode().encode("utf-16-le"),
    "utf-32": lambda data: data.decode().encode("utf-32"),
    "gz of utf-16": lambda data: gzip.compress(data.decode().encode("utf-16")),
    "utf-8 with a mark": lambda data: b"\xef\xbb\xbf" + data,
}


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
def test_compressed_and_encoded_files_are_read(tmp_path, pack):
    line = '{"_id": "é\u2028x", "text": "café 😀"}\n'.encode()
    assert [*read_corpus(put(tmp_path, "a", pack(line * 2)))] == [Document("é\u2028x", text="café 😀")] * 2


def test_zip_archives_of_one_file_are_read_and_others_are_refused(tmp_path):
    def archive(name, *members):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as file:
            for member in members:
                file.writestr(member, '{"_id": "a"}')
        return tmp_path / name

    assert [document.id for document in read_corpus(archive("one.zip", "d.jsonl", "__MACOSX/d"))] == ["a"]
    with pytest.raises(InputError, match=r"two\.zip: a zip archive of 2 files"):
        list(read_corpus(archive("two.zip", "a.jsonl", "b.jsonl")))
    with pytest.raises(InputError, match=r"t\.xlsx: the file is a workbook of Excel"):
        read_queries(archive("t.xlsx", "[Content_Types].xml", "xl/workbook.xml"))
    cut = put(tmp_path, "cut.zip", (tmp_path / "one.zip").read_bytes()[:-30])
    with pytest.raises(InputError, match=r"cut\.zip:1: truncated or damaged"):
        list(read_corpus(cut))


def test_zstd_is_read_or_named(tmp_path):
    frame = b"\x28\xb5\x2f\xfd\x00\x00\x69\x00\x00" + b'{"_id": "a"}\n'  # one raw block, no checksum
    path = put(tmp_path, "d.jsonl.zst", frame)
    if any(find_spec(module) for module in ("zstandard", "compression")):
        assert [document.id for document in read_corpus(path)] == ["a"]
    else:
        with pytest.raises(InputError, match="compressed with zstd; run `pip install zstandard`"):
            list(read_corpus(path))


def test_a_json_array_is_read(tmp_path):
    records = [{"_id": "a", "text": "b"}, {"_id": 2, "text": "c", "year": 1999}]
    path = put(tmp_path, "c.json", json.dumps(records, indent=2))
    assert [*read_corpus(path)] == [Document("a", text="b"), Document("2", text="c", extra={"year": 1999})]
    assert read_queries(path) == [Query("a", "b"), Query("2", "c", params={"year": 1999})]
    errors: list[InputError] = []
    path = put(tmp_path, "c.json", json.dumps([{"id": "x"}, *records]))
    assert len([*read_corpus(path, invalid=errors.append)]) == 2
    assert str(errors[0]).startswith(f"{path}: item 1: missing field _id")


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
def test_documents_of_a_table_are_read(tmp_path, separator):
    text = io.StringIO()
    rows = [
        ["_ID", "Title", "text", "Categories", "links", "lang", "year", "price", "code"],
        ["a", 'A "big" title', 'line, one;\nline\ttwo"', "x; y", "b c", "en", "1999", "2.50", "007"],
        [],
        ["2", "", "", "p;q|r", "10.1/a;b|c", "", "", "", ""],
    ]
    csv.writer(text, delimiter=separator).writerows(rows)
    path = put(tmp_path, "d.csv", "\ufeff" + text.getvalue())
    extra = {"year": 1999, "price": 2.5, "code": "007"}
    assert [*read_corpus(path)] == [
        Document("a", 'A "big" title', 'line, one;\nline\ttwo"', ("x", "y"), ("b", "c"), "en", extra),
        Document("2", categories=("p;q", "r"), links=("10.1/a;b", "c")),
    ]


def test_queries_of_a_table_are_read(tmp_path):
    path = put(tmp_path, "q.csv", 'query_id;query;lexical_text\n"1";"wolves; foxes";wolf\n2;;\n')
    assert read_queries(path) == [Query("1", "wolves; foxes", lexical_text="wolf"), Query("2", "")]
    path = put(tmp_path, "q.csv", "id,text\n1,a\n1,b\n")
    with pytest.raises(InputError, match=r":3: query id '1' is already on line 2"):
        read_queries(path)


def test_invalid_rows_of_a_table_can_be_skipped(tmp_path):
    path = put(tmp_path, "d.csv", "id,text\na,b,c\n,x\nd,e\n")
    errors: list[InputError] = []
    assert [document.id for document in read_corpus(path, invalid=errors.append)] == ["d"]
    assert [str(error).split(":")[1] for error in errors] == ["2", "3"]


def test_gzip_is_detected_by_content_and_ids_stay_unicode(tmp_path):
    line = '{"_id": "é\u2028x"}\n'.encode()
    packed = gzip.compress(line, mtime=0)
    assert [d.id for d in read_corpus(put(tmp_path, "c.jsonl.gz", line))] == ["é\u2028x"]
    assert [d.id for d in read_corpus(put(tmp_path, "c.jsonl", packed + packed))] == ["é\u2028x"] * 2


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read(monkeypatch, pack):
    class Stdin:
        buffer = io.BytesIO(pack(b'{"_id": "a"}\n{"_id": 1.5}\n'))

    monkeypatch.setattr(sys, "stdin", Stdin)
    documents = read_corpus("-")
    assert next(documents).id == "a"
    with pytest.raises(InputError, match=r"^<stdin>:2: _id: expected integer or string, got number"):
        next(documents)


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    """A few MB of gzip can contain as many GB."""
    monkeypatch.setattr(lines, "LONGEST", 1000)
    path = put(tmp_path, "bomb", gzip.compress(b'{"_id": "a"}\n' + bytes(1002)))
    with pytest.raises(InputError, match=r"bomb:2: a line of more than 1,000 bytes"):
        list(read_corpus(path))


def test_queries_are_read_with_all_fields(tmp_path):
    line = '{"_id": 1, "text": "a b", "lexical_text": "c", "categories": "x", "lang": "it", "n": 3}\n'
    path = put(tmp_path, "q", line + '{"_id": "2", "text": "", "lexical_text": ""}')
    first = Query("1", "a b", ("x",), "it", {"n": 3}, lexical_text="c")
    assert read_queries(path) == [first, Query("2", "")]


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td 1\t2\nq1\td2\t0\n",
        "q1\td 1\t2.0\nq1\td2\t0\nq1\td2\t0\n",
        b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r\nq1\td 1\t2\r\nq1\td2\t0\r\n",
        gzip.compress(b"query-id\tcorpus-id\tscore\nq1\td 1\t2\nq1\td2\t0\n", mtime=0),
        "q1,d 1,2.0\nq1,d2,0.0\n",
        "corpus-id,query-id,score\r\nd 1,q1,2\r\nd2,q1,0\r\n",
        'Relevance\t"doc_id"\tQuery ID\n2\td 1\tq1\n0\td2\tq1\n',
        "qid\twhat\tever\nq1\td 1\t2\nq1\td2\t0\n",
        '"query-id","corpus-id","score"\n"q1","d 1","2"\nq1,d2,0\n',
        'q1\t"d 1"\t2\nq1\td2\t0\n',
        "sep=;\nquery;docid;rating;note\nq1;d 1;2;\nq1;d2;0;unsure\n",
    ],
)
def test_beir_qrels_are_read(tmp_path, content):
    assert dict(read_qrels(put(tmp_path, "q.tsv", content))) == {"q1": {"d 1": 2, "d2": 0}}


@pytest.mark.parametrize(
    "content",
    [
        "q1 0 d1 2\nq2  Q0\td2 -1\n",
        "q1\t0\td1\t2\n\nq2\t0\td2\t-1\n",
        "q1,0,d1,2\nq2,0,d2,-1\n",
        "query iteration document grade\nq1 0 d1 2\nq2 0 d2 -1\n",
    ],
)
def test_trec_qrels_are_read(tmp_path, content):
    assert dict(read_qrels(put(tmp_path, "q.txt", content))) == {"q1": {"d1": 2}, "q2": {"d2": -1}}


def test_commas_in_ids_are_not_separators_of_trec_qrels(tmp_path):
    path = put(tmp_path, "q.txt", "q1 0 10.1/a,b 1\nq,1 0 c,d 0\n")
    assert dict(read_qrels(path)) == {"q1": {"10.1/a,b": 1}, "q,1": {"c,d": 0}}


@given(st.dictionaries(st.text("q\",;' é", min_size=1).filter(str.strip).map(str.strip), st.integers(-9, 9)))
def test_written_qrels_are_read_with_any_id(tmp_path_factory, grades):
    path = tmp_path_factory.mktemp("qrels") / "qrels.tsv"
    qrels = Qrels({"q": grades} if grades else {"q": {"d": 1}})
    write_qrels(path, qrels)
    assert read_qrels(path) == qrels


@pytest.mark.parametrize("header", ["", "child\tparent\n", "Child\tParent\r\n"])
def test_category_files_are_read(tmp_path, header):
    path = put(tmp_path, "c.tsv", header + "a::b\ta\n x y \tx\na::b\ta\nloop\tloop\n")
    assert read_categories(path) == [("a::b", "a"), ("x y", "x"), ("loop", "loop")]


@given(
    st.lists(
        st.sampled_from([0.0, -0.0, 0.25, 0.25 + 1e-10, 1.0, 1e-45, -1e-45, -3.0, 1e300])
        | st.floats(-1e3, 1e3),
        min_size=1,
        max_size=30,
    )
)
def test_trec_eval_reads_a_written_run_in_the_same_order(tmp_path_factory, values):
    ours = [f"d{n:03d}" for n in range(len(values))]
    path = tmp_path_factory.mktemp("runs") / "run.txt"
    write_run(path, {"q1": list(zip(ours, sorted(values, reverse=True)))}, "mine")
    with path.open() as file:
        parsed = pytrec_eval.parse_run(file)
    assert [id for id, _ in read_run(path)["q1"]] == ours
    assert len({np.float32(score) for score in parsed["q1"].values()}) == len(ours)
    # A document is at rank k exactly if its reciprocal rank is 1/k.
    evaluator = pytrec_eval.RelevanceEvaluator({id: {id: 1} for id in ours}, {"recip_rank"})
    actual = evaluator.evaluate(dict.fromkeys(ours, parsed["q1"]))
    assert [1 / actual[id]["recip_rank"] for id in ours] == pytest.approx(range(1, len(ours) + 1))


def test_run_files_are_written_and_read(tmp_path):
    path = tmp_path / "run.txt"
    write_run(path, {"q1": [("a", 1.5), ("b", 1.5)], "q2": [], "q3": [("c", -1)]}, "tag")
    assert path.read_text() == "q1 Q0 a 1 1.5 tag\nq1 Q0 b 2 1.49999988 tag\nq3 Q0 c 1 -1 tag\n"
    path.write_text("q1 Q0 a 9 1.0 t\nq1 Q0 b 2 1 t\nq1 Q0 c 3 2e0 t\n")
    assert read_run(path) == {"q1": [("c", 2.0), ("b", 1.0), ("a", 1.0)]}
    path.write_text("q1 Q0 b 0 1 t\nq1 Q0 a 0 1.0 t\n")
    assert read_run(path) == {"q1": [("a", 1.0), ("b", 1.0)]}


def test_a_run_as_first_stage_stays_in_its_order(tmp_path):
    path = put(tmp_path, "ties.run", "q1 Q0 b 1 1 t\nq1 Q0 a 2 1 t\nq1 Q0 c 3 1 t\n")
    template = read_template(f"run:{path}")
    assert template is not None
    scores = dict(template.hits["q1"])
    assert sorted(scores, key=lambda document: -scores[document]) == ["b", "a", "c"]
    assert scores == pytest.approx(dict.fromkeys("abc", 1.0))


@pytest.mark.parametrize(
    ("run", "tag", "what"),
    [
        ({"q 1": [("a", 1.0)]}, "t", "query id 'q 1'"),
        ({"q1": [("a\u00a0b", 1.0)]}, "t", "document id 'a\\xa0b'"),
        ({"q1": [("", 1.0)]}, "t", "document id ''"),
        ({"q1": [("a", 1.0)]}, "my run", "tag 'my run'"),
    ],
)
def test_ids_that_a_run_file_cannot_contain_are_refused(tmp_path, run, tag, what):
    with pytest.raises(InputError) as caught:
        write_run(tmp_path / "run.txt", run, tag)
    assert str(caught.value).startswith(f"{what} is empty or contains white space")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=20)), max_size=5))
def test_json_lines_preserve_any_text(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("any") / "c.jsonl"
    pairs = [(id, text) for id, text in pairs if id.strip()]
    path.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in pairs))
    expected = [(id, unicodedata.normalize("NFC", text)) for id, text in pairs]
    assert [(document.id, document.text) for document in read_corpus(path)] == expected


def test_labeled_pairs_are_read(tmp_path):
    pairs = [LabeledPair("d 1", "d2", True), LabeledPair("d2", "d3", False), LabeledPair("d3", "d2", True)]
    path = tmp_path / "pairs"
    path.write_text("a\tb\trelated\nd 1\td2\t1\nd2\td3\t0\nd3\td2\t1\n")
    assert read_labeled_pairs(path) == pairs
    assert read_unlabeled_pairs(path) == [tuple(pair) for pair in pairs]
    path.write_text("x\ty\t1\n\nx\ty\t1\nx\tz\t0\nz\tz\t1\n")  # repeated pairs, and a pair of one document
    assert read_labeled_pairs(path) == [("x", "y", True), ("x", "z", False)]
    path.write_text("a\tb\nx\ty\nx\tx\n")
    assert read_unlabeled_pairs(path) == [("x", "y", None), ("x", "x", None)]
