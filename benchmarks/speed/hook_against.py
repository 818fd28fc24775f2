"""Compare the hook of this checkout with the hook of another commit, on the same documents and queries.

    git worktree add --detach OLD c8bcf7fd       # with an environment in OLD/.venv
    python benchmarks/speed/hook_against.py --workspace W --old OLD --zip OLD_PLUGIN.zip

W has the rankers of ``rerank demo``, which both versions read. Each version has its own node with its own
plugin, its own attached index of the demo's documents, and a service for each of its cases. Cases with added
documents are of this checkout. All take turns, query by query, with one client. The processor time of a case
is that of its node and its service.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hook_cases import NONE, WEIGHTS, Case, alone, percentiles, processor, service_process, texts

import rerank.workflows.demo
from benchmarks.common.index import force_merge
from rerank import Stack, Workspace
from tools.opensearch_node import Node, running
from tools.opensearch_plugin import PLUGIN, SETTINGS, build, put_pipeline

INDEX = "attached"
ADDED = ((100, 100), (50, 50))
"""Candidates, and documents that ``text`` adds."""
BLOCKS, BLOCK = 10, 60
"""Blocks of searches of one case, and searches of a block, whose processor time is measured."""
PERCENTILES = (10, 50, 99)
RANKERS = ("text", "meta")
STACK = WEIGHTS.replace("tfidf", "bm25")
OLD_SETTINGS = {"discovery.type": "single-node", "rerank.allowed_urls": "http://127.0.0.1:*"}


@dataclass
class Version:
    """A version of the hook: its node, its checkout, the Python of its environment, and its workspace."""

    node: Node
    checkout: Path
    python: Path
    workspace: Path

    def prepare(self, corpus: Path, rankers: Path) -> None:
        """Index the documents, attach the workspace to the index, and encode them."""
        text = {"type": "text", "analyzer": "english"}
        properties = {"title": text, "text": text, "categories": {"type": "keyword"}}
        settings = {"number_of_shards": 1, "number_of_replicas": 0}
        index = {"settings": settings, "mappings": {"dynamic": "false", "properties": properties}}
        self.node.request("PUT", f"/{INDEX}", index)
        with gzip.open(corpus, "rt", encoding="utf-8") as lines:
            documents = [json.loads(line) for line in lines]
        rows: list[str] = []
        for document in documents:
            rows += [json.dumps({"index": {"_id": document.pop("_id")}}), json.dumps(document)]
        url = f"{self.node.url}/{INDEX}/_bulk"
        body = "".join(f"{row}\n" for row in rows).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/x-ndjson"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            if json.load(answer)["errors"]:
                sys.exit(f"{INDEX}: the index rejected documents. Check its mapping.")
        force_merge(self.node, INDEX)
        self.node.request("POST", f"/{INDEX}/_refresh")
        fields = ("title=title", "text=text", "categories=categories")
        where = ("--url", self.node.url, "--index", INDEX, "-w", self.workspace, "--lang", "en")
        self.run("attach", *fields, *where, "--categories", rankers / "categories.tsv")
        copies = self.workspace / "rankers"
        copies.mkdir()
        for name in RANKERS:
            for path in (rankers / "rankers").glob(f"{name}[-.]*"):
                if path.is_dir():
                    shutil.copytree(path, copies / path.name)
                else:
                    shutil.copy(path, copies)
        self.run("encode", "-w", self.workspace)

    def run(self, *arguments: object) -> None:
        """Run a command of this version."""
        subprocess.run([self.python, "-m", "rerank.cli", *map(str, arguments)], check=True, cwd=self.checkout)


@dataclass
class Measured:
    """A case and the processes that answer its searches."""

    case: Case
    processes: tuple[int, ...]


def hooked(version: Version, name: str, exits: ExitStack, *options: object, **settings: object) -> Measured:
    """Start a service and a pipeline, and return their case."""
    log = version.workspace.parent / f"{name}.log"
    service = service_process(version.workspace, log, *options, python=version.python, cwd=version.checkout)
    url, process = exits.enter_context(service)
    put_pipeline(version.node, name, url=url, timeout=20000, **settings)
    assert version.node.process is not None
    processes = (version.node.process.pid, process.pid)
    return Measured(Case(version.node, name, 10, name, {}, index=INDEX), processes)


def adding(version: Version, depth: int, added: int, exits: ExitStack) -> Measured:
    """Return a case in which ``text`` adds documents."""
    workspace = Workspace.open(version.workspace)
    retrieve = ("bm25", f"text:{added}")
    file = version.workspace.parent / f"added-{added}.json"
    replace(Stack.parse(STACK), retrieve=retrieve, versions=workspace.versions()).save(file)
    settings = {"depth": depth, "retrieve": True, "words": ["title", "text"]}
    return hooked(version, f"added-{added}", exits, "--stack", file, **settings)


def processor_times(cases: Sequence[Measured], queries: Sequence[str]) -> dict[str, float]:
    """Return the median milliseconds of processor time of a search, from alternating blocks."""
    times: dict[str, list[float]] = {measured.case.name: [] for measured in cases}
    draw = random.Random(0)
    for block in range(BLOCKS):
        for measured in draw.sample(cases, len(cases)):
            case = measured.case
            begin = processor(*measured.processes)
            for number in range(BLOCK):
                case.ask(case.body(queries[(block * BLOCK + number) % len(queries)]))
            times[case.name].append(1000 * (processor(*measured.processes) - begin) / BLOCK)
    return {name: float(np.median(milliseconds)) for name, milliseconds in times.items()}


def quotients(measured: Measured, reference: Measured) -> str:
    """Return the latency of a case divided by the latency of another one, at three percentiles."""
    times = np.percentile(measured.case.times, PERCENTILES)
    reference_times = np.percentile(reference.case.times, PERCENTILES)
    ratios = times / reference_times
    return ", ".join(f"p{percentile} {ratio:.2f}" for percentile, ratio in zip(PERCENTILES, ratios))


def main() -> None:
    collection = rerank.workflows.demo.COLLECTION
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, required=True, help="Workspace with text and meta.")
    parser.add_argument("--old", type=Path, required=True, help="Checkout of the other commit.")
    parser.add_argument("--zip", type=Path, required=True, help="Plugin of the other commit.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warm", type=int, default=300)
    parser.add_argument("--heap", default="768m")
    options = parser.parse_args()
    queries = texts(str(collection / "queries.jsonl.gz"), 5)
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="hook-against-")))
        versions = {}
        old = options.old.absolute()
        for name, plugin, settings, checkout, python in (
            ("old", options.zip, OLD_SETTINGS, old, old / ".venv/bin/python"),
            ("new", build(), SETTINGS, PLUGIN.parent, Path(sys.executable)),
        ):
            node = exits.enter_context(running(settings, heap=options.heap, plugins=[plugin], java=()))
            (folder / name).mkdir()
            versions[name] = Version(node, checkout, python, folder / name / "workspace")
            versions[name].prepare(collection / "corpus.jsonl.gz", options.workspace)
        cases = [hooked(version, name, exits, stack=STACK, depth=100) for name, version in versions.items()]
        cases += [adding(versions["new"], depth, added, exits) for depth, added in ADDED]
        node = versions["new"].node
        assert node.process is not None
        cases.append(Measured(Case(node, "plain", 10, NONE, {}, index=INDEX), (node.process.pid,)))
        alone([measured.case for measured in cases], queries, options.rounds, options.warm)
        used = processor_times(cases, queries)
        for measured in cases:
            case = measured.case
            print(f"{case.name:10} {percentiles(case.times)} ms, {used[case.name]:.2f} ms of processor time")
        old_hook, new_hook, *adding_cases, plain = cases
        added_ms = np.median(new_hook.case.times) - np.median(plain.case.times)
        print(f"new: {added_ms:.2f} ms more than plain at p50")
        for reference, compared in ((old_hook, [new_hook, *adding_cases]), (new_hook, adding_cases)):
            for measured in compared:
                print(f"{measured.case.name} / {reference.case.name}: {quotients(measured, reference)}")
        print("load", os.getloadavg()[0])


if __name__ == "__main__":
    main()
