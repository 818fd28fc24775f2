"""Train: documents, queries and judgements of a workspace -> fitted rankers with their features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rerank.actions.ingest import encode
from rerank.errors import BusyError, TrainingError, UsageError
from rerank.files import write_text
from rerank.progress import Progress
from rerank.rankers import FAMILIES, TRAINABLE
from rerank.records import Candidates, Document, Qrels, Query
from rerank.scoring.scorer import vote
from rerank.text import language_or_none
from rerank.training.data import Corpus, Judged, TrainingData
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.training.cnn.fit import CnnConfig
    from rerank.training.dev import Fitted
    from rerank.training.projection.fit import ProjectionConfig

TRAIN_DEPTH = 100
"""Candidates of a training query that negatives are drawn from."""
DEV_DEPTH = 1000
HELD_OUT = 0.1
"""Share of the judged queries that stops the training when no dev judgements are given."""


@dataclass
class FittedReport:
    """One ranker: dev NDCG with and without it, the epoch kept, and whether it was interrupted.

    Of L-BFGS an epoch is an iteration; ``epochs`` is 0 where nothing iterates. When it was trained on pairs
    alone, ``dev`` is the mean reciprocal rank of a dev pair's texts for each other, and ``dev_first_stage``
    that by term vectors.
    """

    name: str
    version: str
    epoch: int
    epochs: int
    dev: float
    dev_first_stage: float
    interrupted: bool


@dataclass
class TrainReport:
    """What a training used and gave. The counts say what was left out, and why.

    held_out: the file with the judgements that were held out as dev judgements, if none were given.
    """

    train_queries: int = 0
    dev_queries: int = 0
    train_pairs: int = 0
    dev_pairs: int = 0
    held_out: str | None = None
    held_out_queries: list[str] = field(default_factory=list)
    unknown_queries: int = 0
    unknown_documents: int = 0
    without_hits: int = 0
    inferred_categories: int = 0
    rankers: list[FittedReport] = field(default_factory=list)
    encoded: dict[str, int] = field(default_factory=dict)


def train(
    workspace: Workspace,
    names: Sequence[str],
    queries: Sequence[Query],
    qrels: Qrels | None,
    dev_qrels: Qrels | None = None,
    *,
    config: CnnConfig | None = None,
    projection: ProjectionConfig | None = None,
    pairs: Sequence[tuple[str, str]] = (),
    first_stage: str = "tfidf",
    query_text: Iterable[Query] | None = None,
    query_category_edges: Sequence[tuple[str, str]] | None = None,
    infer: bool = True,
    progress: Progress | None = None,
) -> TrainReport:
    """Fit rankers by name, put each in use, and store the document sides.

    queries, qrels, dev_qrels: judged queries; without ``dev_qrels``, a tenth of the queries is held out.
    config, projection: settings of ``text``, ``meta``, ``joint``, and of the projections.
    pairs: (query, document) texts that belong together; projections learn from them beside the judgements,
        or, with ``qrels`` None, instead of them (a tenth is then held out).
    query_text: more text in the queries' language, for their word vectors, where it is not the documents'.
    query_category_edges: the queries' own category graph, where it is not the documents'.
    infer: guess the categories of queries that bring none from their first-stage candidates.

    Ctrl-C ends the ranker in training with its best epoch so far and leaves out the ones after it.
    """
    for name in names:
        if name not in TRAINABLE:
            raise UsageError(f"{name!r} cannot be trained; choose from {', '.join(TRAINABLE)}")
        if qrels is None and name not in FAMILIES["projection"]:
            raise UsageError(f"{name} is trained on judged queries; give --queries and --qrels")
    progress = progress or Progress()
    report = TrainReport()
    configs = {"cnn": config, "projection": projection}
    seed = next((one.seed for one in (config, projection) if one is not None), 0)
    if qrels is None:
        data = prepare_pairs(workspace, pairs, report, seed=seed, progress=progress)
    else:
        data = prepare(
            workspace,
            queries,
            qrels,
            dev_qrels,
            report,
            first_stage=first_stage,
            query_text=query_text,
            query_category_edges=query_category_edges,
            infer=infer,
            seed=seed,
            progress=progress,
        )
        if pairs:
            data = replace(data, pairs=_corpora(pairs))
            report.train_pairs = len(pairs)
        if dev_qrels is None:
            # So that the stack can be tuned on queries that no ranker has learned from.
            path = workspace.folder / "held-out.tsv"
            rows = (f"{q}\t{d}\t{g}\n" for q in report.held_out_queries for d, g in qrels[q].items())
            write_text(path, "query-id\tcorpus-id\tscore\n" + "".join(rows))
            report.held_out = str(path)
    trainers: dict[str, _Trainer] = {}
    for name in dict.fromkeys(names):
        family = next(family for family, known in FAMILIES.items() if name in known)
        if family not in trainers:
            trainers[family] = _trainer(family, data, configs[family], progress)
        fitted = trainers[family].fit(name)
        workspace.install(fitted.ranker)
        report.rankers.append(
            FittedReport(
                name,
                fitted.ranker.version,
                fitted.epoch,
                fitted.epochs,
                fitted.measure,
                fitted.first_stage,
                fitted.interrupted,
            )
        )
        if fitted.interrupted:
            progress.say(f"interrupted: kept epoch {fitted.epoch} of {name}, the best so far")
            break
    try:
        report.encoded = encode(workspace, progress=progress).encoded
    except BusyError as error:
        progress.say(f"{error}: the rankers are in use; `rerank encode` stores the document sides")
    return report


class _Trainer(Protocol):
    def fit(self, name: str) -> Fitted: ...


def _trainer(family: str, data: TrainingData, config: Any, progress: Progress) -> _Trainer:
    if family == "cnn":
        from rerank.training.cnn.fit import CnnTrainer, cnn_config

        return CnnTrainer(data, config or cnn_config(), progress)
    from rerank.training.projection.fit import ProjectionConfig, ProjectionTrainer

    return ProjectionTrainer(data, config or ProjectionConfig(), progress)


def _corpora(pairs: Sequence[tuple[str, str]]) -> tuple[Corpus, Corpus]:
    left, right = zip(*pairs)
    return tuple(Corpus.read(Query("", text) for text in side) for side in (left, right))  # type: ignore[return-value]


def prepare_pairs(
    workspace: Workspace,
    pairs: Sequence[tuple[str, str]],
    report: TrainReport,
    *,
    seed: int,
    progress: Progress,
) -> TrainingData:
    """Training data of pairs alone: the last tenth, after a shuffle, is kept for dev."""
    if len(pairs) < 2:
        raise TrainingError(
            f"{len(pairs)} pairs are too few to train on; give --pairs or --queries and --qrels"
        )
    ids: list[str] = []
    documents = _read_documents(workspace, ids, Counter(), progress)
    order = np.random.default_rng(seed).permutation(len(pairs)).tolist()
    report.dev_pairs = max(1, round(HELD_OUT * len(pairs)))
    report.train_pairs = len(pairs) - report.dev_pairs
    return TrainingData(
        document_ids=ids,
        documents=documents,
        queries=Corpus.read([]),
        train=[],
        dev=[],
        first_stage="",
        same_language=False,
        pairs=_corpora([pairs[i] for i in order]),
        dev_pairs=report.dev_pairs,
    )


def _read_documents(workspace: Workspace, ids: list[str], langs: Counter[str], progress: Progress) -> Corpus:
    """Tokenise the collection; collects the documents' ids and counts their languages."""
    engine = workspace.engine
    if not len(engine):
        raise TrainingError(f"{workspace.folder}: there are no documents yet; run `rerank ingest` first")

    def streamed() -> Iterator[Document]:
        for document in engine.documents():
            ids.append(document.id)
            if code := language_or_none(document.lang):
                langs[code] += 1
            yield document

    return Corpus.read(progress.over(streamed(), "read documents", len(engine), "doc"))


