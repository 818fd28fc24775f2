"""Train: what a collection and its judgements teach -> fitted rankers with their features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rerank.actions.experiment import check_search
from rerank.actions.ingest import encode
from rerank.engines.base import FilledTemplate, SearchRequest
from rerank.errors import BusyError, TrainingError, UsageError, action_hint, setting_hint
from rerank.evaluation.seen import Seen
from rerank.files import write_text
from rerank.inputs import Judgments, Queries, as_list, as_qrels, as_queries
from rerank.progress import Progress
from rerank.rankers.training.data import Corpus, Judged, TrainingData
from rerank.rankers.training.registry import Fitted, Fitter, Job, chosen, configurations
from rerank.rankers.training.unfinished import check_settings
from rerank.records import Document, LabelledPair, Qrels, Query
from rerank.results import Report
from rerank.scoring.scorer import vote
from rerank.settings import values_of
from rerank.text import language_or_none
from rerank.wording import amount
from rerank.workspace import Workspace

TRAIN_DEPTH = 100
"""Candidates of a training query that negatives are drawn from."""
DEV_DEPTH = 1000
HELD_OUT = 0.1
"""Share of the judged queries that stops the training when no dev judgements are given."""


@dataclass(frozen=True)
class FittedReport:
    """One ranker that was fitted; for the other fields see :class:`rerank.rankers.training.registry.Fitted`.

    name, family, role, version: what it is called, and which of its family's rankers it is.
    """

    name: str
    family: str
    role: str
    version: str
    epoch: int
    epochs: int
    dev: float | None
    baseline: float | None
    interrupted: bool
    measure: str
    without: str
    unit: str
    remarks: Sequence[str]
    details: Mapping[str, Any]
    curve: Sequence[tuple[int, float | None, float | None]] = field(repr=False)

    @classmethod
    def of(cls, fitted: Fitted, family: str, role: str) -> FittedReport:
        """Describe what was fitted."""
        values = {name: value for name, value in vars(fitted).items() if name not in ("ranker", "settle")}
        return cls(fitted.ranker.name, family, role, fitted.ranker.version, **values)

    def history(self) -> dict[str, Any]:
        """How it was trained, in JSON's values: what is kept beside the ranker, to be drawn."""
        told = ("epoch", "epochs", "dev", "baseline", "measure", "without", "unit")
        curve = [[None if one is None else round(one, 6) for one in point] for point in self.curve]
        return {**{name: getattr(self, name) for name in told}, "curve": curve}


