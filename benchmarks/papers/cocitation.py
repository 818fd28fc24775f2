"""Compare encoders trained on co-citations of eLife: the strategies of CCHT (Ding et al.) and baselines.

    python benchmarks/papers/cocitation.py elife-jats.tar.xz --out RUNS          # all runs, and the table
    python benchmarks/papers/cocitation.py elife-jats.tar.xz --out RUNS --table  # the table of existing runs

Articles are read once and stored in RUNS/articles.jsonl. Each run adds a line to RUNS/runs.jsonl. After an
interruption, the same command resumes.

A citing article is in the test set if the MD5 of its DOI is 0 modulo 5. Test articles are removed before
anything is counted. The encoder has the first ``--layers`` layers of MiniLM. Training changes the last
``--train-layers`` of them (0: all). The text of a reference is its title. Every strategy has the same number
of steps, and the last step is used without any selection. The score is the cosine, as in ``dense``.
``--abstracts`` adds the abstracts of articles to training. ``--test-negatives`` limits the pool to references
of other test articles. ``--strategies`` accepts two more strategies:

specter: triplets of citing articles; two of five negatives are texts that a cited article cites, and the
         article does not. Only articles with such texts are anchors.
preset:  ``rerank train dense --preset cocitation`` with ``--layers`` and ``--steps``. Compare it with
         ``untrained cls``, the untrained encoder with the same pooling.

``--equal-anchors`` gives all strategies as many anchors as ``specter`` has. ``direct`` has the same anchors,
and strategies of co-citations a random part of theirs for each seed.

ranking:   5 texts that test articles cite with the query in one sentence (paragraph, section), and 25 texts
           from a pool of ``--pool`` other references. No training article cites one of them with the query.
           MAP, nDCG.
proximity: two texts that a test article cites with a reference, one nearer and one farther. Share of such
           pairs in which the nearer text has the higher score, mean over references. Chance is 1/2.
cited:     ranks all articles for a test article. Relevant are the articles that it cites, without related
           ones. MRR.
subjects:  14 subject headings by a linear SVM on title and abstract, 5-fold, macro-F1.

p: paired randomization tests on the means over seeds, with one value per query (ranking, cited) or reference
(proximity). Corrected by Holm over all claims.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from ablations import changed
from cocited_tasks import Tasks, tested

from rerank.evaluation.significance import holm, randomization_test
from rerank.formats.jats import read_jats
from rerank.progress import Progress
from rerank.rankers.dense import neighbors
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask
from rerank.rankers.dense.neighbors import Structure
from rerank.rankers.dense.texts import Texts
from rerank.rankers.encoder.modules import document_tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document

STRATEGIES: dict[str, dict[str, Any]] = {
    "sentence": {"strategy": "sentence"},
    "paragraph": {"strategy": "paragraph"},
    "section": {"strategy": "section"},
    "direct": {"strategy": "sentence"},
    "hard 1.0": {"strategy": "sentence"},
    "links (paper 000)": {"objective": "quintuplet"},
    "hard 0.4": {"strategy": "sentence"},
    "contrastive": {"strategy": "sentence", "objective": "contrastive"},
    "hard 0.2": {"strategy": "sentence"},
    "hard 0.6": {"strategy": "sentence"},
    "hard 0.8": {"strategy": "sentence"},
    "specter": {"strategy": "sentence"},
}
DEFAULT = [one for one in STRATEGIES if one != "specter"]
HARD = {f"hard {count / 5:.1f}": count for count in range(1, 6)}
"""Strategy -> number of hard negatives of five."""
CLAIMS = (
    *((one, "untrained") for one in ("sentence", "paragraph", "section", "direct")),
    *((one, "tf-idf") for one in ("sentence",)),
    *((one, "direct") for one in ("sentence", "paragraph", "section")),
    ("sentence", "links (paper 000)"),
    *(("sentence", one) for one in ("paragraph", "section")),
    ("paragraph", "section"),
    *(("sentence", f"hard {share}") for share in ("0.2", "0.4", "0.6", "0.8", "1.0")),
    ("contrastive", "sentence"),
    *(("sentence", one) for one in ("paragraph alone", "section alone", "popular negatives")),
    ("count", "section"),
    *((one, "specter") for one in ("sentence", "paragraph", "section")),
    ("specter", "direct"),
    ("preset", "untrained cls"),
    ("preset", "untrained"),
    ("preset", "sentence"),
)
"""Pairs (a, b): a scores above b. ``random`` draws the same as ``section`` unless weights are given."""


def articles(archive: Path, folder: Path, most: int | None = None) -> list[dict[str, Any]]:
    """Return all articles of the archive, or the first ``most``. Store them in ``folder``."""
    path = folder / "articles.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".part").open("w", encoding="utf-8") as file:
            for article in islice(read_jats(archive), most):
                document = article.document()
                cited = document.extra
                row = {
                    "key": article.key,
                    "title": article.title,
                    "abstract": article.abstract,
                    "subjects": article.subjects,
                    "related": article.related,
                    "citations": [{n: v for n, v in c.items() if n != "text"} for c in cited["citations"]],
                    "references": cited.get("references", {}),
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        path.with_suffix(".part").rename(path)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Remembering(DenseTask):
    """Computes the outputs of the fixed layers once for all runs."""

    kept: ClassVar[dict[bytes, torch.Tensor]] = {}

    def on_start(self, resumed: bool) -> None:
        self.encoding.outputs = Remembering.kept
        if not Remembering.kept:
            super().on_start(resumed)


def remembered(find: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``find`` once and reuse its result. Ties depend on the first seed."""
    found: list[Any] = []

    def again(*args: Any, **options: Any) -> Any:
        if not found:
            found.append(find(*args, **options))
        return found[0]

    return again


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--strategies", default=",".join(DEFAULT))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--train-layers", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--article-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--test-articles", type=int, default=80)
    parser.add_argument("--queries", type=int, default=250)
    parser.add_argument("--pool", type=int, default=1000)
    parser.add_argument(
        "--articles", type=int, help="Number of articles. Each number needs its own --out. Default: all."
    )
    parser.add_argument("--abstracts", action="store_true", help="Train on titles and abstracts.")
    parser.add_argument(
        "--test-negatives", action="store_true", help="Draw the pool from references of test articles."
    )
    parser.add_argument(
        "--equal-anchors", action="store_true", help="Give all strategies the same number of anchors."
    )
    parser.add_argument("--table", action="store_true", help="Print the table of existing runs only.")
    return parser


