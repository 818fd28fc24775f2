"""Prepare and measure indices of a node."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping

from rerank.common.batches import batched
from tools.opensearch_node import Node

Source = tuple[str, Mapping[str, object]]
"""The id and the fields of a document."""
BATCH = 1000  # documents of a request
SYNC_SECONDS = 45  # longer than the interval of the background sync


def force_merge(node: Node, index: str) -> None:
    """Merge an index to one segment per shard.

    It can take longer than the client waits, so it runs as a task.
    """
    path = f"/{index}/_forcemerge?max_num_segments=1&wait_for_completion=false"
    task = node.request("POST", path)["task"]
    while not node.request("GET", f"/_tasks/{task}")["completed"]:
        time.sleep(0.5)


def fill_index(node: Node, index: str, mappings: object, documents: Iterable[Source]) -> None:
    """Create an index with one shard, and index documents in one segment."""
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    node.request("PUT", f"/{index}", {"settings": settings, "mappings": mappings})
    for batch in batched(documents, BATCH):
        rows: list[str] = []
        for id, source in batch:
            rows += [json.dumps({"index": {"_id": id}}), json.dumps(source)]
        body = "".join(f"{row}\n" for row in rows).encode()
        headers = {"Content-Type": "application/x-ndjson"}
        request = urllib.request.Request(f"{node.url}/{index}/_bulk", body, headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            if json.load(response)["errors"]:
                sys.exit(f"{index}: the index rejected documents. Check its mapping.")
    force_merge(node, index)
    node.request("POST", f"/{index}/_refresh")


def index_size(node: Node, index: str) -> int:
    """Return the bytes of an index on disk, when OpenSearch has dropped everything that it can drop.

    It keeps the excluded fields of documents for replicas until the next background sync. The first merge
    after it drops them. Adding and deleting a document makes sure that there is a merge.
    """
    node.request("POST", f"/{index}/_flush?force=true")
    time.sleep(SYNC_SECONDS)
    node.request("PUT", f"/{index}/_doc/-?refresh=true", {})
    node.request("DELETE", f"/{index}/_doc/-?refresh=true")
    node.request("POST", f"/{index}/_flush?force=true")
    force_merge(node, index)
    node.request("POST", f"/{index}/_refresh")
    node.request("POST", f"/{index}/_flush?force=true")
    statistics = node.request("GET", f"/{index}/_stats/store")
    return int(statistics["_all"]["primaries"]["store"]["size_in_bytes"])
