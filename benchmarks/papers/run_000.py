"""Raman, Shah, Veloso (2021): measure what an encoder learns from links.

    python benchmarks/papers/run_000.py DATA --collections cf --start minilm:6:top2
    python benchmarks/papers/run_000.py DATA --collections elife --hows contrastive,quintuplet --epochs 3
    python benchmarks/papers/run_000.py DATA --list

``--hows`` selects the ways of training:

quintuplet:     the loss of the paper.
paper:          ``--preset paper``: trains all layers, does not select a step by held-out links.
untrained:      no training, to measure search by all passages.
lm:             masked language model training on the texts, with all layers, batch and rate of ``paper``.
structure:      only the structure half of the loss (gamma 0).
semantics:      only the semantics half of the loss (gamma 1).
fixed-margin:   one margin at all levels.
triplet:        triplet loss.
contrastive:    contrastive loss.
+positives=row: any neighbor can be the positive, the default of contrastive and triplet. ``levels``: by
                PageRank.
+neighbors=hops: order the neighbors by hops.
+name=value:    change another setting.

A fifth of the links is held out before any other computation. Measures:

links:    a document is the query for its held-out linked documents: success@1, R@5, R@10.
contexts: eLife: a sentence with a held-out citation is the query for the cited article: the same measures.
self:     eLife: a body sentence that is not in the training data is the query for its article: success@1.
headings: F1 of a linear SVM on the vectors. Classes: subjects (eLife) or MeSH headings that at most a tenth
          of the documents have (cf).
apart:    how often a held-out linked document is nearer than a document without a link (figure 5).
near:     share of the ten nearest documents that are linked with the document by training links (figure 6).

For links, contexts and self, a document is its first passage. Measures with ``best 2``, ``best 5`` and
``sum 5`` score all passages of a document by equation 6 (fragments.py). A query is one passage or sentence.

Baselines of the paper without an encoder (``--hows word2vec,sgc``): the mean of word vectors that are learned
from the documents; and tf-idf vectors of 256 numbers, smoothed over two links (SGC without its classifier).

p: paired randomization tests against the untrained encoder. If ``quintuplet`` has a result for the same
seed, a second test compares with it. Another one compares ``lm`` with ``paper`` (both with the same number
of epochs). Completed steps are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ablations import config_of, task_of
from classify import classified, headings
from dense import SPLIT, apart, documents, recall_at, recall_of
from encoders import encoder, setting_of
from fragments import MOST, Fragments
from language_model import tuned
from running import Say, Step, arguments, carry_out

from rerank.evaluation.significance import randomization_test
from rerank.files import write_text
from rerank.formats.jats import read_jats
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask, LinkEvaluation
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.training.checkpoint import TrainingRun
from rerank.records import Document
from rerank.text import words

HOWS = (
    "quintuplet",
    "structure",
    "semantics",
    "fixed-margin",
    "triplet",
    "quintuplet+positives=row",
    "quintuplet+neighbors=hops",
    "contrastive",
    "contrastive+positives=levels",
)
SENSITIVITY = (
    "quintuplet+gamma=0.25",
    "quintuplet+gamma=0.75",
    "quintuplet+semantic_margin=1.0",
    "quintuplet+semantic_margin=1.5",
    "quintuplet+semantic_margin=4.0",
)
BASELINES = ("word2vec", "sgc")
CUTS = {"success@1": 1, "R@5": 5, "R@10": 10}
"""Measure -> rank limit, for queries that are sentences. Each sentence has one relevant article."""
PERMUTATIONS = 10_000
OTHERS = 20
"""Number of random documents without a link that the ``apart`` measure compares with."""


@dataclass(frozen=True)
class Prepared:
    """A collection without its test links, and its test queries.

    graph:     links without the test links.
    labels:    headings of each document.
    of:        headings to classify.
    sentences: query texts: first ``contexts`` citation contexts, then body sentences.
    wanted:    index of the relevant document of each sentence.
    """

    texts: Texts
    graph: LinkGraph
    test: LinkEvaluation
    labels: list[tuple[str, ...]]
    of: list[str]
    sentences: list[str]
    wanted: np.ndarray
    contexts: int


def elife(data: Path, work: Path, seed: int) -> tuple[list[Document], list[tuple[int, int, str]], list[str]]:
    """Return the articles with their links, (citing, cited, sentence), and a body sentence per article."""
    path = work / "elife-sentences.json"
    if not path.exists():
        articles = sorted(read_jats(data / "elife-jats.tar.xz"), key=lambda article: article.key)
        place = {article.key: i for i, article in enumerate(articles)}
        rows: dict[str, list[Any]] = {"documents": [], "contexts": [], "bodies": []}
        for i, one in enumerate(articles):
            links = [key for key in one.references if key in place and key not in one.related]
            rows["documents"].append([one.key, one.title, one.abstract, list(one.subjects), links])
            for sentence in one.sentences:
                cited = {place[key] for key in sentence.cites if key in place and key in links} - {i}
                rows["contexts"] += [[i, other, sentence.text] for other in sorted(cited)]
            plain = [s.text for s in one.sentences if not s.cites and 60 <= len(s.text) <= 400]
            rows["bodies"].append(plain[:: max(1, len(plain) // 20)])
        work.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(rows, ensure_ascii=False))
    rows = json.loads(path.read_text("utf-8"))
    found = [
        Document(key, title=title, text=abstract, categories=tuple(subjects), links=tuple(links))
        for key, title, abstract, subjects, links in rows["documents"]
    ]
    rng = np.random.default_rng((SPLIT, seed))
    bodies = [some[int(rng.integers(len(some)))] if some else "" for some in rows["bodies"]]
    return found, [(i, j, text) for i, j, text in rows["contexts"]], bodies


@cache
def prepared(data: Path, work: Path, name: str, start: str, tokens: int, seed: int) -> Prepared:
    """Return the texts, the graph without the test links, and the test queries."""
    contexts: list[tuple[int, int, str]] = []
    bodies: list[str] = []
    if name == "elife":
        found, contexts, bodies = elife(data, work, seed)
    else:
        found = documents(data / name)
    texts = Texts.read(found, encoder(start, tokens, 0)[0].tokens)
    graph, test = apart(texts, 0.2, SPLIT + seed)
    linked = graph.matrix
    kept = [(j, text) for i, j, text in contexts if not linked[i, j]]  # the link is held out
    own = [(i, text) for i, text in enumerate(bodies) if text]
    labels = [one.categories for one in found]
    return Prepared(
        texts,
        graph,
        test,
        labels,
        headings(labels, most=1.0 if name == "elife" else 0.1),
        [text for _, text in [*kept, *own]],
        np.array([i for i, _ in [*kept, *own]], dtype=np.int64),
        len(kept),
    )


def measured(of: Prepared, loaded: TextEncoder, seed: int) -> dict[str, np.ndarray]:
    """Return measure -> one value per document or sentence."""
    loaded.model.eval()
    fragments = Fragments.of(Passages(of.texts.tokens, loaded.room, MOST), loaded)
    vectors = fragments.first()
    found = by_links(of, vectors, seed) | by_all_passages(of, fragments, vectors)
    if of.sentences:
        asked = loaded.encode([one[: loaded.room] for one in loaded.tokens(of.sentences)])
        found |= by_sentences(of, asked @ vectors.T)
        for name, scores in fragments.scores(asked).items():
            found |= {f"{name} {measure}": of for measure, of in by_sentences(of, scores).items()}
    if of.of:
        _, found["headings"] = classified(vectors, of.labels, of.of)
    return found


def by_sentences(of: Prepared, scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return measure -> one value per sentence. scores: (sentences, documents)."""
    rank = (scores > scores[np.arange(len(scores)), of.wanted][:, None]).sum(axis=1)
    cited, own = rank[: of.contexts], rank[of.contexts :]
    found = {f"contexts {name}": (cited < n) * 1.0 for name, n in CUTS.items()}
    return found | {"self success@1": (own < 1) * 1.0}


