"""Processor time and memory of training: per step, or per stage with a grown collection.

    python benchmarks/speed/training.py DATA/wikispeedia --preset paper
    python benchmarks/speed/training.py DATA/debian --lang it --head mlp --rankers text
    python benchmarks/speed/training.py DATA/debian --lang it --rankers text,meta,s2net \\
        --documents 500000 --judged 250000

Without ``--documents``, it trains one epoch, with word vectors from one pass over the texts, and prints
the time of a step and of the measurement on dev.

With ``--documents``, the collection has copies of its documents with 30 % of the words replaced, and queries
of random words of a document (``benchmarks/common/grown.py``). The command prints the processor time and the
largest memory of each stage of ``train`` with its defaults. ``--epochs`` limits the epochs of text and meta
and the iterations of s2net, ``--word-epochs`` the ones of word2vec.

To compare two versions, run the script with each of them on the path, one after the other. Set
OMP_NUM_THREADS=1 to exclude the waiting times of threads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.collection import Collection
from benchmarks.common.grown import grow, grow_judgments
from benchmarks.common.processes import memory
from rerank import ingest
from rerank.common.errors import RerankError
from rerank.common.progress import Progress
from rerank.rankers.cnn.config import CnnConfig
from rerank.workflows.train import train

RESUMING = {"text", "meta", "joint"}  # rankers with checkpoints
LEAST_SECONDS = 0.5  # shorter stages are not printed


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


@dataclass
class Stages(Progress):
    """Prints the processor time and the largest memory of each stage, and of the work between two stages."""

    title: str = "start"
    total: str = ""
    begin: float = 0.0

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        self._end(f"before {title}")
        self.title = title
        self.total = f" ({total:,} {unit})" if total else ""

    def finish(self) -> None:
        self._end(f"{self.title}{self.total}")

    def say(self, line: str) -> None:
        print(f"  {line}", flush=True)

    def _end(self, stage: str) -> None:
        """Print the stage that ends now, and forget the largest memory so far."""
        now = time.process_time()
        if now - self.begin >= LEAST_SECONDS:
            print(f"{stage}: {now - self.begin:.1f} s, {memory('self', 'VmHWM'):,.0f} MiB", flush=True)
        self.begin = now
        Path("/proc/self/clear_refs").write_text("5")


def measure_steps(collection: Collection, options: argparse.Namespace) -> None:
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        workspace = collection.ingest(folder)
        least = {"epochs": 1, "word_epochs": 1, "walks": 1, "seed": 0}
        try:
            config = CnnConfig.of(options.preset, head=options.head, **least)
            rankers = options.rankers.split(",")
            train(workspace, rankers, **collection.training_data(), config=config, progress=watch)
        except RerankError as error:  # the ranker did not learn in so few steps
            print(error)
    for name, at in watch.times.items():
        steps = [b - a for a, b in pairwise(at[:-1])]
        dev_seconds = at[-1] - at[-2]
        print(f"{name}: {median(steps):.2f} s a step, {len(steps)} of them; dev in {dev_seconds:.1f} s")


def measure_stages(collection: Collection, options: argparse.Namespace) -> None:
    """Train on a grown collection, and print each stage."""
    with tempfile.TemporaryDirectory() as folder:
        documents = grow(collection.corpus, options.documents, categories=True)
        categories = str(collection.categories) if collection.categories else None
        workspace = ingest(folder, documents, categories=categories).workspace
        queries, qrels = grow_judgments(workspace.engine.documents(), options.documents, options.judged)
        print(f"{len(workspace.engine):,} documents, {len(queries):,} queries", flush=True)
        stages = Stages()
        stages.begin = begin = time.process_time()
        rankers = options.rankers.split(",")
        config = {"seed": 0, "epochs": options.epochs, "word_epochs": options.word_epochs}
        config = {name: value for name, value in config.items() if value is not None}
        report = train(
            workspace,
            rankers,
            queries=queries,
            qrels=qrels,
            config=config,
            encode_features=False,
            restart=not RESUMING.isdisjoint(rankers),
            progress=stages,
        )
        stages.start("end")
        for result in report.rankers:
            print(f"{result.ranker.name}: {result.epochs} {result.unit}s, dev {result.dev:.4f}")
        print(f"in total: {time.process_time() - begin:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang", help="Language: suffix of corpus and query files, prefix of judgments.")
    parser.add_argument("--preset", choices=["default", "paper"], default="default")
    parser.add_argument("--head", choices=["cosine", "mlp"], default=None)
    parser.add_argument("--rankers", default="text,meta")
    parser.add_argument("--documents", type=int, help="Grow the collection, and measure stages.")
    parser.add_argument("--judged", type=int, default=50_000, help="Judged pairs of a grown collection.")
    parser.add_argument("--epochs", type=int, help="Epochs or iterations with a grown collection.")
    parser.add_argument("--word-epochs", type=int, help="Epochs of word2vec with a grown collection.")
    options = parser.parse_args()
    collection = Collection(options.folder, options.lang)
    if options.documents:
        measure_stages(collection, options)
    else:
        measure_steps(collection, options)


if __name__ == "__main__":
    main()
