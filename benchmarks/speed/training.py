"""Processor time of training text, meta and joint: per step, and of measuring dev after an epoch.

    python benchmarks/speed/training.py DATA/wikispeedia --preset paper
    python benchmarks/speed/training.py DATA/debian --lang it --head mlp --rankers text

Trains one epoch, with word vectors from one pass over the texts. To compare two versions, run the script
with each of them on the path, one after the other. Set OMP_NUM_THREADS=1 to exclude the waiting times of
threads.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.collection import Collection
from rerank.common.errors import RerankError
from rerank.common.progress import Progress
from rerank.rankers.cnn.config import CnnConfig
from rerank.workflows.train import train


class Watch(Progress):
    """Records the processor time at each step and at the dev measurement."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.name = ""

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        self.name = title.removeprefix("train ") if unit == "step" else ""
        self._note()

    def advance(self, count: int = 1) -> None:
        if count:
            self._note()

    def say(self, line: str) -> None:
        self._note()

    def finish(self) -> None:
        self.name = ""

    def _note(self) -> None:
        if self.name:
            self.times.setdefault(self.name, []).append(time.process_time())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang", help="Language: suffix of corpus and query files, prefix of judgments.")
    parser.add_argument("--preset", choices=["default", "paper"], default="default")
    parser.add_argument("--head", choices=["cosine", "mlp"], default=None)
    parser.add_argument("--rankers", default="text,meta")
    options = parser.parse_args()
    collection = Collection(options.folder, options.lang)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        workspace = collection.ingest(folder)
        given = {"epochs": 1, "word_epochs": 1, "walks": 1, "seed": 0}
        try:
            train(
                workspace,
                options.rankers.split(","),
                queries=collection.queries(),
                qrels=collection.judgments("train"),
                dev_qrels=collection.judgments("dev"),
                config=CnnConfig.of(options.preset, head=options.head, **given),
                progress=watch,
            )
        except RerankError as error:  # the ranker did not learn in so few steps
            print(error)
    for name, at in watch.times.items():
        steps = [b - a for a, b in pairwise(at[:-1])]
        print(
            f"{name}: {statistics.median(steps):.2f} s a step, {len(steps)} of them;"
            f" dev in {at[-1] - at[-2]:.1f} s"
        )


if __name__ == "__main__":
    main()