def by_all_passages(of: Prepared, fragments: Fragments, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Return recall of held-out links by all passages of the documents. vectors: the queries."""
    test, found = of.test, {}
    for name, scores in fragments.scores(vectors[test.pool[test.anchors]]).items():
        scores = np.where(test.excluded, -np.inf, scores[:, test.pool])
        order = np.argsort(-scores, axis=1, kind="stable")
        recall = recall_at(test, np.take_along_axis(test.relevant, order, axis=1), (5, 10))
        found |= {f"{name} R@5": recall[:, 0], f"{name} R@10": recall[:, 1]}
    return found


def by_links(of: Prepared, vectors: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Return measure -> one value per document, for the tasks on links."""
    usable = np.flatnonzero(of.texts.usable)
    pool = vectors[of.test.pool]
    recall = recall_of(of.test, pool, (1, 5, 10))
    found = {"success@1": (recall[:, 0] > 0).astype(float), "R@5": recall[:, 1], "R@10": recall[:, 2]}
    rng = np.random.default_rng((SPLIT, seed, 1))
    nearer = []
    for row, anchor in enumerate(of.test.anchors.tolist()):
        scores = pool @ pool[anchor]
        mates = of.test.relevant[row]
        others = np.flatnonzero(~mates & ~of.test.excluded[row])
        others = rng.choice(others, OTHERS)
        nearer.append((scores[mates][:, None] > scores[others]).mean())
    links = of.graph.matrix
    near = []
    for document in usable[np.diff(links.indptr)[usable] > 0].tolist():
        scores = vectors @ vectors[document]
        scores[document] = -np.inf
        near.append(np.isin(np.argsort(-scores, kind="stable")[:10], links[document].indices).mean())
    return found | {"apart": np.array(nearer), "near": np.array(near)}


def baseline(options: argparse.Namespace, name: str, how: str, seed: int) -> dict[str, Any]:
    """Measure ``word2vec`` or ``sgc``."""
    of = prepared(options.data, options.work, name, options.start, options.tokens, seed)
    found = elife(options.data, options.work, seed)[0] if name == "elife" else documents(options.data / name)
    texts = [words(document.content) for document in found]
    vectors = mean_vectors(texts, seed) if how == "word2vec" else smoothed(texts, of.graph.matrix, seed)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    values = by_links(of, np.float32(vectors / np.maximum(lengths, 1e-9)), seed)
    values = {how: means(values)}
    return {"collection": name, "setting": "without an encoder", "seed": seed, "values": values, "tests": []}


def mean_vectors(texts: list[list[str]], seed: int) -> np.ndarray:
    """Return the mean of the word vectors of each text."""
    from gensim.models import Word2Vec

    model = Word2Vec(texts, vector_size=100, window=5, sg=1, negative=5, min_count=2, workers=1, seed=seed).wv
    return np.array([model.get_mean_vector(text or [""], pre_normalize=False) for text in texts])


def smoothed(texts: list[list[str]], links: Any, seed: int) -> np.ndarray:
    """Return S S X. X: tf-idf vectors. S: links with loops, normalized on both sides (Wu et al. 2019)."""
    from scipy import sparse
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    x = TfidfVectorizer(analyzer=lambda text: text, sublinear_tf=True, min_df=2).fit_transform(texts)
    x = TruncatedSVD(256, random_state=seed).fit_transform(x)
    loops = sparse.csr_array(links) + sparse.eye_array(links.shape[0])
    scale = sparse.diags_array(1 / np.sqrt(loops.sum(axis=1)))
    return np.asarray(scale @ (loops @ (scale @ (scale @ (loops @ (scale @ x))))))


def kept(options: argparse.Namespace, name: str, how: str, seed: int) -> Path:
    """Return the path of the values per document of a run. Significance tests read them."""
    label = f"{name}-{options.start}-{how}-{seed}".replace(":", "_").replace("+", "-")
    return options.work / f"000-{label}.npz"


def untrained(options: argparse.Namespace, name: str, seed: int) -> dict[str, np.ndarray]:
    """Return the values of the untrained encoder. They are measured once and stored."""
    path = kept(options, name, "untrained", seed)
    if not path.exists():
        of = prepared(options.data, options.work, name, options.start, options.tokens, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npz")  # several processes can run steps in parallel
        np.savez(part, **measured(of, encoder(options.start, options.tokens, seed)[0], seed))
        part.replace(path)
    return dict(np.load(path))


def trained(
    options: argparse.Namespace, of: Prepared, how: str, seed: int
) -> tuple[TextEncoder, TrainingRun]:
    """Train an encoder in one of the ways."""
    preset, *changes = how.split("+")
    parts = options.start.split(":")
    if preset in ("paper", "lm"):  # they train all layers
        parts = [part for part in parts if not part.startswith("top")]
    start = ":".join(parts)
    loaded, settings = encoder(start, options.tokens, seed)
    settings |= {"passage_tokens": options.tokens, "seed": seed}
    if preset == "untrained":
        return loaded, TrainingRun()
    if preset == "lm":
        epochs = int(dict(change.split("=", 1) for change in changes).get("epochs", 1))
        return loaded, tuned(loaded, Passages(of.texts.tokens, loaded.room, MOST), epochs, seed, Say())
    if preset == "paper":
        settings |= dict(change.split("=", 1) for change in changes)
        config, variant = DenseConfig.of("paper", **settings), None
    else:
        names = ("passages", "epochs", "batch", "rate", "patience")
        config, variant = config_of(how, **{name: getattr(options, name) for name in names}, **settings)
    given = (Texts(of.texts.tokens, of.graph), loaded, config)
    task = task_of(*given, variant, Say()) if variant else DenseTask(*given, Say())
    return loaded, task.fit()


def run(options: argparse.Namespace, name: str, how: str, seed: int) -> dict[str, Any]:
    """Train an encoder and return its measures."""
    before = untrained(options, name, seed)
    of = prepared(options.data, options.work, name, options.start, options.tokens, seed)
    loaded, fit = trained(options, of, how, seed)
    after = before if how == "untrained" else measured(of, loaded, seed)
    np.savez(kept(options, name, how, seed), **after)
    return {
        "collection": name,
        "setting": setting_of(options.start),
        "seed": seed,
        "values": {how: means(after), "start": means(before)},
        "tests": tests_of(options, name, how, seed, before, after),
        "n": {measure: len(of) for measure, of in after.items()},
        "steps": fit.steps,
        "kept": fit.best,
        "share": fit.alpha,
    }


def tests_of(
    options: argparse.Namespace,
    name: str,
    how: str,
    seed: int,
    before: dict[str, np.ndarray],
    after: dict[str, np.ndarray],
) -> list[list[Any]]:
    """Return the tests against the start, and against runs of the same seed that are compared with this one.

    before, after: values of the encoders.
    """
    bases = {"start": before}
    for other in ("quintuplet", how.replace("lm", "paper", 1)):
        path = kept(options, name, other, seed)
        if other != how and path.exists():
            bases[other] = dict(np.load(path))
    return [
        [how, other, measure, _p(values - base[measure])]
        for other, base in bases.items()
        for measure, values in after.items()
        if measure in base
    ]


def means(values: dict[str, np.ndarray]) -> dict[str, float]:
    """Return measure -> mean over documents or sentences."""
    return {measure: round(float(of.mean()), 4) for measure, of in values.items()}


def _p(differences: np.ndarray) -> float:
    return randomization_test(differences, permutations=PERMUTATIONS)


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield one step per collection, seed and way of training."""
    for name in options.collections:
        for seed in range(options.seeds):
            for how in options.hows:
                if how in BASELINES:
                    run_one = partial(baseline, options, name, how, seed)
                    yield Step(f"{name}-{how}-{seed}", "links", run_one)
                    continue
                label = f"{name}-{options.start}-{how}-{seed}".replace(":", "_").replace("+", "-")
                yield Step(label, "links", partial(run, options, name, how, seed))


def main() -> None:
    """Run the missing steps."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--collections",
        type=lambda text: text.split(","),
        default=["cf", "wikispeedia"],
        help="folders of DATA, separated by commas. Default: cf,wikispeedia",
    )
    parser.add_argument(
        "--hows",
        type=lambda text: text.split(","),
        default=[*HOWS, "paper", *SENSITIVITY, *BASELINES],
        help="ways of training, separated by commas. Default: all",
    )
    parser.add_argument(
        "--start",
        default="minilm:6:top2",
        help="start as MODEL:LAYERS, see encoders.py. Default: %(default)s",
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens per passage. Default: %(default)s")
    parser.add_argument("--passages", type=int, default=4, help="passages per document. Default: %(default)s")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2e-4, help="learning rate. Default: %(default)s")
    parser.add_argument("--patience", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    carry_out("000", steps(options), options)


if __name__ == "__main__":
    main()
