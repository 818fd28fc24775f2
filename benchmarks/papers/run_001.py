"""Ding, Zhang, Chen, Cao (CCHT): train an encoder on co-citations in the full texts of eLife.

    python benchmarks/papers/run_001.py DATA --start minilm:6:width128 --steps 400 --batch 64 --rate 1e-3
    python benchmarks/papers/run_001.py DATA --start minilm:6 --tokens 128 --abstracts --strategies sentence

DATA contains ``elife-jats.tar.xz``. A citing article is in the test set if the MD5 of its DOI is 0 modulo 5.
Test articles are removed before anything is counted. The text of a reference is its title; with
``--abstracts``, articles have theirs. Every strategy has the same number of steps, and the last step is used
without any selection. The score is the cosine, as in ``dense``. MiniLM has learned from citations;
``:widthN`` starts from random weights (``start_encoders.py``).

--strategies:

sentence, paragraph, section: triplets of references that are cited together.
direct:      an article, a reference that it cites and a reference that it does not cite.
contrastive: the pairs of ``sentence`` with a contrastive loss.
preset:      ``rerank train dense --preset cocitation``, except for --start and --steps.

Measures:

MAP:      5 texts that test articles cite with the query in one sentence (paragraph, section), among 25
          references of other test articles. No training article cites one of them with the query.
subjects: F1 of 14 subject headings by a linear SVM on title and abstract, 5-fold, per article.

p: paired randomization tests against the start and against all strategies that have run before.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice, product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from running import Result, Say, Step, arguments, carry_out
from start_encoders import START, StoredValues, Values, encoder, setting_of

from rerank.documents.records import Document
from rerank.formats.jats import Article, read_jats
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import DenseTask
from rerank.rankers.dense.neighbors import CitedNeighbors, Structure
from rerank.rankers.dense.texts import Texts
from rerank.rankers.dense.triplets import TripletSampler
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import CoCitations, Level, Mention

LEVELS: tuple[Level, ...] = ("sentence", "paragraph", "section")
STRATEGIES: dict[str, dict[str, Any]] = {
    **{level: {"objective": "cocitation", "strategy": level} for level in LEVELS},
    "direct": {"objective": "cocitation", "strategy": "sentence"},
    "contrastive": {"objective": "contrastive", "strategy": "sentence"},
}
RELEVANT = 5
"""Relevant texts of a query."""
OTHERS = 25
"""Other texts of a query."""
QUERIES = 1000
"""Most queries of a level."""
POOL = 1000
"""Most references of other test articles, from which the other texts are drawn."""
SUBJECTS = 14
"""Number of subject headings."""
ARTICLE_TOKENS = 64
"""Tokens of an article for the subjects."""


def is_test(key: str) -> bool:
    return int(hashlib.md5(key.encode()).hexdigest(), 16) % 5 == 0


@dataclass
class CitingTriplets(TripletSampler):
    """Triplets of a citing article, a text that it cites, and a text that it does not cite.

    cited: article -> texts that it cites, as positions in the network.
    """

    cited: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)

    @classmethod
    def from_citations(cls, graph: Citations, usable: NDArray[np.bool_]) -> CitingTriplets:
        """Read the citations of a graph. usable: (N,) bool, which texts of the graph have tokens."""
        cited_by = ((paper, mention.reference) for paper, mentions in graph.papers() for mention in mentions)
        pairs = sorted({pair for pair in cited_by if len({*pair}) == 2})  # no article cites itself
        mentions = [[Mention(key, 0, 0, 0) for key in pair] for pair in pairs]
        network = CoCitations.from_papers((str(number), pair) for number, pair in enumerate(mentions))
        texts, _ = graph.match_texts(network)
        with_text = texts >= 0
        with_text[with_text] = usable[texts[with_text]]
        position = {key: number for number, key in enumerate(network.keys)}
        cited: dict[int, list[int]] = {}
        for paper, reference in pairs:
            if with_text[position[reference]]:
                cited.setdefault(position[paper], []).append(position[reference])
        lists = {paper: np.array(references, np.int32) for paper, references in cited.items()}
        return cls(network, with_text, cited=lists)

    def targets(self) -> NDArray[np.int32]:
        """Return the citing articles with a text."""
        targets = super().targets()
        return targets[np.isin(targets, list(self.cited))]

    def draw(self, target: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Draw cited texts as positives."""
        negatives = [negative for _, negative in super().draw(target, rng)]
        cited = self.cited[target]
        positives = rng.choice(cited, len(negatives), replace=len(cited) < len(negatives))
        return list(zip(positives.tolist(), negatives))


