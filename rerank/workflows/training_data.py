"""Training data as positions in the collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from rerank.common.errors import TrainingError
from rerank.common.progress import Progress
from rerank.common.results import Report
from rerank.common.values import items_at, items_not_in, with_keys
from rerank.documents.records import Candidates, Document, LabeledPair, Qrels, Query
from rerank.documents.text import count_of, language_or_none
from rerank.engines.search_request import FilledTemplate, SearchRequest
from rerank.evaluation.leakage import TrainingRecord
from rerank.formats import write_qrels
from rerank.rankers.training.data import Corpus, TrainingData, TrainingQuery
from rerank.rankers.training.job import TrainingResult
from rerank.scoring.scorer import feedback_categories
from rerank.workflows.experiment import check_search
from rerank.workspace.workspace import Workspace

TRAIN_DEPTH = 100
"""Candidates of a training query; negatives are sampled from them."""
DEV_DEPTH = 1000
"""Ranked candidates of a dev query."""
HELD_OUT = 0.1
"""Share of the queries that is held out without dev judgments."""

MAX_TRAIN_QUERIES = 100_000
"""Judged queries that a training learns from; more are sampled. The same limit holds for pairs of texts."""
MAX_DEV_QUERIES = 5_000
"""Dev queries that are searched; more are sampled. The rankers measure at most 800 of them."""

Item = TypeVar("Item")
QueryCandidates = tuple[Query, Mapping[str, int], Candidates]
"""A query, its grades and its candidates."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of :func:`rerank.train`. labeled: the labeled pairs for training, and for stopping."""

    queries: Sequence[Query] = ()
    qrels: Qrels | None = None
    dev_qrels: Qrels | None = None
    pairs: Sequence[tuple[str, str]] = ()
    first_stage: str | None = None
    query_text: Corpus | None = None
    infer: bool = True
    seed: int = 0
    labeled: tuple[Sequence[LabeledPair], Sequence[LabeledPair]] = ((), ())


@dataclass
class TrainReport(Report):
    """The result of a training: counts of its data, and the rankers.

    first_stage: the signal that retrieved the candidates.
    held_out:    file with the judgments of the queries that were held out.
    silent:      ids of the queries without candidates.
    seen:        the queries that trained the rankers or decided when to stop.
    rankers:     the fitted rankers.
    encoded:     ranker -> number of documents whose features were computed.
    """

    first_stage: str = ""
    train_queries: int = 0
    dev_queries: int = 0
    train_pairs: int = 0
    dev_pairs: int = 0
    held_out: str | None = None
    held_out_queries: list[str] = field(default_factory=list)
    unknown_queries: int = 0
    unknown_documents: int = 0
    without_hits: int = 0
    silent: list[str] = field(default_factory=list)
    inferred_categories: int = 0
    seen: TrainingRecord | None = field(default=None, repr=False)
    rankers: list[TrainingResult] = field(default_factory=list)
    encoded: dict[str, int] = field(default_factory=dict)


class Collection:
    """Documents of a workspace: texts, positions by id, and their number per language."""

    def __init__(self, workspace: Workspace, progress: Progress) -> None:
        self.position: dict[str, int] = {}
        self.langs: Counter[str] = Counter()
        engine = workspace.engine
        if not len(engine):
            raise TrainingError(f"{workspace.folder}: the workspace is empty; run `rerank ingest` first")
        documents = progress.over(engine.documents(), "read documents", len(engine), "doc")
        self.documents = Corpus.read(self._counted(documents))

    def _counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            self.position[document.id] = len(self.position)
            if code := language_or_none(document.lang):
                self.langs[code] += 1
            yield document

    def categories(self, ids: Sequence[str]) -> list[Sequence[str]]:
        """Return the categories of the documents with these ids, in the order of the ids."""
        return [self.documents.categories[self.position[id]] for id in ids]

    def judged(self, row: int, grades: Mapping[str, int], candidates: Candidates) -> TrainingQuery:
        """Return the judged documents and the candidates of a query as positions in the collection."""
        existing = with_keys(self.position, grades)
        stored = sorted((position, grades[id]) for id, position in existing.items())
        positions, values = np.array(stored, dtype=np.int64).reshape(-1, 2).T
        is_relevant = values > 0
        retrieved = np.array(items_at(self.position, candidates.ids), dtype=np.int64)
        return TrainingQuery(
            row,
            positions[is_relevant],
            values[is_relevant],
            retrieved,
            candidates.scores,
            positions[~is_relevant],
        )


