"""Measure `rerank judge clicks` on a log of a million events: processor time and memory.

    python benchmarks/speed/clicks.py [--events 1000000]

The log is made by a fixed seed: 50,000 texts by Zipf's law, 20,000 documents, ten hits per page view, and
clicks that become rarer with the rank. Each event has the fields that real front ends send.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import uuid
from itertools import accumulate
from pathlib import Path

HITS = 10


def write_log(path: Path, events: int) -> None:
    """Write events as JSON lines."""
    draw = random.Random(0)
    texts = [f"query text number {number}" for number in range(50_000)]
    weights = list(accumulate(1 / (number + 1) for number in range(len(texts))))
    written = 0
    with path.open("w") as file:
        while written < events:
            text = draw.choices(texts, cum_weights=weights)[0]
            base = hash_of(text)
            shared = {
                "application": "shop",
                "query_id": str(uuid.UUID(int=draw.getrandbits(128))),
                "client_id": f"CLIENT-{draw.randrange(30_000)}",
                "session_id": f"SESSION-{draw.randrange(60_000)}",
                "timestamp": "2026-01-22T14:57:25.099Z",
                "user_query": text,
            }
            for rank in range(1, HITS + 1):
                document = f"B{(base + rank) % 20_000:09d}"
                attributes = {
                    "object": {"object_id": document, "object_id_field": "asin", "description": text * 3},
                    "position": {"ordinal": rank},
                }
                actions = ["impression", "click"] if draw.random() < 0.3 / rank else ["impression"]
                for action in actions:
                    record = {"action_name": action, **shared, "event_attributes": attributes}
                    file.write(json.dumps(record) + "\n")
                    written += 1


def hash_of(text: str) -> int:
    """Return a number for a text, equal in all runs."""
    return sum(ord(letter) * (place + 1) ** 3 for place, letter in enumerate(text))


def main() -> None:
    """Write the log, run the command, and print its processor time and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ubi_events.ndjson"
        write_log(log, arguments.events)
        out = Path(folder) / "judged"
        command = [
            sys.executable,
            "-m",
            "rerank.cli",
            "judge",
            "clicks",
            str(log),
            "--out",
            str(out),
            "--json",
        ]
        report = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True)
        counts = json.loads(report.stdout)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{counts['events']:,} events, {log.stat().st_size / 1e6:.0f} MB,"
            f" {counts['page_views']:,} page views,"
            f" {counts['train']['judgments'] + counts['dev']['judgments']:,} judgments:"
            f" {usage.ru_utime + usage.ru_stime:.1f} s of processor time, {usage.ru_maxrss / 1024:.0f} MiB"
        )


if __name__ == "__main__":
    main()
