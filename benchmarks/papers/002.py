"""Yih, Toutanova, Platt, Meek (2011): S2Net by training size and by start, beside the other projections.

    python benchmarks/papers/002.py DATA --collections debian.de
    python benchmarks/papers/002.py DATA --list

Prints its figure 2 and what its text says beside ours. A text looks for its partner among those of all test
pairs, in both directions, as ``benchmarks/projections.py`` does. Steps that are done are not done again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from page import show
from projections import Mates, judgements, prepare, some
from running import Say, Step, arguments, carry_out

from rerank.actions.ingest import ingest
from rerank.actions.train import TrainReport
from rerank.formats import read_queries
from rerank.rankers.projection.ranker import Projection
from rerank.training.data import TrainingData
from rerank.training.projection.config import ProjectionConfig
from rerank.training.projection.fit import ProjectionTrainer
from rerank.workspace import Workspace

SIZES = (500, 1000, 2000, 4000, 8000, 16000)
"""Train queries; the last step of a collection takes all that it has."""
STARTS = ("opca", "cllsi", "random")


@cache
def loaded(data: Path, work: Path, name: str) -> tuple[TrainingData, Mates]:
    """Training data and test pairs of a collection, made when first asked for."""
    folder, _, lang = name.partition(".")
    suffix = f".{lang}" if lang else ""
    queries = read_queries(str(data / folder / f"queries{suffix}.jsonl.gz"))
    split = judgements(data / folder, lang or None, None)
    there = work / f"{name}-projections"
    if (there / "rerank.toml").exists():
        workspace = Workspace.open(str(there))
    else:
        workspace = ingest(str(there), [str(data / folder / f"corpus{suffix}.jsonl.gz")]).workspace
    read = {"query_text": None, "query_category_edges": None, "infer": False, "seed": 0, "progress": Say()}
    report = TrainReport()
    found = prepare(workspace, queries, split["train"], split["dev"], report, first_stage="tfidf", **read)
    return found, Mates(workspace, queries, split["test"])


def fitted(
    options: argparse.Namespace, name: str, size: int | None, seed: int, **config: Any
) -> dict[str, Any]:
    """Fit S2Net on so many train queries: MRR and top-1 of the test pairs, both directions."""
    data, mates = loaded(options.data, options.work, name)
    train = data.train if size is None else some(data.train, size)
    part = TrainingData(**{**vars(data), "train": train})
    one = ProjectionTrainer(part, ProjectionConfig(seed=seed, **config), Say()).fit("s2net")
    assert isinstance(one.ranker, Projection)
    ranks = mates.rank(one.ranker)
    found = {"collection": name, "pairs": len(train), "seed": seed, **config, "dev": one.dev}
    return found | {"mrr": float(ranks.mean()), "top1": float((ranks == 1).mean()), "iteration": one.epoch}


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Training sizes, then starts at the paper's dimension."""
    for name in options.collections:
        folder, _, lang = name.partition(".")
        most = len(judgements(options.data / folder, lang or None, None)["train"])
        for seed in range(options.seeds):
            for size in [*(one for one in SIZES if one < most), None]:
                settings = {"dim": options.dim, "init": "random"}
                run = partial(fitted, options, name, size, seed, **settings)
                yield Step(f"{name}-size-{size or 'all'}-{seed}", "training size", run)
            for init in STARTS if options.starts else ():
                run = partial(fitted, options, name, None, seed, dim=1000, init=init)
                yield Step(f"{name}-start-{init}-{seed}", "starts", run)


def main() -> None:
    """Do what is left to do, and print the tables."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--collections", type=lambda text: text.split(","), default=["debian.de", "debian.it"]
    )
    parser.add_argument("--dim", type=int, default=100, help="of the training sizes")
    parser.add_argument("--starts", action="store_true", help="also the starts at k = 1,000: hours")
    options = parser.parse_args()
    carry_out("002", steps(options), options)
    if not options.list:
        show("002")


if __name__ == "__main__":
    main()
