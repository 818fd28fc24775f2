"""Prepare indices of a node. These requests can take longer than the client waits, so they run as tasks."""

from __future__ import annotations

import time

from tools.opensearch_node import Node


def run_task(node: Node, path: str, body: object = None) -> None:
    """Send a request with ``wait_for_completion=false``, and wait until its task is completed.

    path: with a query string.
    """
    task = node.request("POST", f"{path}&wait_for_completion=false", body)["task"]
    while not node.request("GET", f"/_tasks/{task}")["completed"]:
        time.sleep(0.5)


def force_merge(node: Node, index: str) -> None:
    """Merge an index to one segment per shard."""
    run_task(node, f"/{index}/_forcemerge?max_num_segments=1")
