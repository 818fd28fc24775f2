"""Word vectors (word2vec), category vectors (DeepWalk), and token numbers for the CNN rankers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import Ragged
from rerank.common.errors import TrainingError
from rerank.common.progress import SILENT, Progress
from rerank.documents.categories import CategoryGraph
from rerank.documents.records import Query
from rerank.documents.text import count_of
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.towers import Part, Vocabulary
from rerank.rankers.training.data import LONGEST_TEXT, Corpus, DevSet, TrainingData

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WORDS_READ = 10_000_000
"""Words or categories that a training reads in total, in several epochs of a small corpus: half a minute."""
MAX_WORDS = 10_000_000
"""Words of documents, and of queries, for word vectors; of more, evenly spaced texts are read."""
WALK_LENGTH = 40
"""Categories in a random walk."""
WALK_EPOCHS = 5
"""Maximum number of epochs that DeepWalk reads the walks."""
LONGEST: dict[Part, int] = {"text": LONGEST_TEXT, "meta": 64}
"""Words and categories that are read per text."""
_SKIP_GRAM: dict[str, Any] = {"window": 5, "sg": 1, "negative": 5, "workers": 1}
"""One thread: with more, gensim's results depend on their timing."""


@dataclass(frozen=True)
class Embedding:
    """The vectors of a vocabulary of n tokens.

    vectors: (n + 1, k) one row per token; row 0 is zero and pads short texts.
    counts:  (n,) occurrences of each token.
    """

    vocabulary: Vocabulary
    vectors: NDArray[np.float32]
    counts: NDArray[np.int64]

    def importance(self) -> NDArray[np.float32]:
        """Return the smooth inverse frequency of each token, (n + 1,), with 0 for row 0.

        It is a / (a + p(w)) with a = 0.001, for a token with the relative frequency p(w) (Arora et al. 2017).
        """
        frequency = self.counts / max(1, int(self.counts.sum()))
        return np.concatenate(([0.0], 1e-3 / (1e-3 + frequency))).astype(np.float32)


