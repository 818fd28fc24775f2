"""Fits the CNN rankers: the torch twin of ``rerank.rankers.cnn.ranker``, and its training loop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank.errors import TrainingError, setting_hint
from rerank.graph.categories import CategoryGraph
from rerank.progress import Progress
from rerank.rankers.cnn.heads import CosineHead, Head, MlpHead
from rerank.rankers.cnn.ranker import PARTS, CnnRanker
from rerank.rankers.cnn.towers import Part, Ragged, Tower, Vocabulary
from rerank.rankers.training.data import LONGEST_TEXT, Corpus, TrainingData
from rerank.rankers.training.dev_set import DevSet, weighted_ndcg
from rerank.rankers.training.registry import Fitted, Job
from rerank.training.cnn.config import CnnConfig
from rerank.training.cnn.embeddings import Embedding, deepwalk, word2vec
from rerank.training.cnn.losses import in_batch_softmax, pairwise_hinge
from rerank.training.cnn.sampling import Sampler, batch_size

LONGEST_CATEGORIES = 64
LEAST_STEPS = 100
"""Batches after which a loss that has not moved is taken for saturated."""


class TorchTower(nn.Module):
    """The torch twin of :class:`rerank.rankers.cnn.towers.Tower`."""

    def __init__(self, embedding: Embedding, config: CnnConfig, part: Part) -> None:
        super().__init__()
        self.part: Part = part
        self.names = embedding.names
        self.width = config.width if part == "text" else 1
        size = embedding.vectors.shape[1]
        self.vectors = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            torch.from_numpy(embedding.vectors.copy()),
            freeze=not config.tune_embeddings,
            padding_idx=0,
            sparse=True,
        )
        self.filters = nn.Linear(self.width * size, config.filters)
        self.mean = config.mean
        self.importance: Tensor | None
        weights = torch.from_numpy(embedding.importance()) if config.importance and part == "text" else None
        self.register_buffer("importance", weights)
        self.out = config.filters + (size if config.mean else 0)

    def forward(self, tokens: Ragged) -> Tensor:
        """Pool n sequences: (n, out)."""
        n, h = len(tokens), self.width
        tokens = tokens.padded(h)
        windows = np.maximum(tokens.lengths - h + 1, 0)
        begins = np.cumsum(windows) - windows
        starts = np.repeat(tokens.offsets[:-1] - begins, windows) + np.arange(windows.sum())
        owner = torch.from_numpy(np.repeat(np.arange(n), windows))
        flat = torch.from_numpy(tokens.flat.astype(np.int64))
        vectors = self.vectors(flat) if h == 1 or self.mean else None  # (T, k)
        of_token = of_window = None
        if self.importance is not None:
            of_token = self.importance[flat]
            of_window = of_token[torch.from_numpy(starts[:, None] + np.arange(h))].sum(dim=1)
        if vectors is not None and h == 1:
            hidden = torch.tanh(self.filters.bias + vectors @ self.filters.weight.T)
            pooled = _weighted_mean(hidden, of_window, owner, n)
        else:
            pooled = self._convolved(tokens.flat, starts, of_window, owner, n)
        if vectors is None or not self.mean:
            return pooled
        token_owner = torch.from_numpy(np.repeat(np.arange(n), tokens.lengths))
        if of_token is None:
            of_token = (flat > 0).float()  # padding is no token
        return torch.cat([pooled, _weighted_mean(vectors, of_token, token_owner, n)], dim=1)

    def _convolved(
        self,
        flat: NDArray[np.int32],
        starts: NDArray[np.int64],
        weights: Tensor | None,
        owner: Tensor,
        n: int,
    ) -> Tensor:
        """Mean over the windows of each of n sequences: (n, m)."""
        h, size, m = self.width, self.vectors.embedding_dim, self.filters.out_features
        # Each distinct word is multiplied once for each place in a window; to look the products up and add
        # them takes a fraction of what multiplying every occurrence does.
        words, place = np.unique(flat, return_inverse=True)
        by_place = self.filters.weight.view(m, h, size).permute(2, 1, 0).reshape(size, h * m)
        bias = nn.functional.pad(self.filters.bias, (0, (h - 1) * m))  # of the first word, once a window
        products = self.vectors(torch.from_numpy(words.astype(np.int64))) @ by_place + bias
        at = torch.from_numpy(place[starts[:, None] + np.arange(h)] * h + np.arange(h))
        share = torch.ones(len(owner)) if weights is None else weights
        total = torch.zeros(n).index_add_(0, owner, share).clamp(min=1e-9)
        pooled: Tensor = _Pooled.apply(products.view(-1, m), at, share / total[owner], owner, n)
        return pooled

    def numpy(self, vocabulary: Vocabulary) -> Tower:
        """Return the NumPy twin; embeddings are rounded to fp16 as they are stored."""
        size = self.vectors.embedding_dim
        filters = self.filters.weight.detach().numpy().T.reshape(self.width, size, -1)
        return Tower(
            vocabulary,
            self.vectors.weight.detach().numpy().astype(np.float16),
            None if self.importance is None else self.importance.numpy().copy(),
            filters.copy(),
            self.filters.bias.detach().numpy().copy(),
            self.mean,
        )


class _Pooled(torch.autograd.Function):
    """Sums of products, their tanh, and its weighted mean, a few thousand windows at a time.

    What torch would keep and make on the way are several arrays of (windows, m), hundreds of megabytes.
    """

    CHUNK = 4096

    @staticmethod
    def forward(ctx: Any, products: Tensor, at: Tensor, share: Tensor, owner: Tensor, n: int) -> Tensor:
        hidden = torch.empty(len(at), products.shape[1])
        pooled = torch.zeros(n, products.shape[1])
        for begin in range(0, len(at), _Pooled.CHUNK):
            part = slice(begin, begin + _Pooled.CHUNK)
            hidden[part] = nn.functional.embedding_bag(at[part], products, mode="sum").tanh_()
            pooled.index_add_(0, owner[part], hidden[part] * share[part, None])
        ctx.save_for_backward(hidden, at, share, owner)
        ctx.products = len(products)
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, at, share, owner = ctx.saved_tensors
        found = torch.zeros(ctx.products, hidden.shape[1])
        for begin in range(0, len(at), _Pooled.CHUNK):
            part = slice(begin, begin + _Pooled.CHUNK)
            of_sums = (1 - hidden[part].square()).mul_(share[part, None]).mul_(grad[owner[part]])
            for place in at[part].T:
                found.index_add_(0, place, of_sums)
        return found, None, None, None, None


def _weighted_mean(rows: Tensor, weights: Tensor | None, owner: Tensor, n: int) -> Tensor:
    """Mean of each owner's rows, equally where there are no weights: (n, width)."""
    total = torch.zeros(n).index_add_(0, owner, torch.ones(len(owner)) if weights is None else weights)
    rows = rows if weights is None else rows * weights[:, None]
    summed = torch.zeros(n, rows.shape[1]).index_add_(0, owner, rows)
    return summed / total.clamp(min=1e-9)[:, None]