@dataclass
class TrainReport(Report):
    """What a training used and gave. The counts say what was left out, and why.

    held_out: the file with the judgements that were held out as dev judgements, if none were given.
    first_stage: what found the candidates; silent: queries that it finds nothing for.
    seen: which queries were trained and stopped on.
    rankers: those that were fitted; none in all but the first of several processes.
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
    seen: Seen | None = field(default=None, repr=False)
    rankers: list[FittedReport] = field(default_factory=list)
    encoded: dict[str, int] = field(default_factory=dict)


def train(
    workspace: Workspace,
    names: str | Iterable[str],
    *,
    queries: Queries = (),
    qrels: Judgments | None = None,
    dev_qrels: Judgments | None = None,
    pairs: Sequence[tuple[str, str]] = (),
    labelled: Sequence[LabelledPair] = (),
    dev_labelled: Sequence[LabelledPair] = (),
    config: Any = None,
    preset: str | None = None,
    as_name: str | None = None,
    restart: bool = False,
    first_stage: str | None = None,
    query_text: Iterable[Query] | None = None,
    query_category_edges: Sequence[tuple[str, str]] | None = None,
    infer: bool = True,
    progress: Progress | None = None,
) -> TrainReport:
    """Fit rankers, put each in use, and store the document sides.

    names: what the families call their rankers: ``text``, ``s2net``, ``dense`` and so on.
    queries, qrels, dev_qrels: judged queries; without ``dev_qrels``, a tenth of the queries is held out.
    pairs: (query, document) texts that belong together; projections learn from them beside the judgements,
        or, with ``qrels`` None, instead of them (a tenth is then held out).
    labelled, dev_labelled: pairs of documents that are related or not, for ``concept``; what it learns is
        measured by the ``dev_labelled``, which are not learned from. Without them its last step is kept.
    config: settings, name -> value, each read by one of the rankers at least; of a family alone, as
        ``{"cnn": {"epochs": 3}}``; or a configuration, as ``CnnConfig(epochs=3)``.
    preset: settings to start from, as ``paper``, of the families that have it.
    as_name: what to call the one ranker, instead of what its family calls it: so there can be several.
    restart: discard interrupted trainings; by default those of CNN rankers, ``dense`` and ``concept`` resume.
    first_stage: what finds candidates, also ``template:FILE`` and so on; None: the workspace's.
    query_text: more text in the queries' language, for their word vectors, where it is not the documents'.
    query_category_edges: the queries' own category graph, where it is not the documents'.
    infer: guess the categories of queries that bring none from their first-stage candidates.

    Ctrl-C ends the ranker in training with its best epoch so far and leaves out the ones after it, and the
    encoding of documents, which ``encode`` and ``tune`` make up for.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> queries = [Query("q1", "hunts at night"), Query("q2", "mice")]
    >>> qrels = Qrels([("q1", "owl", 1), ("q2", "fox", 1)])
    >>> train(workspace, ["lsi"], queries=queries, qrels=qrels, config={"dim": 2}).encoded
    {'lsi': 3}
    """
    names, queries = list(dict.fromkeys(as_list(names))), as_queries(queries)
    qrels = None if qrels is None else as_qrels(qrels)
    dev_qrels = None if dev_qrels is None else as_qrels(dev_qrels)
    makers = chosen(names)
    if as_name is not None and len(names) != 1:
        raise UsageError(f"{as_name!r} names one ranker, and {len(names)} are to be trained; name one")
    called = {role: as_name or role for role in names}
    for role, (family, training) in makers.items():
        workspace.check_name(called[role], family.name, role)
        there = {"judgements": qrels is not None, "pairs": bool(pairs), "links": True}
        there["labelled pairs"] = bool(labelled)
        if "labelled pairs" in training.learns_from and not labelled:
            raise UsageError(
                f"{role} is trained on labelled pairs; give {setting_hint('pairs')}, and"
                f" {setting_hint('dev_pairs')} to measure by"
            )
        if not any(there[source] for source in training.learns_from):
            pairs_too = "pairs" in training.learns_from
            raise UsageError(
                f"{role} is trained on judged queries{' or pairs' if pairs_too else ''}; give"
                f" {setting_hint('queries')} and {setting_hint('qrels')}"
                + (f", or {setting_hint('pairs')}" if pairs_too else "")
            )
    learned = {source for _, training in makers.values() for source in training.learns_from}
    for source, setting, value in (
        ("judgements", "qrels", qrels is not None),
        ("pairs", "pairs", pairs),
        ("labelled pairs", "labelled", labelled),
        ("labelled pairs", "dev_pairs", dev_labelled),
    ):
        if value and source not in learned:
            raise UsageError(f"{setting_hint(setting)} has no effect with {', '.join(names)}; leave it out")
    resumed = [role for role, (_, training) in makers.items() if role in training.resumes]
    if restart and not resumed:
        raise UsageError(f"{setting_hint('restart')} has no effect with {', '.join(names)}; leave it out")
    configs = configurations(names, config, preset)
    left = workspace.folder / "training"
    for role in [] if restart else resumed:  # before the long work
        check_settings(left, called[role], role, values_of(configs[makers[role][0].name]))
    progress = progress or Progress()
    report = TrainReport()
    data: TrainingData | None = None
    if learned & {"judgements", "pairs"}:
        data = _data(
            workspace,
            queries,
            qrels,
            dev_qrels,
            pairs,
            report,
            first_stage=first_stage,
            query_text=query_text,
            query_category_edges=query_category_edges,
            infer=infer,
            seed=next((one.seed for one in configs.values() if hasattr(one, "seed")), 0),
            progress=progress,
        )
    job = Job(workspace.engine, data, left, restart, progress, (labelled, dev_labelled))
    fitters: dict[str, Fitter] = {}
    for role, (family, training) in makers.items():
        try:
            if family.name not in fitters:
                fitters[family.name] = training.fitter_of(job, configs[family.name])
            fitted = fitters[family.name].fit(role, called[role])
        except KeyboardInterrupt as error:
            why = [str(error) or f"interrupted in {role}"]
            if report.rankers:
                done = " and ".join(one.name for one in report.rankers)
                why.append(f"{done} kept: {action_hint('encode')} stores the document sides")
            if rest := names[names.index(role) + 1 :]:
                why.append(f"{' and '.join(rest)} {'was' if len(rest) == 1 else 'were'} not reached")
            raise KeyboardInterrupt("; ".join(why)) from None
        told = FittedReport.of(fitted, family.name, role)
        if data is not None:  # which one, since a workspace has two
            told = replace(told, measure=told.measure.replace("the first stage", data.first_stage))
        seen = report.seen if "judgements" in training.learns_from else None
        workspace.install(fitted.ranker, seen, told.history())
        fitted.settle()
        report.rankers.append(told)
        if fitted.interrupted:
            progress.say(f"interrupted: kept {fitted.unit} {fitted.epoch} of {called[role]}, the best so far")
            break
    if report.rankers and not report.rankers[-1].interrupted:
        try:
            report.encoded = encode(workspace, progress=progress).encoded
        except BusyError as error:
            progress.say(
                f"{error}: the rankers are in use; {action_hint('encode')} stores the document sides"
            )
    return report


def _data(
    workspace: Workspace,
    queries: Sequence[Query],
    qrels: Qrels | None,
    dev_qrels: Qrels | None,
    pairs: Sequence[tuple[str, str]],
    report: TrainReport,
    *,
    seed: int,
    progress: Progress,
    **how: Any,
) -> TrainingData:
    """Training data of judgements, of pairs, or of both."""
    if qrels is None:
        return prepare_pairs(workspace, pairs, report, seed=seed, progress=progress)
    data = prepare(workspace, queries, qrels, dev_qrels, report, seed=seed, progress=progress, **how)
    if pairs:
        data = replace(data, pairs=_corpora(pairs))
        report.train_pairs = len(pairs)
    if dev_qrels is None:
        # So that the stack can be tuned on queries that no ranker has learned from.
        path = workspace.folder / "held-out.tsv"
        rows = (f"{q}\t{d}\t{g}\n" for q in report.held_out_queries for d, g in qrels[q].items())
        write_text(path, "query-id\tcorpus-id\tscore\n" + "".join(rows))
        report.held_out = str(path)
    return data


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
            f"{amount(len(pairs), 'pair[ is|s are]')} too few to train on; give {setting_hint('pairs')} or"
            f" {setting_hint('queries')} and {setting_hint('qrels')}"
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
        raise TrainingError(
            f"{workspace.folder}: there are no documents yet; run {action_hint('ingest')} first"
        )

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
    first_stage: str | None,
    query_text: Iterable[Query] | None,
    query_category_edges: Sequence[tuple[str, str]] | None,
    infer: bool,
    seed: int,
    progress: Progress,
) -> TrainingData:
    """Read the collection once and turn judgements and candidates into positions in it."""
    engine = workspace.engine
    first_stage, search = workspace.first_stage_of(first_stage)
    if search is not None and queries:
        search = check_search(workspace, search, queries)
    ids: list[str] = []
    langs: Counter[str] = Counter()
    documents = _read_documents(workspace, ids, langs, progress)
    position = {id: i for i, id in enumerate(ids)}
    by_id = {query.id: query for query in queries}
    train_ids, dev_ids = _split(qrels, dev_qrels, by_id, report, seed)
    dev_source = dev_qrels if dev_qrels is not None else qrels
    report.seen = Seen.of(qrels, trained=train_ids) | Seen.of(dev_source, stopped=dev_ids)

    chosen = [*(by_id[q] for q in train_ids), *(by_id[q] for q in dev_ids)]
    depths = [TRAIN_DEPTH] * len(train_ids) + [DEV_DEPTH] * len(dev_ids)
    judged: list[Judged] = []
    read: list[Query] = []

    def categories_of(ids: Sequence[str]) -> list[Sequence[str]]:
        return [documents.categories[position[id]] for id in ids]

    progress.start("first stage", len(chosen), "query")
    try:
        requests = [
            SearchRequest(
                query.lexical,
                first_stage,
                depth=depth,
                template=None if search is None else FilledTemplate(search, query),
            )
            for query, depth in zip(chosen, depths)
        ]
        for query, candidates in zip(chosen, engine.search(requests), strict=True):
            progress.advance()
            source = qrels if len(read) < len(train_ids) else dev_source
            relevant = source.relevant(query.id)
            known = [(position[d], grade) for d, grade in relevant.items() if d in position]
            report.unknown_documents += len(relevant) - len(known)
            if not len(candidates):
                report.silent.append(query.id)
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
                    np.array(
                        sorted(position[d] for d, g in source[query.id].items() if g <= 0 and d in position),
                        dtype=np.int64,
                    ),
                )
            )
            read.append(query)
    finally:
        progress.finish()
    train_judged = [one for one in judged[: len(train_ids)] if len(one.documents)]
    dev_judged = [one for one in judged[len(train_ids) :] if len(one.documents)]
    report.train_queries, report.dev_queries = len(train_judged), len(dev_judged)
    report.first_stage, report.without_hits = first_stage, len(report.silent)
    if not train_judged:
        raise TrainingError(
            "no query of the judgements has a relevant document in the workspace; check"
            f" {setting_hint('qrels')}"
        )
    if not dev_judged:
        raise TrainingError(
            f"no dev query has a relevant document in the workspace; check {setting_hint('dev_qrels')}"
        )
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
                f"{amount(len(overlap), 'quer[y is|ies are]')} in both the train and the dev judgements"
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