class Tasks:
    """The texts to encode, and the queries and relevant texts of the ranking task.

    most:    the number of test articles.
    titles:  the titles of the references.
    ranking: level -> (query, 30 texts), as positions among the titles. The first five texts are relevant.
    """

    def __init__(self, articles: Sequence[Article], train: Citations, most: int) -> None:
        rng = np.random.default_rng(2021)
        test = [article for article in articles if is_test(article.key)]
        chosen = np.sort(rng.permutation(len(test))[:most])
        documents = [test[i].document() for i in chosen.tolist()]
        network = CoCitations.from_papers(Citations.from_documents(documents).papers())
        title_of = {key: title for article in articles for key, title in article.references.items() if title}
        cited = {key for article in test for sentence in article.sentences for key in sentence.cites}
        keys = [key for key in network.keys if key in title_of]
        others = sorted((title_of.keys() & cited) - {*keys})
        pool = [others[i] for i in rng.permutation(len(others))[:POOL].tolist()]
        if len(pool) < OTHERS:
            raise SystemExit("no references of other test articles are left; lower --test-articles")
        keys += pool
        self.titles = [title_of[key] for key in keys]
        position = {key: number for number, key in enumerate(keys)}
        self.ranking: dict[str, list[tuple[int, list[int]]]] = {}
        for level in LEVELS:
            queries = _queries(network, train, position, pool, level, rng)
            self.ranking[level] = list(islice(queries, QUERIES))
        self.subjects = [article.subjects for article in articles]

    def measure(self, titles: NDArray[np.float32], documents: NDArray[np.float32]) -> Values:
        """Return the values of each measure. titles, documents: unit vectors of references and articles."""
        values = {}
        for level, queries in self.ranking.items():
            scores = [(titles[texts] @ titles[query], query) for query, texts in queries]
            values[f"MAP {level}"] = np.array([_average_precision(*of_query) for of_query in scores])
        values["subjects"] = f1_of_headings(documents, self.subjects)
        return values


def _queries(
    network: CoCitations,
    train: Citations,
    position: Mapping[str, int],
    pool: Sequence[str],
    level: Level,
    rng: np.random.Generator,
) -> Iterator[tuple[int, list[int]]]:
    """Yield queries with 30 texts each. The first five texts are relevant."""
    reference = {key: number for number, key in enumerate(train.network.keys)}
    together = train.network.levels["document"]

    def is_known(a: str, b: str) -> bool:
        return a in reference and b in reference and together.shared(reference[a], reference[b]) > 0

    for number in rng.permutation(len(network)).tolist():
        key = network.keys[number]
        if key not in position:
            continue
        near = [network.keys[other] for other in network.neighbors(number, level)]
        near = [other for other in near if other in position and not is_known(key, other)]
        if len(near) < RELEVANT:
            continue
        relevant = [near[i] for i in rng.permutation(len(near))[:RELEVANT].tolist()]
        excluded = {key, *(network.keys[other] for other in network.neighbors(number, "document"))}
        irrelevant: dict[str, None] = {}
        while len(irrelevant) < OTHERS:
            other = pool[int(rng.integers(len(pool)))]
            if other not in excluded and not is_known(key, other):
                irrelevant[other] = None
        yield position[key], [position[other] for other in (*relevant, *irrelevant)]


def _average_precision(scores: NDArray[np.float32], query: int) -> float:
    """Return the average precision of the first five texts. Ties are broken at random."""
    order = np.lexsort((np.random.default_rng(query).permutation(len(scores)), -scores))
    ranks = np.flatnonzero(order < RELEVANT)
    return float(np.mean((np.arange(RELEVANT) + 1) / (ranks + 1)))


