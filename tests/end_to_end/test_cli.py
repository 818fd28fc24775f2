"""The commands from ingest to evaluation on a small collection."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import pytrec_eval

from rerank.formats import read_qrels

STACK = "tfidf,text,meta"


def ndcg_of(run_file, qrels_file):
    """Return the mean NDCG by pytrec_eval over the queries that have a relevant document."""
    qrels = read_qrels(qrels_file)
    judged = {query: dict(qrels[query]) for query in qrels if qrels.relevant(query)}
    with open(run_file, encoding="utf-8") as lines:
        run = pytrec_eval.parse_run(lines)
    values = pytrec_eval.RelevanceEvaluator(judged, {"ndcg"}).evaluate(run)
    return sum(values[query]["ndcg"] for query in judged if query in values) / len(judged)


def some_query(small):
    """Return a query with categories that is not in the training set."""
    wanted = next(iter(read_qrels(small.test)))
    lines = map(json.loads, Path(small.queries).read_text().splitlines())
    return next(query for query in lines if query["_id"] == wanted)


def test_ingest_again_updates_and_delete_removes(write_lines, run, small, plain):
    changed = [{**small.documents[0], "title": "Quokkas on bicycles"}, *small.documents[1:25]]
    file = write_lines(plain.parent / "changed.jsonl", changed)
    report = run("ingest", file, "-w", plain, "--json").json
    assert (report["added"], report["updated"], report["unchanged"], report["documents"]) == (5, 1, 19, 25)
    hits = run("query", "quokka", "-w", plain, "--json").json["hits"]
    assert [(hit["id"], hit["title"]) for hit in hits] == [(changed[0]["_id"], "Quokkas on bicycles")]
    gone = [document["_id"] for document in changed[:3]]
    deleted = ("--delete", ",".join(gone[:2]), "--delete", gone[2], "--delete", "nobody")
    report = run("ingest", *deleted, "-w", plain, "--json").json
    assert (report["deleted"], report["documents"], report["unknown_deletes"]) == (3, 22, ["nobody"])
    assert run("query", "quokka", "-w", plain, "--json").json["hits"] == []
    (plain.parent / "ids.txt").write_text(f"{changed[3]['_id']}\n\n{changed[4]['_id']}\nnobody\n")
    done = run("ingest", "--delete-from", plain.parent / "ids.txt", "-w", plain)
    assert "2 deleted: 20 documents" in done.out
    assert "1 unknown id to delete: nobody" in done.err


def test_ingest_reads_standard_input_gzip_and_several_files(spawn, run, small, tmp_path):
    lines = [json.dumps(document).encode() + b"\n" for document in small.documents[:30]]
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[10:20])))
    (tmp_path / "c").write_bytes(gzip.compress(b"".join(lines[20:])))
    for stdin in (b"".join(lines[:10]), gzip.compress(b"".join(lines[:10]))):
        report = run(
            "ingest", "-", tmp_path / "b.jsonl.gz", tmp_path / "c", "-w", tmp_path / f"ws{len(stdin)}",
            "--json", stdin=stdin,
        ).json  # fmt: skip
        assert (report["added"], report["documents"], report["lang"]) == (30, 30, "en")
    done = spawn("ingest", "-", "-w", tmp_path / "own", input=b"".join(lines).decode())
    assert "30 added" in done.out, done


def test_a_dry_run_counts_changes_and_writes_nothing(write_lines, run, small, plain, tmp_path):
    before = run("status", "-w", plain, "--json").out
    stored = small.documents[0]
    lines = [stored, {"_id": "new", "text": "a new text"}, {"_id": "empty"}]
    corpus = write_lines(tmp_path / "some.jsonl", lines)
    preview = run("ingest", corpus, "-w", plain, "--dry-run", "--replace", "--json").json
    count = json.loads(before)["documents"]
    counts = {name: preview[name] for name in ("documents", "new", "existing", "removed", "without_text")}
    assert counts == {"documents": 3, "new": 2, "existing": 1, "removed": count - 1, "without_text": 1}
    assert run("status", "-w", plain, "--json").out == before
    assert run("ingest", corpus, "-w", tmp_path / "ws", "--dry-run").ok().out.startswith("dry run: 3 valid")
    assert not (tmp_path / "ws").exists()
    twice = write_lines(tmp_path / "twice.jsonl", [stored, stored])
    run("ingest", twice, "-w", plain, "--dry-run").fails(1, "occurs twice")
    run("ingest", corpus, "-w", plain, "--dry-run", "--lang", "xx").fails(1, "cannot be changed to xx")
    cluster = ("--url", "http://127.0.0.1:1", "--index", "articles")
    run("ingest", corpus, "-w", plain, "--dry-run", *cluster).fails(
        2, "leave --url, --index and --profile out"
    )


def test_the_language_of_a_collection_cannot_change(write_lines, run, plain, tmp_path):
    one = write_lines(tmp_path / "one.jsonl", [{"_id": "x", "text": "Sortieren", "lang": "de"}])
    before = run("status", "-w", plain, "--json").out
    run("ingest", one, "-w", plain, "--lang", "de").fails(1, "language is en", "de")
    assert run("status", "-w", plain, "--json").out == before
    done = run("ingest", one, "-w", plain)
    assert "1 document in another language, indexed as en: de" in done.err
    run("ingest", one, "-w", tmp_path / "de")
    assert run("status", "-w", tmp_path / "de", "--json").json["lang"] == "de"
    assert "no stemmer for xx" in run("ingest", one, "-w", tmp_path / "xx", "--lang", "xx").err
    assert "stemmer" not in run("ingest", one, "-w", tmp_path / "zh", "--lang", "zh").err


def test_the_workspace_can_be_set_by_an_environment_variable(run, small, plain, tmp_path, monkeypatch):
    monkeypatch.setenv("RERANK_WORKSPACE", str(plain))
    assert run("status", "--json").json["workspace"] == str(plain)
    assert run("status", "-w", tmp_path / "no").code == 1
    monkeypatch.delenv("RERANK_WORKSPACE")
    monkeypatch.chdir(tmp_path)
    run("status").fails(1, ".rerank: no workspace here")
    assert run("ingest", tmp_path / "few.jsonl").code == 0
    assert sorted(path.name for path in (tmp_path / ".rerank").iterdir()) == ["engine", "rerank.toml"]


def test_status_of_a_trained_workspace(run, trained, small):
    status = run("status", "-w", trained, "--json").json
    assert status["documents"] == len(small.documents)
    assert [(r["name"], r["features"]) for r in status["rankers"]] == [("meta", True), ("text", True)]
    (stack,) = status["stacks"]
    assert [one["in_use"] for one in status["releases"]] == [True]
    assert {term.split("*")[0] for term in stack["stack"].split(" + ")} == {"tfidf", "text", "meta"}
    assert stack["outdated"] == []
    shown = run("status", "-w", trained)
    assert f"{len(small.documents)} documents (en)" in shown.out
    assert shown.out.count("features stored") == 2


@pytest.mark.slow
def test_train_reports_in_json(run, small, workspace):
    report = run(
        "train", "meta", "--queries", small.queries, "--qrels", small.train, "--epochs", 1, "--head", "mlp",
        "--seed", 3, "-w", workspace, "--json",
    ).json  # fmt: skip
    (fitted,) = report["rankers"]
    assert (fitted["name"], fitted["epoch"], fitted["interrupted"]) == ("meta", 1, False)
    assert report["held_out"]
    assert report["dev_queries"] == round(0.1 * (report["train_queries"] + report["dev_queries"]))
    assert report["encoded"] == {"meta": len(small.documents), "text": 0}
    # The stack was tuned with the previous meta ranker.
    answer = run("query", "cells", "--stack", STACK, "-w", workspace)
    assert "meta was trained again after this stack was tuned; it uses meta " in answer.err
    assert "outdated: meta" in run("status", "-w", workspace).out


@pytest.mark.slow
def test_one_command_trains_rankers_of_several_families(run, small, plain):
    run("ingest", small.corpus, "-w", plain)
    report = run(
        "train", "text", "s2net", "meta", "--queries", small.queries, "--qrels", small.train, "--epochs", 1,
        "--dim", 20, "--filters", 8, "-w", plain, "--json",
    ).json  # fmt: skip
    assert [ranker["name"] for ranker in report["rankers"]] == ["text", "meta", "s2net"]
    assert report["encoded"] == dict.fromkeys(["meta", "s2net", "text"], len(small.documents))
    assert not (plain / "training").exists()
    status = run("status", "-w", plain, "--json").json
    assert {ranker["name"] for ranker in status["rankers"]} == {"text", "meta", "s2net"}


@pytest.mark.slow
def test_ctrl_c_keeps_and_reports_the_best_epoch(forks, run, small, plain):
    run("ingest", small.corpus, "-w", plain)
    process = forks.start(
        "train", "text", "joint", "--queries", small.queries, "--qrels", small.train,
        "--dev-qrels", small.dev, "--epochs", 500, "--rate", "0.00001", "-w", plain,
    )  # fmt: skip
    while "\n" not in process.err:
        assert process.poll() is None
        time.sleep(0.01)
    assert process.err.startswith("text, epoch 1 "), process.err
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130, process.err
    err, out = process.err, process.out
    assert "Traceback" not in err
    assert re.search(r"^interrupted: kept epoch \d+ of text, the best one$", err, re.M), err
    assert re.search(r"^text [0-9a-f]+: interrupted, epoch \d+ of \d+ kept;", out, re.M), out
    assert "joint" not in out
    assert "not trained: joint" in err
    (ranker,) = run("status", "-w", plain, "--json").json["rankers"]
    assert (ranker["name"], ranker["missing_features"]) == ("text", len(small.documents))
    assert f"`rerank encode -w {plain}`" in err
    assert run("encode", "-w", plain).code == 0
    assert (
        run("query", "cells", "--stack", "tfidf*0.5+text*0.5", "-w", plain, "--json").json["recomputed"] == {}
    )


def test_tune_writes_a_readable_stack_file(run, small, workspace):
    files = ("--queries", small.queries, "--qrels", small.dev, "-w", workspace)
    done = run("tune", "--stack", "meta,tfidf", "--depth", 100, *files).ok()
    assert "min-max" in done.out
    assert "z-score" in done.out
    path = workspace / "stacks" / "meta,tfidf.json"
    assert f"written to {path}" in done.out.splitlines()
    in_use = f"active is meta,text,tfidf; `rerank stack use meta,tfidf -w {workspace}` changes this"
    assert done.out.splitlines()[-1] == in_use
    assert run("stack", "use", path, "-w", workspace).out.startswith("active: ")
    stacks = run("status", "-w", workspace, "--json").json["stacks"]
    assert {Path(one["file"]).stem: one["in_use"] for one in stacks}["meta,tfidf"]
    run("stack", "use", "meta,text,tfidf", "-w", workspace)
    stack = json.loads(path.read_text())
    assert stack["tuned"]["value"] >= stack["tuned"]["first_stage_value"]
    assert (stack["first_stage"], stack["depth"]) == ("tfidf", 100)
    # Repeat the command with JSON output and another file.
    report = run(
        "tune", "--stack", "meta,tfidf", "--depth", 100, "--out", workspace / "mine.json", *files, "--json"
    )
    assert json.loads((workspace / "mine.json").read_text()) == stack
    assert {name: report.json[name] for name in stack} == stack
    by_file = run("query", "cells", "--stack", workspace / "mine.json", "-w", workspace, "--json")
    assert (
        by_file.json["hits"]
        == run("query", "cells", "--stack", "tfidf,meta", "-w", workspace, "--json").json["hits"]
    )


def test_query_explains_every_place(run, small, trained):
    query = some_query(small)
    arguments = [query["text"], "-w", trained, "-k", 20]
    for category in query["categories"]:
        arguments += ["--category", category]
    result = run("query", *arguments, "--stack", STACK, "--explain", "--json").json
    assert (result["query"], result["categories"]) == (query["text"], query["categories"])
    assert not result["categories_inferred"]
    assert result["recomputed"] == {}
    assert len(result["hits"]) == 20
    first = run("query", *arguments[:3], "-k", 1000, "--stack", "tfidf", "--json").json
    places = {hit["id"]: hit["rank"] for hit in first["hits"]}
    assert result["candidates"] == len(places)
    scores = [hit["score"] for hit in result["hits"]]
    assert scores == sorted(scores, reverse=True)
    titles = {document["_id"]: document["title"] for document in small.documents}
    weights = dict(term.split("*") for term in result["stack"].split(" + "))
    for rank, hit in enumerate(result["hits"], 1):
        assert (hit["rank"], hit["first_stage_rank"]) == (rank, places[hit["id"]])
        assert hit["title"] == titles[hit["id"]]
        assert set(hit["signals"]) == {"tfidf", "text", "meta"}
        assert hit["score"] == pytest.approx(sum(s["weighted"] for s in hit["signals"].values()))
        for name, signal_ in hit["signals"].items():
            assert signal_["weighted"] == pytest.approx(float(weights[name]) * signal_["normalized"])

    shown = run("query", *arguments, "--stack", STACK, "--explain").out
    best = result["hits"][0]
    assert f"  1  {best['score']:.4f}  {best['id']}  {best['title']}\n" in shown
    assert f"categories given: {', '.join(query['categories'])}" in shown
    for name, signal_ in best["signals"].items():
        line = f"{name} {signal_['raw']:.4f} -> {signal_['normalized']:.4f} -> {signal_['weighted']:.4f}"
        assert line in re.sub(" +", " ", shown)
    for hit in result["hits"]:
        moved = hit["first_stage_rank"] - hit["rank"]
        way = f"up {moved}" if moved > 0 else f"down {-moved}" if moved < 0 else "unmoved"
        assert f"{way} from rank {hit['first_stage_rank']} of tfidf" in shown


def test_control_characters_are_escaped_in_a_terminal(script, write_lines, tmp_path):
    """The id and the title would clear the screen, set the window's title, and write from right to left."""
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
    document = {"_id": f"a{evil}", "title": f"wolf {evil}", "text": "wolf"}
    file = write_lines(tmp_path / "evil.jsonl", [document])
    master, slave = os.openpty()

    def on_a_terminal(*args):
        done = subprocess.run(
            [*script, *args, "-w", tmp_path / "ws"], stdout=slave, stderr=slave, timeout=180
        )
        return done.returncode, os.read(master, 65536).decode()

    assert on_a_terminal("ingest", file)[0] == 0
    for args in (("query", "wolf"), ("query", "wolf", "--json"), ("ingest", "--delete", f"b{evil}")):
        code, shown = on_a_terminal(*args)
        assert code == 0
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", shown), shown
        assert "\\u202e" in shown
    ask = [*script, "query", "wolf", "--json", "-w", tmp_path / "ws"]
    piped = subprocess.run(ask, capture_output=True, text=True, timeout=180)
    assert json.loads(piped.stdout)["hits"][0]["id"] == f"a{evil}"  # programs receive the stored text


