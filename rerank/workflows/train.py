"""Train rankers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rerank.common.config import Options
from rerank.common.errors import BusyError, UsageError, option_name
from rerank.common.files import folder_lock
from rerank.common.progress import SILENT, Progress
from rerank.common.values import items_at, without, without_empty
from rerank.documents.records import Document, LabeledPair, Qrels, Query
from rerank.formats import read_corpus, read_pairs
from rerank.formats.inputs import (
    File,
    Judgments,
    Pairs,
    Queries,
    as_list,
    as_pairs,
    as_qrels,
    as_queries,
    from_file,
)
from rerank.rankers.registry import Family, Fitter, Source, configurations, group_by_family
from rerank.rankers.training.data import Corpus, TrainingData
from rerank.rankers.training.job import TrainingJob, TrainingResult
from rerank.workflows.encode import encode
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace.workspace import Workspace, WorkspaceOrPath


def train(
    workspace: WorkspaceOrPath,
    names: str | Iterable[str],
    *,
    queries: Queries = (),
    qrels: Judgments | None = None,
    dev_qrels: Judgments | None = None,
    pairs: Sequence[tuple[str, str]] | File = (),
    labeled: Pairs = (),
    dev_labeled: Pairs = (),
    config: Any = None,
    preset: str | None = None,
    as_name: str | None = None,
    restart: bool = False,
    first_stage: str | None = None,
    query_text: Iterable[Document | Query] | File | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    encode_features: bool = True,
    progress: Progress = SILENT,
) -> TrainReport:
    """Fit rankers, one after the other, activate each, and encode the documents.

    names: for example ``text``, ``meta`` and ``s2net``. encode_features: encode the documents.
    queries, qrels, dev_qrels: judged queries. Default for dev: 10 % of them.
    pairs: (query, document) texts for projections, or a file of them.
    labeled, dev_labeled: document pairs for ``concept``. Dev pairs choose the step; default: the last one.
    config: settings by name (``{"epochs": 3}``), or an object (``CnnConfig(epochs=3)``). Rankers of several
        families read the settings that they know.
    preset: initial settings, for example ``paper``. as_name: name of a single ranker.
    restart: discard interrupted trainings instead of resuming. infer: infer missing categories of queries.
    first_stage: retrieves candidates, also ``template:FILE``. Default: the workspace's first stage.
    query_text: texts for word vectors of queries, also a file of documents. Default: the train queries.

    >>> train(workspace, ["lsi"], queries=queries, qrels=qrels, config={"dim": 2}).encoded
    {'lsi': 3}
    """
    workspace = Workspace.open(workspace)
    groups = group_by_family(as_list(names))
    options_by_family = configurations(groups, config, preset)
    read_queries = as_queries(queries, ignore_categories=ignore_categories)
    inputs = Inputs(
        queries=read_queries,
        qrels=_judgments(qrels, read_queries),
        dev_qrels=_judgments(dev_qrels, read_queries),
        pairs=from_file(pairs, read_pairs),
        first_stage=first_stage,
        query_text=None if query_text is None else Corpus.read(from_file(query_text, read_corpus)),
        infer=infer,
        labeled=_labeled_pairs(workspace, labeled, dev_labeled),
    )
    ranker_names = _ranker_names(workspace, groups, as_name)
    _check_inputs(groups, inputs, options_by_family, config, restart)
    _check_judgments(inputs, options_by_family, preset, ignore_categories)
    training = _Training(workspace, inputs, ranker_names, restart, progress)
    training.train_families(groups, options_by_family)
    _encode(workspace, training.report, progress, skip=not encode_features)
    return training.report


def _judgments(qrels: Judgments | None, queries: Sequence[Query]) -> Qrels | None:
    """Return the judgments of an argument; None without the argument."""
    return None if qrels is None else as_qrels(qrels, queries)


def _labeled_pairs(
    workspace: Workspace, train_pairs: Pairs, dev_pairs: Pairs
) -> tuple[Sequence[LabeledPair], Sequence[LabeledPair]]:
    contains = workspace.engine.contains
    return as_pairs(train_pairs, contains), as_pairs(dev_pairs, contains)


def _ranker_names(
    workspace: Workspace, groups: Mapping[Family, Sequence[str]], as_name: str | None
) -> dict[str, str]:
    """Return variant -> name of the ranker, in the order of training."""
    variants = list(chain.from_iterable(groups.values()))
    if as_name is not None and len(variants) != 1:
        raise UsageError(f"{as_name!r} names one ranker, not {len(variants)}; train one ranker")
    ranker_names = {variant: as_name or variant for variant in variants}
    for family, names in groups.items():
        for variant in names:
            workspace.check_ranker_name(ranker_names[variant], family.name, variant)
    return ranker_names


_WITHOUT_SOURCE: Mapping[Source, Mapping[str, Any]] = {
    "judgments": {"queries": (), "qrels": None, "dev_qrels": None},
    "pairs": {"pairs": ()},
    "labeled pairs": {"labeled": ((), ())},
}
"""Source -> values of :class:`Inputs` for a family that does not learn from it."""


def _inputs_of_family(family: Family, inputs: Inputs) -> Inputs:
    """Return only the inputs that the family learns from."""
    for empty_values in without(_WITHOUT_SOURCE, family.learns_from).values():
        inputs = replace(inputs, **empty_values)
    return inputs


class _LoadedData(NamedTuple):
    """Training data in memory, the inputs that they come from, and the counts of their queries."""

    inputs: Inputs
    counts: TrainReport
    data: TrainingData


@dataclass
class _Training:
    """The training of the rankers of one command, family by family.

    ranker_names: variant -> name, of all families in the order of training.
    report:       of the families so far.
    """

    workspace: Workspace
    inputs: Inputs
    ranker_names: Mapping[str, str]
    restart: bool
    progress: Progress
    report: TrainReport = field(default_factory=TrainReport)
    _loaded: _LoadedData | None = field(default=None, init=False)

    def train_families(
        self, groups: Mapping[Family, Sequence[str]], options_by_family: Mapping[Family, Options]
    ) -> None:
        """Fit and install the rankers of all families until an interruption. groups: family -> variants."""
        for family, variants in groups.items():
            self.train_family(family, variants, options_by_family[family])
            if self.report.rankers[-1].interrupted:
                break

    def train_family(self, family: Family, variants: Sequence[str], options: Options) -> None:
        """Fit and install the rankers of a family until an interruption."""
        inputs = _inputs_of_family(family, replace(self.inputs, seed=getattr(options, "seed", 0)))
        job = TrainingJob(
            self.workspace.engine,
            self._read_data(inputs),
            self.workspace.folder / "training",
            self.restart,
            self.progress,
            inputs.labeled,
        )
        fitter = family.make_fitter(job, options)
        for variant in variants:
            result = self._fit(fitter, variant, job)
            self.report.rankers.append(result)
            if result.interrupted:
                name = self.ranker_names[variant]
                self.progress.say(f"interrupted: kept {result.unit} {result.epoch} of {name}, the best one")
                break

    def _read_data(self, inputs: Inputs) -> TrainingData | None:
        """Return the training data of a family, and add its counts to the report.

        A family with the inputs of the last one also has its data, which are read once.

        The families share the judgments, so counts are not added up. ``seen`` is of this family only,
        because it is stored with its rankers.
        """
        report = TrainReport()
        data = None
        if inputs.qrels is not None or inputs.pairs:
            loaded = self._load(inputs)
            report = replace(loaded.counts)
            data = loaded.data
        for count in fields(TrainReport):
            if count.name != "seen" and not getattr(report, count.name):
                setattr(report, count.name, getattr(self.report, count.name))
        self.report = report
        return data

    def _load(self, inputs: Inputs) -> _LoadedData:
        """Read the training data of these inputs, unless they are those of the last family."""
        if self._loaded is None or self._loaded.inputs != inputs:
            self._loaded = None  # frees the memory of the data
            counts = TrainReport()
            data = training_data(self.workspace, inputs, counts, self.progress)
            self._loaded = _LoadedData(inputs, counts, data)
        return self._loaded

    def _fit(self, fitter: Fitter, variant: str, job: TrainingJob) -> TrainingResult:
        """Fit and install a ranker. An error of Ctrl-C names the rankers that are not trained."""
        name = self.ranker_names[variant]
        with _training_lock(job.folder, name):
            try:
                result = fitter.fit(variant, name)
            except KeyboardInterrupt as error:
                names = list(self.ranker_names.values())
                not_trained = ", ".join(names[names.index(name) :])
                message = f"{str(error) or 'interrupted'}; not trained: {not_trained}"
                if self.report.rankers:
                    message += "; `rerank encode` stores the features of the others"
                raise KeyboardInterrupt(message) from None
            if job.data is not None:
                measure = result.measure.replace("the first stage", job.data.first_stage)
                result = replace(result, measure=measure)
            self.workspace.install(result.ranker, self.report.seen)
            if result.discard_checkpoint is not None:
                result.discard_checkpoint()
        return result


def _encode(workspace: Workspace, report: TrainReport, progress: Progress, *, skip: bool) -> None:
    """Encode the documents, except after an interruption."""
    if not report.rankers[-1].interrupted and not skip:
        try:
            report.encoded = encode(workspace, progress=progress).encoded
        except BusyError as error:
            progress.say(f"{error}: the rankers are active; `rerank encode` stores the features")


_INPUTS: dict[Source, str] = {
    "judgments": "--queries and --qrels",
    "pairs": "--text-pairs",
    "labeled pairs": "--labeled-pairs",
}


def _check_inputs(
    groups: Mapping[Family, Sequence[str]],
    inputs: Inputs,
    options_by_family: Mapping[Family, Options],
    config: object,
    restart: bool,
) -> None:
    """Raise UsageError if an input or option has no effect, or a family has nothing to learn from.

    config: settings of the user, as for :func:`train`.
    """
    set_names = {*config} if isinstance(config, Mapping) else set[str]()
    has_input: dict[Source, bool] = {
        "judgments": inputs.qrels is not None,
        "pairs": bool(inputs.pairs),
        "labeled pairs": bool(inputs.labeled[0]),
    }
    has_labeled_dev_pairs = bool(inputs.labeled[1])
    _check_unused_inputs(
        groups, {**has_input, "labeled pairs": has_input["labeled pairs"] or has_labeled_dev_pairs}
    )
    if bool(inputs.queries) != has_input["judgments"]:
        raise UsageError(f"{_INPUTS['judgments']} belong together; give both")
    for family, names in groups.items():
        options = options_by_family[family]
        options.validate(set_names, with_judgments=has_input["judgments"])
        options.check()
        sources = family.learns_from
        if "links" not in sources and not any(items_at(has_input, sources)):
            needed = ", or ".join(items_at(_INPUTS, sources))
            raise UsageError(f"{', '.join(names)} learns from {' or '.join(sources)}; give {needed}")
    _check_query_text(groups, inputs)
    if restart:
        _check_restart(groups, options_by_family)


def _check_query_text(groups: Mapping[Family, Sequence[str]], inputs: Inputs) -> None:
    """Raise UsageError for texts of queries that no ranker reads."""
    names = list(chain.from_iterable(groups.values()))
    readers = list(chain.from_iterable(family.reads_query_text for family in groups))
    if inputs.query_text is not None and not {*names} & {*readers}:
        raise UsageError(f"--query-text has no effect with {', '.join(names)}; leave it out")


def _check_judgments(
    inputs: Inputs, options_by_family: Mapping[Family, Options], preset: str | None, ignore_categories: bool
) -> None:
    """Raise UsageError for a preset, a setting or an argument that needs judged queries, without any."""
    if inputs.qrels is not None:
        return
    for options in options_by_family.values():
        if preset in options.judged_presets:
            raise UsageError(f"--preset {preset} learns from judged queries; give {_INPUTS['judgments']}")
    is_set = {
        "dev_qrels": inputs.dev_qrels is not None,
        "first_stage": inputs.first_stage is not None,
        "query_text": inputs.query_text is not None,
        "ignore_categories": ignore_categories,
        "no_infer_categories": not inputs.infer,
    }
    for options in options_by_family.values():
        is_set |= {name: bool(getattr(options, name)) for name in options.judged_options}
    set_names = list(without_empty(is_set))
    if set_names:
        raise UsageError(
            f"{option_name(set_names[0])} has no effect without judged queries;"
            f" give {_INPUTS['judgments']}, or leave it out"
        )


def _check_unused_inputs(groups: Mapping[Family, Sequence[str]], is_given: Mapping[Source, bool]) -> None:
    """Raise UsageError for an input that no family learns from."""
    sources = list(dict.fromkeys(chain.from_iterable(family.learns_from for family in groups)))
    for source, option in _INPUTS.items():
        if is_given[source] and source not in sources:
            names = ", ".join(chain.from_iterable(groups.values()))
            raise UsageError(
                f"{option}: no effect with {names}, which learns from {' or '.join(sources)}; leave it out"
            )


def _check_restart(
    groups: Mapping[Family, Sequence[str]], options_by_family: Mapping[Family, Options]
) -> None:
    """Raise UsageError if no family has a training that could be interrupted and discarded."""
    resuming = [family for family in groups if family.resumes]
    if all(getattr(options_by_family[family], "untrained", False) for family in resuming):
        reason = "--untrained" if resuming else ", ".join(chain.from_iterable(groups.values()))
        raise UsageError(f"{option_name('restart')} has no effect with {reason}; leave it out")


@contextmanager
def _training_lock(folder: Path, name: str) -> Iterator[None]:
    """Let only one process train a ranker. Raises BusyError."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".{name}.lock"
    file.touch()
    with folder_lock(file, f"training {name} in this workspace"):
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
            with suppress(OSError):  # a checkpoint is kept
                folder.rmdir()