class TorchRanker(nn.Module):
    """The torch twin of :class:`rerank.rankers.cnn.ranker.CnnRanker`: towers of both sides and a head."""

    def __init__(
        self, query: Sequence[TorchTower], document: Sequence[TorchTower], config: CnnConfig
    ) -> None:
        super().__init__()
        self.query = nn.ModuleList(query)
        self.document = nn.ModuleList(document)
        self.config = config
        self.drop = nn.Dropout(config.dropout)
        widths = sum(t.out for t in query), sum(t.out for t in document)
        first = config.projection if config.head == "cosine" else config.hidden[0]
        self.from_query = nn.Linear(widths[0], first)
        self.from_document = nn.Linear(widths[1], first, bias=config.head == "cosine")
        sizes = config.hidden if config.head == "mlp" else ()
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1) if sizes else None

    def encode(self, side: str, tokens: Sequence[Ragged]) -> Tensor:
        """Pool each part and apply the first layer: (n, projection or first hidden size)."""
        towers, first = (
            (self.query, self.from_query) if side == "query" else (self.document, self.from_document)
        )
        pooled = torch.cat([tower(part) for tower, part in zip(towers, tokens)], dim=1)
        encoded: Tensor = first(self.drop(pooled) if self.output is None else pooled)
        return nn.functional.normalize(encoded, dim=1) if self.output is None else encoded

    def score(self, query: Tensor, document: Tensor) -> Tensor:
        """Score n pairs of encoded sides: (n,), the MLP's before its tanh."""
        if self.output is None:
            return (query * document).sum(dim=1)
        layer = self.drop(torch.relu(query + document))
        for hidden in self.hidden:
            layer = self.drop(torch.relu(hidden(layer)))
        scores: Tensor = self.output(layer)[:, 0]
        return scores

    def head(self) -> Head:
        """Return the NumPy twin of the head."""

        def array(tensor: Any) -> NDArray[np.float32]:
            copied: NDArray[np.float32] = tensor.detach().numpy().copy()
            return copied

        query, document = array(self.from_query.weight).T.copy(), array(self.from_document.weight).T.copy()
        if self.output is None:
            return CosineHead(query, array(self.from_query.bias), document, array(self.from_document.bias))
        hidden = [(array(layer.weight).T.copy(), array(layer.bias)) for layer in self.hidden]
        output, bias = array(self.output.weight)[0], array(self.output.bias)
        return MlpHead(query, document, array(self.from_query.bias), hidden, output, bias)