def test_categories_are_inferred_for_a_query_without_categories(run, small, trained):
    text = some_query(small)["text"]
    result = run("query", text, "--stack", STACK, "-w", trained, "--json").json
    assert result["categories_inferred"]
    assert 1 <= len(result["categories"]) <= 4
    shown = run("query", text, "--stack", STACK, "-w", trained, "--explain").out
    assert f"categories inferred from the first candidates: {', '.join(result['categories'])}" in shown
    off = run("query", text, "--stack", STACK, "-w", trained, "--no-infer-categories", "--json").json
    assert (off["categories"], off["categories_inferred"]) == ([], False)


def test_an_unknown_category_is_refused_with_similar_ones(run, small, trained):
    category = next(c for document in small.documents for c in document["categories"] if len(c) > 8)
    ask = ("query", "gene expression", "--stack", STACK, "-w", trained)
    plain = run(*ask, "--category", category, "--json").json
    other = run(*ask, "--category", category.swapcase(), "--json").json
    assert (plain["categories"], plain["case"], plain["unknown_categories"]) == ([category], "given", [])
    assert other == plain
    done = run(*ask, "--category", category[:-1])
    done.fails(2, repr(category[:-1]))
    assert repr(category) in done.err
    run(*ask, "--category", "Qqqqq").fails(2, "Qqqqq")
    ignored = run("query", "gene expression", "--stack", "bm25", "-w", trained, "--category", category).ok()
    assert "--category has no effect" in ignored.err
    assert "--category" not in run("query", "gene expression", "--stack", "bm25", "-w", trained).err


