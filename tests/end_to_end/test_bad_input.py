"""Bad input: one line on stderr, the right exit code, and nothing half-written.

Bad moments are in test_interruptions.py, the engine's own in tests/unit/test_local_engine_crash.py.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from pathlib import Path

import pytest

from rerank import Workspace
from rerank.formats import read_qrels
from tests.states import STACK, good, state

# -------------------------------------------------------------------------------------------------- ingest
GZIP = gzip.compress(b"".join(good(500)))
LINES = {
    "broken JSON": (b'{"_id": "x", "text": \n', "invalid JSON"),
    "a text of the wrong type": (b'{"_id": "x", "text": ["a"]}\n', "text: expected"),
    "no UTF-8": (b'{"_id": "x", "text": "caf\xe9"}\n', "byte 26 (0xe9) is not UTF-8"),
}
"""One of each kind; tests/unit/test_formats.py has all."""


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
@pytest.mark.parametrize(("before", "kind"), [(2, "broken JSON"), (1500, "no UTF-8")], ids=["early", "late"])
def test_a_line_that_is_no_document(run, plain, tmp_path, kind, before, there):
    """Early: among the first documents, from which the language is told; late: when many are in."""
    folder = plain if there else tmp_path / "new"
    line, what = LINES[kind]
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"".join([*good(before), line, *good(before + 3, before)]))
    old = state(run, folder)
    run("ingest", file, "-w", folder).fails(1, f"{file}:{before + 1}: {what}")
    assert state(run, folder) == old


FILES = {
    "a gzip file cut short": (GZIP[:-20], "the gzip file ends too early"),
    "damaged gzip": (GZIP[:200] + bytes(100) + GZIP[300:], "damaged gzip"),
    "no gzip behind its first bytes": (b"\x1f\x8bhello", "gzip"),
    "an id twice": (b"".join([*good(5), *good(3)]), "'n0' occurs twice"),
    "an id twice, far apart": (b"".join([*good(2500), *good(1)]), "'n0' occurs twice"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_corpus(run, plain, tmp_path, kind):
    content, what = FILES[kind]
    (tmp_path / "bad").write_bytes(content)
    old = state(run, plain)
    run("ingest", tmp_path / "bad", "-w", plain).fails(1, what)
    run("ingest", "-", "-w", plain, stdin=content).fails(1, what)
    assert state(run, plain) == old


def test_a_file_that_is_not_there(run, plain, tmp_path):
    old = state(run, plain)
    run("ingest", tmp_path / "none.jsonl", "-w", plain).fails(1, "none.jsonl: no such file")
    run("ingest", tmp_path, "-w", plain).fails(1, "is a folder")
    (tmp_path / "ok").write_bytes(b"".join(good(3)))
    run("ingest", tmp_path / "ok", tmp_path / "none", "-w", plain).fails(1, "none: no such file")
    run("ingest", tmp_path / "ok", "--categories", tmp_path / "none", "-w", plain).fails(
        1, "none: no such file"
    )
    run("ingest", "--delete-from", tmp_path / "none", "-w", plain).fails(1, "none: no such file")
    run("ingest", tmp_path / "ok", tmp_path / "ok", "-w", plain).fails(1, "'n0' occurs twice")
    run("ingest", tmp_path / "ok", "--delete", "n1", "-w", plain).fails(1, "both ingested and deleted")
    assert state(run, plain) == old
    run("ingest", "--delete", "x", "-w", tmp_path / "new").fails(1, "no workspace here")
    assert not (tmp_path / "new").exists()


def test_a_category_graph_that_is_none(run, plain, tmp_path):
    (tmp_path / "ok").write_bytes(b"".join(good(3)))
    (tmp_path / "graph.tsv").write_bytes(b"child\tparent\na\tb\none column\n")
    old = state(run, plain)
    run("ingest", tmp_path / "ok", "--categories", tmp_path / "graph.tsv", "-w", plain).fails(
        1, "graph.tsv:3: "
    )
    assert state(run, plain) == old


def test_skip_invalid_counts_and_lists(run, tmp_path):
    lines = good(3)
    for line, _ in LINES.values():
        lines += [line, *good(len(lines) + 1, len(lines))]
    file = tmp_path / "mixed.jsonl"
    file.write_bytes(b"".join(lines))
    done = run("ingest", file, "--skip-invalid", "-w", tmp_path / "ws")
    assert done.code == 0
    assert f"{3 + len(LINES)} added" in done.out
    skipped = [line for line in done.err.splitlines() if line.startswith("skipped ")]
    assert len(skipped) == len(LINES)
    for number, (place, (_, what)) in enumerate(zip(skipped, LINES.values())):
        assert place.startswith(f"skipped {file}:{4 + 2 * number}: {what}")
    assert f"{len(LINES)} invalid lines skipped" in done.err
    report = run("ingest", file, "--skip-invalid", "-w", tmp_path / "ws", "--json").json
    assert (report["unchanged"], len(report["invalid"])) == (3 + len(LINES), len(LINES))
    # What is wrong with the file and not with a line is not skipped.
    (tmp_path / "cut.gz").write_bytes(GZIP[:-20])
    run("ingest", tmp_path / "cut.gz", "--skip-invalid", "-w", tmp_path / "ws").fails(1, "ends too early")


def test_documents_without_text_or_categories_are_counted_and_kept(run, tmp_path):
    documents = [
        {"_id": "bare"},
        {"_id": "title", "title": "Cells"},
        {"_id": "c", "text": "", "categories": ["x"]},
    ]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(map(json.dumps, documents)))
    done = run("ingest", file, "-w", tmp_path / "ws")
    assert done.code == 0
    assert "3 added" in done.out
    assert "2 documents have neither title nor text" in done.err
    assert "2 documents have no categories" in done.err
    assert [hit["id"] for hit in run("query", "cells", "-w", tmp_path / "ws", "--json").json["hits"]] == [
        "title"
    ]


def test_an_empty_corpus_leaves_no_workspace(run, plain, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "broken.jsonl").write_text("{]\n")
    run("ingest", tmp_path / "empty.jsonl", "-w", tmp_path / "ws").fails(1, "empty.jsonl: no documents")
    run("ingest", tmp_path / "broken.jsonl", "--skip-invalid", "-w", tmp_path / "ws").fails(
        1, "1 record skipped", "broken.jsonl:1"
    )
    assert not (tmp_path / "ws").exists()
    done = run("ingest", tmp_path / "empty.jsonl", "-w", plain)
    assert (done.code, "20 documents" in done.out, "no documents" in done.err) == (0, True, True)


# ------------------------------------------------------------------------------------- queries and qrels


def test_an_empty_query(run, plain):
    for text in ("", "   ", "\t"):
        run("query", text, "-w", plain).fails(2, "the query is empty")


def test_a_query_without_any_hit(run, trained):
    for text in ("quokka", "?!", "\u6771\u4eac"):
        for stack in ("tfidf", STACK, "bm25"):
            done = run("query", text, "--stack", stack, "-w", trained, "--explain")
            assert (done.code, done.err) == (0, "")
            assert done.out == "no document shares a word with this query\n"
        result = run("query", text, "--stack", STACK, "-w", trained, "--json").json
        assert (result["candidates"], result["hits"]) == (0, [])


@pytest.fixture
def odd(small, tmp_path):
    """Judgments with two unknown documents and two unknown queries; one query is empty, one has no hit."""
    queries = Path(small.queries).read_text() + "".join(
        json.dumps({"_id": id, "text": text}) + "\n" for id, text in (("void", ""), ("lost", "quokkas"))
    )
    (tmp_path / "queries.jsonl").write_text(queries)
    first = small.documents[0]["_id"]

    def with_odd(file):
        known = Path(file).read_text()
        query = known.splitlines()[1].split("\t")[0]
        extra = [
            (query, "nowhere", 1),
            (query, "nowhere else", 1),
            ("stranger", first, 1),
            ("other stranger", first, 1),
            ("void", first, 1),
            ("lost", first, 1),
        ]
        made = tmp_path / f"odd-{Path(file).name}"
        made.write_text(known + "".join(f"{q}\t{d}\t{g}\n" for q, d, g in extra))
        return made

    return tmp_path / "queries.jsonl", with_odd


def test_qrels_that_name_unknown_queries_and_documents_are_counted(run, small, workspace, odd):
    queries, with_odd = odd
    n = len(read_qrels(small.test))
    for command in (
        ["tune", "--stack", STACK, "--out", workspace.parent / "out.json"],
        ["evaluate", "--stack", STACK],
    ):
        arguments = [*command, "--queries", queries, "--qrels", with_odd(small.test), "-w", workspace]
        done = run(*arguments)
        assert done.code == 0, done.err
        assert "2 judged queries are not in the query file" in done.err
        assert "2 relevant documents are not in the workspace" in done.err
        assert "2 queries retrieve nothing" in done.err
        report = run(*arguments, "--json").json
        scoring = report["scoring"] if command[0] == "tune" else report["scoring"]["retrieved:1000"]
        assert [scoring[name] for name in ("unknown_queries", "unknown_documents", "without_hits")] == [2] * 3
        assert scoring["queries"] == n + 2
    assert report["queries"] == n + 2


def test_qrels_that_name_nothing_known(run, small, workspace, tmp_path):
    (tmp_path / "documents.tsv").write_text(f"{next(iter(read_qrels(small.test)))}\tnowhere\t1\n")
    (tmp_path / "queries.tsv").write_text(f"stranger\t{small.documents[0]['_id']}\t1\n")
    (tmp_path / "grades.tsv").write_text(
        f"{next(iter(read_qrels(small.test)))}\t{small.documents[0]['_id']}\t0\n"
    )
    old = state(run, workspace)
    for command in (
        ["train", "text"],
        ["tune", "--stack", STACK, "--out", tmp_path / "out.json"],
        ["evaluate", "--stack", STACK],
    ):
        rest = ["--queries", small.queries, "-w", workspace, "--qrels"]
        run(*command, *rest, tmp_path / "queries.tsv").fails(1, "check")
        run(*command, *rest, tmp_path / "grades.tsv").fails(1, "check")
        if command[0] == "train":
            run(*command, *rest, tmp_path / "documents.tsv").fails(1, "check --qrels")
    assert not (tmp_path / "out.json").exists()
    assert state(run, workspace) == old


@pytest.mark.parametrize(
    ("option", "content", "what"),
    [
        ("--qrels", "q\td\tone\n", ":1: "),
        ("--qrels", "q\td\t1\nq\td\t2\n", ":2: "),
        ("--qrels", None, "no such file"),
        ("--queries", '{"_id": "q", "text": "a"}\n{"_id": "q", "text": "b"}\n', ":2: query id 'q'"),
        ("--queries", None, "no such file"),
        ("--text-pairs", '{"query": "a", "document": "b"}\n{"query": "a", "document": ""}\n', ":2: document"),
        ("--text-pairs", None, "no such file"),
    ],
)
def test_files_that_cannot_be_read(run, small, workspace, tmp_path, option, content, what):
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    old = state(run, workspace)
    given = {"--queries": small.queries, "--qrels": small.dev, option: file}
    commands = (["train", "text"], ["tune", "--stack", STACK], ["evaluate", "--stack", STACK])
    if option == "--text-pairs":
        commands, given = (["train", "s2net"],), {option: file}
    for command in commands:
        run(*command, *(one for pair in given.items() for one in pair), "-w", workspace).fails(
            1, what, str(file)
        )
    assert state(run, workspace) == old


def test_pairs_that_nothing_can_be_learned_from(run, workspace, tmp_path):
    file = tmp_path / "pairs"
    old = state(run, workspace)
    document = "proteins of cells"
    for pairs, what in (
        ([("cells", document)], "1 pair is too few to train on"),
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


# ----------------------------------------------------------------------------------- signals, workspaces


def test_a_signal_that_was_not_trained_names_the_command(run, small, trained, plain):
    files = ("--queries", small.queries, "--qrels", small.dev)
    for folder, signal_ in ((trained, "joint"), (plain, "meta")):
        for command in (["query", "cells"], ["tune", *files], ["evaluate", *files]):
            done = run(*command, "--stack", f"tfidf,{signal_}", "-w", folder)
            done.fails(1, f"signal '{signal_}' is not trained", f"`rerank train {signal_} --queries QUERIES")


def test_signals_and_options_that_are_none(run, small, trained):
    files = ("--queries", small.queries, "--qrels", small.dev, "-w", trained)
    old = state(run, trained)
    for arguments, what in (
        (["query", "cells", "--stack", "words", "-w", trained], "signal 'words' is unknown"),
        (["query", "cells", "--stack", "txt", "-w", trained], "did you mean text?"),
        (["query", "cells", "--stack", "tfidf*0.5+text", "-w", trained], "some signals have a weight"),
        (["query", "cells", "--stack", "tfidf;text", "-w", trained], "is not a signal with a weight"),
        (["query", "cells", "-k", 0, "-w", trained], "'-k'"),
        (["query", "cells", "--first-stage", "splade", "-w", trained], "'splade' is not a first stage"),
        (["query", "-w", trained], "TEXT"),
        (["query", "cells", "--nonsense"], "--nonsense"),
        (["query", "cells", "--explain=3"], "--explain"),
        (["query", "cells", "--depth", "few"], "'--depth': 'few'"),
        (["ingest", "x", "--format", "csv"], "'--format': 'csv'"),
        (["status", "x"], "(x)"),
        (["stack", "used"], "'used'"),
        (["tune", "-w", trained], "--stack"),
        (["tune", "--stack", "text", "--qrels", "x", "-w", trained], "--queries"),
        (["report", "-w", trained], "did you mean evaluate --report?"),
        (["nonsense"], "unknown command 'nonsense'"),
        (["ingest", "-w", trained], "nothing to do"),
        (["train", "bm25", *files], "'bm25' cannot be trained; choose from text, meta, joint"),
        (["train", *files], "RANKER..."),
        (["train", "text", "--epochs", 0, *files], "--epochs takes a whole number, 1 or more, not '0'"),
        (
            ["train", "text", "--queries", small.queries, "-w", trained],
            "--queries and --qrels belong together",
        ),
        (["train", "s2net", "-w", trained], "give --queries and --qrels, or --text-pairs"),
        (["train", "s2net", "--init", "best", *files], "--init"),
        (["train", "s2net", "--beta", "-1", *files], "--beta takes a number, 0 or more, not"),
        (["train", "s2net", "--preset", "paper", *files], "--preset 'paper' is unknown; use default"),
        (["train", "s2net", "--sampling", "random", *files], "--sampling"),
        (
            ["train", "lsi", "--init", "random", *files],
            "--init has no effect with lsi; it is a setting of s2net",
        ),
        (["train", "text", "--hidden", "9", *files], "--hidden has no effect with --head cosine"),
        (["train", "text", "--epoch", "9", *files], "--epochs"),
        (["train", "dense", *files], "--qrels: no effect with dense"),
        (["train", "text", "--as", "tfidf", *files], "tfidf is a first stage"),
        (
            ["train", "text", "--as", "s2net", *files],
            "s2net is the name of another ranker (s2net, of the family",
        ),
        (["train", "text", "--as", "a b", *files], "'a b' is not a name of a ranker"),
        (["train", "text", "meta", "--as", "words", *files], "'words' names one ranker"),
        (["train", "text", "s2net", *files], "s2net of projection; train them one after the other"),
        (["tune", "--stack", "text", *files], "nothing to tune; name two or more: --stack bm25,text"),
        (["tune", "--stack", "tfidf*1", *files], "has weights already"),
        (["tune", "--stack", "tfidf,text", "--cv", 999, *files], "cannot be dealt to 999 folds"),
        (["evaluate", "--stack", STACK, "--protocol", "retrieved:0", *files], "unknown protocol"),
        (["evaluate", "--stack", STACK, "--measure", "goodness", *files], "unknown measure 'goodness'"),
    ):
        run(*arguments).fails(2, what)
    assert state(run, trained) == old


def test_a_language_that_is_none(run, tmp_path):
    (tmp_path / "ok").write_bytes(b"".join(good(3)))
    run("ingest", tmp_path / "ok", "--lang", "english", "-w", tmp_path / "ws").fails(2, "not a language code")
    assert not (tmp_path / "ws").exists()


def every_command(small, folder):
    files = ("--queries", small.queries, "--qrels", small.dev, "-w", folder)
    return (
        ["status", "-w", folder],
        ["encode", "-w", folder],
        ["query", "cells", "-w", folder],
        ["train", "text", *files],
        ["tune", "--stack", "tfidf,text", *files],
        ["evaluate", "--stack", "text", *files],
        ["ingest", small.corpus, "-w", folder],
        ["ingest", "--delete", "x", "-w", folder],
    )


def test_a_workspace_of_another_version(run, small, workspace):
    file = workspace / "rerank.toml"
    file.write_text(file.read_text().replace("format = 1", "format = 2"))
    for command in every_command(small, workspace):
        run(*command).fails(1, "a workspace of format 2, but this version of rerank reads 1; use the version")
    file.write_text(file.read_text().replace("format = 2", "format = 1"))
    about = workspace / "engine" / "engine.json"
    right = about.read_text()
    about.write_text(json.dumps({**json.loads(right), "analyzer": 999}))
    for command in every_command(small, workspace):
        run(*command).fails(1, ".999", "ingest the collection again")
    about.write_text(right)
    assert len(state(run, workspace)[1]) == len(small.documents)


def test_there_is_no_workspace(run, small, tmp_path):
    for command in every_command(small, tmp_path / "none"):
        if small.corpus not in command:
            run(*command).fails(1, "no workspace here; make one with `rerank ingest CORPUS -w")
    assert not (tmp_path / "none").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    run("ingest", small.corpus, "-w", tmp_path / "mine").fails(1, "not empty, and not a workspace")
    run("demo", "-w", tmp_path / "mine", "--json").fails(1, "not from an earlier demo")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter"]


@pytest.mark.slow
def test_a_damaged_workspace(run, small, workspace):
    """Whatever file is damaged, there is one line and no traceback; or the command does without it."""
    asked = ("query", "cells", "--stack", STACK, "-w", workspace, "--json")
    right_answer = run(*asked).json["hits"]
    files = [path for path in workspace.rglob("*") if path.is_file() and "documents.db-" not in path.name]
    for path in sorted(files):
        right = path.read_bytes()
        for wrong in (b"", b"damaged" * 3, right[: len(right) // 2], None):
            path.unlink()  # a new file: the old one may still be mapped by this very process
            if wrong is not None:
                path.write_bytes(wrong)
            done = run(*asked)
            if done.code:
                done.fails(1)
            else:
                assert done.json["hits"] == right_answer, path
            path.unlink(missing_ok=True)
            path.write_bytes(right)
    assert run(*asked).json["hits"] == right_answer


# ----------------------------------------------------------------------------------- what nobody foresaw


def test_a_mistake_of_ours_is_one_line_too(run, plain, monkeypatch, tmp_path):
    def fail(*_):
        raise ZeroDivisionError("what\nnobody foresaw")

    monkeypatch.setattr(Workspace, "open", fail)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    done = run("status", "-w", plain)
    (file,) = folder.iterdir()
    done.fails(1, "ZeroDivisionError: what nobody foresaw (", "test_bad_input.py:", f"is in {file}")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in file.read_text()
    assert "test_bad_input.py" in file.read_text()
    assert run("status", "-w", plain).code == 1
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    run("status", "-w", plain).fails(1, "ZeroDivisionError: what nobody foresaw (", "RERANK_DEBUG=1")


def test_tracebacks_are_shown_when_asked_for(spawn, tmp_path):
    args = ("status", "-w", tmp_path / "none")
    spawn(*args).fails(1, "no workspace here")
    done = spawn(*args, env={**os.environ, "RERANK_DEBUG": "1"})
    assert done.code == 1
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("rerank: ")
