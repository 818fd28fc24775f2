"""Custom searches: template files, a run as the first stage, and their errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Stack, Workspace, evaluate, ingest, tune
from rerank.common.errors import InputError, RerankError, UsageError
from rerank.documents.records import SearchTemplate
from rerank.formats import read_template
from rerank.formats.templates import check_values
from rerank.stack.signals import FieldSignal
from tests.support.cli import run_here as run

TEXTS = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
QUERIES = [Query("q1", "hunts at night"), Query("q2", "mice", params={"lang": "en"})]
QRELS = Qrels([("q1", "owl", 1), ("q2", "fox", 1)])
RUN = "q1 Q0 wolf 1 9.5 t\nq1 Q0 owl 2 -3 t\nq1 Q0 fox 3 -8 t\nq2 Q0 wolf 1 2 t\n"


@pytest.fixture
def hunters(tmp_path: Path) -> Workspace:
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write(Document(id, text=text) for id, text in TEXTS.items())
    lines = [json.dumps({"_id": q.id, "text": q.text, **q.params}) for q in QUERIES]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\towl\t1\nq2\tfox\t1\n")
    (tmp_path / "own.run").write_text(RUN)
    return workspace


def test_a_run_gives_candidates_and_scores(hunters: Workspace, tmp_path: Path) -> None:
    first = f"run:{tmp_path}/own.run"
    report = tune(hunters, "search,bm25", queries=QUERIES, qrels=QRELS, first_stage=first)
    # In the run, q1 has its relevant document at rank 2, and q2 does not have its relevant document.
    assert report.tuned.first_stage_value == pytest.approx(1 / np.log2(3) / 2, abs=1e-6)
    assert report.scoring.candidate_recall == {"search": 0.5}
    stack = Stack.load(hunters.stack_path(("search", "bm25")))
    assert stack.search is not None
    assert (stack.search.kind, stack.search.name, stack.first_stage) == ("run", "own.run", "search")
    measured = evaluate(
        hunters, ["tfidf*0.5 + bm25*0.5"], queries=QUERIES, qrels=QRELS, first_stage=first, measures=["RR"]
    )
    assert measured.baseline == "search"
    assert measured.results[0].measures == {"RR": 0.25}
    assert measured.results[1].weights == {"search": 0.5, "bm25": 0.5}
    with pytest.raises(UsageError, match=r"was tuned on run:own.run, and needs the search .* template:FILE"):
        hunters.pipeline(stack.signals).answer(QUERIES[0], stack)


def test_params_without_a_custom_search_are_refused(hunters: Workspace) -> None:
    asked = ("query", "night", "--param", "year=2020", "--stack", "bm25", "-w", hunters.folder)
    run(*asked).fails(2, "--param is for your own search; give")


def test_categories_are_inferred_from_the_first_documents_of_a_run(tmp_path: Path) -> None:
    from rerank.scoring.scorer import feedback_categories

    known = {"a": ("x",), "b": ("y",), "c": ("z",)}
    scores = np.array([-1.0, -9.0, -2.0])
    inferred = feedback_categories(["a", "b", "c"], scores, lambda ids: [known[id] for id in ids])
    assert inferred[0] == "x"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("q1 Q0 hen 1 2 t\nq1 Q0 wolf 2 1 t\n", "1 document not in the workspace ('hen'"),
        ("q9 Q0 wolf 1 2 t\n", "has none of the queries"),
        ("", "the run is empty"),
    ],
)
def test_bad_runs_are_refused(hunters: Workspace, tmp_path: Path, content: str, what: str) -> None:
    (tmp_path / "bad.run").write_text(content)
    files = ["--queries", f"{tmp_path}/queries.jsonl", "--qrels", f"{tmp_path}/qrels.tsv"]
    first = ["--first-stage", f"run:{tmp_path}/bad.run", "-w", str(hunters.folder)]
    run("tune", "--stack", "search,bm25", *files, *first).fails(1, what)
    assert not (hunters.folder / "stacks").exists()


def test_invalid_first_stages_are_refused(hunters: Workspace, tmp_path: Path) -> None:
    where = ["-w", str(hunters.folder)]
    for given in ("template:", "bm26", "sql:x"):
        run("query", "x", *where, "--first-stage", given).fails(2, given)
    (tmp_path / "own.json").write_text('{"query": {"match": {"body": "{{text}}"}}}')
    done = run("query", "x", *where, "--first-stage", f"template:{tmp_path}/own.json")
    done.fails(2, "only OpenSearch can make that search; give a file of its results: --first-stage run:FILE")
    with pytest.raises(UsageError, match="the signal search is the score of your search"):
        hunters.pipeline(["bm25"]).answer(
            QUERIES[0], Stack.parse("search*0.5 + bm25*0.5", first_stage="bm25")
        )
    with pytest.raises(InputError, match="no such file"):
        read_template(f"template:{tmp_path}/gone.json")


def test_a_workspace_keeps_its_search_template(hunters: Workspace, tmp_path: Path) -> None:
    (hunters.folder / "own.json").write_text(
        'POST /a/_search?search_pipeline=p\n{"query": {"match": {"body": "%SearchText%"}}}'
    )
    config = hunters.folder / "rerank.toml"
    config.write_text(config.read_text().replace('first_stage = "bm25"', 'first_stage = "template:own.json"'))
    stack = Workspace.open(hunters.folder).stack("search")
    assert stack.search is not None
    assert (stack.search.index, stack.search.pipeline, stack.search.name) == ("a", "p", "own.json")
    assert Stack.from_json(stack.to_json()) == stack


def test_a_custom_search_must_be_among_the_retrievers() -> None:
    own = Stack.parse("search", first_stage="search")
    assert replace(own, retrieve=("search", "s2net")).retrievers == ("search", "s2net")
    for stack, retrieve in ((own, "s2net"), (Stack.parse("bm25"), "search")):
        with pytest.raises(UsageError, match="--retrieve search,NAME"):
            replace(stack, retrieve=(retrieve,))
    over = replace(Stack.parse("bm25*0.25 + text*0.75"), retrieve=("bm25", "text:20"))
    over = over.with_template(SearchTemplate("run", "x"))
    assert over.retrieve == ("search", "text:20")
    assert str(over) == "search*0.25 + text*0.75"
    with pytest.raises(UsageError, match="another first stage"):
        Stack.parse("search*0.5 + bm25*0.5", first_stage="bm25").with_template(SearchTemplate("run", "x"))
    with pytest.raises(RerankError, match=r"`name` - at `[$].search`"):
        Stack.from_json({**over.to_json(), "search": {"kind": "run"}})


def test_text_fields_are_read_from_the_config(hunters: Workspace) -> None:
    assert hunters.settings.words == ()
    config = hunters.folder / "rerank.toml"
    before = config.read_text()
    config.write_text('words = ["name", "body.*"]\n' + before)
    assert Workspace.open(hunters.folder).settings.words == ("name", "body.*")
    config.write_text(before + '\n[opensearch.fields]\ntitle = "name"\ntext = ["body", "summary"]\n')
    assert Workspace.open(hunters.folder).settings.words == ("name", "body", "summary")
    config.write_text("words = [3]\n" + before)
    with pytest.raises(UsageError, match="words"):
        Workspace.open(hunters.folder)


def test_a_field_can_be_a_signal(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    seen = {"wolf": 1000, "fox": 3, "owl": None}
    workspace.engine.write(
        Document(id, text="hunts at night", extra={"seen": n, "kind": "beast"}) for id, n in seen.items()
    )
    queries, qrels = [Query("q", "night")], Qrels([("q", "wolf", 1)])
    report = tune(workspace, "bm25,field:seen", queries=queries, qrels=qrels)
    assert (report.tuned.value, report.tuned.single_signal["field:seen"]) == (1.0, 1.0)
    stack = workspace.stack("field:seen,bm25")
    answer = workspace.pipeline(stack.signals).answer(queries[0], stack)
    raw = {hit.id: hit.signals["field:seen"].raw for hit in answer.ranking}
    assert raw == {"wolf": 1000, "fox": 3, "owl": 0}
    plain = workspace.stack("field:seen*0.5 + bm25*0.5")
    assert workspace.pipeline(["bm25"]).answer(queries[0], plain).ranking.ids[0] == "wolf"
    workspace.engine.write([Document("elk", text="night", extra={"large": 10**400})])
    for name in ("kind", "large", "unknown"):
        with pytest.raises(UsageError, match=f"field:{name}: no document has a number or a date"):
            tune(workspace, f"bm25,field:{name}", queries=queries, qrels=qrels)


@pytest.mark.parametrize("wrong", ["n/a", "12", [7], {"eur": 7}, 10**400, ""])
def test_another_value_in_a_field_of_numbers_counts_as_missing(tmp_path: Path, wrong: object) -> None:
    prices = {"a": 10.0, "b": wrong, "c": 30.0, "d": None}
    workspace = ingest(
        tmp_path / "ws",
        [{"_id": id, "text": "wolf", "lang": "en", "price": price} for id, price in prices.items()],
    ).workspace
    stack = workspace.stack("field:price*1 + bm25*0")
    ranking = workspace.pipeline(stack.signals).answer(Query("q", "wolf"), stack).ranking
    assert dict(zip(sorted(prices), ranking.raw[:, 0].tolist())) == {"a": 10, "b": 0, "c": 30, "d": 0}
    assert ranking.ids == ["c", "a", "b", "d"]


def test_other_values_in_fields_of_numbers_are_counted(tmp_path: Path) -> None:
    rows = [
        {"price": 1, "day": "2024-05-01", "code": "x"},
        {"price": "n/a", "day": "soon", "code": 7},
        {"price": 2.5, "day": "2024-05-02", "code": "y"},
        {"price": None, "day": "2024-05-03", "code": "z"},
    ]
    report = ingest(tmp_path / "ws", [{"_id": str(n), "text": "wolf", **row} for n, row in enumerate(rows)])
    assert report.not_numbers == {"day": 1, "price": 1}


def test_a_date_is_a_signal_in_seconds(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    days = {"a": "1970-01-03", "b": "1970-01-02T00:00:00Z", "c": None}
    workspace.engine.write(Document(id, text="wolf", extra={"published": day}) for id, day in days.items())
    stack = workspace.stack("bm25*0.5 + field:published*0.5")
    ranking = workspace.pipeline(stack.signals).answer("wolf", stack).ranking
    assert dict(zip(sorted(days), ranking.raw[:, 1].tolist())) == {"a": 172_800, "b": 86_400, "c": 0}
    queries, qrels = [Query("q", "wolf")], Qrels([("q", "a", 1)])
    missing = "field:pubished: no document has a number or a date in the field 'pubished'"
    with pytest.raises(UsageError, match=missing):
        tune(workspace, "bm25,field:pubished", queries=queries, qrels=qrels)
    with pytest.raises(UsageError, match=missing):
        FieldSignal("field:pubished").check(workspace.engine)
    with pytest.raises(UsageError, match="field:published:decay"):
        workspace.stack("bm25*0.5 + field:published:decay:now:30d*0.5")


def test_a_workspace_cannot_name_files_outside_its_folder(hunters: Workspace, tmp_path: Path) -> None:
    """A rerank.toml of another user could otherwise send any file of this user to its cluster."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"query": {"match": {"content": "{{query_text}}"}}}')
    (hunters.folder / "link.json").symlink_to(secret)
    config = hunters.folder / "rerank.toml"
    whole = config.read_text()
    for name in (str(secret), "../secret.json", "link.json"):
        config.write_text(whole.replace('first_stage = "bm25"', f'first_stage = "template:{name}"'))
        run("query", "wolf", "-w", hunters.folder).fails(
            2, f"rerank.toml: 'template:{name}' is not in this folder; copy the file into it"
        )
    (hunters.folder / "link.json").unlink()
    (hunters.folder / "own.json").write_text(secret.read_text())
    config.write_text(whole.replace('first_stage = "bm25"', 'first_stage = "template:own.json"'))
    assert Workspace.open(hunters.folder).first_stage == "search"


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ('{"{{field}}": "{{text}}"}', "field"),
        ('{"a": "{{text}}", "b": {{#toJson}}user.groups{{/toJson}}}', "user"),
        ('{"a": "{{text}}", "b": [{{#join delimiter=\',\'}}tags{{/join delimiter=\',\'}}]}', "tags"),
        ('{"a": "{{text}}", "b": "{{lang}}"}', "lang"),
        ('{"a": "{{text}}", "b": {{^year}}0{{/year}}{{year}}, {{#user}}"c": "{{id}}"{{/user}}}', None),
        ('{"a": "{{text}}", "b": {{#toJson}}categories{{/toJson}}}', None),
        ('{"a": "%SearchText% {{field}}"}', None),
    ],
)
def test_a_query_must_have_the_values_of_a_template(source: str, lacks: str | None) -> None:
    search, bare = SearchTemplate("template", "shop.json", source), Query("q", "wolf")
    one = f"^template:shop.json: query 'q' has no value for its slot {lacks}; "
    if lacks is None:
        check_values(search, [bare])
        return
    with pytest.raises(InputError, match=f"^template:shop.json: no query has a value for its slot {lacks}; "):
        check_values(search, [bare, bare])
    with pytest.raises(InputError, match=one):
        check_values(search, [bare])
    check_values(search, [bare, Query("p", "fox", lang="en", params={lacks: ["a"]})])
