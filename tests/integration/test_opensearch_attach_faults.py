"""Missing indices, indices of other owners, and the commands that use an attached index."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np

from rerank import Workspace
from rerank.service.hook_hits import HookHits
from rerank.service.schemas import HookCall
from tests.support.opensearch import at, documents, indices, reading_commands, texts
from tools.opensearch_node import Node


def test_an_index_that_another_client_deleted(run, folder, few, node, name):
    node.request("DELETE", f"/{name}-*")
    for command in reading_commands(few):
        run(*command, "-w", folder).fails(
            1, f"no index '{name}'; check the name, or create it again with `rerank ingest"
        )
    assert indices(node, name) == {}
    assert run("ingest", few, "--replace", "-w", folder, "--json").json["added"] == 20
    assert documents(node, name) == texts(20, "cell")


def test_an_index_name_in_use_is_refused(run, few, node, name, tmp_path):
    node.request("PUT", f"/{name}", {"mappings": {"properties": {"text": {"type": "text"}}}})
    before = indices(node, name)
    run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).fails(
        1, f"has an index '{name}' already; choose another name, `rerank attach -w {tmp_path / 'ws'}` it"
    )
    assert not (tmp_path / "ws").exists()
    assert indices(node, name) == before


def test_an_existing_next_index_is_refused(run, folder, few, node, name):
    (current,) = indices(node, name)
    taken = f"{name}-{int(current[-6:]) + 1:06}"
    node.request("PUT", f"/{taken}", {})
    run("ingest", few, "--replace", "-w", folder).fails(1, f"'{taken}' that is in use; remove or rename it")
    assert documents(node, name) == texts(20, "cell")
    assert set(indices(node, name)) == {current, taken}


MAPPING = {
    "dynamic": "strict",
    "_meta": {"owner": "somebody"},
    "properties": {
        "head": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "body": {"properties": {"main": {"type": "text"}, "notes": {"type": "text", "analyzer": "english"}}},
        "tags": {"type": "nested", "properties": {"name": {"type": "keyword"}}},
        "when": {"type": "date"},
        "code": {"type": "keyword"},
    },
}
FIELDS = ["title=head", "text=body.main,body.notes", "categories=tags.name"]


def create_index(node: Node, index: str, records: list[dict[str, Any]], **body: Any) -> None:
    """Create an index of a user, with documents that have routing."""
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    node.request("PUT", f"/{index}", {"settings": settings, "mappings": MAPPING, **body})
    body = []
    for record in records:
        source = {
            "head": record["title"],
            "body": {"main": [record["text"][:50], record["text"][50:]], "notes": None},
            "tags": [{"name": category} for category in record["categories"]],
            "when": "2024-01-01",
        }
        # Keys with dots also stand for objects.
        if len(record["_id"]) % 2:
            source["body.main"] = source.pop("body")["main"]
        where = {"_id": record["_id"].replace(":", "-"), "routing": str(len(record["text"]))}
        body += [json.dumps({"index": where}), json.dumps(source)]
    url = f"{node.url}/{index}/_bulk?refresh=true"
    data, kind = "\n".join([*body, ""]).encode(), {"Content-Type": "application/x-ndjson"}
    with urllib.request.urlopen(urllib.request.Request(url, data, kind)) as answer:
        assert json.load(answer)["errors"] is False


def index_settings(node: Node, index: str) -> dict[str, Any]:
    """Return all settings and mappings of an index."""
    (about,) = node.request("GET", f"/{index}").values()
    return about


def state(node: Node, index: str) -> dict[str, Any]:
    """Return id -> source, version, sequence number and routing."""
    body = {"size": 1000, "version": True, "seq_no_primary_term": True}
    hits = node.request("POST", f"/{index}/_search", body)["hits"]["hits"]
    return {hit["_id"]: {key: hit[key] for key in hit if key not in ("_score", "sort")} for hit in hits}


def test_all_commands_work_with_an_attached_index(run, small, node, name, tmp_path, authority):
    """The alias has two indices with routing, nested fields, keys with dots, and arrays."""
    folder, alias = tmp_path / "ws", f"{name}-all"
    halves = {f"{name}-a": small.documents[::2], f"{name}-b": small.documents[1::2]}
    for index, records in halves.items():
        create_index(node, index, records, aliases={alias: {}})
    before = {index: (index_settings(node, index), state(node, index)) for index in halves}
    command = ("attach", *FIELDS, "-w", folder, "--url", node.url, "--index", alias, "--lang", "en")

    # A dry run prints the same and changes nothing.
    dry = run(*command, "--dry-run").ok()
    assert dry.out.endswith(f"200 documents of {name}-a, {name}-b; nothing was changed\n")
    assert {index: (index_settings(node, index), state(node, index)) for index in halves} == before
    assert not folder.exists()

    done = run(*command).ok()
    assert f"200 documents of {name}-a, {name}-b" in done.out
    assert {index: (index_settings(node, index), state(node, index)) for index in halves} == before
    assert "rerank train text meta " in done.out
    run(*command).fails(1, f"{folder}: is a workspace already")

    # Documents consist of the configured fields.
    expected = small.documents[3]
    engine = Workspace.open(folder).engine
    (actual,) = engine.get([expected["_id"].replace(":", "-")])
    assert actual is not None
    assert (actual.title, actual.text.replace("\n", "")) == (expected["title"], expected["text"])
    assert sorted(actual.categories) == sorted(expected["categories"])
    assert len(engine) == len(list(engine.documents())) == len(engine.ids()) == 200

    # All other commands use bm25, and refuse other first stages.
    files = ("--queries", small.queries, "--qrels", tmp_path / "qrels.tsv", "-w", folder)
    rows = [row.split("\t") for row in (small.folder / "train.tsv").read_text().splitlines()]
    judged = ["\t".join([query, id.replace(":", "-"), *rest]) for query, id, *rest in rows]
    (tmp_path / "qrels.tsv").write_text("\n".join(judged))
    assert run("query", "cells", "-w", folder, "--json").json["stack"] == "bm25*1.00"
    no_tfidf = "'tfidf' is not a first stage; choose one of bm25"
    run("query", "cells", "--stack", "tfidf", "-w", folder).fails(2, no_tfidf)
    run("query", "cells", "--first-stage", "tfidf", "-w", folder).fails(2, no_tfidf)
    run("train", "text", "--first-stage", "tfidf", *files).fails(2, no_tfidf)
    run("ingest", small.corpus, "-w", folder).fails(2, f"index '{alias}' is attached")
    assert run("train", "lsi", *files, "--dim", 4, "--json").json["encoded"] == {"lsi": 200}
    run("tune", "--stack", "tfidf,lsi", *files).fails(2, no_tfidf)
    assert run("tune", "--stack", "bm25,lsi", *files).code == 0
    answer = run("query", "cells", "--stack", "bm25,lsi", "-w", folder, "--json").json
    assert answer["recomputed"] == {}
    assert answer["hits"]
    assert run("status", "-w", folder, "--json").json["rankers"][0]["missing_features"] == 0
    assert {index: (index_settings(node, index), state(node, index)) for index in halves} == before

    # A document with a changed text or category is encoded again. Other fields have no effect.
    changed = node.request("GET", f"/{name}-a/_search?size=2")["hits"]["hits"]
    for hit, doc in zip(changed, ({"tags": [{"name": "new"}]}, {"code": "x"})):
        path = f"/{name}-a/_update/{hit['_id']}?refresh=true&routing={hit['_routing']}"
        node.request("POST", path, {"doc": doc})
    assert "1 feature missing: run `rerank encode -w " in run("status", "-w", folder).out
    query = ["query", changed[0]["_source"]["head"], "--stack", "bm25,lsi", "-w", folder, "--json"]
    assert run(*query).json["recomputed"]["lsi"] >= 1
    assert run("encode", "-w", folder, "--json").json["encoded"] == {"lsi": 1}
    assert "features stored" in run("status", "-w", folder).out
    assert run(*query).json["recomputed"] == {}

    # A write block has no effect, because the index is only read.
    node.request("PUT", f"/{name}-a/_settings", {"index.blocks.write": True})
    assert run("encode", "--force", "-w", folder, "--json").json["encoded"] == {"lsi": 200}
    assert run(*query).json["recomputed"] == {}


def test_attach_refuses_invalid_fields_and_indices(run, node, name, tmp_path):
    folder = tmp_path / "ws"

    def attach(*fields: str) -> Any:
        return run("attach", *fields, "-w", folder, "--url", node.url, "--index", name)

    def index(**mappings: Any) -> None:
        node.request("PUT", f"/{name}", {"mappings": {**MAPPING, **mappings}})

    for fields in (("text=head",), ()):
        missing = attach(*fields)
        missing.fails(1, f"{node.url} has no index '{name}'; give the name of another index with --index")
        assert "ingest" not in missing.err
    index()
    before = index_settings(node, name)
    attach("text=nothing").fails(
        2, "has no field 'nothing' (text); it has body.main, body.notes, code, head,"
    )
    attach("text=head", "categories=tag.name").fails(
        2, "has no field 'tag.name' (categories); it has body.main"
    )
    attach("text=code").fails(2, "field 'code' of index", "is of type keyword")
    attach("title=when").fails(2, "is of type date")
    attach("categories=code").fails(2, "neither title nor text is given")
    attach("body=head").fails(2, "'body' is not a part of a document; use title, text, categories, links,")
    attach("text").fails(2, "'text' is not NAME=FIELD, for example text=body")
    attach("text=").fails(2, "is not NAME=FIELD")
    attach("text=,").fails(2, "field 'text' needs the name of a field of the index")
    attach().fails(
        2,
        "was not made by rerank",
        "it has body.main (text), body.notes",
    )
    assert index_settings(node, name) == before
    node.request("DELETE", f"/{name}")

    for source, what in (
        ({"enabled": False}, "has no _source"),
        ({"excludes": ["head"]}, "excludes head from _source"),
        ({"excludes": ["he*"]}, "excludes head from _source"),
        ({"includes": ["code"]}, "excludes head from _source"),
    ):
        index(_source=source)
        attach("text=head").fails(1, what)
        node.request("DELETE", f"/{name}")
    assert not folder.exists()


def test_attach_accepts_an_index_that_rerank_created(run, few, node, name, tmp_path):
    """As on a second machine, no fields are named. A replacement has the same settings."""
    shape = ("--lang", "en", "--shards", 2, "--replicas", 0)
    assert run("ingest", few, "-w", tmp_path / "first", *at(node.url, name), *shape).code == 0
    (first,) = indices(node, name)
    bm25 = {"type": "BM25", "k1": "0.9", "b": "0.4"}
    node.request("POST", f"/{first}/_close")
    settings = {"similarity.rerank_bm25": bm25, "max_result_window": 20_000, "refresh_interval": "30s"}
    node.request("PUT", f"/{first}/_settings", {"index": settings})
    node.request("POST", f"/{first}/_open?wait_for_active_shards=all")
    before = indices(node, name)
    run("attach", "-w", tmp_path / "ws", "--url", node.url, "--index", name).ok()
    assert indices(node, name) == before
    for stage in ("bm25", "tfidf"):
        assert len(run("query", "cell", "--stack", stage, "-w", tmp_path / "ws", "--json").json["hits"]) == 10
    assert run("ingest", few, "-w", tmp_path / "ws", "--json").json["unchanged"] == 20
    assert run("ingest", few, "-w", tmp_path / "ws", "--replace", "--json").json["lang"] == "en"
    (made,) = node.request("GET", f"/{name}").values()
    made = made["settings"]["index"]
    assert made["similarity"]["rerank_bm25"] == bm25
    names = ("number_of_shards", "number_of_replicas", "max_result_window", "refresh_interval")
    assert [made[name] for name in names] == ["2", "0", "20000", "30s"]
    assert "rerank_stemmer" in made["analysis"]["filter"]


def test_hits_with_numbers_as_ids_keep_their_ids(run, node, name, tmp_path, write_lines):
    """Until its id is known, a hit has its place as id."""
    lines = [{"_id": f"{i:06}", "text": "wolf " * (i + 1)} for i in (2, 0, 1)]
    folder = tmp_path / "ws"
    run("ingest", write_lines(tmp_path / "numbers.jsonl", lines), "-w", folder, *at(node.url, name)).ok()
    search = {"query": {"match": {"content": "wolf"}}, "seq_no_primary_term": True}
    hits = node.request("POST", f"/{name}/_search", search)["hits"]["hits"]
    (about,) = node.request("GET", f"/{name}").values()
    body = {"query": {}, "hits": 3, "places": {"uuids": [about["settings"]["index"]["uuid"]]}}
    head = json.dumps(body).encode()
    numbers = [np.array([hit["_score"] for hit in hits], ">f8"), np.zeros(3, ">i4")]
    numbers += [np.array([hit[part] for hit in hits], ">i8") for part in ("_seq_no", "_primary_term")]
    call = HookCall.read(len(head).to_bytes(4, "big") + head + b"".join(one.tobytes() for one in numbers))
    actual = HookHits(Workspace.open(folder).engine, call)
    actual.find_ids()
    assert actual.ids == [hit["_id"] for hit in hits]