def training_data(
    workspace: Workspace, inputs: Inputs, report: TrainReport, progress: Progress
) -> TrainingData:
    """Return the data that rankers learn from, as positions in the collection.

    Without judgments, these are pairs of texts. The report receives the counts and the first stage.

    Raises TrainingError if too few queries or pairs can be used.
    """
    if inputs.qrels is None:
        return _of_pairs(workspace, inputs, report, progress)
    data = _of_judgments(workspace, inputs, inputs.qrels, report, progress)
    if inputs.pairs:
        rows = _sampled(range(len(inputs.pairs)), MAX_TRAIN_QUERIES, "text pairs", inputs.seed, progress)
        data = replace(data, pairs=_corpora(items_at(inputs.pairs, rows)))
        report.train_pairs = len(rows)
    if inputs.dev_qrels is None:
        # For tuning the stack: no ranker was trained on these queries.
        path = workspace.folder / "held-out.tsv"
        write_qrels(path, Qrels(with_keys(inputs.qrels, report.held_out_queries)))
        report.held_out = str(path)
    return data


def _of_pairs(workspace: Workspace, inputs: Inputs, report: TrainReport, progress: Progress) -> TrainingData:
    pairs = inputs.pairs
    if len(pairs) < 2:
        raise TrainingError(f"{count_of(len(pairs), 'pair')}: too few to train on; give more pairs")
    collection = Collection(workspace, progress)
    order = np.random.default_rng(inputs.seed).permutation(len(pairs)).tolist()
    report.dev_pairs = min(max(1, round(HELD_OUT * len(pairs))), MAX_DEV_QUERIES)
    if len(pairs) - report.dev_pairs > MAX_TRAIN_QUERIES:
        progress.say(_sample_message(MAX_TRAIN_QUERIES, len(pairs) - report.dev_pairs, "text pairs"))
        order = order[: MAX_TRAIN_QUERIES + report.dev_pairs]
    report.train_pairs = len(order) - report.dev_pairs
    return TrainingData(
        document_ids=[*collection.position],
        documents=collection.documents,
        queries=Corpus.read([]),
        train=[],
        dev=[],
        first_stage="",
        same_language=False,
        pairs=_corpora(items_at(pairs, order)),
        dev_pairs=report.dev_pairs,
    )


def _corpora(pairs: Sequence[tuple[str, str]]) -> tuple[Corpus, Corpus]:
    first_texts = Corpus.read(Query("query", first) for first, _ in pairs)
    second_texts = Corpus.read(Query("query", second) for _, second in pairs)
    return first_texts, second_texts


def _of_judgments(
    workspace: Workspace, inputs: Inputs, qrels: Qrels, report: TrainReport, progress: Progress
) -> TrainingData:
    collection = Collection(workspace, progress)
    by_id = {query.id: query for query in inputs.queries}
    train_ids, dev_ids = _split(qrels, inputs.dev_qrels, by_id, report, inputs.seed)
    train_ids = _sampled(train_ids, MAX_TRAIN_QUERIES, "train queries", inputs.seed, progress)
    dev_ids = _sampled(dev_ids, MAX_DEV_QUERIES, "dev queries", inputs.seed, progress)
    dev_qrels = qrels if inputs.dev_qrels is None else inputs.dev_qrels
    trained = TrainingRecord.from_queries(qrels, trained=train_ids)
    report.seen = trained | TrainingRecord.from_queries(dev_qrels, stopped=dev_ids)
    searches = [(by_id[id], qrels[id], TRAIN_DEPTH) for id in train_ids]
    searches += [(by_id[id], dev_qrels[id], DEV_DEPTH) for id in dev_ids]
    candidates = _candidates(workspace, inputs, searches, report, progress)
    queries, judged = _judge(collection, candidates, report, infer=inputs.infer)
    train = _with_relevant(judged[: len(train_ids)])
    dev = _with_relevant(judged[len(train_ids) :])
    report.train_queries = len(train)
    report.dev_queries = len(dev)
    _check_sizes(train, dev, are_drawn=inputs.dev_qrels is None)
    # Word vectors do not use dev queries, as they do not use test queries.
    query_text = inputs.query_text or Corpus.read(queries[: len(train_ids)])
    return TrainingData(
        document_ids=[*collection.position],
        documents=collection.documents,
        queries=Corpus.read(queries),
        train=train,
        dev=dev,
        first_stage=report.first_stage,
        same_language=_one_language(queries, collection),
        category_edges=workspace.category_edges(),
        query_text=query_text,
        query_texts=[query.text for query in queries],
    )


def _with_relevant(queries: Sequence[TrainingQuery]) -> list[TrainingQuery]:
    """Return the queries with a relevant document in the collection."""
    return [query for query in queries if len(query.documents)]


def _sampled(items: Sequence[Item], limit: int, name: str, seed: int, progress: Progress) -> list[Item]:
    """Return at most ``limit`` of the items, in their order. A remark names the size of the sample.

    name: of the items, for the remark.
    """
    if len(items) <= limit:
        return list(items)
    progress.say(_sample_message(limit, len(items), name))
    rows = np.random.default_rng((seed, len(items))).choice(len(items), limit, replace=False)
    return items_at(items, np.sort(rows).tolist())