def main() -> None:
    args = arguments().parse_args()
    path = args.out / "runs.jsonl"
    if not args.table:
        run(args, path)
    table([json.loads(line) for line in path.read_text("utf-8").splitlines()])


def run(args: Any, path: Path) -> list[Any]:
    """Measure the missing runs, and add a line for each to ``path``. Return their shape."""
    torch.set_num_threads(1)
    rows = articles(args.archive, args.out, args.articles)
    sizes = ("layers", "train_layers", "tokens", "steps", "batch", "rate", "test_articles", "queries", "pool")
    shape = [getattr(args, name) for name in sizes]
    shape += [name for name in ("abstracts", "test_negatives", "equal_anchors") if getattr(args, name)]
    todo = missing(args, path, shape)
    if not todo:
        return shape
    given = Given.of(args, rows)
    neighbors.by_pagerank = remembered(neighbors.by_pagerank)
    for how, seed in todo:
        begin = time.process_time()
        measured = given.tfidf() if how == "tf-idf" else given.encoder(args, how, seed)
        measured["cpu"] = round(time.process_time() - begin, 1)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"how": how, "seed": seed, "shape": shape, **measured}) + "\n")
        print(f"{how} {seed}: {summary(measured)} ({measured['cpu']} s)", flush=True)
    return shape


def missing(args: Any, path: Path, shape: list[Any]) -> list[tuple[str, int]]:
    """Return the strategies and seeds without a line in ``path``."""
    done = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    there = {(one["how"], one["seed"]) for one in done if one["shape"] == shape}
    strategies = args.strategies.split(",")
    todo = [("tf-idf", 0), ("untrained", 0)] + [("untrained cls", 0)] * ("preset" in strategies)
    todo += [(how, seed) for seed in range(args.seeds) for how in strategies]
    return [one for one in todo if one not in there]


def load(args: Any, how: str) -> TextEncoder:
    if how == "preset":
        return settings_of(args, how, 0).load()
    pooling = "cls" if how == "untrained cls" else None
    return TextEncoder.load("minilm", layers=args.layers, longest=args.tokens, pooling=pooling)


def settings_of(args: Any, how: str, seed: int) -> DenseConfig:
    if how == "preset":
        return DenseConfig.of("cocitation", model="minilm", layers=args.layers, steps=args.steps, seed=seed)
    return DenseConfig.of(
        **{"objective": "cocitation", **STRATEGIES[how]},
        model="minilm",
        layers=args.layers,
        train_layers=args.train_layers,
        passage_tokens=args.tokens,
        passages=1,
        steps=args.steps,
        batch=args.batch,
        rate=args.rate,
        held_out=0.0,
        seed=seed,
    )