def prepare(
    workspace: Workspace,
    queries: Sequence[Query],
    qrels: Qrels,
    dev_qrels: Qrels | None,
    report: TrainReport,
    *,
    first_stage: str,
    query_text: Iterable[Query] | None,
    query_category_edges: Sequence[tuple[str, str]] | None,
    infer: bool,
    seed: int,
    progress: Progress,
) -> TrainingData:
    """Read the collection once and turn judgements and candidates into positions in it."""
    engine = workspace.engine
    ids: list[str] = []
    langs: Counter[str] = Counter()
    documents = _read_documents(workspace, ids, langs, progress)
    position = {id: i for i, id in enumerate(ids)}
    by_id = {query.id: query for query in queries}
    train_ids, dev_ids = _split(qrels, dev_qrels, by_id, report, seed)
    dev_source = dev_qrels if dev_qrels is not None else qrels

    chosen = [*(by_id[q] for q in train_ids), *(by_id[q] for q in dev_ids)]
    depths = [TRAIN_DEPTH] * len(train_ids) + [DEV_DEPTH] * len(dev_ids)
    judged: list[Judged] = []
    read: list[Query] = []

    def categories_of(ids: Sequence[str]) -> list[Sequence[str]]:
        return [documents.categories[position[id]] for id in ids]

    progress.start("first stage", len(chosen), "query")
    try:
        found: Iterable[Candidates] = (
            candidates
            for begin, end, depth in (
                (0, len(train_ids), TRAIN_DEPTH),
                (len(train_ids), len(chosen), DEV_DEPTH),
            )
            for candidates in engine.search_many(
                [query.text for query in chosen[begin:end]], first_stage=first_stage, depth=depth
            )
        )
        for query, _, candidates in zip(chosen, depths, found):
            progress.advance()
            source = qrels if len(read) < len(train_ids) else dev_source
            relevant = source.relevant(query.id)
            known = [(position[d], grade) for d, grade in relevant.items() if d in position]
            report.unknown_documents += len(relevant) - len(known)
            report.without_hits += not len(candidates)
            at = np.array([position[d] for d in candidates.ids], dtype=np.int64)
            if infer and not query.categories and len(candidates):
                guessed = vote(candidates.ids, candidates.scores, categories_of)
                report.inferred_categories += bool(guessed)
                query = replace(query, categories=guessed)
            known.sort()
            judged.append(
                Judged(
                    len(read),
                    np.array([d for d, _ in known], dtype=np.int64),
                    np.array([grade for _, grade in known], dtype=np.int64),
                    at,
                    candidates.scores,
                )
            )
            read.append(query)
    finally:
        progress.finish()
    train_judged = [one for one in judged[: len(train_ids)] if len(one.documents)]
    dev_judged = [one for one in judged[len(train_ids) :] if len(one.documents)]
    report.train_queries, report.dev_queries = len(train_judged), len(dev_judged)
    if not train_judged:
        raise TrainingError(
            "no query of the judgements has a relevant document in the workspace; check --qrels"
        )
    if not dev_judged:
        raise TrainingError("no dev query has a relevant document in the workspace; check --dev-qrels")
    query_lang = Counter(code for query in chosen if (code := language_or_none(query.lang))).most_common(1)
    document_lang = langs.most_common(1)
    same = not query_lang or not document_lang or query_lang[0][0] == document_lang[0][0]
    return TrainingData(
        document_ids=ids,
        documents=documents,
        queries=Corpus.read(read),
        train=train_judged,
        dev=dev_judged,
        first_stage=first_stage,
        same_language=same,
        category_edges=workspace.category_edges(),
        query_category_edges=query_category_edges,
        # Dev queries stay out of the word vectors, as test queries do.
        query_text=Corpus.read(query_text if query_text is not None else read[: len(train_ids)]),
    )


def _split(
    qrels: Qrels, dev_qrels: Qrels | None, by_id: dict[str, Query], report: TrainReport, seed: int
) -> tuple[list[str], list[str]]:
    """Ids of the train and dev queries: those that are judged, relevant somewhere, and have a text."""

    def usable(source: Qrels) -> list[str]:
        report.unknown_queries += sum(q not in by_id for q in source)
        return sorted(q for q in source if q in by_id and source.relevant(q))

    train = usable(qrels)
    if dev_qrels is not None:
        dev = usable(dev_qrels)
        overlap = set(train) & set(dev)
        if overlap:
            raise TrainingError(
                f"{len(overlap)} queries are in both the train and the dev judgements"
                f" ({min(overlap)!r} first); early stopping needs others"
            )
        return train, dev
    shuffled = np.random.default_rng(seed).permutation(len(train)).tolist()
    held = max(1, round(HELD_OUT * len(train))) if len(train) > 1 else 0
    dev_positions = set(shuffled[:held])
    report.held_out_queries = [q for i, q in enumerate(train) if i in dev_positions]
    return (
        [q for i, q in enumerate(train) if i not in dev_positions],
        report.held_out_queries,
    )