def _sample_message(count: int, total: int, name: str) -> str:
    return f"a sample of {count:,} of {total:,} {name} is used"


def _judge(
    collection: Collection, candidates: Iterable[QueryCandidates], report: TrainReport, *, infer: bool
) -> tuple[list[Query], list[TrainingQuery]]:
    """Return the queries, with inferred categories, and their judged documents."""
    queries: list[Query] = []
    judged: list[TrainingQuery] = []
    for query, grades, query_candidates in candidates:
        relevant = {document for document, grade in grades.items() if grade > 0}
        # ``relevant - position.keys()`` would read all keys: 75 ms for two million documents.
        report.unknown_documents += len(items_not_in(relevant, collection.position))
        if not len(query_candidates):
            report.silent.append(query.id)
        elif infer and not query.categories:
            categories = feedback_categories(
                query_candidates.ids, query_candidates.scores, collection.categories
            )
            report.inferred_categories += bool(categories)
            query = replace(query, categories=categories)
        judged.append(collection.judged(len(queries), grades, query_candidates))
        queries.append(query)
    report.without_hits = len(report.silent)
    return queries, judged


def _one_language(queries: Sequence[Query], collection: Collection) -> bool:
    """Whether most queries and most documents have the same language."""
    query_langs = Counter(language_or_none(query.lang) for query in queries)
    del query_langs[None]
    most_frequent = [*query_langs.most_common(1), *collection.langs.most_common(1)]
    return len({code for code, _ in most_frequent}) < 2


def _candidates(
    workspace: Workspace,
    inputs: Inputs,
    searches: Sequence[tuple[Query, Mapping[str, int], int]],
    report: TrainReport,
    progress: Progress,
) -> Iterator[QueryCandidates]:
    """Yield each query with its grades and candidates.

    searches: query, its grades, and the number of its candidates.
    """
    report.first_stage, search = workspace.first_stage_of(inputs.first_stage)
    if search is not None and inputs.queries:
        search = check_search(workspace, search, inputs.queries)
    requests = [
        SearchRequest(
            query.search_text(workspace.engine.lang),
            report.first_stage,
            depth=depth,
            template=None if search is None else FilledTemplate(search, query),
        )
        for query, _, depth in searches
    ]
    results = progress.over(workspace.engine.search(requests), "first stage", len(searches), "query")
    for (query, grades, _), candidates in zip(searches, results, strict=True):
        yield query, grades, candidates


def _split(
    qrels: Qrels, dev_qrels: Qrels | None, by_id: Mapping[str, Query], report: TrainReport, seed: int
) -> tuple[list[str], list[str]]:
    """Return the ids of the train and dev queries. Without dev judgments, some train queries are held out."""
    train = _usable_queries(qrels, by_id, report)
    if dev_qrels is None:
        held_out = _draw(train, seed)
        report.held_out_queries = held_out
        return sorted({*train} - {*held_out}), held_out
    dev = _usable_queries(dev_qrels, by_id, report)
    overlap = {*train} & {*dev}
    if overlap:
        raise TrainingError(
            f"{count_of(len(overlap), 'query')} in both the train and the dev judgments ({min(overlap)!r}"
            " first); early stopping needs different queries"
        )
    return train, dev


def _usable_queries(qrels: Qrels, by_id: Mapping[str, Query], report: TrainReport) -> list[str]:
    """Return the queries with a text and a relevant document, and count the ones without a text."""
    usable: list[str] = []
    for query in sorted(qrels):
        if query not in by_id:
            report.unknown_queries += 1
        elif qrels.relevant(query):
            usable.append(query)
    return usable


def _draw(queries: Sequence[str], seed: int) -> list[str]:
    """Draw the queries that are held out: a tenth, at least one of two or more, at most MAX_DEV_QUERIES."""
    if len(queries) < 2:
        return []
    order = np.random.default_rng(seed).permutation(len(queries)).tolist()
    count = min(max(1, round(HELD_OUT * len(queries))), MAX_DEV_QUERIES)
    return sorted(items_at(queries, order[:count]))


def _check_sizes(train: Sequence[TrainingQuery], dev: Sequence[TrainingQuery], *, are_drawn: bool) -> None:
    """Raise TrainingError without train or dev queries.

    are_drawn: the dev queries are a sample of the judged queries, and have no file.
    """
    if are_drawn and bool(train) != bool(dev):
        raise TrainingError(
            "too few judged queries have a relevant document in the workspace: some are held out, the others"
            " train; give more, or --dev-qrels"
        )
    if not train:
        raise TrainingError("no judged query has a relevant document in the workspace; check --qrels")
    if not dev:
        raise TrainingError("no judged dev query has a relevant document in the workspace; check --dev-qrels")