def trainer(job: Job, config: CnnConfig) -> CnnTrainer:
    """Make what fits the rankers of a job."""
    assert job.data is not None
    return CnnTrainer(job.data, config, job.progress)


class CnnTrainer:
    """Fits ``text``, ``meta`` and ``joint`` on the same data; embeddings are trained once for all."""

    def __init__(self, data: TrainingData, config: CnnConfig, progress: Progress | None = None) -> None:
        self.data = data
        self.config = config
        self.progress = progress or Progress()
        self._embeddings: dict[tuple[str, Part], Embedding] = {}
        self._tokens: dict[tuple[str, Part], Ragged] = {}

    def fit(self, role: str, name: str = "") -> Fitted:
        """Fit one ranker; raises TrainingError where the data cannot teach it anything."""
        torch.manual_seed(self.config.seed)
        parts, name = PARTS[role], name or role
        for part in parts:
            self._prepare(part)
        query = [TorchTower(self._embeddings["query", part], self.config, part) for part in parts]
        document = [TorchTower(self._embeddings["document", part], self.config, part) for part in parts]
        model = TorchRanker(query, document, self.config)
        tokens = {side: [self._tokens[side, part] for part in parts] for side in ("query", "document")}
        curve: list[tuple[int, float | None, float | None]] = []
        best, epoch, done, interrupted = self._loop(name, model, tokens, curve)
        model.load_state_dict(best.state)
        ranker = self._ranker(role, name, model, {"epoch": epoch, "dev": round(self._chosen_by(best), 6)})
        dev, by = self._chosen_by(best), self.config.epoch_by
        fitted = Fitted(ranker, epoch, done, dev, best.first_stage, interrupted, curve=curve)
        if by == "weighted":
            return fitted
        if by == "alone":
            return replace(fitted, measure="dev NDCG alone", without="of the first stage")
        return replace(fitted, measure="dev NDCG among random documents", baseline=None)

    def _chosen_by(self, found: _Best) -> float:
        """The dev measure that chooses the epoch."""
        return found.measure if self.config.epoch_by == "weighted" else found.alone

    def _told(self, name: str, found: _Best) -> str:
        """What dev says of an epoch."""
        if self.config.epoch_by == "pool-random":
            return f"dev NDCG {found.alone:.4f} among random documents"
        return (
            f"dev NDCG {found.measure:.4f} with {self.data.first_stage}, {found.first_stage:.4f} without"
            f" {name}, {found.alone:.4f} alone"
        )

    def _loop(
        self,
        name: str,
        model: TorchRanker,
        tokens: Mapping[str, list[Ragged]],
        curve: list[tuple[int, float | None, float | None]],
    ) -> tuple[_Best, int, int, bool]:
        config, data = self.config, self.data
        embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
        dense = [p for p in model.parameters() if p.requires_grad and id(p) not in embeddings]
        sparse = [p for p in model.parameters() if p.requires_grad and id(p) in embeddings]
        optimisers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=config.rate)]
        if sparse:
            optimisers.append(torch.optim.SparseAdam(sparse, lr=config.embedding_rate))
        sampler = Sampler(
            data.train,
            len(data.document_ids),
            config.batch or batch_size(data.train),
            config.negatives,
            config.sampling,
            config.lower_grades,
            graded=config.head == "mlp",
        )
        rng = np.random.default_rng(config.seed)
        dev = _DevSet(data, config)
        best: _Best | None = None
        best_epoch = epoch = 0
        self.progress.start(f"train {name}", config.epochs * sampler.batches(), "batch")
        try:
            for epoch in range(1, config.epochs + 1):
                shown = {"epoch": f"{epoch}/{config.epochs}"}
                if best:
                    shown["dev"] = f"{self._chosen_by(best):.4f}"
                loss = self._epoch(model, tokens, sampler, optimisers, rng, shown)
                found = dev.measure(model, tokens)
                curve.append((epoch, loss, self._chosen_by(found)))
                self._refuse_saturation(name, epoch, epoch * sampler.batches(), loss, found.spread)
                if best is None or self._chosen_by(found) > self._chosen_by(best):
                    state = {key: value.clone() for key, value in model.state_dict().items()}
                    best, best_epoch = replace(found, state=state), epoch
                self.progress.say(
                    f"{name} epoch {epoch}: loss {loss:.3f}, {self._told(name, found)}"
                    + (" *" if epoch == best_epoch else "")
                )
                if epoch - best_epoch >= config.patience:
                    break
        except KeyboardInterrupt:
            if best is None:
                raise KeyboardInterrupt(
                    f"interrupted before the first epoch of {name} ended; nothing of it was kept"
                ) from None
            return best, best_epoch, epoch, True
        finally:
            self.progress.finish()
        if best is None:
            raise TrainingError("epochs must be at least 1")
        return best, best_epoch, epoch, False

    def _epoch(
        self,
        model: TorchRanker,
        tokens: Mapping[str, list[Ragged]],
        sampler: Sampler,
        optimisers: Sequence[torch.optim.Optimizer],
        rng: np.random.Generator,
        shown: Mapping[str, str],
    ) -> float:
        model.train()
        total = count = 0.0
        for batch in sampler.epoch(rng):
            query = model.encode("query", [part.take(batch.queries) for part in tokens["query"]])
            document = model.encode("document", [part.take(batch.documents) for part in tokens["document"]])
            if model.config.head == "cosine":
                relevant = torch.from_numpy(batch.relevant)
                weight, positive = torch.from_numpy(batch.weight), torch.from_numpy(batch.positive)
                loss = in_batch_softmax(
                    query @ document.T, positive, relevant, weight, self.config.temperature
                )
            else:
                if not len(batch.owner):
                    continue
                owner = torch.from_numpy(batch.owner)
                # A relevant document is scored once for all of its pairs, which share the dropout.
                better = model.score(query, document[torch.from_numpy(batch.positive)])
                worse = model.score(query[owner], document[torch.from_numpy(batch.worse)])
                loss = pairwise_hinge(better[owner], worse)
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimiser in optimisers:
                optimiser.step()
            value = float(loss.detach())
            total += value * len(batch.queries)
            count += len(batch.queries)
            self.progress.show(loss=f"{total / count:.3f}", **shown)
            self.progress.advance()
        if not math.isfinite(total):
            raise TrainingError(f"the loss is not a number; lower {setting_hint('rate')}")
        return total / max(count, 1.0)

    def _refuse_saturation(self, name: str, epoch: int, steps: int, loss: float, spread: float) -> None:
        # Few queries make few steps an epoch, and the loss starts at 1.
        stuck = self.config.head == "mlp" and epoch >= 3 and steps >= LEAST_STEPS and loss > 0.995
        if stuck or spread < 1e-6:
            seed, head = setting_hint("seed"), setting_hint("head")
            raise TrainingError(
                f"{name} learns nothing: after epoch {epoch} the loss is {loss:.3f} and its scores differ by"
                f" {spread:.1g}; try another {seed}, another {head}, or look at the judgements"
            )

    def _prepare(self, part: Part) -> None:
        if ("document", part) in self._embeddings:
            return
        if part == "text":
            self._prepare_words()
        else:
            self._prepare_categories()
        for side, corpus in (("query", self.data.queries), ("document", self.data.documents)):
            embedding = self._embeddings[side, part]
            row = {name: i for i, name in enumerate(embedding.names, 1)}
            if part == "text":
                rows = np.array([row.get(word, 0) for word in corpus.words] or [0], dtype=np.int32)
                self._tokens[side, part] = _drop_zeros(
                    Ragged(rows[corpus.tokens.flat], corpus.tokens.offsets)
                )
            else:
                vocabulary = Vocabulary("meta", embedding.names, LONGEST_CATEGORIES)
                # The vocabulary's own rule decides, so that training sees what inference will see.
                known = {c: vocabulary.tokens(_categories_only(c)) for c in set(corpus.categories)}
                self._tokens[side, part] = Ragged.of([known[c] for c in corpus.categories])

    def _prepare_words(self) -> None:
        data, config = self.data, self.config
        of_queries = data.query_text or data.queries
        settings: dict[str, Any] = {
            "size": config.word_size,
            "epochs": config.word_epochs,
            "seed": config.seed + 1,
        }
        settings["progress"] = self.progress
        if data.same_language:
            both = _Chain([data.documents, of_queries])
            self._embeddings["query", "text"] = self._embeddings["document", "text"] = word2vec(
                both, **settings
            )
        else:
            self._embeddings["document", "text"] = word2vec(data.documents.sentences(), **settings)
            self._embeddings["query", "text"] = word2vec(of_queries.sentences(), **settings)
        if not self._embeddings["document", "text"].names:
            raise TrainingError(
                "the documents have no words; `text` and `joint` need a title or a text in them"
            )
        if not self._embeddings["query", "text"].names:
            raise TrainingError("the queries have no words; `text` and `joint` need query texts")

    def _prepare_categories(self) -> None:
        data, config = self.data, self.config
        if not any(data.documents.categories):
            raise TrainingError(
                "no document has categories; train `text` only, or ingest documents with a `categories` field"
            )
        settings: dict[str, Any] = {
            "size": config.category_size,
            "per_node": config.walks,
            "seed": config.seed + 2,
            "progress": self.progress,
        }
        if data.query_category_edges is None:
            both = [*data.documents.categories, *data.queries.categories]
            graph = CategoryGraph.build(both, data.category_edges)
            embedding = deepwalk(graph, **settings)
            self._embeddings["query", "meta"] = self._embeddings["document", "meta"] = embedding
        else:
            graph = CategoryGraph.build(data.documents.categories, data.category_edges)
            self._embeddings["document", "meta"] = deepwalk(graph, **settings)
            graph = CategoryGraph.build(data.queries.categories, data.query_category_edges)
            self._embeddings["query", "meta"] = deepwalk(graph, **settings)

    def _ranker(self, role: str, name: str, model: TorchRanker, trained: Mapping[str, Any]) -> CnnRanker:
        vocabularies: dict[int, Vocabulary] = {}

        def towers(side: str, modules: nn.ModuleList) -> list[Tower]:
            converted = []
            for module in modules:
                assert isinstance(module, TorchTower)
                longest = LONGEST_TEXT if module.part == "text" else LONGEST_CATEGORIES
                names = self._embeddings[side, module.part].names
                vocabulary = vocabularies.setdefault(id(names), Vocabulary(module.part, names, longest))
                converted.append(module.numpy(vocabulary))
            return converted

        query, document = towers("query", model.query), towers("document", model.document)
        head = model.head()
        digest = hashlib.sha256(f"{role} {head.name}".encode())
        for tower in [*query, *document]:
            digest.update("\0".join(tower.vocabulary.names).encode())
            for array in (tower.vectors, tower.importance, tower.filters, tower.bias):
                digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        for array in head.arrays().values():
            digest.update(np.ascontiguousarray(array).tobytes())
        record = {**trained, "config": asdict(self.config), "first_stage": self.data.first_stage}
        return CnnRanker(name, digest.hexdigest()[:16], query, document, head, record, role)


