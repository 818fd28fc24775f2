"""Word vectors (word2vec), category vectors (DeepWalk), and token numbers for the CNN rankers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.categories import CategoryGraph
from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.towers import Part, Ragged, Vocabulary
from rerank.rankers.training.data import LONGEST_TEXT, Corpus, TrainingData
from rerank.records import Query

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WORDS_READ = 3_000_000
"""Words or categories that a training reads in total, in several epochs of a small corpus: ten seconds."""
WALK_LENGTH, WALK_EPOCHS = 40, 5
LONGEST: dict[Part, int] = {"text": LONGEST_TEXT, "meta": 64}
"""Words and categories that are read per text."""
_SKIP_GRAM: dict[str, Any] = {"window": 5, "sg": 1, "negative": 5, "workers": 1}
"""One thread: with more, gensim's results depend on their timing."""


@dataclass(frozen=True)
class Embedding:
    """Vectors of a vocabulary of n tokens: (n + 1, k), row 0 zero. counts: (n,) occurrences."""

    vocabulary: Vocabulary
    vectors: NDArray[np.float32]
    counts: NDArray[np.int64]

    def importance(self) -> NDArray[np.float32]:
        """Smooth inverse frequency a / (a + p(w)), a = 0.001 (Arora et al. 2017): (n + 1,), row 0 zero."""
        share = self.counts / max(1, int(self.counts.sum()))
        return np.concatenate(([0.0], 1e-3 / (1e-3 + share))).astype(np.float32)


class Inputs:
    """Inputs of the rankers, made on first use: side -> embedding, and tokens of its texts."""

    def __init__(self, data: TrainingData, config: CnnConfig, progress: Progress) -> None:
        self.data, self.config, self.progress = data, config, progress

    @cached_property
    def text(self) -> dict[str, tuple[Embedding, Ragged]]:
        """Words. Both sides of one language share an embedding. Raises TrainingError without words."""
        data, config = self.data, self.config

        def embedded(*corpora: Corpus) -> Embedding:
            return word2vec(
                lambda: chain.from_iterable(corpus.sentences() for corpus in corpora),
                sum(len(corpus.tokens) for corpus in corpora),
                size=config.word_size,
                epochs=config.word_epochs,
                seed=config.seed + 1,
                progress=self.progress,
            )

        of_queries = data.query_text or data.queries
        if data.same_language:
            query = document = embedded(data.documents, of_queries)
        else:
            document, query = embedded(data.documents), embedded(of_queries)
        if not document.vocabulary.names:
            raise TrainingError("the documents have no words; `text` and `joint` need titles or texts")
        if not query.vocabulary.names:
            raise TrainingError("the queries have no words; `text` and `joint` need query texts")
        return self._sides(query, document)

    @cached_property
    def category_graph(self) -> CategoryGraph:
        """The graph of all categories."""
        names = [*self.data.documents.categories, *self.data.queries.categories]
        return CategoryGraph.build(names, self.data.category_edges)

    @cached_property
    def meta(self) -> dict[str, tuple[Embedding, Ragged]]:
        """Categories. Raises TrainingError if no document has any."""
        data, config = self.data, self.config
        if not any(data.documents.categories):
            raise TrainingError(
                "no document has categories; train `text` only, or ingest documents with a `categories` field"
            )
        shared = deepwalk(
            self.category_graph,
            size=config.category_size,
            seed=config.seed + 2,
            per_node=config.walks,
            progress=self.progress,
        )
        return self._sides(shared, shared)

    def _sides(self, query: Embedding, document: Embedding) -> dict[str, tuple[Embedding, Ragged]]:
        return {
            "query": (query, tokens_of(query.vocabulary, self.data.queries)),
            "document": (document, tokens_of(document.vocabulary, self.data.documents)),
        }


def tokens_of(vocabulary: Vocabulary, corpus: Corpus) -> Ragged:
    """Rows of known words or categories, as :meth:`Vocabulary.tokens`."""
    if vocabulary.part == "meta":
        known = {one: vocabulary.tokens(Query("query", "", one)) for one in set(corpus.categories)}
        return Ragged.of([known[one] for one in corpus.categories])
    rows = np.array([vocabulary.index.get(word, 0) for word in corpus.words] or [0], dtype=np.int32)
    flat = rows[corpus.tokens.flat]
    counts = np.concatenate(([0], np.cumsum(flat > 0)))
    return Ragged(flat[flat > 0], counts[corpus.tokens.offsets].astype(np.int64))