class Inputs:
    """The embeddings and token sequences of a training, computed on first use and shared by its rankers.

    Each part is a mapping of ``query`` and ``document`` to an embedding and the tokens of all their texts.
    """

    def __init__(self, data: TrainingData, config: CnnConfig, progress: Progress) -> None:
        self.data = data
        self.config = config
        self.progress = progress

    @cached_property
    def text(self) -> dict[str, tuple[Embedding, Ragged]]:
        """The words. Queries and documents in one language share an embedding.

        Raises TrainingError if the queries or the documents have no words.
        """
        data = self.data
        query_corpus = data.query_text or data.queries
        if data.same_language:
            query = document = self._embed_words(data.documents, query_corpus)
        else:
            document = self._embed_words(data.documents)
            query = self._embed_words(query_corpus)
        if not document.vocabulary.names:
            raise TrainingError("the documents have no words; `text` and `joint` need titles or texts")
        if not query.vocabulary.names:
            raise TrainingError("the queries have no words; `text` and `joint` need query texts")
        return self._sides(query, document)

    @cached_property
    def dev_set(self) -> DevSet:
        """The dev queries that measure the rankers. Raises TrainingError if none has candidates."""
        if self.config.epoch_by == "pool-random":
            return DevSet.from_random_pools(self.data, self.config.seed, self.progress)
        return DevSet.from_candidates(self.data, self.progress)

    def _embed_words(self, *all_corpora: Corpus) -> Embedding:
        corpora = [self._sample(corpus) for corpus in all_corpora]
        return word2vec(
            lambda: chain.from_iterable(corpus.sentences() for corpus in corpora),
            sum(len(corpus.tokens) for corpus in corpora),
            size=self.config.word_size,
            epochs=self.config.word_epochs,
            seed=self.config.seed + 1,
            progress=self.progress,
        )

    def _sample(self, corpus: Corpus) -> Corpus:
        """Return evenly spaced texts with about MAX_WORDS words, or all texts if these have fewer."""
        spacing = -(-len(corpus.tokens.flat) // MAX_WORDS)
        if spacing <= 1:
            return corpus
        rows = np.arange(0, len(corpus.tokens), spacing)
        texts = count_of(len(corpus.tokens), "text")
        self.progress.say(f"word vectors are trained on {len(rows):,} of {texts}")
        return corpus.take(rows)

    @cached_property
    def category_graph(self) -> CategoryGraph:
        """The graph of the categories of all documents and queries."""
        names = [*self.data.documents.categories, *self.data.queries.categories]
        return CategoryGraph.build(names, self.data.category_edges)

    @cached_property
    def meta(self) -> dict[str, tuple[Embedding, Ragged]]:
        """The categories. Raises TrainingError if no document has any."""
        config = self.config
        if not any(self.data.documents.categories):
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
    """Return the rows of the known words or categories of each text, as :meth:`Vocabulary.tokens` does."""
    if vocabulary.part == "meta":
        rows_of = {names: vocabulary.tokens(Query("query", "", names)) for names in set(corpus.categories)}
        return Ragged.from_lists([rows_of[names] for names in corpus.categories])
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
    min_count: int = 2,
    title: str = "word2vec",
    progress: Progress = SILENT,
) -> Embedding:
    """Train word vectors by skip-gram word2vec; their mean length is 1.

    texts: returns the word lists; it is called once per epoch.
    total: the number of word lists.
    size: numbers per vector.
    epochs: by default 3 to 30, so that about WORDS_READ words are read.
    min_count: words with fewer occurrences get no vector, unless all words are that rare.
    title: the name of the step in the progress.
    """
    try:
        from gensim.models import Word2Vec
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("gensim"):
            raise
        with progress.step(f"{title} by an SVD, without gensim", 2 * total, "text") as advance:
            return _without_gensim(
                lambda: _Counted(texts, advance), size=size, seed=seed, min_count=min_count
            )
    for lowest_count in dict.fromkeys((min_count, 1)):
        model = Word2Vec(**_SKIP_GRAM, vector_size=size, min_count=lowest_count, seed=seed)
        with progress.step(f"{title}: count", total, "text") as advance:
            read_texts = _ReadInThread(_Counted(texts, advance))
            model.build_vocab(read_texts)
            read_texts.check()
        if len(model.wv):
            break

    if len(model.wv):
        epochs = epochs or min(30, max(3, round(WORDS_READ / model.corpus_total_words)))
        with progress.step(title, epochs * total, "text") as advance:
            read_texts = _ReadInThread(_Counted(texts, advance))
            model.train(read_texts, total_examples=model.corpus_count, epochs=epochs)
            read_texts.check()
    names = list(model.wv.index_to_key)
    counts = np.array([model.wv.get_vecattr(name, "count") for name in names], dtype=np.int64)
    vocabulary = Vocabulary("text", names, LONGEST["text"])
    return Embedding(vocabulary, _unit_mean(model.wv.vectors if names else np.zeros((0, size))), counts)


def _without_gensim(
    texts: Callable[[], Iterable[Sequence[str]]], *, size: int, seed: int, min_count: int
) -> Embedding:
    """Return the embedding of :func:`word2vec`, computed by an SVD of co-occurrences."""
    from rerank.rankers.cnn.cooccurrence import cooccurrence_vectors

    for lowest_count in dict.fromkeys((min_count, 1)):
        names, counts, vectors = cooccurrence_vectors(
            texts, size=size, min_count=lowest_count, window=_SKIP_GRAM["window"], seed=seed
        )
        if names:
            break
    return Embedding(Vocabulary("text", names, LONGEST["text"]), _unit_mean(vectors), counts)


