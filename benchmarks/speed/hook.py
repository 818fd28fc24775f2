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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common import hook
from benchmarks.common.service import demo_workspace, service_process
from benchmarks.common.vectors import feature_size
from rerank import Workspace
from tools.opensearch_plugin import put_pipeline

KEPT = Path(__file__).parent / "hook.json"
DEPTHS = (100, 1000)
TIMEOUT = {"timeout": hook.TIMEOUT_MS}
TARGETS = {100: 1.5, 1000: 2.5}
ATTACHED_TARGET = 2.3


Pair = tuple[hook.Case, hook.Case]


def throughput(
    cases: Sequence[hook.Case], pairs: Sequence[Pair], queries: Sequence[str], clients: int, rounds: int
) -> None:
    """Print the searches per second of each case, and how much of it a reranked case keeps."""
    rates = {}
    for case in cases:
        begin = time.perf_counter()
        times = hook.together(case, queries, clients, rounds)
        rate = rates[case.name] = len(times) / (time.perf_counter() - begin)
        print(f"{clients} clients: {case.name:25} {hook.percentiles(times)} ms, {rate:.0f} a second")
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
    queries = hook.demo_queries()
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="hook-speed-")))
        rankers = demo_workspace(options.workspace, folder)
        node = exits.enter_context(hook.plugin_node())
        workspace = hook.filled(node, folder, rankers)
        service, _ = exits.enter_context(service_process(workspace, folder / "log"))
        plain = {size: hook.Case(node, f"plain, {size} hits", hook.NONE, size=size) for size in (10, *DEPTHS)}
        hooked = {}
        for depth in DEPTHS:
            put_pipeline(node, f"depth{depth}", url=service, stack=hook.WEIGHTS, depth=depth, **TIMEOUT)
            hooked[depth] = hook.Case(node, f"hook, depth {depth}", f"depth{depth}")
        attached: list[hook.Case] = []
        added: list[hook.Case] = []
        if options.attached:
            index = hook.AttachedIndex(node, folder / "attached")
            index.prepare(rankers)
            attached.append(index.plain("attached, _none"))
            attached.append(index.hooked("attached, attached", exits, stack=hook.ATTACHED_WEIGHTS, depth=100))
            for depth, count in hook.ADDED:
                added.append(index.adding(f"attached, {depth} + {count}", exits, depth, count))
        cases = [*plain.values(), *hooked.values(), *attached, *added]
        hook.alone(cases, queries, options.rounds, options.warm)
        for case in cases:
            print(f"{case.name:25} {hook.percentiles(case.times)} ms")
        if options.keep:
            medians = {case.name: round(case.median, 1) for case in cases}
            trained = Workspace.open(rankers)
            sizes = {name: feature_size(trained.ranker(name)) for name in trained.trained()}
            figures = {"p50 ms": medians, "bytes": sizes}
            KEPT.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
        for depth, case in hooked.items():
            print(f"{case.name}: {case.median / plain[depth].median:.2f} times (target {TARGETS[depth]})")
        for case in attached[1:]:
            print(f"{case.name}: {case.median / attached[0].median:.2f} times (target {ATTACHED_TARGET})")
        for case in added:
            print(f"{case.name}: {case.quotients(attached[1])} times {attached[1].name} (p50 1.3, p99 1.4)")
        if options.clients:
            pairs = [(plain[100], hooked[100]), *((attached[0], case) for case in (*attached[1:], *added))]
            cases.remove(plain[1000])
            throughput(cases, pairs, queries, options.clients, options.rounds // 2)
        counts = hook.hook_counts([node])
        print(dict(counts), "load", os.getloadavg()[0])
        if not counts.keys() <= {"reranked", "passed no_hits"}:  # without hits, there is nothing to rerank
            raise SystemExit("some searches were not reranked. The figures are not valid.")


if __name__ == "__main__":
    main()
