"""Train: what a collection and its judgments teach -> fitted rankers with their features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rerank.config import values_of
from rerank.errors import BusyError, UsageError, option_name
from rerank.inputs import Judgments, Queries, as_list, as_qrels, as_queries
from rerank.progress import Progress
from rerank.rankers.registry import Family, Fitter, Source, configurations, families_of
from rerank.rankers.training.data import TrainingData
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.rankers.training.unfinished import check_settings
from rerank.records import LabeledPair, Query
from rerank.workflows.ingest import encode
from rerank.workflows.training_data import DataReport, Inputs, training_data
from rerank.workspace import Workspace

Makers = Mapping[str, Family]
"""Variant -> its family."""


@dataclass(frozen=True)
class FittedReport:
    """One fitted ranker; for the other fields see :class:`rerank.rankers.training.job.TrainingResult`.

    variant: which ranker of its family it is.
    """

    name: str
    family: str
    variant: str
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
    def of(cls, fitted: TrainingResult, family: str, variant: str) -> FittedReport:
        """Describe what was fitted."""
        values = {name: value for name, value in vars(fitted).items() if name not in ("ranker", "cleanup")}
        return cls(fitted.ranker.name, family, variant, fitted.ranker.version, **values)

    def history(self) -> dict[str, Any]:
        """How it was trained, in JSON's values: what is kept beside the ranker, to be drawn."""
        told = ("epoch", "epochs", "dev", "baseline", "measure", "without", "unit")
        curve = [[None if one is None else round(one, 6) for one in point] for point in self.curve]
        return {**{name: getattr(self, name) for name in told}, "curve": curve}


@dataclass
class TrainReport(DataReport):
    """What a training learned from and the rankers that it fitted.

    rankers: those that were fitted. encoded: ranker -> documents that were encoded at the end.
    """

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
    labeled: Sequence[LabeledPair] = (),
    dev_labeled: Sequence[LabeledPair] = (),
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
    pairs: (query, document) texts that belong together; projections learn from them beside the judgments,
        or, with ``qrels`` None, instead of them (a tenth is then held out).
    labeled, dev_labeled: pairs of documents that are related or not, for ``concept``; what it learns is
        measured by the ``dev_labeled``, which are not learned from. Without them its last step is kept.
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
    makers = families_of(names)
    if as_name is not None and len(names) != 1:
        raise UsageError(f"{as_name!r} names one ranker, and {len(names)} are to be trained; name one")
    called = {variant: as_name or variant for variant in names}
    for variant, family in makers.items():
        workspace.check_name(called[variant], family.name, variant)
    given: dict[Source, bool] = {
        "judgments": qrels is not None,
        "pairs": bool(pairs),
        "labeled pairs": bool(labeled),
        "links": True,
    }
    _check_sources(makers, given, bool(dev_labeled))
    configs = configurations(names, config, preset)
    left = workspace.folder / "training"
    _check_resumed(makers, called, configs, left, restart=restart)
    progress, report = progress or Progress(), TrainReport()
    data: TrainingData | None = None
    if any({"judgments", "pairs"} & {*family.learns_from} for family in makers.values()):
        inputs = Inputs(
            queries=queries,
            qrels=qrels,
            dev_qrels=dev_qrels,
            pairs=pairs,
            first_stage=first_stage,
            query_text=query_text,
            query_category_edges=query_category_edges,
            infer=infer,
            seed=next((one.seed for one in configs.values() if hasattr(one, "seed")), 0),
        )
        data = training_data(workspace, inputs, report, progress)
    job = TrainingJob(workspace.engine, data, left, restart, progress, (labeled, dev_labeled))
    _fit(workspace, job, makers, called, configs, report)
    if report.rankers and not report.rankers[-1].interrupted:
        try:
            report.encoded = encode(workspace, progress=progress).encoded
        except BusyError as error:
            progress.say(f"{error}: the rankers are in use; `rerank encode` stores the document sides")
    return report


def _check_sources(makers: Makers, given: Mapping[Source, bool], dev_labeled: bool) -> None:
    """Raise UsageError if a ranker gets nothing to learn from, or something is given that none reads."""
    for variant, family in makers.items():
        if "labeled pairs" in family.learns_from and not given["labeled pairs"]:
            raise UsageError(
                f"{variant} is trained on labeled pairs; give --labeled-pairs, and"
                f" {option_name('dev_pairs')} to measure by"
            )
        if not any(given[source] for source in family.learns_from):
            pairs_too = "pairs" in family.learns_from
            raise UsageError(
                f"{variant} is trained on judged queries{' or pairs' if pairs_too else ''}; give"
                f" {option_name('queries')} and {option_name('qrels')}"
                + (", or --text-pairs" if pairs_too else "")
            )
    read = {source for family in makers.values() for source in family.learns_from}
    settings: dict[Source, str] = {"judgments": "qrels", "pairs": "pairs", "labeled pairs": "labeled"}
    unread = [setting for source, setting in settings.items() if given[source] and source not in read]
    if dev_labeled and "labeled pairs" not in read:
        unread.append("dev_pairs")
    if unread:
        raise UsageError(f"{option_name(unread[0])} has no effect with {', '.join(makers)}; leave it out")


def _check_resumed(
    makers: Makers, called: Mapping[str, str], configs: Mapping[str, Any], left: Path, *, restart: bool
) -> None:
    """Raise UsageError if an interrupted training has other settings, or there is none to discard."""
    resumed = [variant for variant, family in makers.items() if family.resumes]
    if restart and not resumed:
        raise UsageError(f"{option_name('restart')} has no effect with {', '.join(makers)}; leave it out")
    for variant in [] if restart else resumed:
        check_settings(left, called[variant], variant, values_of(configs[makers[variant].name]))


def _fit(
    workspace: Workspace,
    job: TrainingJob,
    makers: Makers,
    called: Mapping[str, str],
    configs: Mapping[str, Any],
    report: TrainReport,
) -> None:
    """Fit the rankers one after the other and put each in use, until one is interrupted."""
    fitters: dict[str, Fitter] = {}
    for variant, family in makers.items():
        try:
            if family.name not in fitters:
                fitters[family.name] = family.make_fitter(job, configs[family.name])
            fitted = fitters[family.name].fit(variant, called[variant])
        except KeyboardInterrupt as error:
            names = list(makers)
            rest = names[names.index(variant) + 1 :]
            raise KeyboardInterrupt(
                _interruption(str(error) or f"interrupted in {variant}", report, rest)
            ) from None
        described = FittedReport.of(fitted, family.name, variant)
        if job.data is not None:  # which one, since a workspace has two
            measure = described.measure.replace("the first stage", job.data.first_stage)
            described = replace(described, measure=measure)
        seen = report.seen if "judgments" in family.learns_from else None
        workspace.install(fitted.ranker, seen, described.history())
        fitted.cleanup()
        report.rankers.append(described)
        if fitted.interrupted:
            job.progress.say(
                f"interrupted: kept {fitted.unit} {fitted.epoch} of {called[variant]}, the best so far"
            )
            break


def _interruption(message: str, report: TrainReport, rest: Sequence[str]) -> str:
    """Describe what was kept when a training was interrupted."""
    parts = [message]
    if report.rankers:
        done = " and ".join(one.name for one in report.rankers)
        parts.append(f"{done} kept: `rerank encode` stores the document sides")
    if rest:
        parts.append(f"{' and '.join(rest)} {'was' if len(rest) == 1 else 'were'} not reached")
    return "; ".join(parts)