def deepwalk(
    graph: CategoryGraph, *, size: int, seed: int, per_node: int = 10, progress: Progress = SILENT
) -> Embedding:
    """Embed categories by random walks (Perozzi et al. 2014; Kuwa et al. 2020, section 3.2).

    The walks are read as sentences by :func:`word2vec`, and the vectors are :func:`whitened`.

    per_node: walks that start at each category; 1 in the paper.
    """
    walks = random_walks(graph.adjacency, length=WALK_LENGTH, per_node=per_node, seed=seed)
    sentences = [list(map(str, walk)) for walk in walks.tolist()]
    epochs = min(WALK_EPOCHS, max(1, round(WORDS_READ / max(walks.size, 1))))
    embedding = word2vec(
        lambda: sentences,
        len(sentences),
        size=size,
        seed=seed,
        epochs=epochs,
        min_count=1,
        title="DeepWalk",
        progress=progress,
    )
    rows = [embedding.vocabulary.index[str(node)] for node in range(len(graph.names))]
    vectors = whitened(embedding.vectors[rows].astype(np.float64))
    vocabulary = Vocabulary("meta", list(graph.names), LONGEST["meta"])
    return Embedding(vocabulary, _unit_mean(vectors), np.ones(len(rows), dtype=np.int64))


def random_walks(adjacency: csr_matrix, *, length: int, per_node: int, seed: int) -> NDArray[np.int64]:
    """Return random walks as node numbers, (nodes * per_node, length).

    A walk from a node without edges stays at this node.
    """
    from scipy.sparse import diags

    rng = np.random.default_rng(seed)
    nodes = adjacency.shape[0]
    isolated = np.diff(adjacency.indptr) == 0
    steps = (adjacency + diags(isolated.astype(np.float32))).tocsr()
    begin = steps.indptr[:-1].astype(np.int64)
    degree = np.diff(steps.indptr)
    walks = np.tile(np.arange(nodes)[:, None], (per_node, length))
    for step in range(1, length):
        current = walks[:, step - 1]
        edge = np.floor(rng.random(len(current)) * degree[current]).astype(np.int64)
        walks[:, step] = steps.indices[begin[current] + edge]
    return walks


def whitened(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate (n, k) vectors to at most n / 3 principal axes of variance 1; the others are 0.

    Otherwise siblings are almost parallel (cosine 0.95). With n - 1 axes, all n vectors would be equally far
    from each other.
    """
    if len(vectors) < 2:
        return vectors
    left_vectors, singular, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    count = len(vectors)
    principal = (singular > 1e-3 * singular[0]) & (np.arange(len(singular)) < max(1, count // 3))
    scaled = np.zeros_like(vectors)
    scaled[:, : len(singular)] = left_vectors * principal * np.sqrt(count)
    return scaled


@dataclass
class _Counted:
    """Texts that can be read several times and report each text to the progress."""

    texts: Callable[[], Iterable[Sequence[str]]]
    advance: Callable[[int], object]

    def __iter__(self) -> Iterator[Sequence[str]]:
        for text in self.texts():
            yield text
            self.advance(1)


@dataclass
class _ReadInThread:
    """Texts that end at an error, which is raised later by :meth:`check`.

    gensim reads texts in a thread. If an error ended this thread, its other threads would wait forever.
    """

    texts: Iterable[Sequence[str]]
    error: BaseException | None = None

    def __iter__(self) -> Iterator[Sequence[str]]:
        if self.error is not None:
            return
        try:
            yield from self.texts
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        """Raise the error of reading, if there was one."""
        if self.error is not None:
            raise self.error


def _unit_mean(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Scale to mean length 1; prepend the zero padding."""
    lengths = np.linalg.norm(vectors, axis=1)
    mean = float(lengths.mean()) if len(lengths) else 1.0
    padding = np.zeros((1, vectors.shape[1]))
    return np.concatenate((padding, vectors / max(mean, 1e-9))).astype(np.float32)
