"""Train rankers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rerank.config import values_of
from rerank.errors import BusyError, UsageError, option_name
from rerank.inputs import Judgments, Queries, as_list, as_qrels, as_queries
from rerank.progress import Progress
from rerank.rankers.registry import Fitter, Source, configurations, families_of
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.rankers.training.unfinished import check_settings
from rerank.records import LabeledPair, Query
from rerank.workflows.encode import encode
from rerank.workflows.training_data import DataReport, Inputs, training_data
from rerank.workspace import Workspace


@dataclass(frozen=True)
class FittedReport:
    """A fitted ranker; see :class:`rerank.rankers.training.job.TrainingResult`.

    variant: name in the family.
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
        """Return the report of a result."""
        values = {name: value for name, value in vars(fitted).items() if name not in ("ranker", "cleanup")}
        return cls(fitted.ranker.name, family, variant, fitted.ranker.version, **values)

    def history(self) -> dict[str, Any]:
        """Return the training curve as JSON values."""
        names = ("epoch", "epochs", "dev", "baseline", "measure", "without", "unit")
        curve = [[None if one is None else round(one, 6) for one in point] for point in self.curve]
        return {**{name: getattr(self, name) for name in names}, "curve": curve}


@dataclass
class TrainReport(DataReport):
    """Result of a training.

    rankers: fitted. encoded: ranker -> encoded documents.
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
    """Fit rankers, activate each, and encode the documents.

    names: for example ``text``, ``s2net`` or ``dense``.
    queries, qrels, dev_qrels: judged queries. Default for dev: 10 % of them.
    pairs: (query, document) texts for projections.
    labeled, dev_labeled: document pairs for ``concept``. Dev pairs choose the step; default: the last one.
    config: settings by name, per family (``{"cnn": {"epochs": 3}}``), or an object (``CnnConfig(epochs=3)``).
    preset: initial settings, for example ``paper``. as_name: name of a single ranker.
    restart: discard interrupted trainings. Default: resume them.
    first_stage: retrieves candidates, also ``template:FILE``. Default: the workspace's first stage.
    query_text, query_category_edges: text and category graph of queries, if the documents' do not fit.
    infer: infer missing categories of queries.

    Ctrl-C keeps the best epoch and skips other rankers; call ``encode`` later.

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
    inputs = Inputs(
        queries=as_queries(queries),
        qrels=None if qrels is None else as_qrels(qrels),
        dev_qrels=None if dev_qrels is None else as_qrels(dev_qrels),
        pairs=pairs,
        first_stage=first_stage,
        query_text=query_text,
        query_category_edges=query_category_edges,
        infer=infer,
    )
    names, progress = list(dict.fromkeys(as_list(names))), progress or Progress()
    training = _Training(workspace, names, as_name, configurations(names, config, preset))
    training.check_sources(inputs, labeled, dev_labeled)
    training.check_resumed(restart)
    report, data = TrainReport(), None
    if any({"judgments", "pairs"} & {*family.learns_from} for family in training.families.values()):
        seed = next((one.seed for one in training.configs.values() if hasattr(one, "seed")), 0)
        data = training_data(workspace, replace(inputs, seed=seed), report, progress)
    checkpoints = workspace.folder / "training"
    training.fit(
        TrainingJob(workspace.engine, data, checkpoints, restart, progress, (labeled, dev_labeled)), report
    )
    if report.rankers and not report.rankers[-1].interrupted:
        try:
            report.encoded = encode(workspace, progress=progress).encoded
        except BusyError as error:
            progress.say(f"{error}: the rankers are active; `rerank encode` stores the features")
    return report


class _Training:
    def __init__(
        self, workspace: Workspace, names: list[str], as_name: str | None, configs: Mapping[str, Any]
    ) -> None:
        if as_name is not None and len(names) != 1:
            raise UsageError(f"{as_name!r} names one ranker, not {len(names)}; train one ranker")
        self.workspace, self.configs, self.families = workspace, configs, families_of(names)
        self.called = {variant: as_name or variant for variant in names}
        for variant, family in self.families.items():
            workspace.check_name(self.called[variant], family.name, variant)

    def check_sources(
        self, inputs: Inputs, labeled: Sequence[LabeledPair], dev_labeled: Sequence[LabeledPair]
    ) -> None:
        given: dict[Source, bool] = {
            "judgments": inputs.qrels is not None,
            "pairs": bool(inputs.pairs),
            "labeled pairs": bool(labeled),
            "links": True,
        }
        for variant, family in self.families.items():
            if "labeled pairs" in family.learns_from and not given["labeled pairs"]:
                raise UsageError(
                    f"{variant} learns from labeled pairs; give --labeled-pairs, and"
                    f" {option_name('dev_pairs')} to measure"
                )
            if not any(given[source] for source in family.learns_from):
                both = "pairs" in family.learns_from
                raise UsageError(
                    f"{variant} learns from judged queries{' or pairs' if both else ''}; give"
                    f" {option_name('queries')} and {option_name('qrels')}"
                    + (", or --text-pairs" if both else "")
                )
        used = {source for family in self.families.values() for source in family.learns_from}
        options: dict[Source, str] = {"judgments": "qrels", "pairs": "pairs", "labeled pairs": "labeled"}
        unused = [option for source, option in options.items() if given[source] and source not in used]
        if dev_labeled and "labeled pairs" not in used:
            unused.append("dev_pairs")
        if unused:
            raise UsageError(f"{option_name(unused[0])} has no effect with {', '.join(self.families)}")

    def check_resumed(self, restart: bool) -> None:
        resumed = [variant for variant, family in self.families.items() if family.resumes]
        if restart and not resumed:
            raise UsageError(f"{option_name('restart')} has no effect with {', '.join(self.families)}")
        for variant in [] if restart else resumed:
            config = self.configs[self.families[variant].name]
            check_settings(
                self.workspace.folder / "training", self.called[variant], variant, values_of(config)
            )

    def fit(self, job: TrainingJob, report: TrainReport) -> None:
        fitters: dict[str, Fitter] = {}
        for place, (variant, family) in enumerate(self.families.items()):
            try:
                if family.name not in fitters:
                    fitters[family.name] = family.make_fitter(job, self.configs[family.name])
                result = fitters[family.name].fit(variant, self.called[variant])
            except KeyboardInterrupt as error:
                rest = list(self.families)[place + 1 :]
                message = str(error) or f"interrupted in {variant}"
                raise KeyboardInterrupt(_interruption(message, report, rest)) from None
            row = FittedReport.of(result, family.name, variant)
            if job.data is not None:
                row = replace(row, measure=row.measure.replace("the first stage", job.data.first_stage))
            seen = report.seen if "judgments" in family.learns_from else None
            self.workspace.install(result.ranker, seen, row.history())
            result.cleanup()
            report.rankers.append(row)
            if result.interrupted:
                kept = f"{result.unit} {result.epoch} of {self.called[variant]}"
                job.progress.say(f"interrupted: kept {kept}, the best one")
                break


def _interruption(message: str, report: TrainReport, rest: Sequence[str]) -> str:
    parts = [message]
    if report.rankers:
        done = " and ".join(one.name for one in report.rankers)
        parts.append(f"{done} kept: `rerank encode` stores the document sides")
    if rest:
        parts.append(f"{' and '.join(rest)} {'was' if len(rest) == 1 else 'were'} not reached")
    return "; ".join(parts)
