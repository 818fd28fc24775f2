"""Measure the time that the hook adds to a production template, on an index that rerank does not own.

    python benchmarks/template_speed.py DATA/wikispeedia WORKSPACE [--rounds N] [--clients N] [--stack STACK]

Index, template (*popular*) and articles are the same as in ``first_stage.py``. WORKSPACE has rankers
trained on the collection. The queries are the complete test queries. *Plain* is the same search without the
hook. *shown* adds highlights and aggregations. All cases take turns as in ``hook_speed.py``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from first_stage import INDEX, cli, fill, popular
from hook_cases import NONE, Case, alone, percentiles, serving, together

from tests.node import running
from tests.plugin import SETTINGS, build, put_pipeline

WEIGHTS = "bm25*0.40 + text*0.35 + meta*0.25"


class Sent(Case):
    """A search with the template, filled with the words of a query."""

    def body(self, text: str) -> bytes:
        """Return the body of a search."""
        whole = json.dumps({**popular(1), "size": self.size, **self.more})
        return whole.replace("{{text}}", json.dumps(text)[1:-1]).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warm", type=int, default=1500, help="Warm-up rounds. Default: 1500.")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--stack", default=WEIGHTS, help="Stack with weights. Default: %(default)s.")
    given = parser.parse_args()
    lines = (given.data / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]
    test = {line.split("\t")[0] for line in lines}
    with gzip.open(given.data / "queries.jsonl.gz", "rt", encoding="utf-8") as file:
        queries = [one["text"] for one in map(json.loads, file) if one["_id"] in test]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="template-speed-")))
        node = stack.enter_context(running(SETTINGS, plugins=[build()], heap="1g", java=()))
        fill(node, given.data / "corpus.jsonl.gz")
        workspace = folder / "ws"
        fields = ("title=name", "text=body", "categories=tags")
        cli("attach", "--url", node.url, "--index", INDEX, *fields, "-w", workspace)
        shutil.copytree(given.workspace / "rankers", workspace / "rankers")
        cli("encode", "-w", workspace)
        service = stack.enter_context(serving(workspace, folder / "log"))
        put_pipeline(node, "hook", url=service, stack=given.stack, depth=100, timeout=20000)
        shown: dict[str, Any] = {
            "highlight": {"fields": {"body": {}}},
            "aggs": {"tags": {"terms": {"field": "tags"}}},
        }
        ways = {"plain": NONE, "hook": "hook"}
        pairs = [
            [Sent(node, f"{what}{way}", 10, name, more, index=INDEX) for way, name in ways.items()]
            for what, more in (("", {}), ("shown, ", shown))
        ]
        alone([case for pair in pairs for case in pair], queries, given.rounds, given.warm)
        for pair in pairs:
            for case in pair:
                print(f"{case.name:12} {percentiles(case.times)} ms")
            plain, hooked = (median(case.times) for case in pair)
            print(f"{pair[1].name}: {hooked / plain:.2f} times")
        for pair in pairs:
            rates = []
            for case in pair:
                begin = time.perf_counter()
                times = together(case, queries, given.clients, given.rounds // 2)
                rates.append(len(times) / (time.perf_counter() - begin))
                told = f"{percentiles(times)} ms, {rates[-1]:.0f} a second"
                print(f"{given.clients} clients: {case.name:12} {told}")
            print(f"{given.clients} clients: {pair[1].name} keeps {rates[1] / rates[0]:.2f}")
        stats = node.request("GET", "/_rerank/stats")
        print({name: stats[name] for name in ("reranked", "passed", "failed")}, "load", os.getloadavg()[0])


if __name__ == "__main__":
    main()
