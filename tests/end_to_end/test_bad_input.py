"""Bad input: one line on stderr, the right exit code, and no incomplete files.

Interruptions are tested in test_interruptions.py, crashes of the engine in
tests/unit/test_local_engine_crash.py, and all invalid lines of each format in tests/unit/test_formats.py.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex

import pytest

from rerank import Workspace
from tests.support.data import STACK, document_lines, state

GZIP = gzip.compress(b"".join(document_lines(500)), mtime=0)
LINES = {
    "broken JSON": (b'{"_id": "x", "text": \n', "invalid JSON"),
    "a text of the wrong type": (b'{"_id": "x", "text": ["a"]}\n', "text: expected"),
    "no UTF-8": (b'{"_id": "x", "text": "caf\xe9"}\n', "byte 26 (0xe9) is not UTF-8"),
}
FILES = {
    "ok": b"".join(document_lines(3)),
    "broken": b"".join([*document_lines(2), b"{]\n", *document_lines(4, 3)]),
    "late": b"".join([*document_lines(1500), b'{"_id": "caf\xe9"}\n']),
    "only_broken": b"{]\n",
    "cut": GZIP[:-20],
    "twice": b"".join([*document_lines(5), *document_lines(3)]),
    "far": b"".join([*document_lines(2500), *document_lines(1)]),
    "blank": b"\n\n",
    "graph": b"child\tparent\na\tb\none column\n",
    "grades": b"q\td\tone\n",
    "same": b'{"_id": "q", "text": "a"}\n{"_id": "q", "text": "b"}\n',
    "pairs": b'{"query": "a", "document": "b"}\n{"query": "a", "document": ""}\n',
}
"""Names in the table -> contents. {none} is a file that does not exist."""

J = "--queries {queries} --qrels {dev} -w {ws}"
BAD = [
    ("ingest {broken} -w {new}", 1, "broken:3: invalid JSON"),
    ("ingest {late} -w {ws}", 1, "late:1501: byte 13 (0xe9) is not UTF-8"),
    ("ingest {cut} -w {ws}", 1, "truncated or damaged"),
    ("ingest {cut} --skip-invalid -w {ws}", 1, "truncated or damaged"),
    ("ingest {twice} -w {ws}", 1, "twice, document 6: the id 'n0' occurs twice"),
    ("ingest {far} -w {ws}", 1, "far, document 2501: the id 'n0' occurs twice"),
    ("ingest {blank} {ok} {ok} -w {ws}", 1, "ok, document 1: the id 'n0' occurs twice"),
    ("ingest {ok} {ok} --dry-run -w {ws}", 1, "ok, document 1: the id 'n0' occurs twice"),
    ("ingest {none} -w {ws}", 1, "none: no such file"),
    ("ingest {folder} -w {ws}", 1, "is a folder"),
    ("ingest {ok} {none} -w {ws}", 1, "none: no such file"),
    ("ingest {ok} --categories {graph} -w {ws}", 1, "graph:3: "),
    ("ingest {ok} --categories {graph} --dry-run -w {ws}", 1, "graph:3: "),
    ("ingest {ok} --delete n1 --dry-run -w {ws}", 1, "both ingested and deleted"),
    ("ingest --delete-from {none} -w {ws}", 1, "none: no such file"),
    ("ingest {ok} --delete n1 -w {ws}", 1, "both ingested and deleted"),
    ("ingest --delete x -w {new}", 1, "no workspace here"),
    ("ingest {blank} -w {new}", 1, "blank: no documents"),
    ("ingest {blank} --replace -w {ws}", 1, "replacing would delete all documents"),
    ("ingest {only_broken} --skip-invalid -w {new}", 1, "1 record skipped"),
    ("ingest {ok} --lang english -w {new}", 2, "not a language code"),
    ("ingest {ok} -w {folder}", 1, "not empty, and not a workspace"),
    ("ingest -w {ws}", 2, "nothing to do"),
    ("demo -w {folder} --json", 1, "not an earlier demo"),
    ("query cells -w {new}", 1, "no workspace here; make one with `rerank ingest CORPUS -w"),
    ("train text --queries {queries} --qrels {dev} -w {new}", 1, "no workspace here"),
    ("train text --queries {queries} --qrels {grades} -w {ws}", 1, "grades:1: "),
    ("tune --stack tfidf,text --queries {none} --qrels {dev} -w {ws}", 1, "none: no such file"),
    ("evaluate --stack text --queries {same} --qrels {dev} -w {ws}", 1, "same:2: query id 'q'"),
    ("train s2net --text-pairs {pairs} -w {ws}", 1, "pairs:2: document"),
    ("query cells --stack tfidf,joint -w {ws}", 1, "`rerank train joint --queries"),
    (f"evaluate --stack tfidf,joint {J}", 1, "`rerank train joint --queries"),
    ("query '\t ' -w {ws}", 2, "the query is empty"),
    ("query cells --stack words -w {ws}", 2, "signal 'words' is unknown"),
    ("query cells --stack txt -w {ws}", 2, "did you mean text?"),
    ("query cells -k 0 -w {ws}", 2, "'-k'"),
    ("query cells --filter color=red -w {ws}", 2, "'color'"),
    ("query -w {ws}", 2, "TEXT"),
    ("query cells --nonsense", 2, "--nonsense"),
    ("query cells --explain=3", 2, "--explain"),
    ("query cells --depth few", 2, "'--depth': 'few'"),
    ("status x", 2, "(x)"),
    ("stack used", 2, "'used'"),
    ("report -w {ws}", 2, "unknown command 'report'; see"),
    (f"train bm25 {J}", 2, "'bm25' cannot be trained; choose from text, meta, joint"),
    (f"train {J}", 2, "RANKER..."),
    (f"train text --epochs 0 {J}", 2, "--epochs takes a whole number, 1 or more, not '0'"),
    ("train text --queries {queries} -w {ws}", 2, "--queries and --qrels belong together"),
    ("train dense --preset judged -w {ws}", 2, "--preset judged learns from judged queries; give --queries"),
    ("train s2net -w {ws}", 2, "give --queries and --qrels, or --text-pairs"),
    (f"train s2net --preset paper {J}", 2, "--preset 'paper' is unknown; use default"),
    (f"train text --hidden 9 {J}", 2, "--hidden has no effect with --head cosine"),
    (f"train text --epoch 9 {J}", 2, "--epochs"),
    (f"train dense {J} --held-out 0.2", 2, "--held-out has no effect with --qrels"),
    (f"train dense {J} --objective contrastive", 2, "--objective has no effect with --qrels"),
    (f"train text --as tfidf {J}", 2, "tfidf is a first stage"),
    (f"train text --as s2net {J}", 2, "s2net is the name of another ranker (s2net, of the family"),
    (f"train text --as 'a b' {J}", 2, "'a b' is not a name of a ranker"),
    (f"train text meta --as words {J}", 2, "'words' names one ranker"),
    ("tune -w {ws}", 2, "--stack"),
    ("tune --stack text --qrels x -w {ws}", 2, "--queries"),
    (f"tune --stack text {J}", 2, "nothing to tune; name two or more: --stack bm25,text"),
    (f"tune --stack tfidf*1 {J}", 2, "has weights already"),
    (f"evaluate --stack text --filter lang=en --protocol judged {J}", 2, "leave --filter out"),
]


@pytest.fixture(scope="module")
def places(run, small, trained, tmp_path_factory):
    """Names in the table -> paths. The workspace and the other folder must not change."""
    folder = tmp_path_factory.mktemp("bad")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    old = state(run, trained)
    found = {name: folder / name for name in (*FILES, "none", "new")}
    yield {**found, "folder": folder, "ws": trained, "queries": small.queries, "dev": small.dev}
    assert state(run, trained) == old
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


@pytest.mark.parametrize(("command", "code", "message"), BAD, ids=[command for command, _, _ in BAD])
def test_bad_input_gives_one_line_with_place_and_solution(run, places, command, code, message):
    run(*shlex.split(command.format(**places))).fails(code, message)


def test_an_empty_corpus_changes_nothing(run, plain, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    done = run("ingest", tmp_path / "empty.jsonl", "-w", plain)
    assert (done.code, "20 documents" in done.out, "no documents" in done.err) == (0, True, True)


def test_skip_invalid_counts_and_lists_invalid_records(run, tmp_path):
    lines = document_lines(3)
    for line, _ in LINES.values():
        lines += [line, *document_lines(len(lines) + 1, len(lines))]
    file = tmp_path / "mixed.jsonl"
    file.write_bytes(b"".join(lines))
    done = run("ingest", file, "--skip-invalid", "-w", tmp_path / "ws").ok()
    assert f"{3 + len(LINES)} added" in done.out
    skipped = [line for line in done.err.splitlines() if line.startswith("skipped ")]
    assert len(skipped) == len(LINES)
    for number, (place, (_, what)) in enumerate(zip(skipped, LINES.values())):
        assert place.startswith(f"skipped {file}:{4 + 2 * number}: {what}")
    assert f"{len(LINES)} invalid lines skipped" in done.err
    report = run("ingest", file, "--skip-invalid", "-w", tmp_path / "ws", "--json").json
    assert (report["unchanged"], len(report["invalid"])) == (3 + len(LINES), len(LINES))


def test_documents_without_text_or_categories_are_kept_and_counted(run, tmp_path):
    documents = [
        {"_id": "bare"},
        {"_id": "title", "title": "Cells"},
        {"_id": "c", "text": "", "categories": ["x"]},
    ]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(map(json.dumps, documents)))
    done = run("ingest", file, "-w", tmp_path / "ws").ok()
    assert "3 added" in done.out
    assert "2 documents without title and text" in done.err
    assert "2 documents without categories" in done.err
    assert [hit["id"] for hit in run("query", "cells", "-w", tmp_path / "ws", "--json").json["hits"]] == [
        "title"
    ]


def test_pairs_without_information_for_training_are_refused(run, workspace, tmp_path):
    file = tmp_path / "pairs"
    old = state(run, workspace)
    document = "proteins of cells"
    for pairs, what in (
        ([("cells", document)], "1 pair: too few to train on"),
        ([("?!", document)] * 20, "the vocabulary has no term of the queries to train on"),
        ([("cells", "...")] * 20, "the vocabulary has no term of the documents to train on"),
        ([(f"wort{i}z", document) for i in range(20)], "the vocabulary has no term of the queries"),
        ([("cells", "..."), ("?!", document)] * 20, "no training pair has words of the vocabulary on both"),
        ([("cells", document)] * 20, "all training pairs have the same document"),
    ):
        file.write_text("\n".join(json.dumps({"query": query, "document": text}) for query, text in pairs))
        plainly = ("--init", "random", "--letters", 0, "--text-pairs", file, "-w", workspace)
        run("train", "s2net", *plainly).fails(1, what)
    run("train", "text", "--text-pairs", file, "-w", workspace).fails(2, "--text-pairs: no effect with text")
    assert state(run, workspace) == old


@pytest.mark.slow
def test_a_damaged_workspace_gives_one_line_or_the_same_answer(run, small, workspace):
    """For any damaged file, the command prints one line without a traceback, or it works without the file.

    Recomputed features can differ from stored ones in the last bit of float16.
    """
    asked = ("query", "cells", "--stack", STACK, "-w", workspace, "--json")
    right_answer = run(*asked).json["hits"]
    files = [path for path in workspace.rglob("*") if path.is_file() and "documents.db-" not in path.name]
    for path in sorted(files):
        right = path.read_bytes()
        for wrong in (b"", b"damaged" * 3, right[: len(right) // 2], None):
            path.unlink()  # a new file, because this process may still have the old one mapped
            if wrong is not None:
                path.write_bytes(wrong)
            done = run(*asked)
            if done.code:
                done.fails(1)
            else:
                answer = done.json["hits"]
                assert [hit["id"] for hit in answer] == [hit["id"] for hit in right_answer], path
                for hit, right_hit in zip(answer, right_answer, strict=True):
                    assert hit["score"] == pytest.approx(right_hit["score"], abs=1e-3), path
                    for name, signal in right_hit["signals"].items():
                        assert hit["signals"][name] == pytest.approx(signal, abs=1e-3), path
            path.unlink(missing_ok=True)
            path.write_bytes(right)
    assert run(*asked).json["hits"] == right_answer


def test_an_unexpected_exception_is_reported_in_one_line(run, plain, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("what\nnobody foresaw")

    monkeypatch.setattr(Workspace, "open", fail)
    run("status", "-w", plain).fails(1, "ZeroDivisionError: what nobody foresaw (", "RERANK_DEBUG=1")


def test_tracebacks_are_shown_with_rerank_debug(spawn, tmp_path):
    args = ("status", "-w", tmp_path / "none")
    spawn(*args).fails(1, "no workspace here")
    done = spawn(*args, env={**os.environ, "RERANK_DEBUG": "1"})
    assert done.code == 1
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("rerank: ")


def test_a_misspelled_field_is_named_if_no_document_has_a_text(run, tmp_path):
    (tmp_path / "d.csv").write_text("id;title;texte\na;A wolf;A grey wolf\n", "utf-8")
    done = run("ingest", tmp_path / "d.csv", "-w", tmp_path / "ws")
    assert "no document has a text" in done.err
    assert "texte" in done.err