def test_query_options(run, trained):
    for stage in ("tfidf", "bm25"):
        result = run("query", "gene expression", "--stack", stage, "-w", trained, "-k", 3, "--json").json
        assert (len(result["hits"]), result["stack"]) == (3, f"{stage}*1.00")
    result = run(
        "query", "gene expression", "--stack", "text", "--first-stage", "bm25", "--depth", 5, "-w", trained,
        "--timings", "--json",
    ).json  # fmt: skip
    assert result["candidates"] == 5
    assert set(result["seconds"]) == {"engine", "encode", "score"}
    assert " ms" in run("query", "gene", "-w", trained, "--timings").out


def test_filters_work_in_query_evaluate_and_tune(run, write_lines, tmp_path):
    years = [
        {"_id": f"d{i}", "text": "wolf " * (9 - i), "year": 2016 + i, "tags": ["ab"[i % 2]]} for i in range(8)
    ]
    corpus = write_lines(tmp_path / "corpus.jsonl", years)
    queries = write_lines(tmp_path / "queries.jsonl", [{"_id": "q", "text": "wolf"}])
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td5\t1\nq\td0\t1\n")
    assert run("ingest", corpus, "--lang", "en", "-w", tmp_path / "ws").code == 0
    here = ("-w", tmp_path / "ws", "--filter", "year>=2020", "--filter", "tags = b")
    judged = ("--queries", queries, "--qrels", tmp_path / "qrels.tsv")
    hits = run("query", "wolf", "--stack", "bm25", *here, "--json").json["hits"]
    assert {hit["id"] for hit in hits} == {"d5", "d7"}
    report = run("evaluate", "--stack", "bm25", *judged, *here, "--measure", "RR", "--json").json
    assert report["candidate_recall"][0]["recall"] == {"bm25": 0.5}
    stack = run("tune", "--stack", "tfidf,bm25", *judged, *here, "--json").json
    assert stack["tuned"]["filters"] == ["year>=2020", "tags=b"]
    none = run("query", "fox", "--stack", "bm25", *here).out
    assert "meets the filters" in none