@dataclass(frozen=True)
class _Best:
    """What a model reached on dev: weighted with the first stage, alone; the spread of its scores."""

    measure: float
    alone: float
    first_stage: float
    spread: float
    state: Mapping[str, Tensor]


class _DevSet:
    """The dev queries' documents, scored anew after each epoch."""

    def __init__(self, data: TrainingData, config: CnnConfig) -> None:
        pools = config.epoch_by == "pool-random"
        self.dev = DevSet.pools(data, config.seed) if pools else DevSet.of(data)

    def measure(self, model: TorchRanker, tokens: Mapping[str, list[Ragged]]) -> _Best:
        model.eval()
        with torch.no_grad():
            document = _in_chunks(model, "document", tokens["document"], self.dev.documents)
            query = _in_chunks(
                model, "query", tokens["query"], np.array([one.query for one in self.dev.judged])
            )
            scores = []
            for i, columns in enumerate(self.dev.columns):
                found = model.score(query[i : i + 1], document[torch.from_numpy(columns)]).double()
                scores.append((torch.tanh(found) if model.output is not None else found).numpy())
        weighted, alone, first = weighted_ndcg(self.dev.judged, scores)
        spread = float(np.mean([s.std() for s in scores]))
        return _Best(weighted, alone, first, spread, {})


def _in_chunks(model: TorchRanker, side: str, tokens: list[Ragged], which: NDArray[np.int64]) -> Tensor:
    """Encode many documents or queries without holding all their windows at once."""
    lengths = sum(part.lengths[which] for part in tokens) + 1
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // 100_000)) + 1
    parts = [model.encode(side, [part.take(chunk) for part in tokens]) for chunk in np.split(which, cuts)]
    return torch.cat(parts)


@dataclass(frozen=True)
class _Chain:
    corpora: Sequence[Corpus]

    def __iter__(self):  # type: ignore[no-untyped-def]
        for corpus in self.corpora:
            yield from corpus.sentences()

    def __len__(self) -> int:
        return sum(len(corpus.tokens) for corpus in self.corpora)


def _drop_zeros(tokens: Ragged) -> Ragged:
    """Take unknown words out of each sequence."""
    kept = tokens.flat > 0
    counts = np.concatenate(([0], np.cumsum(kept)))
    return Ragged(tokens.flat[kept], counts[tokens.offsets].astype(np.int64))


def _categories_only(categories: tuple[str, ...]) -> Any:
    from rerank.records import Query

    return Query("", "", categories)
