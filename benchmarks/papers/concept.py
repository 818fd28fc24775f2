"""Compare training on the graph of labeled pairs with the plain classifier, for relatedness.

    python benchmarks/papers/concept.py DATA/ecbplus --out ecbplus.jsonl
    rerank ingest DATA/cf/corpus.jsonl.gz --categories DATA/cf/categories.tsv -w cf
    python benchmarks/papers/concept.py DATA/cf --pairs cf-pairs --out cf.jsonl

Pairs are read from ``pairs.train.tsv``, ``pairs.dev.tsv`` and ``pairs.test.tsv`` of the collection, or from
``train.tsv``, ``dev.tsv`` and ``test.tsv`` of ``--pairs``. A run is one baseline, or one training with one
seed. Each run adds a line of JSON to ``--out``. Existing runs are skipped, so an interrupted command resumes.

--hows: baselines and objectives. ``tfidf``; ``untrained``, the cosine of the encoder; ``cross``, the same
encoder with both texts in one input. Objectives can change settings:
``classifier``, ``graph-component``, ``graph-component+gc_nce=false``, ``graph-component+hops=2+ratio=3``,
``paper`` (its preset), ``paper+objective=classifier``.
--base: settings of every training, for example ``layers=4,epochs=10``.
--keep: share of the related pairs to train on. Each seed drops different pairs.

The threshold with the best accuracy on dev and the step with the best AUC on dev are used. p (seeds) is from
a paired t-test over seeds. p (pairs) is from a paired randomization test over test pairs. Both compare with
``--against`` in accuracy, F1 and AUC. For ecbplus, AUC is also measured on the test pairs of one topic only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from expansion import expand
from seeds import seeds_test

from rerank import LocalEngine
from rerank.evaluation.pair_measures import accuracy, auc, best_threshold, f1, paired_test
from rerank.formats import read_corpus, read_labeled_pairs
from rerank.pairs.score import score_pairs
from rerank.progress import Progress
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document, LabeledPair
from rerank.stack.signals import LexicalSignal

PARTS = ("train", "dev", "test")
MAIN = "tfidf,untrained,cross,classifier,graph-component"


@dataclass
class Data:
    """Documents by id, and the pairs of each part."""

    documents: dict[str, Document]
    pairs: dict[str, list[LabeledPair]]

    @classmethod
    def read(cls, folder: Path, pairs: Path | None) -> Data:
        """Read a collection and its pairs, or the pairs of another folder."""
        documents = {one.id: one for one in read_corpus(str(next(folder.glob("corpus*.jsonl.gz"))))}
        names = {part: (pairs / f"{part}.tsv") if pairs else folder / f"pairs.{part}.tsv" for part in PARTS}
        return cls(documents, {part: read_labeled_pairs(str(path)) for part, path in names.items()})

    def labels(self, part: str) -> np.ndarray:
        """Return (n,) bool: whether each pair is related."""
        return np.array([pair.related for pair in self.pairs[part]])

    def thinned(self, keep: float, seed: int) -> list[LabeledPair]:
        """Return the unrelated training pairs, and the share ``keep`` of the related ones."""
        rng = np.random.default_rng([seed, 7])
        return [pair for pair in self.pairs["train"] if not pair.related or rng.random() < keep]

    @property
    def same_topic(self) -> np.ndarray:
        """Return (n,) bool: whether a test pair has one topic. The topic of the ecbplus id 36_10ecb is 36."""
        return np.array([pair.a.split("_")[0] == pair.b.split("_")[0] for pair in self.pairs["test"]])


class Encoded:
    """Vectors of the documents in dev and test pairs."""

    def __init__(self, data: Data, encoder: TextEncoder) -> None:
        ids = sorted({one for part in PARTS[1:] for pair in data.pairs[part] for one in pair[:2]})
        tokens = encoder.tokens([data.documents[one].content for one in ids])
        self.vectors = encoder.encode([one[: encoder.room] for one in tokens])
        self.place = {one: i for i, one in enumerate(ids)}

    def ends(self, pairs: Sequence[LabeledPair]) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of the first and the second documents, (n, E) each."""
        return tuple(self.vectors[[self.place[pair[side]] for pair in pairs]] for side in (0, 1))


def tfidf(data: Data) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        engine = LocalEngine.create(Path(folder) / "engine", "en")
        engine.write(data.documents.values())
        return {
            part: score_pairs(engine, LexicalSignal("tfidf"), [pair[:2] for pair in data.pairs[part]])
            for part in PARTS[1:]
        }


def untrained(data: Data, base: dict[str, Any]) -> dict[str, np.ndarray]:
    from rerank.rankers.concept.config import ConceptConfig

    encoded = Encoded(data, ConceptConfig.of(**base).load())
    return {part: cosines(*encoded.ends(data.pairs[part])) for part in PARTS[1:]}


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=1).astype(np.float64)