@dataclass
class Given:
    """Texts to learn from, tasks and texts to measure.

    whole:  articles with title and abstract. pieces: their tokens.
    titles: tokens of the titles of the tasks.
    """

    texts: Texts
    tasks: Tasks
    whole: list[Document]
    pieces: list[list[int]]
    titles: list[list[int]]

    @classmethod
    def of(cls, args: Any, rows: list[dict[str, Any]]) -> Given:
        documents = [
            Document(
                row["key"],
                row["title"],
                row["abstract"] if args.abstracts else "",
                extra={} if tested(row["key"]) else {n: row[n] for n in ("citations", "references")},
            )
            for row in rows
        ]
        encoder = load(args, "untrained")
        texts = Texts.read(documents, encoder.tokens, relation="citations", separator=encoder.separator)
        assert isinstance(texts.graph, Citations)
        tasks = Tasks(rows, texts.graph, args.test_articles, args.queries, args.pool, args.test_negatives)
        whole = [Document(row["key"], row["title"], row["abstract"]) for row in rows]
        print(
            f"{len(texts.tokens)} texts, {len(texts.graph.network)} cited together; to find:"
            f" {', '.join(f'{len(found)} {level}' for level, found in tasks.ranking.items())},"
            f" {len(tasks.cited)} articles that cite others; {len(tasks.titles)} titles",
            flush=True,
        )
        pieces = document_tokens(whole, encoder.tokens, encoder.separator)
        return cls(texts, tasks, whole, pieces, encoder.tokens(tasks.titles))

    @cached_property
    def linked(self) -> Texts:
        """The texts with the citations between articles as links."""
        graph = self.texts.graph
        assert isinstance(graph, Citations)
        number = {id: i for i, id in enumerate(graph.ids)}
        edges = {
            (number[paper], number[one.reference])
            for paper, found in graph.papers()
            for one in found
            if one.reference in number
        }
        ends = np.array(sorted(edges), dtype=np.int32)
        return Texts(self.texts.tokens, LinkGraph.from_edges(graph.ids, *ends.T))

    def tfidf(self) -> dict[str, Any]:
        contents = [one.content for one in self.whole]
        return self.tasks.measure(_tfidf(self.tasks.titles, self.tasks.corpus), _tfidf(contents, contents))

    def encoder(self, args: Any, how: str, seed: int) -> dict[str, Any]:
        """Train an encoder, unless it is one of the untrained ones, and measure it."""
        begin, told, encoder = time.process_time(), {}, load(args, how)
        if not how.startswith("untrained"):
            told = self.train(encoder, args, how, seed)
        trained = time.process_time() - begin
        encoder.model.eval()
        vectors = encoder.encode([one[: encoder.room] for one in self.titles])
        articles_seen = encoder.encode([one[: args.article_tokens - 2] for one in self.pieces])
        measured = self.tasks.measure(vectors, articles_seen)
        return measured | {"told": told, "trained": round(trained, 1)}

    def train(self, encoder: TextEncoder, args: Any, how: str, seed: int) -> dict[str, Any]:
        """Train the encoder. Return its last loss, and the number of its anchors."""
        config = settings_of(args, how, seed)
        found = Structure.find(self.texts if config.strategy else self.linked, config)
        if config.strategy:
            equal = args.equal_anchors
            near = changed(found.neighbors, self.texts.graph, how, HARD.get(how, 0), equal, seed)
            found = replace(found, neighbors=near)
        task = Remembering(self.texts, encoder, config, Progress(), structure=found)
        fit = task.fit()
        return {"loss": fit.history[-1].loss, "anchors": int(found.neighbors.paired.sum())}


def _tfidf(texts: list[str], corpus: list[str]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, stop_words="english").fit(corpus).transform(texts)


def summary(measured: dict[str, Any]) -> str:
    kept = {n: v for n, v in measured.items() if isinstance(v, list)} | {"subjects": [measured["subjects"]]}
    return ", ".join(f"{name} {np.mean(values):.3f}" for name, values in kept.items())


def table(runs: list[dict[str, Any]]) -> None:
    newest = runs[-1]["shape"]
    print("layers, of which learn, tokens, steps, batch, rate, test articles, queries, pool:", newest)
    by: dict[str, list[dict[str, Any]]] = {}
    for one in runs:
        if one["shape"] == newest:
            by.setdefault(one["how"], []).append(one)
    names = [name for name, values in runs[0].items() if isinstance(values, list) and name != "shape"]
    names.append("subjects")
    print(f"{'':18}", *(f"{name:>22}" for name in names))
    for how, of in by.items():
        cells = [
            (np.mean([np.mean(one[n]) for one in of]), np.std([np.mean(one[n]) for one in of])) for n in names
        ]
        print(f"{how:18}", *(f"{mean:15.3f} ±{spread:.3f}" for mean, spread in cells), f" {len(of)} seeds")
    tests = compared(by, [name for name in names[:-1] if not name.startswith("nDCG")])
    corrected = holm([p for *_, p in tests])
    for (high, low, name, delta, p), after in zip(tests, corrected):
        verdict = "" if after > 0.05 else "above" if delta > 0 else "BELOW"
        print(f"{high:18} - {low:18} {name:22} {delta:+.4f}  p {p:.5f}  Holm {after:.5f}  {verdict}")


def compared(
    by: dict[str, list[dict[str, Any]]], names: list[str]
) -> list[tuple[str, str, str, float, float]]:
    """Return (a, b, measure, mean of a - b, p) of all claims, from the means over seeds."""
    tests = []
    for high, low in CLAIMS:
        for name in names if high in by and low in by else ():
            a, b = (np.mean([one[name] for one in by[how]], axis=0) for how in (high, low))
            tests.append((high, low, name, float(np.mean(a - b)), randomization_test(a - b)))
    return tests


if __name__ == "__main__":
    main()
