"""Custom searches as the first stage on a real node: templates, stored templates, pipelines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rerank import Qrels, Query, RerankError, Stack, Workspace, evaluate, train, tune
from rerank.common.errors import InputError, UsageError
from rerank.documents.filters import filters_of
from rerank.documents.records import Candidates, SearchTemplate
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.search_request import FilledTemplate, SearchRequest
from rerank.formats import read_template
from tests.support.cli import run_here as run
from tests.support.cli import write_json_lines
from tools.opensearch_node import Node

INDEX = "shelf"
BODY = """{"query": {"function_score": {
  "query": {"bool": {
    "must": {"multi_match": {"query": "{{text}}", "fields": ["name^2", "body"], "_name": "words"}},
    "filter": [{{#filters}}{"term": {"{{field}}": "{{value}}"}},{{/filters}}
               {"range": {"year": {"gte": {{^year}}0{{/year}}{{year}}}}}]}},
  "field_value_factor": {"field": "popularity", "modifier": "log1p"}}},
 "highlight": {"fields": {"body": {}}}}"""
WORDS = ("wolf", "fox", "owl", "bear", "hare")


@pytest.fixture(scope="module")
def shelf(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """An attached index that rerank did not create."""
    properties = {
        **{"name": {"type": "text"}, "body": {"type": "text"}, "year": {"type": "integer"}},
        **{"tags": {"type": "keyword"}, "popularity": {"type": "float"}},
    }
    node.request(
        "PUT", f"/{INDEX}", {"mappings": {"properties": properties}, "settings": {"number_of_replicas": 0}}
    )
    for i in range(40):
        words = [WORDS[(i * k) % 5] for k in (1, 2, 3)]
        source = {"name": words[0], "body": " ".join(words), "year": 2000 + i, "tags": ["ab"[i % 2]]}
        node.request("PUT", f"/{INDEX}/_doc/d{i}", {**source, "popularity": i})
    node.request("POST", f"/{INDEX}/_refresh")
    fields = {"title": ["name"], "text": ["body"], "categories": ["tags"]}
    yield Workspace.create(
        tmp_path_factory.mktemp("shelf") / "ws",
        lang="en",
        engine="opensearch",
        settings={"url": [node.url], "index": INDEX, "fields": fields},
        attach=True,
    )
    node.request("DELETE", f"/{INDEX}")


def save_template(folder: Path, text: str) -> SearchTemplate:
    path = folder / "own.json"
    path.write_text(text)
    actual = read_template(f"template:{path}")
    assert actual is not None
    return actual


def body(workspace: Workspace, search: SearchTemplate, query: Query) -> dict[str, Any]:
    assert isinstance(workspace.engine, OpenSearchEngine)
    return workspace.engine.templates.body(search, query)


def searched(
    workspace: Workspace, search: SearchTemplate, queries: list[Query], depth: int
) -> list[Candidates]:
    requests = [
        SearchRequest(query.lexical, "search", depth, template=FilledTemplate(search, query))
        for query in queries
    ]
    return list(workspace.engine.search(requests))


def test_candidates_and_scores_equal_the_custom_search(shelf: Workspace, node: Node, tmp_path: Path) -> None:
    search = save_template(tmp_path, f"GET /{INDEX}/_search\n{BODY}")
    query = Query("q", "wolf fox", params={"filters": [{"field": "tags", "value": "a"}], "year": 2010})
    (actual,) = searched(shelf, search, [query], 7)
    filters = [{"term": {"tags": "a"}}, {"range": {"year": {"gte": 2010}}}]
    words = {"multi_match": {"query": "wolf fox", "fields": ["name^2", "body"]}}
    scored = {
        "query": {"bool": {"must": words, "filter": filters}},
        "field_value_factor": {"field": "popularity", "modifier": "log1p"},
    }
    hits = node.request("POST", f"/{INDEX}/_search", {"query": {"function_score": scored}, "size": 7})[
        "hits"
    ]["hits"]
    assert len(actual) == 7
    assert dict(zip(actual.ids, actual.scores)) == {h["_id"]: h["_score"] for h in hits}


def test_each_query_gets_its_hits(shelf: Workspace, tmp_path: Path) -> None:
    search = save_template(tmp_path, '{"query": {"match": {"body": "{{text}}"}}}')
    queries = [Query(word, word) for word in WORDS]
    together = searched(shelf, search, queries, 10)
    alone = [searched(shelf, search, [query], 10)[0] for query in queries]
    assert [one.ids for one in together] == [one.ids for one in alone]
    assert len({tuple(one.ids) for one in together}) == len(WORDS)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    value=st.sampled_from(['a"}},{"x', "\\", "{{year}}"]),
)
@example(text="e\u0301", value="\\")
@pytest.mark.parametrize("slot", ["{{text}}", "%SearchText%"])
def test_a_query_can_change_only_its_words(
    shelf: Workspace, tmp_path: Path, slot: str, text: str, value: str
) -> None:
    search = save_template(
        tmp_path, f'{{"query": {{"bool": {{"must": {{"match": {{"body": "{slot}"}}}}, "filter": []}}}}}}'
    )
    composed = unicodedata.normalize("NFC", text)
    assert body(shelf, search, Query("q", text)) == {
        "query": {"bool": {"must": {"match": {"body": composed}}, "filter": []}}
    }
    if slot == "{{text}}":
        search = save_template(
            tmp_path,
            '{"query": {"bool": {"must": {"match": {"body": "{{text}}"}},'
            ' "filter": {"term": {"tags": "{{tag}}"}}}}}',
        )
        rendered = body(shelf, search, Query("q", "wolf", params={"tag": value}))
        assert rendered["query"]["bool"]["filter"] == {"term": {"tags": value}}


def test_values_that_would_change_a_template_are_refused(shelf: Workspace, tmp_path: Path) -> None:
    loose = (
        '{"query": {"bool": {"must": {"match": {"body": "{{text}}"}}, "filter": [{{#join}}tags{{/join}}]}}}'
    )
    query = Query("q", "wolf", params={"tags": ['{"match_none": {}}', '{"match_all": {}}']})
    with pytest.raises(InputError, match="no JSON after rendering"):
        body(shelf, save_template(tmp_path, loose), query)
    safe = loose.replace("[{{#join}}tags{{/join}}]", '{"terms": {"tags": {{#toJson}}tags{{/toJson}}}}')
    rendered = body(shelf, save_template(tmp_path, safe), query)
    assert rendered["query"]["bool"]["filter"] == {"terms": {"tags": list(query.params["tags"])}}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"query": {"match": {"body": "wolf"}}}', "no slot for the query"),
        ('{"query": {"match": {"body": "{{text}} %SearchText%"}}}', "2 slots for the query, %Search"),
        ('{"query": {"match": {"body": "{{text}} {{query}}"}}}', "2 slots for the query, text and query"),
        ('{"size": 5, "query": {"match": {"body": "{{text}}"}}}', 'has "size"'),
        ('{"from": 5, "query": {"match": {"body": "%SearchText%"}}}', 'has "from"'),
        ('{"aggs": {"y": {}}, "query": {"match": {"body": "{{text}}"}}}', 'has "aggs"'),
        ('{"aggregations": {}, "query": {"match": {"body": "{{text}}"}}}', 'has "aggregations"'),
        ('{"sort": ["year"], "query": {"match": {"body": "{{text}}"}}}', "must sort by"),
        ('{"query": {"match": {"body": {{text}}}}}', "no JSON after rendering"),
        ('{"query": {"match": {"body": "{{text}}"}}', "no JSON after rendering"),
        ('{"query": {"match": {"body": "%SearchText%"}}', "no JSON"),
        ('{"query": {"match": {"body": "{{{text}}}"}}}', "not escaped"),
        ('{"query": {"match": {"body": "{{#toJson}}text{{/toJson}}"}}}', "not escaped"),
        ('{"track_scores": true, "post_filter": {"term": {"tags": "{{text}}"}}}', 'no "query"'),
        ('GET /other/_search\n{"query": {"match": {"body": "{{text}}"}}}', "is for index 'other'"),
        ('{"query": {"nope": {"body": "{{text}}"}}}', "nope"),
        ('{"search_pipeline": "gone", "query": {"match": {"body": "{{text}}"}}}', "'gone' does not exist"),
    ],
)  # fmt: skip
def test_bad_templates_are_refused(shelf: Workspace, tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    before = sorted(shelf.folder.rglob("*"))
    queries, qrels = [Query("q", "wolf")], Qrels([("q", "d1", 1)])
    with pytest.raises(RerankError) as caught:
        tune(shelf, "search,bm25", queries=queries, qrels=qrels, first_stage=f"template:{path}")
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "bad.json" in str(caught.value) or "pipeline" in str(caught.value) or what == "nope"
    assert sorted(shelf.folder.rglob("*")) == before


def files(workspace: Workspace) -> list[tuple[str, int, int]]:
    """Return the path, size and modification time of each file of a workspace."""
    found = (path for path in workspace.folder.rglob("*") if path.is_file())
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found)


def test_bad_signals_are_reported_in_one_line(shelf: Workspace, tmp_path: Path) -> None:
    queries = write_json_lines(tmp_path / "queries.jsonl", [{"_id": "wolf", "text": "wolf"}])
    (tmp_path / "qrels.tsv").write_text("wolf\td35\t1\n")
    judged = ("--queries", queries, "--qrels", tmp_path / "qrels.tsv")
    (tmp_path / "own.json").write_text(BODY)
    first = ("--first-stage", f"template:{tmp_path}/own.json", "-w", shelf.folder)
    before = files(shelf)
    kinds = {"field:name": "of type text", "field:tags": "of type keyword", "field:gone": "missing"}
    others = "fields of numbers: popularity, year"
    wrong = {
        signal: f"field {signal.split(':')[1]!r} of index 'shelf' is not a number: it is {kind}; {others}"
        for signal, kind in kinds.items()
    }
    wrong["clause:words"] = "'clause:words"
    for signal, what in wrong.items():
        run("tune", "--stack", f"search,{signal}", *first, *judged).fails(2, what)
        written = f"search*0.5 + {signal}*0.5"
        run("evaluate", "--stack", written, *first, *judged).fails(2, what)
        run("query", "wolf", "--stack", written, *first).fails(2, what)
    run("query", "wolf", "--param", "yaer=2020", *first).fails(2, "--param yaer: template:own.json has")
    assert files(shelf) == before


def test_a_template_can_be_used_to_train_tune_and_evaluate(shelf: Workspace, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(BODY)
    first = f"template:{tmp_path}/own.json"
    queries = [Query(word, word, params={"year": 2004}) for word in WORDS]
    qrels = Qrels((word, f"d{i}", 1) for k, word in enumerate(WORDS) for i in range(5 + k, 40, 10))
    train(shelf, ["lsi"], queries=queries, qrels=qrels, first_stage=first, config={"dim": 4})
    tuned = tune(shelf, "search,lsi", queries=queries, qrels=qrels, first_stage=first).tuned
    assert tuned.value >= tuned.first_stage_value
    loaded = Stack.load(shelf.stack_path(("search", "lsi")))
    assert loaded.first_stage == "search"
    assert loaded.search is not None
    assert loaded.search.source == BODY.strip()
    report = evaluate(
        shelf, ["search,lsi", "bm25*0.5 + lsi*0.5"], queries=queries, qrels=qrels, first_stage=first
    )
    rows = {row.stack: row for row in report.results}
    assert list(rows) == ["search", "search,lsi", "bm25*0.5 + lsi*0.5"]
    assert report.baseline == "search"
    assert rows["bm25*0.5 + lsi*0.5"].weights == {"search": 0.5, "lsi": 0.5}
    assert rows["search,lsi"].measures["nDCG@10"] == pytest.approx(tuned.value)
    answer = shelf.pipeline(["lsi"]).answer(queries[0], loaded)
    (actual,) = searched(shelf, loaded.search, queries[:1], 1000)
    assert sorted(answer.ranking.ids) == sorted(actual.ids)
    assert answer.ranking.raw[:, 0].tolist() == actual.scores.tolist()


def test_fields_can_be_signals(shelf: Workspace, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(BODY)
    query = Query("wolf", "wolf", params={"year": 2004})
    first = f"template:{tmp_path}/own.json"
    signals = "search*0.6 + field:popularity*0.4"
    stack = replace(Stack.parse(signals), search=read_template(first))
    ranking = shelf.pipeline(stack.signals).answer(query, stack).ranking
    # Document di has the popularity i.
    assert ranking.raw[ranking.order, 1].tolist() == [float(id[1:]) for id in ranking.ids]


def test_a_pipeline_of_the_template_is_used_without_the_hook(
    shelf: Workspace, node: Node, tmp_path: Path
) -> None:
    assert isinstance(shelf.engine, OpenSearchEngine)
    plain = [{"filter_query": {"query": {"term": {"tags": "a"}}}}]
    node.request("PUT", "/_search/pipeline/theirs", {"request_processors": plain})
    search = save_template(
        tmp_path,
        f'GET {INDEX}/_search?search_pipeline=theirs\n{{"query": {{"match": {{"body": "{{{{text}}}}"}}}}}}',
    )
    asked = shelf.engine.templates.ids_only(body(shelf, search, Query("q", "wolf")), 40)
    assert asked["search_pipeline"] == "theirs"
    (actual,) = searched(shelf, search, [Query("q", "wolf")], 40)
    assert actual.ids
    assert all(int(id[1:]) % 2 == 0 for id in actual.ids)
    node.request("DELETE", "/_search/pipeline/theirs")


def test_an_attached_index_is_filtered_by_its_fields(shelf: Workspace) -> None:
    wanted = {("year>=2020",): range(20, 40), ("tags=a", "year<2010", "popularity>3"): (4, 6, 8)}
    for texts, kept in wanted.items():
        actual = shelf.engine.find(
            SearchRequest(" ".join(WORDS), first_stage="bm25", depth=100, filters=filters_of(list(texts)))
        )
        assert sorted(actual.ids) == sorted(f"d{i}" for i in kept)
    for text, what in (
        ("gone=1", "index 'shelf' has no field 'gone'"),
        ("year=soon", "is of type integer, and 'soon' is no number"),
        ("body=wolf", "is of type text; filter by one of type keyword"),
    ):
        with pytest.raises(UsageError, match=what):
            shelf.search("wolf", stack="bm25", filter=text)
    published = shelf.engine.field_values(["d7"], ["year"])
    assert [one.tolist() for one in published] == [[2007.0]]