def word2vec(
    texts: Callable[[], Iterable[Sequence[str]]],
    total: int,
    *,
    size: int,
    seed: int,
    epochs: int | None = None,
    least: int = 2,
    title: str = "word2vec",
    progress: Progress | None = None,
) -> Embedding:
    """Train skip-gram word2vec; vectors have mean length 1.

    texts: returns word lists for each epoch. total: their number.
    epochs: default: 3 to 30, to read WORDS_READ words.
    least: rarer words get no vector, unless all are rarer.
    """
    progress = progress or Progress()
    try:
        from gensim.models import Word2Vec
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("gensim"):
            raise
        with progress.step(f"{title} by an SVD, without gensim", 2 * total, "text") as advance:
            return _without_gensim(lambda: _Counted(texts, advance), size=size, seed=seed, least=least)
    for rare in dict.fromkeys((least, 1)):
        model = Word2Vec(**_SKIP_GRAM, vector_size=size, min_count=rare, seed=seed)
        with progress.step(f"{title}: count", total, "text") as advance:
            model.build_vocab(_Counted(texts, advance))
        if len(model.wv):
            break
    if len(model.wv):
        epochs = epochs or min(30, max(3, round(WORDS_READ / model.corpus_total_words)))
        with progress.step(title, epochs * total, "text") as advance:
            model.train(_Counted(texts, advance), total_examples=model.corpus_count, epochs=epochs)
    names = list(model.wv.index_to_key)
    counts = np.array([model.wv.get_vecattr(name, "count") for name in names], dtype=np.int64)
    vocabulary = Vocabulary("text", names, LONGEST["text"])
    return Embedding(vocabulary, _unit_mean(model.wv.vectors if names else np.zeros((0, size))), counts)


def _without_gensim(
    texts: Callable[[], Iterable[Sequence[str]]], *, size: int, seed: int, least: int
) -> Embedding:
    """Return the embedding of :func:`word2vec`, computed by an SVD of co-occurrences."""
    from rerank.rankers.cnn.cooccurrence import cooccurrence_vectors

    for rare in dict.fromkeys((least, 1)):
        names, counts, vectors = cooccurrence_vectors(
            texts, size=size, least=rare, window=_SKIP_GRAM["window"], seed=seed
        )
        if names:
            break
    return Embedding(Vocabulary("text", names, LONGEST["text"]), _unit_mean(vectors), counts)


def deepwalk(
    graph: CategoryGraph, *, size: int, seed: int, per_node: int = 10, progress: Progress | None = None
) -> Embedding:
    """Embed categories by random walks (Perozzi et al. 2014; Kuwa et al. 2020, 3.2), :func:`whitened`.

    per_node: walks per category; paper: 1.
    """
    walks = random_walks(graph.adjacency, length=WALK_LENGTH, per_node=per_node, seed=seed)
    sentences = [list(map(str, walk)) for walk in walks.tolist()]
    epochs = min(WALK_EPOCHS, max(1, round(WORDS_READ / max(walks.size, 1))))
    fixed = {"size": size, "seed": seed, "epochs": epochs, "least": 1, "title": "DeepWalk"}
    found = word2vec(lambda: sentences, len(sentences), progress=progress, **fixed)  # type: ignore[arg-type]
    rows = [found.vocabulary.index[str(node)] for node in range(len(graph.names))]
    vectors = whitened(found.vectors[rows].astype(np.float64))
    vocabulary = Vocabulary("meta", list(graph.names), LONGEST["meta"])
    return Embedding(vocabulary, _unit_mean(vectors), np.ones(len(rows), dtype=np.int64))


def random_walks(adjacency: csr_matrix, *, length: int, per_node: int, seed: int) -> NDArray[np.int64]:
    """Random walks: (nodes * per_node, length) node numbers; isolated nodes repeat."""
    from scipy.sparse import diags

    rng, nodes = np.random.default_rng(seed), adjacency.shape[0]
    steps = (adjacency + diags((np.diff(adjacency.indptr) == 0).astype(np.float32))).tocsr()
    begin, degree = steps.indptr[:-1].astype(np.int64), np.diff(steps.indptr)
    walks = np.tile(np.arange(nodes)[:, None], (per_node, length))
    for step in range(1, length):
        here = walks[:, step - 1]
        draw = np.floor(rng.random(len(here)) * degree[here]).astype(np.int64)
        walks[:, step] = steps.indices[begin[here] + draw]
    return walks


def whitened(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate (n, k) vectors to at most n / 3 principal axes of variance 1; the others are 0.

    Otherwise siblings are almost parallel (cosine 0.95). With n - 1 axes, all n vectors would be equally far
    from each other.
    """
    if len(vectors) < 2:
        return vectors
    left, singular, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    count, scaled = len(vectors), np.zeros_like(vectors)
    kept = (singular > 1e-3 * singular[0]) & (np.arange(len(singular)) < max(1, count // 3))
    scaled[:, : len(singular)] = left * kept * np.sqrt(count)
    return scaled


@dataclass
class _Counted:
    texts: Callable[[], Iterable[Sequence[str]]]
    advance: Callable[[int], object]

    def __iter__(self) -> Iterator[Sequence[str]]:
        for text in self.texts():
            yield text
            self.advance(1)


def _unit_mean(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Scale to mean length 1; prepend the zero padding."""
    lengths = np.linalg.norm(vectors, axis=1)
    mean = float(lengths.mean()) if len(lengths) else 1.0
    padding = np.zeros((1, vectors.shape[1]))
    return np.concatenate((padding, vectors / max(mean, 1e-9))).astype(np.float32)
