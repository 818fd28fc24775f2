"""Measure the time that the hook adds to a plain search, on a real node with the plugin and a real service.

    python benchmarks/speed/hook.py [--workspace DIR] [--attached]

DIR has the rankers of ``rerank demo``; without it, the demo runs first. The collection is the one of the
demo. All cases take turns, query by query, in one run. Each case has a connection that stays open. The order
is random in each turn; in a fixed order, a case after a search for a thousand hits would always find warm
caches. A time is from the first byte of a request to the last byte of its response, without parsing.

- *attached*: the same collection in an index that rerank does not own. Its features are in the workspace (a
  sidecar). The search covers title and text, with a filter.
- *100 + 100*, *50 + 50*: *attached* with as many candidates, and as many documents that ``text`` adds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.hook import (
    ATTACHED_WEIGHTS,
    NONE,
    TIMEOUT_MS,
    WEIGHTS,
    AttachedIndex,
    Case,
    alone,
    demo_queries,
    filled,
    hook_counts,
    percentiles,
    plugin_node,
    together,
)
from benchmarks.common.service import demo_workspace, serving
from rerank import Document, Workspace
from tools.opensearch_plugin import put_pipeline

KEPT = Path(__file__).parent / "hook.json"
DEPTHS = (100, 1000)
TARGETS = {100: 1.5, 1000: 2.5}
ATTACHED_TARGET = 2.3
ADDED = ((100, 100), (50, 50))
"""Candidates, and documents that a ranker adds."""


def features_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the feature of a document, by each ranker of a workspace."""
    workspace = Workspace.open(folder)
    for name in workspace.trained():
        yield name, workspace.ranker(name).encode_documents([Document("d", text="cell")]).tobytes()


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
    for plain, reranked in pairs:
        share = rates[reranked.name] / rates[plain.name]
        print(f"{clients} clients: {reranked.name} keeps {share:.2f} of what {plain.name} has")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, help="Workspace with text and meta. Default: run the demo.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warm", type=int, default=300, help="Warm-up rounds. Default: 300.")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--attached", action="store_true", help="Measure also *attached*.")
    parser.add_argument("--keep", action="store_true", help="Write hook.json, which quality/demo.py reads.")
    options = parser.parse_args()
    queries = demo_queries()
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="hook-speed-")))
        rankers = demo_workspace(options.workspace, folder)
        node = exits.enter_context(plugin_node())
        workspace = filled(node, folder, rankers)
        service = exits.enter_context(serving(workspace, folder / "log"))
        plain = {size: Case(node, f"plain, {size} hits", NONE, size=size) for size in (10, *DEPTHS)}
        hooked = {}
        for depth in DEPTHS:
            put_pipeline(node, f"depth{depth}", url=service, stack=WEIGHTS, depth=depth, timeout=TIMEOUT_MS)
            hooked[depth] = Case(node, f"hook, depth {depth}", f"depth{depth}")
        attached: list[Case] = []
        added: list[Case] = []
        if options.attached:
            index = AttachedIndex(node, folder / "attached")
            index.prepare(rankers)
            attached.append(index.plain("attached, _none"))
            attached.append(index.hooked("attached, attached", exits, stack=ATTACHED_WEIGHTS, depth=100))
            added = [
                index.adding(f"attached, {depth} + {count}", exits, depth, count) for depth, count in ADDED
            ]
        alone([*plain.values(), *hooked.values(), *attached, *added], queries, options.rounds, options.warm)
        for case in (*plain.values(), *hooked.values(), *attached, *added):
            print(f"{case.name:25} {percentiles(case.times)} ms")
        if options.keep:
            cases = (*plain.values(), *hooked.values(), *attached, *added)
            medians = {case.name: round(case.median, 1) for case in cases}
            sizes = {name: len(feature) for name, feature in features_of(rankers)}
            KEPT.write_text(json.dumps({"p50 ms": medians, "bytes": sizes}, indent=1) + "\n", "utf-8")
        for depth, case in hooked.items():
            print(f"{case.name}: {case.median / plain[depth].median:.2f} times (target {TARGETS[depth]})")
        for case in attached[1:]:
            print(f"{case.name}: {case.median / attached[0].median:.2f} times (target {ATTACHED_TARGET})")
        for case in added:
            print(f"{case.name}: {case.quotients(attached[1])} times {attached[1].name} (p50 1.3, p99 1.4)")
        if options.clients:
            pairs = [(plain[100], hooked[100]), *((attached[0], case) for case in (*attached[1:], *added))]
            alike = (plain[10], plain[100], hooked[100], hooked[1000], *attached, *added)
            throughput(alike, pairs, queries, options.clients, options.rounds // 2)
        counts = hook_counts([node])
        print(dict(counts), "load", os.getloadavg()[0])
        if not counts.keys() <= {"reranked", "passed no_hits"}:  # without hits, there is nothing to rerank
            raise SystemExit("some searches were not reranked. The figures are not valid.")


if __name__ == "__main__":
    main()
