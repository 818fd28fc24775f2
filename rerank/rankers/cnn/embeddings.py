"""Word vectors (word2vec), category vectors (DeepWalk), and token numbers for the CNN rankers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    """names: n tokens; vectors: (n + 1, k), row 0 zero; counts: (n,) occurrences."""

    names: list[str]
    vectors: NDArray[np.float32]
    counts: NDArray[np.int64]

    def importance(self) -> NDArray[np.float32]:
        """Smooth inverse frequency a / (a + p(w)), a = 0.001 (Arora et al. 2017): (n + 1,), row 0 zero."""
        share = self.counts / max(1, int(self.counts.sum()))
        return np.concatenate(([0.0], 1e-3 / (1e-3 + share))).astype(np.float32)


class Inputs:
    """Embeddings and tokens of both sides, made on first use.

    embeddings: (side, part) -> vectors, possibly shared.
    tokens: (side, part) -> token numbers.
    """

    def __init__(self, data: TrainingData, config: CnnConfig, progress: Progress) -> None:
        self.data, self.config, self.progress = data, config, progress
        self.embeddings: dict[tuple[str, Part], Embedding] = {}
        self.tokens: dict[tuple[str, Part], Ragged] = {}

    def prepare(self, part: Part) -> None:
        """Make a part. Raises TrainingError without words or categories."""
        if ("document", part) in self.embeddings:
            return
        document, query = self._words() if part == "text" else self._categories()
        tokens = _word_tokens if part == "text" else _category_tokens
        for side, embedding, corpus in (
            ("query", query, self.data.queries),
            ("document", document, self.data.documents),
        ):
            self.embeddings[side, part] = embedding
            self.tokens[side, part] = tokens(embedding.names, corpus)

    def _words(self) -> tuple[Embedding, Embedding]:
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
            document = query = embedded(data.documents, of_queries)
        else:
            document, query = embedded(data.documents), embedded(of_queries)
        if not document.names:
            raise TrainingError("the documents have no words; `text` and `joint` need titles or texts")
        if not query.names:
            raise TrainingError("the queries have no words; `text` and `joint` need query texts")
        return document, query

    def _categories(self) -> tuple[Embedding, Embedding]:
        data, config = self.data, self.config
        if not any(data.documents.categories):
            raise TrainingError(
                "no document has categories; train `text` only, or ingest documents with a `categories` field"
            )

        graph = CategoryGraph.build(
            [*data.documents.categories, *data.queries.categories], data.category_edges
        )
        options: dict[str, Any] = {"size": config.category_size, "per_node": config.walks}
        shared = deepwalk(graph, seed=config.seed + 2, progress=self.progress, **options)
        return shared, shared


def _word_tokens(names: Sequence[str], corpus: Corpus) -> Ragged:
    row = {name: i for i, name in enumerate(names, 1)}
    rows = np.array([row.get(word, 0) for word in corpus.words] or [0], dtype=np.int32)
    flat = rows[corpus.tokens.flat]
    known = flat > 0
    counts = np.concatenate(([0], np.cumsum(known)))
    return Ragged(flat[known], counts[corpus.tokens.offsets].astype(np.int64))


def _category_tokens(names: list[str], corpus: Corpus) -> Ragged:
    vocabulary = Vocabulary("meta", names, LONGEST["meta"])
    known = {one: vocabulary.tokens(Query("", "", one)) for one in set(corpus.categories)}
    return Ragged.of([known[one] for one in corpus.categories])


def word2vec(
    texts: Callable[[], Iterable[Sequence[str]]],
    total: int,
    *,
    size: int,
    seed: int,
    epochs: int | None = None,
    progress: Progress | None = None,
) -> Embedding:
    """Train skip-gram word2vec; vectors have mean length 1.

    texts: returns word lists for each epoch. total: their number.
    epochs: default: 3 to 30, to read WORDS_READ words.
    Words that occur once get no vector, unless all do.
    """
    from gensim.models import Word2Vec

    progress = progress or Progress()
    for least in (2, 1):
        model = Word2Vec(**_SKIP_GRAM, vector_size=size, min_count=least, seed=seed)
        with progress.step("count words", total, "text") as advance:
            model.build_vocab(_Counted(texts, advance))
        if len(model.wv):
            break
    if len(model.wv):
        epochs = epochs or min(30, max(3, round(WORDS_READ / model.corpus_total_words)))
        with progress.step("word2vec", epochs * total, "text") as advance:
            model.train(_Counted(texts, advance), total_examples=model.corpus_count, epochs=epochs)
    names = list(model.wv.index_to_key)
    counts = np.array([model.wv.get_vecattr(name, "count") for name in names], dtype=np.int64)
    return Embedding(names, _unit_mean(model.wv.vectors if names else np.zeros((0, size))), counts)


def deepwalk(
    graph: CategoryGraph, *, size: int, seed: int, per_node: int = 10, progress: Progress | None = None
) -> Embedding:
    """Embed categories by random walks (Perozzi et al. 2014; Kuwa et al. 2020, 3.2), :func:`whitened`.

    per_node: walks per category; paper: 1.
    """
    from gensim.models import Word2Vec

    if not graph.names:
        return Embedding([], np.zeros((1, size), dtype=np.float32), np.zeros(0, dtype=np.int64))
    walks = random_walks(graph.adjacency, length=WALK_LENGTH, per_node=per_node, seed=seed)
    sentences = [list(map(str, walk)) for walk in walks.tolist()]
    model = Word2Vec(**_SKIP_GRAM, vector_size=size, min_count=1, seed=seed)
    model.build_vocab(sentences)
    epochs = min(WALK_EPOCHS, max(1, round(WORDS_READ / walks.size)))
    with (progress or Progress()).step("DeepWalk", epochs * len(sentences), "walk") as advance:
        model.train(_Counted(lambda: sentences, advance), total_examples=len(sentences), epochs=epochs)
    vectors = np.stack([model.wv[str(i)] for i in range(len(graph.names))]).astype(np.float64)
    counts = np.ones(len(graph.names), dtype=np.int64)
    return Embedding(list(graph.names), _unit_mean(whitened(vectors)), counts)


def random_walks(adjacency: csr_matrix, *, length: int, per_node: int, seed: int) -> NDArray[np.int64]:
    """Random walks: (nodes * per_node, length) node numbers; isolated nodes repeat.

    >>> from scipy.sparse import csr_matrix
    >>> random_walks(csr_matrix([[0, 1], [1, 0]]), length=4, per_node=1, seed=0).tolist()
    [[0, 1, 0, 1], [1, 0, 1, 0]]
    """
    rng = np.random.default_rng(seed)
    start = adjacency.indptr[:-1].astype(np.int64)
    degree = np.diff(adjacency.indptr).astype(np.int64)
    at = np.tile(np.arange(adjacency.shape[0]), per_node)
    walks = np.empty((len(at), length), dtype=np.int64)
    walks[:, 0] = at
    for step in range(1, length):
        here = degree[at]
        draw = np.floor(rng.random(len(at)) * here).astype(np.int64)
        moves = here > 0
        at = at.copy()
        at[moves] = adjacency.indices[start[at[moves]] + draw[moves]]
        walks[:, step] = at
    return walks


def whitened(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate (n, k) vectors to principal axes of variance 1, or 0 if there is none.

    Otherwise siblings are almost parallel (cosine 0.95).
    """
    if len(vectors) < 2:
        return vectors
    left, singular, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    scaled = np.zeros_like(vectors)
    scaled[:, : len(singular)] = left * (singular > 1e-3 * singular[0]) * np.sqrt(len(left))
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