def f1_of_headings(vectors: NDArray[np.float32], labels: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Return the F1 of each document for the most frequent headings, by five-fold cross-validation."""
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer
    from sklearn.svm import LinearSVC

    counts = Counter(heading for of_document in labels for heading in dict.fromkeys(of_document))
    classes = sorted(heading for heading, _ in counts.most_common(SUBJECTS))
    kept = [i for i, of_document in enumerate(labels) if {*of_document} & {*classes}]
    own = [[heading for heading in labels[i] if heading in classes] for i in kept]
    actual = MultiLabelBinarizer(classes=classes).fit_transform(own)
    svm = OneVsRestClassifier(LinearSVC(class_weight="balanced", C=1.0, tol=1e-2, max_iter=300))
    folds = KFold(5, shuffle=True, random_state=0)
    predicted = cross_val_predict(svm, vectors[kept], actual, cv=folds)
    found: NDArray[np.float64] = 2 * (actual & predicted).sum(axis=1)
    return found / np.maximum(actual.sum(axis=1) + predicted.sum(axis=1), 1)


@dataclass(frozen=True)
class Prepared:
    """The texts to learn from, and the tasks.

    pieces: the articles to encode for the subjects.
    """

    texts: Texts
    tasks: Tasks
    pieces: list[str]

    @classmethod
    def read(cls, options: argparse.Namespace) -> Prepared:
        articles = list(islice(read_jats(options.data / "elife-jats.tar.xz"), options.articles))
        documents = []
        for article in articles:
            abstract = article.abstract if options.abstracts else ""
            citations = {} if is_test(article.key) else article.document().extra
            documents.append(Document(article.key, article.title, abstract, extra=citations))
        loaded = encoder(options.start, options.tokens, 0)[0]
        texts = Texts.read(documents, loaded.tokens, relation="citations", separator=loaded.separator)
        assert isinstance(texts.graph, Citations)
        tasks = Tasks(articles, texts.graph, options.test_articles)
        counts = ", ".join(f"{len(queries)} {level}" for level, queries in tasks.ranking.items())
        print(f"{len(texts.tokens)} texts; queries: {counts}; {len(tasks.titles)} titles", flush=True)
        return cls(texts, tasks, [f"{article.title} {article.abstract}" for article in articles])

    def measure(self, loaded: TextEncoder) -> Values:
        loaded.model.eval()
        titles = loaded.encode([title[: loaded.room] for title in loaded.tokens(self.tasks.titles)])
        documents = loaded.encode([text[: ARTICLE_TOKENS - 2] for text in loaded.tokens(self.pieces)])
        return self.tasks.measure(titles, documents)


def trained(options: argparse.Namespace, prepared: Prepared, strategy: str, seed: int) -> TextEncoder:
    loaded, settings = encoder(options.start, options.tokens, seed)
    settings |= {"steps": options.steps, "seed": seed}
    if strategy == "preset":
        config = DenseConfig.of("cocitation", **settings)
    else:
        settings |= {"batch": options.batch, "rate": options.rate, "passage_tokens": options.tokens}
        config = DenseConfig.of(**STRATEGIES[strategy], **settings, passages=1, held_out=0.0)
    structure = Structure.find(prepared.texts, config)
    if strategy == "direct":
        graph = prepared.texts.graph
        neighbors = structure.neighbors
        assert isinstance(graph, Citations)
        assert isinstance(neighbors, CitedNeighbors)
        triplets = CitingTriplets.from_citations(graph, neighbors.usable)
        texts, references = graph.match_texts(triplets.network)
        neighbors = replace(neighbors, triplets=triplets, texts=texts, refs=references)
        structure = replace(structure, neighbors=neighbors)
    DenseTask(prepared.texts, loaded, config, Say(), structure=structure).fit()
    return loaded


def run(options: argparse.Namespace, read: Callable[[], Prepared], strategy: str, seed: int) -> Result:
    prepared = read()
    stored = StoredValues(options.work, f"001-{label_of(options)}-{seed}")
    stored.of(START, lambda: prepared.measure(encoder(options.start, options.tokens, seed)[0]))
    values = stored.of(strategy, lambda: prepared.measure(trained(options, prepared, strategy, seed)))
    texts = "title and abstract" if options.abstracts else "titles"
    size = f"{options.steps} steps of {options.batch}, {texts} of {options.tokens} tokens"
    if strategy == "preset":
        size = f"`--preset cocitation`, {options.steps} steps"
    setting = f"{setting_of(options.start)}, {size}"
    result = stored.result(strategy, values, [START, *STRATEGIES])
    return {"collection": "eLife", "setting": setting, "seed": seed, **result}


def label_of(options: argparse.Namespace) -> str:
    """Return the name of all settings that change a result."""
    sizes = (options.start, options.tokens, options.steps, options.batch, options.articles or "all")
    return "-".join(map(str, sizes)) + "-abstracts" * options.abstracts


def steps(options: argparse.Namespace) -> Iterator[Step]:
    read = cache(partial(Prepared.read, options))  # all steps share it
    for seed, strategy in product(range(options.seeds), options.strategies.split(",")):
        name = f"elife-{label_of(options)}-{strategy}-{seed}"
        yield Step(name, "co-cited references", partial(run, options, read, strategy, seed))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="Default: %(default)s")
    parser.add_argument("--start", default="minilm:6", help="see start_encoders.py. Default: %(default)s")
    for name, default in (("tokens", 24), ("steps", 800), ("batch", 128), ("test-articles", 200)):
        parser.add_argument(f"--{name}", type=int, default=default, help="Default: %(default)s")
    parser.add_argument("--articles", type=int, help="use the first N articles of the archive. Default: all")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate. Default: %(default)s")
    parser.add_argument("--abstracts", action="store_true", help="train on titles and abstracts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    carry_out("001", steps(options), options)


if __name__ == "__main__":
    main()
