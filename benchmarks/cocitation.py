"""Compare encoders trained on co-citations of eLife: the strategies of CCHT (Ding et al.) and baselines.

    python benchmarks/cocitation.py elife-jats.tar.xz --out RUNS             # all runs, and the table
    python benchmarks/cocitation.py elife-jats.tar.xz --out RUNS --table     # the table of existing runs

Articles are read once and stored in RUNS/articles.jsonl. Each run adds a line to RUNS/runs.jsonl. After an
interruption, the same command resumes.

A citing article is in the test set if the MD5 of its DOI is 0 modulo 5. Test articles are removed before
anything is counted. The encoder has the first ``--layers`` layers of MiniLM. Training changes the last
``--train-layers`` of them (0: all). The text of a reference is its title. Every strategy has the same number
of steps, and the last step is used without any selection. The score is the cosine, as in ``dense``.
``--abstracts`` adds the abstracts of articles to training. ``--test-negatives`` limits the pool to references
of other test articles.

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
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parent / "papers"))

import numpy as np
import torch
from ablations import HardTriplets
from classify import classified, headings

from rerank.evaluation.significance import holm, randomization_test
from rerank.formats.jats import read_jats
from rerank.progress import Progress
from rerank.rankers.dense import neighbors
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask
from rerank.rankers.dense.neighbors import CitedNeighbors, Structure
from rerank.rankers.dense.texts import Texts
from rerank.rankers.dense.triplets import TripletSampler
from rerank.rankers.encoder.tokens import document_tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import CitationGraph, Citations
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Mention
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document

STRATEGIES: dict[str, dict[str, Any]] = {
    "sentence": {"strategy": "sentence"},
    "paragraph": {"strategy": "paragraph"},
    "section": {"strategy": "section"},
    "direct": {"strategy": "sentence"},
    "hard 1.0": {"strategy": "sentence", "hard": 5},
    "links (paper 000)": {"objective": "quintuplet"},
    "hard 0.4": {"strategy": "sentence", "hard": 2},
    "contrastive": {"strategy": "sentence", "objective": "contrastive"},
    "hard 0.2": {"strategy": "sentence", "hard": 1},
    "hard 0.6": {"strategy": "sentence", "hard": 3},
    "hard 0.8": {"strategy": "sentence", "hard": 4},
}
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
)
"""Pairs (a, b): a scores above b. ``random`` draws the same as ``section`` unless weights are given."""
NEARER = (
    ("sentence", "paragraph"),
    ("paragraph", "section"),
    ("section", "document"),
    ("sentence", "section"),
)


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


def tested(key: str) -> bool:
    return int(hashlib.md5(key.encode()).hexdigest(), 16) % 5 == 0


class Tasks:
    """Texts to encode, and the queries and relevant texts of each task."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        train: CitationGraph,
        count: int,
        queries: int,
        others: int,
        test_negatives: bool = False,
    ) -> None:
        self.rows = rows
        rng = np.random.default_rng(2021)
        test = [row for row in rows if tested(row["key"])]
        some = [test[i] for i in np.sort(rng.permutation(len(test))[:count]).tolist()]
        documents = [Document(row["key"], extra={"citations": row["citations"]}) for row in some]
        papers = list(Citations.of(documents).papers())
        network = CoCitations.of(papers)
        known = {key: title for row in rows for key, title in row["references"].items() if title}
        self.keys = [key for key in network.keys if key in known]
        cited = {c["ref"] for row in test for c in row["citations"]} if test_negatives else known.keys()
        pool = sorted((known.keys() & cited) - {*self.keys})
        self.pool = [pool[i] for i in rng.permutation(len(pool))[:others].tolist()]
        self.keys += self.pool
        self.corpus = list(known.values())
        self.titles = [known[key] for key in self.keys]
        place = {key: i for i, key in enumerate(self.keys)}
        self.ranking = {
            level: list(self._ranking(network, train, place, level, queries, rng)) for level in LEVELS[:3]
        }
        self.proximity = [one for paper in papers for one in self._proximity(paper, place)]
        number = {row["key"]: i for i, row in enumerate(rows)}
        self.cited = []
        for row in test:
            cites = {number[c["ref"]] for c in row["citations"] if c["ref"] in number}
            cites -= {number[key] for key in row["related"] if key in number}
            if cites:
                self.cited.append((number[row["key"]], sorted(cites)))

    def _ranking(
        self,
        network: CoCitations,
        train: CitationGraph,
        place: dict[str, int],
        level: Any,
        count: int,
        rng: np.random.Generator,
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield queries with 30 texts each. The first five texts are relevant."""
        at = {key: ref for ref, key in enumerate(train.network.keys)}
        whole = train.network.levels["document"]

        def seen(a: str, b: str) -> bool:
            return a in at and b in at and whole.shared(at[a], at[b]) > 0

        found = 0
        for ref in rng.permutation(len(network)).tolist():
            key = network.keys[ref]
            if key not in place:
                continue
            near = [network.keys[one] for one in network.neighbors(ref, level)]
            near = [one for one in near if one in place and not seen(key, one)]
            if len(near) < 5:
                continue
            right = [near[i] for i in rng.permutation(len(near))[:5].tolist()]
            mates = {key, *(network.keys[one] for one in network.neighbors(ref, "document"))}
            wrong: dict[str, None] = {}
            while len(wrong) < 25:
                one = self.pool[int(rng.integers(len(self.pool)))]
                if one not in mates and not seen(key, one):
                    wrong[one] = None
            yield place[key], [place[one] for one in (*right, *wrong)]
            found += 1
            if found == count:
                return

    def _proximity(self, paper: Any, place: dict[str, int]) -> Iterator[tuple[int, dict[str, list[int]]]]:
        own = CoCitations.of([paper])
        for ref in range(len(own)):
            if own.keys[ref] in place:
                ids = own.neighbors(ref, "document")
                level = finest(own, ref, ids)
                mates: dict[str, list[int]] = {one: [] for one in LEVELS}
                for other, one in zip((own.keys[id] for id in ids), level):
                    if other in place:
                        mates[LEVELS[one - 1]].append(place[other])
                yield place[own.keys[ref]], mates

    def measure(self, titles: Any, documents: Any, svm: bool = True) -> dict[str, Any]:
        """Return the values of each measure.

        titles, documents: unit vectors of the references and the articles, dense or sparse rows.
        """
        found: dict[str, Any] = {}
        for level, queries in self.ranking.items():
            both = np.array([_ranked(_dots(titles, query, those), query) for query, those in queries])
            found[f"MAP {level}"], found[f"nDCG {level}"] = both[:, 0].tolist(), both[:, 1].tolist()
        for near, far in NEARER:
            values: list[float | None] = []
            for query, mates in self.proximity:
                if mates[near] and mates[far]:
                    a, b = _dots(titles, query, mates[near]), _dots(titles, query, mates[far])
                    values.append(float(np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b))))
            found[f"{near} > {far}"] = values
        everything = list(range(len(self.rows)))
        ranks = []
        for query, right in self.cited:
            scores = _dots(documents, query, everything)
            scores[query] = -np.inf
            ranks.append(1 / (1 + int((scores > scores[right].max()).sum())))
        found["cited"] = ranks
        if svm:
            found["subjects"] = self.subjects(documents)
        return {n: np.round(v, 4).tolist() if isinstance(v, list) else v for n, v in found.items()}

    def subjects(self, documents: Any) -> float:
        labels = [row["subjects"] for row in self.rows]
        return classified(documents, labels, headings(labels))[0]


def _dots(vectors: Any, query: int, those: list[int]) -> np.ndarray:
    found = vectors[those] @ vectors[query].T
    return np.asarray(found.todense()).ravel() if hasattr(found, "todense") else found


def _ranked(scores: np.ndarray, query: int) -> tuple[float, float]:
    """Return MAP and nDCG of 30 texts. The first five are relevant.

    Ties (no common word) are broken at random.
    """
    order = np.lexsort((np.random.default_rng(query).permutation(len(scores)), -scores))
    places = np.flatnonzero(order < 5)
    ideal = (1 / np.log2(np.arange(5) + 2)).sum()
    return float(np.mean((np.arange(5) + 1) / (places + 1))), float((1 / np.log2(places + 2)).sum() / ideal)


class Remembering(DenseTask):
    """Computes the outputs of the fixed layers once for all runs."""

    kept: ClassVar[dict[bytes, torch.Tensor]] = {}

    def fill_cache(self) -> None:
        self.encoding.outputs = Remembering.kept
        if not Remembering.kept:
            super().fill_cache()


def changed(of: CitedNeighbors, graph: CitationGraph, hard: int, citing: bool) -> CitedNeighbors:
    """Return neighbors with hard negatives, or citing documents with their references (SPECTER)."""
    options = {name: getattr(of.triplets, name) for name in ("network", "usable", "level", "direct")}
    if not citing:
        return replace(of, triplets=HardTriplets(**options, hard=hard))
    pairs = {(paper, one.reference) for paper, cited in graph.papers() for one in cited}
    network = CoCitations.of(
        (f"{number}", [Mention(paper, 0, 0, 0), Mention(ref, 0, 0, 0)])
        for number, (paper, ref) in enumerate(sorted(pairs))
        if paper != ref
    )
    texts, refs = graph.places(network)
    usable = texts >= 0
    usable[usable] = of.usable[texts[usable]]
    papers = {paper for paper, _ in pairs}
    triplets = CitingTriplets(network, usable, citing=np.array([key in papers for key in network.keys]))
    return replace(of, triplets=triplets, texts=texts, refs=refs)


@dataclass
class CitingTriplets(TripletSampler):
    """Triplets of citing documents. citing: (V,) bool."""

    citing: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def targets(self) -> np.ndarray:
        found = super().targets()
        return found[self.citing[found]]


def finest(network: CoCitations, ref: int, others: np.ndarray) -> list[int]:
    """Return the finest common level with others: 1 sentence to 4 document."""
    found = np.full(len(others), len(LEVELS), np.int8)
    for place in range(len(LEVELS) - 1, 0, -1):
        found[np.isin(others, network.neighbors(ref, LEVELS[place - 1]))] = place
    return found.tolist()


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
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
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
    parser.add_argument("--table", action="store_true", help="Print the table of existing runs only.")
    return parser


def main() -> None:
    args = arguments().parse_args()
    path = args.out / "runs.jsonl"
    if not args.table:
        run(args, path)
    table([json.loads(line) for line in path.read_text("utf-8").splitlines()])


def run(args: Any, path: Path) -> None:
    torch.set_num_threads(1)
    rows = articles(args.archive, args.out, args.articles)
    done = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    shape = [
        args.layers,
        args.train_layers,
        args.tokens,
        args.steps,
        args.batch,
        args.rate,
        args.test_articles,
        args.queries,
        args.pool,
        *(name for name in ("abstracts", "test_negatives") if getattr(args, name)),
    ]
    todo = [(how, seed) for how, seeds in (("tf-idf", 1), ("untrained", 1)) for seed in range(seeds)] + [
        (how, seed) for seed in range(args.seeds) for how in args.strategies.split(",")
    ]
    there = {(one["how"], one["seed"]) for one in done if one["shape"] == shape}
    todo = [one for one in todo if one not in there]
    if not todo:
        return
    documents = [
        Document(
            row["key"],
            row["title"],
            row["abstract"] if args.abstracts else "",
            extra={} if tested(row["key"]) else {n: row[n] for n in ("citations", "references")},
        )
        for row in rows
    ]

    def load() -> TextEncoder:
        return TextEncoder.load("minilm", layers=args.layers, longest=args.tokens)

    encoder = load()
    texts = Texts.read(documents, encoder.tokens, cited=True)
    assert isinstance(texts.graph, CitationGraph)
    tasks = Tasks(rows, texts.graph, args.test_articles, args.queries, args.pool, args.test_negatives)
    whole = [Document(row["key"], row["title"], row["abstract"]) for row in rows]
    pieces = document_tokens(whole, encoder.tokens, encoder.separator)
    titles = encoder.tokens(tasks.titles)
    print(
        f"{len(texts.tokens)} texts, {len(texts.graph.network)} cited together; to find:"
        f" {', '.join(f'{len(found)} {level}' for level, found in tasks.ranking.items())},"
        f" {len(tasks.cited)} articles that cite others; {len(tasks.titles)} titles",
        flush=True,
    )

    @cache
    def linked() -> Texts:
        number = {id: i for i, id in enumerate(texts.graph.ids)}
        edges = {
            (number[paper], number[one.reference])
            for paper, found in texts.graph.papers()
            for one in found
            if one.reference in number
        }
        ends = np.array(sorted(edges), dtype=np.int32)
        return Texts(texts.tokens, LinkGraph.from_edges(texts.graph.ids, *ends.T))

    neighbors.by_pagerank = remembered(neighbors.by_pagerank)
    for how, seed in todo:
        begin = time.process_time()
        if how == "tf-idf":
            contents = [one.content for one in whole]
            measured = tasks.measure(_tfidf(tasks.titles, tasks.corpus), _tfidf(contents, contents))
        else:
            encoder, told = load(), {}
            if how != "untrained":
                changes = {"objective": "cocitation", **STRATEGIES[how]}
                hard, citing = changes.pop("hard", 0), how == "direct"
                config = DenseConfig.of(
                    **changes,
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
                of = texts if "strategy" in changes else linked()
                found = Structure.find(of, config)
                if citing or hard:
                    found = replace(found, neighbors=changed(found.neighbors, texts.graph, hard, citing))
                fit = Remembering(of, encoder, config, Progress(), structure=found).fit()
                told = {"loss": fit.history[-1].loss}
            trained = time.process_time() - begin
            encoder.model.eval()
            vectors = encoder.encode([one[: encoder.room] for one in titles])
            articles_seen = encoder.encode([one[: args.article_tokens - 2] for one in pieces])
            measured = tasks.measure(vectors, articles_seen)
            measured |= {"told": told, "trained": round(trained, 1)}
        measured["cpu"] = round(time.process_time() - begin, 1)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"how": how, "seed": seed, "shape": shape, **measured}) + "\n")
        print(f"{how} {seed}: {summary(measured)} ({measured['cpu']} s)", flush=True)


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
