"""Measure the time that the hook adds to a plain search, on a real node with the plugin and a real service.

    python benchmarks/speed/hook.py [--workspace DIR] [--corpus FILE --queries FILE] [--attached]

DIR has the rankers of ``rerank demo``; without it, the demo runs first. The default collection is the
collection of the demo. ``--corpus`` and ``--queries`` take the formats of ``rerank ingest`` and ``rerank
evaluate``. All cases take turns, query by query, in one run. Each case has a connection that stays open.
The order is random in each turn; in a fixed order, a case after a search for a thousand hits would always
find warm caches. A time is from the first byte of a request to the last byte of its response, without
parsing.

- *attached*: the same collection in an index that rerank does not own. Its features are in the workspace (a
  sidecar). The search covers title and text, with a filter.
- *100 + 100*, *50 + 50*: *attached* with as many candidates, and as many documents that ``text`` adds.
- *nothing*: *attached* with a service that responds immediately and scores nothing. No scoring can be
  faster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from hook_cases import (
    INDEX,
    NONE,
    WEIGHTS,
    Case,
    alone,
    connect,
    filled,
    percentiles,
    texts,
    together,
)

import rerank.workflows.demo
from benchmarks.common.index import force_merge, run_task
from benchmarks.common.service import cli, processor, serving
from rerank import Document, Stack, Workspace
from tools.opensearch_node import Node, free_port, running
from tools.opensearch_plugin import SETTINGS, build, put_pipeline

KEPT = Path(__file__).parent / "hook.json"
DEPTHS = (100, 1000)
TARGETS = {100: 1.5, 1000: 2.5}
ATTACHED_TARGET = 2.3
THEIRS = "speed-theirs"
ADDED = ((100, 100), (50, 50))
"""Candidates, and documents that a ranker adds."""
BLOCKS, BLOCK = 8, 60
"""Blocks of searches of one case, and searches of a block, whose processor time is measured."""
RATIOS_AT = (10, 50, 99)
"""Percentiles at which the cases with added documents are compared."""


def stages(service: str) -> dict[tuple[str, str], float]:
    """Sums (seconds) and counts of the stages of the service."""
    connection = connect(service)
    connection.request("GET", "/metrics")
    found: dict[tuple[str, str], float] = {}
    for line in connection.getresponse().read().decode().splitlines():
        for kind in ("sum", "count"):
            head = f'rerank_stage_seconds_{kind}{{endpoint="hook",stage="'
            if line.startswith(head):
                found[line[len(head) :].split('"')[0], kind] = float(line.split()[-1])
        for kind in ("sum", "count"):
            if line.startswith(f'rerank_request_seconds_{kind}{{endpoint="hook"}}'):
                found["all", kind] = float(line.split()[-1])
    return found


def spent(before: dict[tuple[str, str], float], after: dict[tuple[str, str], float]) -> str:
    """Mean milliseconds of each stage between two calls of ``stages``."""
    change = {key: value - before.get(key, 0) for key, value in after.items()}
    return ", ".join(
        f"{stage} {1000 * change[stage, 'sum'] / change[stage, 'count']:.2f}"
        for stage, kind in sorted(change)
        if kind == "count" and change[stage, kind]
    )


_ANSWERING = """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    length = (b"content-length", b"%d" % len(ANSWER))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": ANSWER})
PORT, ANSWER = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
uvicorn.run(app, port=PORT, log_level="error", access_log=False, lifespan="off")
"""


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Run a server that returns ``answer`` to all requests, and yield its URL."""
    port = free_port()
    server = subprocess.Popen([sys.executable, "-c", _ANSWERING, str(port), answer.hex()])
    try:
        for _ in range(100):
            try:
                connect(f"http://127.0.0.1:{port}").close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def features_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The feature of a document, by each ranker of a workspace."""
    workspace = Workspace.open(folder)
    for name in workspace.trained():
        yield name, workspace.ranker(name).encode_documents([Document("d", text="cell")]).tobytes()


def attached(node: Node, folder: Path, rankers: Path, stack: ExitStack, weights: str) -> list[Case]:
    """Cases with the same documents in an attached index and a separate service."""
    texts = {"type": "text", "analyzer": "english"}
    properties = {"title": texts, "text": texts, "categories": {"type": "keyword"}}
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    body = {"settings": settings, "mappings": {"dynamic": "false", "properties": properties}}
    node.request("PUT", f"/{THEIRS}", body)
    run_task(node, "/_reindex?refresh=true", {"source": {"index": INDEX}, "dest": {"index": THEIRS}})
    force_merge(node, THEIRS)
    workspace = folder / "attached"
    fields = ("title=title", "text=text", "categories=categories")
    where = ("--url", node.url, "--index", THEIRS, "-w", workspace, "--lang", "en")
    cli("attach", *fields, *where, "--categories", rankers / "categories.tsv")
    shutil.copytree(rankers / "rankers", workspace / "rankers")
    print("attached:", cli("encode", "-w", workspace).strip().replace("\n", ", "))
    service = stack.enter_context(serving(workspace, folder / "attached.log"))
    requested_fields = {"features": [], "ids": False}
    passed = json.dumps({"passed": "nothing", "requested_fields": requested_fields}).encode()
    nothing = stack.enter_context(answering(len(passed).to_bytes(4, "big") + passed))
    for name, url in (("attached", service), ("nothing", nothing)):
        put_pipeline(node, name, url=url, stack=weights.replace("tfidf", "bm25"), depth=100, timeout=20000)
    return [
        Case(node, f"attached, {name}", 10, name, {}, index=THEIRS) for name in (NONE, "attached", "nothing")
    ]


def adding(node: Node, folder: Path, stack: ExitStack, weights: str) -> list[Case]:
    """Cases of the attached index in which ``text`` adds documents."""
    workspace = Workspace.open(folder / "attached")
    cases = []
    for depth, added in ADDED:
        tuned = replace(
            Stack.parse(weights.replace("tfidf", "bm25")),
            retrieve=("bm25", f"text:{added}"),
            versions=workspace.versions(),
        )
        tuned.save(folder / f"added-{added}.json")
        options = ("--stack", folder / f"added-{added}.json")
        service = stack.enter_context(serving(workspace.folder, folder / f"added-{added}.log", *options))
        settings = {"depth": depth, "timeout": 20000, "retrieve": True, "words": ["title", "text"]}
        put_pipeline(node, f"added-{added}", url=service, **settings)
        cases.append(Case(node, f"attached, {depth} + {added}", 10, f"added-{added}", {}, index=THEIRS))
    return cases


def ratios(plain: Mapping[int, Case], hooked: Mapping[int, Case], theirs: Sequence[Case]) -> None:
    """Print the median of each reranked case divided by that of its plain case."""
    for case, note in zip(theirs[1:], (f"target {ATTACHED_TARGET}", "without any scoring")):
        ratio = np.median(case.times) / np.median(theirs[0].times)
        print(f"{case.name}: {ratio:.2f} times ({note})")
    for depth, case in hooked.items():
        ratio = np.median(case.times) / np.median(plain[depth].times)
        print(f"depth {depth}: {ratio:.2f} times (target {TARGETS[depth]})")


def calls(node: Node, service: str, case: Case, queries: Sequence[str]) -> None:
    """Print the mean time of fifty searches, of their calls, and of the stages of the service."""
    before, earlier = stages(service), node.request("GET", "/_plugins/_rerank_stack/stats")["calls"]
    begin = len(case.times)
    alone([case], queries, 50, 0)
    done = node.request("GET", "/_plugins/_rerank_stack/stats")["calls"]
    call = (done["total_ms"] - earlier["total_ms"]) / (done["count"] - earlier["count"])
    print(f"{case.name}, mean ms: {np.mean(case.times[begin:]):.2f}, of it the call {call:.2f}")
    print(f"{case.name}, service, mean ms: {spent(before, stages(service))}")


def processor_times(cases: Sequence[Case], queries: Sequence[str], reference: Case) -> None:
    """Print the processor time of a search, of the node and the services together, in alternating blocks.

    It depends less on other programs of the machine than the latency. reference: the case to compare with.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    processes = [int(pid) for pid in children.split()]
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    draw = random.Random(0)
    for block in range(BLOCKS):
        for case in draw.sample(cases, len(cases)):
            begin = processor(*processes)
            for number in range(BLOCK):
                case.ask(case.body(queries[(block * BLOCK + number) % len(queries)]))
            times[case.name].append(1000 * (processor(*processes) - begin) / BLOCK)
    medians = {name: float(np.median(milliseconds)) for name, milliseconds in times.items()}
    for name, median in medians.items():
        ratio = median / medians[reference.name]
        print(f"{name}: {median:.1f} ms of processor time, {ratio:.2f} times {reference.name}")