def trained(data: Data, how: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train with one objective and one seed. Return the scores of dev and test pairs, and costs."""
    from rerank.rankers.concept.config import ConceptConfig
    from rerank.rankers.concept.fit import ConceptTask
    from rerank.rankers.concept.graph import ConceptGraph
    from rerank.rankers.concept.losses import ConceptLoss

    objective, *changes = how.split("+")
    preset = "default"
    settings = {**args.base, **dict(change.split("=") for change in changes)}
    if objective == "paper":
        preset, objective = "paper", settings.pop("objective", "graph-component")
    hops, ratio = int(settings.pop("hops", 1)), float(settings.pop("ratio", 2.0))
    dropped = {name for name in ("gc_nce", "moco") if settings.pop(name, "true") == "false"}
    config = ConceptConfig.of(preset, objective=objective, seed=seed, **settings)
    encoder = config.load()
    dev, test = data.pairs["dev"], {pair.key for pair in data.pairs["test"]}
    train = [pair for pair in data.thinned(args.keep, seed) if pair.key not in test]
    graph = given = ConceptGraph.from_pairs(train, dev)
    if hops > 1:
        graph = expand(given, [*dev, *data.pairs["test"]], hops, ratio, seed)
    tokens = encoder.tokens([data.documents[one].content for one in graph.ids])
    texts = [np.array(one[: encoder.room], dtype=np.int32) for one in tokens]
    begin, cpu = time.time(), time.process_time()

    class Variant(ConceptTask):
        """Without the contrasts of components (``gc_nce=false``) or of texts (``moco=false``)."""

        def make_loss(self) -> ConceptLoss:
            both = zip(("gc_nce", "moco"), super().make_loss().contrasts)
            return ConceptLoss(self.encoder.width, [one for name, one in both if name not in dropped])

    trainer = Variant(graph, texts, encoder, config, Say())
    fit = trainer.fit()
    seconds, cpu = time.time() - begin, time.process_time() - cpu
    encoded = Encoded(data, encoder)
    head = trainer.head()
    scores = {}
    for part in PARTS[1:]:
        a, b = encoded.ends(data.pairs[part])
        scores[part] = head.relatedness(a, b)
        scores[f"{part} cosine"] = cosines(a, b)
    return {
        **scores,
        "best": fit.best,
        "share": fit.alpha,
        "steps": fit.steps,
        "seconds": seconds,
        "cpu": cpu,
        "drawn": len(graph.related) - len(given.related),
    }


def cross(data: Data, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train a cross-encoder. Return the scores of dev and test pairs, and CPU seconds.

    The input is [CLS] a [SEP] b [SEP]. A linear layer on the first vector returns the score. A step has as
    many texts as in other trainings, and so half as many pairs. The last step is used.
    """
    from rerank.rankers.concept.config import ConceptConfig
    from rerank.rankers.training.trainer import TrainerOptions

    cpu = time.process_time()
    config = ConceptConfig.of(**args.base, seed=seed)
    encoder = config.load()
    layers = encoder.model.encoder.layer
    upper = config.learning_layers(len(layers))
    for fixed in (encoder.model.embeddings, *layers[: len(layers) - upper]) if upper else ():
        fixed.requires_grad_(False)
    learning, room = encoder.trainable(), encoder.room // 2 * 2
    ids = sorted({one for pairs in data.pairs.values() for pair in pairs for one in pair[:2]})
    tokens = dict(zip(ids, encoder.tokens([data.documents[one].content for one in ids])))
    separator = encoder.tokens.frame[1]

    def inputs(pairs: Sequence[LabeledPair], turned: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        both = [(b, a) if turn else (a, b) for (a, b, _), turn in zip(pairs, turned)]
        return encoder.batch([[*tokens[a][:room], *separator, *tokens[b][:room]] for a, b in both])

    def logits(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ends = (ids == separator[0]).cumsum(dim=1) - (ids == separator[0]).long()
        states = encoder.model(input_ids=ids, attention_mask=mask, token_type_ids=(ends > 0).long() * mask)
        return head(states.last_hidden_state[:, 0]).squeeze(1)

    torch.manual_seed(seed)
    head = torch.nn.Linear(encoder.width, 1)
    rng = np.random.default_rng(seed)
    groups = [{"params": learning}, {"params": list(head.parameters()), "lr": 10 * config.rate}]
    optimizer = torch.optim.Adam(groups, lr=config.rate, eps=1e-8)
    train, many = data.thinned(args.keep, seed), config.batch // 2
    steps = config.steps or config.epochs * (len(train) // many)
    rise = max(1.0, 0.1 * steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (steps - step) / max(1.0, steps - rise))
    )
    order = np.concatenate([rng.permutation(len(train)) for _ in range(-(-steps * many // len(train)))])
    encoder.model.train()
    for step in range(steps):
        batch = [train[i] for i in order[step * many : (step + 1) * many].tolist()]
        labels = torch.tensor([float(pair.related) for pair in batch])
        found = logits(*inputs(batch, rng.random(len(batch)) < 0.5))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(found, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*learning, *head.parameters()], TrainerOptions.clip)
        optimizer.step()
        schedule.step()
        if step % 32 == 0:
            print(f"    step {step} of {steps}: loss {loss.item():.4f}", flush=True)
    cpu = time.process_time() - cpu
    encoder.model.eval()
    scores = {}
    with torch.inference_mode():
        for part in PARTS[1:]:
            pairs = data.pairs[part]
            found = np.zeros(len(pairs))
            for start in range(0, len(pairs), 32):
                some = pairs[start : start + 32]
                found[start : start + 32] = logits(*inputs(some, np.zeros(len(some), bool))).numpy()
            scores[part] = found
    return {**scores, "cpu": cpu}


class Say(Progress):
    def say(self, line: str) -> None:
        print(f"    {line}", flush=True)


def pairs_of(text: str) -> dict[str, str]:
    return dict(one.split("=") for one in text.split(",") if one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--hows", default=MAIN)
    parser.add_argument("--base", type=pairs_of, default={})
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=float, default=1.0)
    parser.add_argument("--against", default="classifier")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = Data.read(args.data, args.pairs)
    print(
        {
            part: f"{len(of)} pairs, {sum(pair.related for pair in of)} related"
            for part, of in data.pairs.items()
        }
    )
    done: dict[str, dict[str, Any]] = {}
    if args.out.exists():
        done = {run["key"]: run for run in map(json.loads, args.out.read_text("utf-8").splitlines())}
    wanted = []
    for seed in range(args.seeds):
        for how in args.hows.split(","):
            alone = how in ("tfidf", "untrained")
            if alone and seed:
                continue
            base = [] if how == "tfidf" else sorted(args.base.items())
            key = json.dumps([how, seed, 1.0 if alone else args.keep, base])
            wanted.append(key)
            if key in done:
                continue
            print(f"  {how}, seed {seed}", flush=True)
            begin = time.time()
            if how == "tfidf":
                run: dict[str, Any] = dict(tfidf(data))
            elif how == "untrained":
                run = dict(untrained(data, args.base))
            elif how == "cross":
                run = cross(data, seed, args)
            else:
                run = trained(data, how, seed, args)
            run = {
                name: of.round(6).tolist() if isinstance(of, np.ndarray) else of for name, of in run.items()
            }
            done[key] = {"key": key, "how": how, "seed": seed, "keep": args.keep, **run}
            threshold = best_threshold(run["dev"], data.labels("dev"))
            print(
                f"  {how}, seed {seed}: accuracy {accuracy(run['test'], data.labels('test'), threshold):.4f}"
                f" AUC {auc(run['test'], data.labels('test')):.4f} ({time.time() - begin:.0f} s)",
                flush=True,
            )
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[key]) + "\n")
    table(data, [done[key] for key in wanted], args.against)


def table(data: Data, runs: list[dict[str, Any]], against: str) -> None:
    """Print means over seeds, and p values against ``against``."""
    labels, same = data.labels("test"), data.same_topic
    topical = same.any() and not labels[same].all() and labels[same].any() and not same.all()
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run["how"], []).append(run)
        if "test cosine" in run and run["test cosine"] != run["test"]:
            other = {**run, "dev": run["dev cosine"], "test": run["test cosine"]}
            groups.setdefault(f"{run['how']}, its cosine", []).append(other)

    def measures(run: dict[str, Any]) -> list[float]:
        at, scores = best_threshold(run["dev"], data.labels("dev")), np.array(run["test"])
        found = [accuracy(scores, labels, at), f1(scores, labels, at), auc(scores, labels)]
        return [*found, auc(scores[same], labels[same])] if topical else found

    each = {how: np.array([measures(run) for run in of]).T for how, of in groups.items()}
    names = ["accuracy", "F1", "AUC", *(["AUC, one topic"] if topical else [])]
    print(f"\n| | seeds | {' | '.join(names)} | p (seeds) | p (pairs) | CPU s |")
    print("| --- " * (len(names) + 5) + "|")
    for how, of in groups.items():
        cells = [f"{v.mean():.4f}" + (f" ± {v.std(ddof=1):.4f}" if len(v) > 1 else "") for v in each[how]]
        p: list[str] = ["", ""]
        if against in groups and how != against:
            seeds = [
                seeds_test(mine.tolist(), base.tolist())
                for mine, base in zip(each[how][:3], each[against][:3])
            ]
            p[0] = ", ".join("-" if one is None else f"{one:.4f}" for one in seeds)
            if {len(of), len(groups[against])} <= {1, max(len(of), len(groups[against]))}:
                sides = [
                    [(run["test"], best_threshold(run["dev"], data.labels("dev"))) for run in some]
                    for some in (of, groups[against])
                ]
                p[1] = ", ".join(
                    f"{one:.4f}" for one in paired_test(*sides, labels, permutations=1000).values()
                )
        cpu = np.mean([run.get("cpu", 0) for run in of])
        print(f"| {how} | {len(of)} | {' | '.join(cells)} | {p[0]} | {p[1]} | {cpu:.0f} |", flush=True)


if __name__ == "__main__":
    main()