def test_a_filter_is_refused_with_a_run(run, small, trained, tmp_path):
    (tmp_path / "a.run").write_text(f"{some_query(small)['_id']} Q0 {small.documents[0]['_id']} 1 1.0 tag\n")
    judged = ("--queries", small.queries, "--qrels", small.test, "-w", trained)
    first_stage = ("--filter", "lang=en", "--first-stage", f"run:{tmp_path / 'a.run'}")
    run("evaluate", "--stack", "tfidf", *first_stage, *judged).fails(2, "write lang=en into that search")


def test_later_documents_are_encoded_by_ingest(write_lines, run, small, workspace):
    new = {
        "_id": "new",
        "title": "Quokkas ride bicycles",
        "text": "A gene of quokkas",
        "categories": ["Ecology"],
    }
    file = write_lines(workspace.parent / "new.jsonl", [new])
    report = run("ingest", file, "-w", workspace, "--json").json
    assert report["encoded"] == {"meta": 1, "text": 1}
    asked = ("query", "quokka gene", "--stack", STACK, "-w", workspace, "-k", 300, "--json")
    stored = run(*asked).json
    assert stored["recomputed"] == {}
    assert stored["hits"][0]["id"] == "new" or "new" in [hit["id"] for hit in stored["hits"]]
    # Without encoding, features are computed during the query, counted, and equal.
    touched = [{**document, "touched": True} for document in (new, *small.documents[:2])]
    file = write_lines(workspace.parent / "new.jsonl", touched)
    report = run("ingest", file, "-w", workspace, "--no-encode", "--json").json
    assert (report["updated"], report["encoded"]) == (3, {})
    done = run(*asked)
    assert set(done.json["recomputed"]) == {"text", "meta"}
    assert f"computed {done.json['recomputed']['text']} missing features of text" in done.err
    # Features are stored in half precision. Rounding can differ in another batch.
    before = pytest.approx([hit["score"] for hit in stored["hits"]], abs=1e-3)
    assert [hit["score"] for hit in done.json["hits"]] == before
    assert run("encode", "-w", workspace, "--json").json["encoded"] == {"meta": 3, "text": 3}
    again = run(*asked)
    assert (again.json["recomputed"], again.err) == ({}, "")
    assert [hit["score"] for hit in again.json["hits"]] == before


PROTOCOLS = ("retrieved:50", "retrieved:200", "judged")


@pytest.fixture(scope="module")
def evaluation(run, small, trained, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    arguments = ["--stack", STACK, "--stack", "text", "--baseline", "tfidf", "--save-run", runs]
    for protocol in PROTOCOLS:
        arguments += ["--protocol", protocol]
    files = ("--queries", small.queries, "--qrels", small.test, "-w", trained)
    return run("evaluate", *arguments, *files, "--json").json


def test_saved_runs_give_trec_eval_the_reported_ndcg(small, evaluation):
    assert len(evaluation["runs"]) == len(evaluation["results"]) == len(set(evaluation["runs"]))
    for path, row in zip(evaluation["runs"], evaluation["results"]):
        assert ndcg_of(path, small.test) == pytest.approx(row["measures"]["nDCG"], abs=1e-9), path
        assert row["protocol"].replace(":", "-") in path