def throughput(
    cases: Sequence[Case],
    pairs: Sequence[tuple[Case, Case]],
    queries: Sequence[str],
    clients: int,
    rounds: int,
) -> None:
    """Print the searches per second of each case, and how much of it a reranked case keeps."""
    rates = {}
    for case in cases:
        begin = time.perf_counter()
        times = together(case, queries, clients, rounds)
        rate = rates[case.name] = len(times) / (time.perf_counter() - begin)
        print(f"{clients} clients: {case.name:25} {percentiles(times)} ms, {rate:.0f} a second")
    for plainly, reranked in pairs:
        share = rates[reranked.name] / rates[plainly.name]
        print(f"{clients} clients: {reranked.name} keeps {share:.2f} of what {plainly.name} has")


def main() -> None:
    collection = rerank.workflows.demo.COLLECTION
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", help="Workspace with text and meta. Default: run the demo.")
    parser.add_argument("--corpus", default=str(collection / "corpus.jsonl.gz"))
    parser.add_argument("--queries", default=str(collection / "queries.jsonl.gz"))
    parser.add_argument("--words", type=int, default=5, help="Words of each query; 0: all. Default: 5.")
    parser.add_argument("--stack", default=WEIGHTS, help="Stack with weights.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warm", type=int, default=300, help="Warm-up rounds. Default: 300.")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--attached", action="store_true", help="Measure also *attached*.")
    parser.add_argument("--keep", action="store_true", help="Write hook.json, which quality/demo.py reads.")
    given = parser.parse_args()
    queries = texts(given.queries, given.words)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hook-speed-")))
        rankers = Path(given.workspace or folder / "demo")
        if given.workspace is None:
            cli("demo", "-w", rankers)
        node = stack.enter_context(running(SETTINGS, heap=given.heap, plugins=[build()], java=()))
        workspace = filled(node, folder, rankers, given.corpus)
        service = stack.enter_context(serving(workspace, folder / "log"))
        for depth in DEPTHS:
            settings = {"stack": given.stack, "depth": depth, "timeout": 20000}
            put_pipeline(node, f"depth{depth}", url=service, **settings)
        plain = {size: Case(node, f"plain, {size} hits", size, NONE, {}) for size in (10, *DEPTHS)}
        hooked = {depth: Case(node, f"hook, depth {depth}", 10, f"depth{depth}", {}) for depth in DEPTHS}
        theirs = attached(node, folder, rankers, stack, given.stack) if given.attached else []
        added = adding(node, folder, stack, given.stack) if given.attached else []
        cases = [*plain.values(), *hooked.values(), *theirs, *added]
        alone(cases, queries, given.rounds, given.warm)
        for case in cases:
            print(f"{case.name:25} {percentiles(case.times)} ms")
        if given.keep:
            medians = {case.name: round(float(np.median(case.times)), 1) for case in cases}
            sizes = {name: len(feature) for name, feature in features_of(rankers)}
            KEPT.write_text(json.dumps({"p50 ms": medians, "bytes": sizes}, indent=1) + "\n", "utf-8")
        ratios(plain, hooked, theirs)
        for case in added:
            quotients = np.percentile(case.times, RATIOS_AT) / np.percentile(theirs[1].times, RATIOS_AT)
            shown = ", ".join(f"p{at} {quotient:.2f}" for at, quotient in zip(RATIOS_AT, quotients))
            print(f"{case.name}: {shown} times {theirs[1].name} (targets p50 1.3, p99 1.4)")
        if theirs:
            processor_times([*theirs, *added], queries, theirs[1])
        for depth in DEPTHS:
            calls(node, service, hooked[depth], queries)
        if given.clients:
            pairs = [(plain[100], hooked[100]), *((theirs[0], case) for case in (*theirs[1:], *added))]
            alike = (plain[10], plain[100], hooked[100], hooked[1000], *theirs, *added)
            throughput(alike, pairs, queries, given.clients, given.rounds // 2)
        stats = node.request("GET", "/_plugins/_rerank_stack/stats")
        print({name: stats[name] for name in ("reranked", "passed", "failed")}, "load", os.getloadavg()[0])
        # A search without hits has nothing to rerank, and the service of *nothing* scores nothing.
        if stats["failed"] or not stats["passed"].keys() <= {"no_hits", "nothing"}:
            raise SystemExit("some searches were not reranked. The figures are not valid.")


if __name__ == "__main__":
    main()
