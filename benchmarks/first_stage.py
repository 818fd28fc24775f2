"""Compare production queries with and without the hook, with weights tuned on them or on another query.

    python benchmarks/first_stage.py DATA/wikispeedia WORKSPACE [--queries N] [--resume DIR]
    python benchmarks/first_stage.py DATA/wikispeedia WORKSPACE --rankers text,s2net --retrieve s2net:200

WORKSPACE has rankers trained on the collection (``rerank ingest``, ``rerank train text meta``). The script
writes the articles to an index that rerank does not own and attaches it. The index has other field names,
permissions, a year and a popularity (the number of articles that link to an article). Every figure comes
from ``rerank evaluate --first-stage``, which ranks like the hook. Queries have no categories. Weights are
tuned on dev. p is the paired randomization test.

Weights tuned on a query use more signals: also BM25 and the popularity. The single score of a search has
little information about them. The *popular* query is also tuned with the score of its words (a named
clause) instead of BM25. With ``--retrieve``, only this query is measured, by ``evaluate``: with its own
candidates, and with those that a ranker adds under its filters. ``--resume`` keeps tuned stacks,
comparisons and rows in a folder and does not compute existing ones again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before NumPy is imported: one core

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests.node

from tests.node import Node, running, with_ml_commons

INDEX = "library"
BESIDE = "bm25,field:popularity:log"
CLAUSE = "clause:words,field:popularity:log"
WORDS = {
    "multi_match": {
        "query": "{{text}}",
        "fields": ["name^3", "body"],
        "type": "best_fields",
        "_name": "words",
    }
}
FILTER = [{"term": {"permissions": "public"}}, {"range": {"year": {"gte": 1990}}}]
NORMALIZE = {
    "phase_results_processors": [
        {
            "normalization-processor": {
                "normalization": {"technique": "min_max"},
                "combination": {"technique": "arithmetic_mean", "parameters": {"weights": [0.4, 0.6]}},
            }
        }
    ]
}


def popular(boost: float) -> dict[str, Any]:
    """best_fields times the logarithm of the popularity, for documents that the user can read."""
    query = {"bool": {"must": WORDS, "filter": FILTER}}
    factor = {"field": "popularity", "modifier": "log2p"}
    return {"query": {"function_score": {"query": query, "field_value_factor": factor, "boost": boost}}}


HYBRID = {
    "search_pipeline": "normalize",
    "query": {"hybrid": {"queries": [{"match": {"name": "{{text}}"}}, {"match": {"body": "{{text}}"}}]}},
}
TEMPLATES = {
    "hybrid": HYBRID,
    "popular": popular(1),
    "popular, boost 20": popular(20),
    "popular, boost 0.05": popular(0.05),
}


def cli(*arguments: object) -> Any:
    """Run a rerank command and return its JSON."""
    command = [sys.executable, "-m", "rerank.cli", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"rerank {' '.join(map(str, arguments))}: {done.stderr}")
    return json.loads(done.stdout)


def fill(node: Node, corpus: Path, **more: Any) -> None:
    """Index the articles with field names that differ from the names in rerank. more: index settings."""
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        articles = [json.loads(line) for line in lines]
    links = Counter(target for article in articles for target in article.get("links", ()))
    properties = {
        **{name: {"type": "text"} for name in ("name", "body")},
        **{name: {"type": "keyword"} for name in ("tags", "permissions")},
        **{"year": {"type": "integer"}, "popularity": {"type": "integer"}},
    }
    settings = {"number_of_shards": 1, "number_of_replicas": 0, **more}
    node.request("PUT", f"/{INDEX}", {"settings": settings, "mappings": {"properties": properties}})
    for article in articles:
        about = {
            "name": article.get("title", ""),
            "body": article.get("text", ""),
            "tags": article.get("categories", []),
            "permissions": "public",
            "year": 2000 + len(article["_id"]) % 20,
            "popularity": links[article["_id"]],
        }
        article["about"] = about
    connection_lines = []
    for article in articles:
        connection_lines += [json.dumps({"index": {"_id": article["_id"]}}), json.dumps(article["about"])]
    bulk(node, connection_lines)
    node.request("POST", f"/{INDEX}/_forcemerge?max_num_segments=1")


def bulk(node: Node, lines: list[str]) -> None:
    """Send lines of ``_bulk`` in batches of 1,000 documents."""
    import urllib.request

    for begin in range(0, len(lines), 2000):
        body = ("\n".join(lines[begin : begin + 2000]) + "\n").encode()
        headers = {"Content-Type": "application/x-ndjson"}
        request = urllib.request.Request(f"{node.url}/{INDEX}/_bulk?refresh=true", body, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            if json.load(answer)["errors"]:
                sys.exit(f"{INDEX}: the index rejected documents. Check its mapping.")


def some(path: Path, folder: Path, count: int) -> Path:
    """Write the judgments of the first ``count`` queries and return the file. 0: all queries."""
    lines = path.read_text("utf-8").splitlines()
    kept = list(dict.fromkeys(line.split("\t")[0] for line in lines[1:]))[: count or None]
    written = folder / path.name
    inside = set(kept)
    rows = [line for line in lines[1:] if line.split("\t")[0] in inside]
    written.write_text("\n".join([lines[0], *rows]) + "\n", "utf-8")
    return written


class Rows:
    """Rows of the table. They are printed and, if a folder is given, stored in it."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "rows.jsonl"
        self._known = {}
        if self._path is not None and self._path.exists():
            rows = [json.loads(line) for line in self._path.read_text("utf-8").splitlines()]
            self._known = {(row["query"], row["weights"]): row for row in rows}
            for row in rows:
                self._print(row)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._known

    def add(self, row: dict[str, Any]) -> None:
        self._known[row["query"], row["weights"]] = row
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        self._print(row)

    @staticmethod
    def _print(row: dict[str, Any]) -> None:
        told = [row["query"], row["weights"], *(f"{row[name]:.4f}" for name in ("plain", "hooked", "p"))]
        print(f"| {' | '.join(told)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--queries", type=int, default=0, help="Queries per split; 0: all. Default: 0.")
    parser.add_argument("--rankers", default="text,meta")
    parser.add_argument("--beside", default=BESIDE, help="Signals to add when tuning on a query.")
    parser.add_argument("--retrieve", default="", metavar="NAME:N", help="A ranker that also retrieves.")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="Keep results here; reuse them.")
    given = parser.parse_args()
    if given.resume is not None:
        given.resume.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="first-stage-")))
        kept: Path = given.resume or folder
        home = with_ml_commons()
        node = stack.enter_context(running(home=home, heap="768m"))
        node.request("PUT", "/_search/pipeline/normalize", NORMALIZE)
        fill(node, given.data / "corpus.jsonl.gz", **({"knn": True} if given.retrieve else {}))
        workspace = folder / "ws"
        fields = ("title=name", "text=body", "categories=tags")
        cli("attach", "--url", node.url, "--index", INDEX, *fields, "-w", workspace)
        (workspace / "rankers").mkdir()
        for ranker in given.rankers.split(","):
            for path in (given.workspace / "rankers").glob(f"{ranker}*"):
                copy = shutil.copytree if path.is_dir() else shutil.copy
                copy(path, workspace / "rankers" / path.name)
        retrieves = ("--retrieve", given.retrieve) if given.retrieve else ()
        cli("encode", *retrieves, "-w", workspace)
        queries = given.data / "queries.jsonl.gz"
        dev, test = (
            some(given.data / "qrels" / f"{name}.tsv", folder, given.queries) for name in ("dev", "test")
        )
        files = {name: folder / f"{i}.json" for i, name in enumerate(TEMPLATES)}
        for name, path in files.items():
            path.write_text(json.dumps(TEMPLATES[name]), "utf-8")

        def tuned(name: str, signals: str, *options: object) -> Path:
            """Tune a stack or reuse the stored one. Copy its file to the workspace and return the file."""
            path = kept / f"{name}.json"
            if not path.exists():
                found = cli(
                    *("tune", "--stack", signals, "--queries", queries, "--qrels", dev, "--depth", 100),
                    *("--measure", "nDCG@10", "--ignore-categories", "-w", workspace, "--out", path),
                    *options,
                )
                print(f"{name}: {found['stack']} ({found['normalization']})", file=sys.stderr, flush=True)
            (workspace / "stacks").mkdir(exist_ok=True)
            shutil.copy(path, workspace / "stacks" / f"{','.join(sorted(signals.split(',')))}.json")
            return path

        lexical = f"bm25,{given.rankers}"
        own, clause = (f"search,{given.rankers},{more}".strip(",") for more in (given.beside, CLAUSE))
        if given.retrieve:
            search = ("--first-stage", f"template:{files['popular']}")
            both = tuned("union", own, *search, "--retrieve", f"search,{given.retrieve}")
            found = cli(
                *("evaluate", "--baseline", tuned("on-popular", own, *search), "--stack", both),
                *("--protocol", "retrieved:100", "--measure", "nDCG@10", "--ignore-categories"),
                *("--queries", queries, "--qrels", test, "-w", workspace),
            )
            print(json.dumps([found[part] for part in ("results", "comparisons", "candidate_recall")]))
            return
        raw = tuned("bm25-raw", lexical, "--normalization", "none")
        tuned("bm25", lexical)
        judged = ("--measure", "nDCG@10", "--ignore-categories", "-w", workspace)
        judged += ("--queries", queries, "--qrels", test, "--protocol", "retrieved:100")
        print("| query | weights | its own order | hooked | p |", flush=True)
        print("| --- | --- | --- | --- | --- |")
        rows = Rows(given.resume)
        for name, path in files.items():
            kind = name.partition(",")[0]  # variants with a boost use the weights without it
            best = [tuned(f"on-{kind}", own, "--first-stage", f"template:{files[kind]}")]
            labels = {"tuned on it": best[0], "bm25, per query": kept / "bm25.json", "bm25, raw": raw}
            if kind == "popular":
                best.append(tuned("on-popular-clause", clause, "--first-stage", f"template:{files[kind]}"))
                labels["tuned on it, with its clause"] = best[1]
            for label, chosen in labels.items():
                if (name, label) in rows:
                    continue
                found = cli("evaluate", "--first-stage", f"template:{path}", "--stack", chosen, *judged)
                plain, hooked = (row["measures"]["nDCG@10"] for row in found["results"])
                (compared,) = found["comparisons"]
                rows.add(
                    {"query": name, "weights": label, "plain": plain, "hooked": hooked, "p": compared["p"]}
                )
            stored = kept / f"{name}-compared.json"
            if not stored.exists():
                stacks = [text for one in best for text in ("--stack", one)]
                found = cli(
                    *("evaluate", "--first-stage", f"template:{path}", "--baseline", kept / "bm25.json"),
                    *(*stacks, *judged),
                )
                stored.write_text(json.dumps(found["comparisons"]), "utf-8")
            for one in json.loads(stored.read_text("utf-8")):
                against = f"against bm25's weights {one['delta']:+.4f} (p {one['p']:.4f})"
                print(f"{name}: {one['stack']} {against}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
