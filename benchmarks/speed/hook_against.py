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
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.common import hook
from tools.opensearch_node import running

BLOCKS, BLOCK = 10, 60
"""Blocks of searches of one case, and searches of a block, whose processor time is measured."""
HEAP = "768m"
OLD_SETTINGS = {"discovery.type": "single-node", "rerank.allowed_urls": "http://127.0.0.1:*"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workspace", type=Path, required=True, help="Workspace with text and meta.")
    parser.add_argument("--old", type=Path, required=True, help="Checkout of the other commit.")
    parser.add_argument("--zip", type=Path, required=True, help="Plugin of the other commit.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warm", type=int, default=300)
    options = parser.parse_args()
    queries = hook.demo_queries()
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="hook-against-")))
        for name in ("old", "new"):
            (folder / name).mkdir()
        old_node = exits.enter_context(running(OLD_SETTINGS, heap=HEAP, plugins=[options.zip], java=()))
        checkout = options.old.absolute()
        old = hook.AttachedIndex(old_node, folder / "old/workspace", checkout / ".venv/bin/python", checkout)
        new = hook.AttachedIndex(exits.enter_context(hook.plugin_node(HEAP)), folder / "new/workspace")
        for index in (old, new):
            index.prepare(options.workspace)
        old_hook = old.hooked("old", exits, stack=hook.ATTACHED_WEIGHTS, depth=100)
        new_hook = new.hooked("new", exits, stack=hook.ATTACHED_WEIGHTS, depth=100)
        adding = [new.adding(f"added-{count}", exits, depth, count) for depth, count in hook.ADDED]
        plain = new.plain("plain")
        cases = [old_hook, new_hook, *adding, plain]
        hook.alone(cases, queries, options.rounds, options.warm)
        used = hook.processor_times(cases, queries, BLOCKS, BLOCK)
        for case in cases:
            used_ms = np.median(used[case.name])
            print(f"{case.name:10} {hook.percentiles(case.times)} ms, {used_ms:.2f} ms of processor time")
        print(f"new: {new_hook.median - plain.median:.2f} ms more than plain at p50")
        for reference, compared in ((old_hook, [new_hook, *adding]), (new_hook, adding)):
            for case in compared:
                print(f"{case.name} / {reference.name}: {case.quotients(reference)}")
        print("load", os.getloadavg()[0])


if __name__ == "__main__":
    main()
