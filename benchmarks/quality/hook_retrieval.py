"""Measure what documents of a ranker add to plain searches through the plugin, on a template of production.

    python benchmarks/quality/hook_retrieval.py DATA
    python benchmarks/quality/hook_retrieval.py DATA --rankers dense,s2net --model MODEL

DATA is a folder of wikispeedia (corpus, queries, judgments). The index has permissions, a year and a
popularity: the number of articles that link to an article. The template multiplies ``multi_match`` by the
logarithm of the popularity, under filters. The rankers learn from the judgments of train, ``dense`` with the
preset ``judged``; the weights of the stack, ``search,s2net`` by default, are tuned on dev twice: for the hits
of the template, and for these hits and the nearest documents of the rankers. Test queries are then sent as
plain searches through both pipelines, and measured by ``rerank evaluate``. They have no language, as plain
searches. p is the paired randomization test.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.collection import Collection
from benchmarks.common.hook import plugin_node
from benchmarks.common.index import fill_index
from benchmarks.common.service import service_process
from rerank import Document, Qrels, Query, Stack, Workspace, evaluate, train, tune
from rerank.engines.opensearch import OpenSearchEngine
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.significance import randomization_test
from rerank.hook import HookOptions, hook
from tools.opensearch_node import Node

INDEX = "articles"
DEPTH = 100  # candidates
EPOCHS = 120  # of s2net
QUERIES = 300  # of dev and of test
TEMPLATE = """{"query": {"function_score": {
  "query": {"bool": {
    "must": {"multi_match": {"query": "{{text}}", "fields": ["name^3", "body"], "type": "best_fields"}},
    "filter": [{"term": {"permissions": "public"}}, {"range": {"year": {"gte": 1990}}}]}},
  "field_value_factor": {"field": "popularity", "modifier": "log2p"}}}}"""


def fill(node: Node, articles: Sequence[Document]) -> None:
    """Index the articles with field names that differ from the names in rerank."""
    links = Counter(target for article in articles for target in article.links)
    text, keyword, number = {"type": "text"}, {"type": "keyword"}, {"type": "integer"}
    properties = {"name": text, "body": text, "tags": keyword, "permissions": keyword}
    properties |= {"year": number, "popularity": number}
    sources = {
        article.id: {
            "name": article.title,
            "body": article.text,
            "tags": article.categories,
            "permissions": "public",
            "year": 2000 + len(article.id) % 20,
            "popularity": links[article.id],
        }
        for article in articles
    }
    fill_index(node, INDEX, {"properties": properties}, sources.items())


def judged(collection: Collection, split: str, count: int | None = None) -> tuple[list[Query], Qrels]:
    """Return the first queries of a split without categories and language, and their judgments."""
    qrels = collection.judgments(split)
    names = list(qrels)[:count]
    texts = {query.id: query.text for query in collection.queries()}
    return [Query(name, texts[name]) for name in names], Qrels({name: qrels[name] for name in names})


def learn(workspace: Workspace, ranker: str, queries: list[Query], qrels: Qrels, options: Namespace) -> None:
    """Train a ranker, and encode the documents."""
    config: dict[str, Any] = {}
    preset = None
    if ranker == "s2net":
        config = {"epochs": EPOCHS, "graded": options.graded}
    if ranker == "dense":
        import torch

        torch.set_num_threads(1)
        config = {"model": options.model}
        preset = "judged"
    report = train(workspace, [ranker], queries=queries, qrels=qrels, config=config, preset=preset)
    print(report, flush=True)


def live(workspace: Workspace, stack: Stack, url: str, queries: list[Query]) -> dict[str, list[str]]:
    """Return the ten best hits of plain searches through the pipeline."""
    engine = workspace.engine
    assert isinstance(engine, OpenSearchEngine)
    assert stack.search is not None
    hook(workspace).install(HookOptions(url, depth=DEPTH, timeout=60.0))
    run: dict[str, list[str]] = {}
    for query in [queries[0], *queries]:  # the first search has no features yet
        body = {**engine.templates.body(stack.search, query), "size": 10, "_source": False}
        params = {"search_pipeline": f"rerank-{INDEX}"}
        answer = engine.index.client.search(index=INDEX, body=body, params=params)
        run[query.id] = [hit["_id"] for hit in answer["hits"]["hits"]]
    return run


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--graded", action="store_true", help="Train s2net also on lower grades.")
    parser.add_argument("--rankers", default="s2net", help="For example dense,s2net.")
    parser.add_argument("--model", help="Encoder of dense.")
    parser.add_argument("--added", type=int, default=100, help="Documents of each ranker.")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hook-retrieval-")))
        node = stack.enter_context(plugin_node("768m"))
        fill(node, Collection(options.data).documents())
        print(json.dumps(measure(node, folder, options), indent=1))


def measure(node: Node, folder: Path, options: Namespace) -> dict[str, Any]:
    fields = {"title": ["name"], "text": ["body"], "categories": ["tags"]}
    engine = {"engine": "opensearch", "settings": {"url": [node.url], "index": INDEX, "fields": fields}}
    workspace = Workspace.create(folder / "ws", lang="en", attach=True, **engine)
    (folder / "own.json").write_text(TEMPLATE, "utf-8")
    first = f"template:{folder / 'own.json'}"
    collection = Collection(options.data)
    queries, qrels = judged(collection, "train")
    rankers = options.rankers.split(",")
    for ranker in rankers:
        learn(workspace, ranker, queries, qrels, options)
    dev, dev_qrels = judged(collection, "dev", QUERIES)
    test, test_qrels = judged(collection, "test", QUERIES)
    runs: dict[str, dict[str, list[str]]] = {}
    offline: dict[str, float] = {}
    tuned_values: dict[str, float] = {}
    union_retrieves = ("search", *(f"{ranker}:{options.added}" for ranker in rankers))
    for name, retrieve in (("hits", ()), ("union", union_retrieves)):
        path = folder / f"{name}.json"
        settings = {"first_stage": first, "retrieve": retrieve, "depth": DEPTH, "out": path}
        tuning = tune(workspace, ",".join(("search", *rankers)), queries=dev, qrels=dev_qrels, **settings)
        tuned = tuning.stack
        tuned_values[name] = tuning.tuned.value
        test_set = {"queries": test, "qrels": test_qrels, "protocols": [f"retrieved:{DEPTH}"]}
        for row in evaluate(workspace, [tuned], **test_set).results:
            offline["plain" if row.stack == "search" else name] = row.measures["nDCG@10"]
        serving = ("--stack", path, "--deadline", 120)
        with service_process(workspace.folder, folder / "serve.log", *serving) as (url, _):
            runs[name] = live(workspace, tuned, url, test)
        print(name, tuned, tuned_values, offline, flush=True)
    evaluation = evaluate_runs(runs, test_qrels, ["nDCG@10"])
    hits, union = (evaluation.values[name]["nDCG@10"] for name in ("hits", "union"))
    settings = {"queries": len(hits), "rankers": rankers, "depth": DEPTH, "added": options.added}
    live_values = {"hits": float(hits.mean()), "union": float(union.mean())}
    gain = {"gain": float((union - hits).mean()), "p": randomization_test(union - hits)}
    return {**settings, "dev": tuned_values, "evaluate": offline, "live": live_values, **gain}


if __name__ == "__main__":
    main()
