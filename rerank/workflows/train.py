"""Train rankers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rerank.config import Options
from rerank.errors import BusyError, UsageError, option_name
from rerank.files import folder_lock
from rerank.formats import read_corpus, read_pairs
from rerank.inputs import File, Judgments, Pairs, Queries, as_list, as_pairs, as_qrels, as_queries, from_file
from rerank.progress import Progress
from rerank.rankers.registry import Family, Fitter, Source, configuration, family_of
from rerank.rankers.training.job import TrainingJob
from rerank.records import Document, Query
from rerank.workflows.encode import encode
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace import Workspace, WorkspaceOrPath


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
    progress: Progress | None = None,
) -> TrainReport:
    """Fit rankers of one family, activate each, and encode the documents.

    names: for example ``text`` and ``meta``, ``s2net`` or ``dense``. encode_features: encode the documents.
    queries, qrels, dev_qrels: judged queries. Default for dev: 10 % of them.
    pairs: (query, document) texts for projections, or a file of them.
    labeled, dev_labeled: document pairs for ``concept``. Dev pairs choose the step; default: the last one.
    config: settings by name (``{"epochs": 3}``), or an object (``CnnConfig(epochs=3)``).
    preset: initial settings, for example ``paper``. as_name: name of a single ranker.
    restart: discard interrupted trainings instead of resuming. infer: infer missing categories of queries.
    first_stage: retrieves candidates, also ``template:FILE``. Default: the workspace's first stage.
    query_text: texts for word vectors of queries, also a file of documents. Default: the train queries.

    >>> train(workspace, ["lsi"], queries=queries, qrels=qrels, config={"dim": 2}).encoded
    {'lsi': 3}
    """
    workspace = Workspace.open(workspace)
    contains = workspace.engine.contains
    names, progress = list(dict.fromkeys(as_list(names))), progress or Progress()
    family, options = family_of(names), configuration(names, config, preset)
    inputs = Inputs(
        queries=as_queries(queries, ignore_categories=ignore_categories),
        qrels=None if qrels is None else as_qrels(qrels),
        dev_qrels=None if dev_qrels is None else as_qrels(dev_qrels),
        pairs=from_file(pairs, read_pairs),
        first_stage=first_stage,
        query_text=None if query_text is None else from_file(query_text, read_corpus),
        infer=infer,
        seed=getattr(options, "seed", 0),
        labeled=(as_pairs(labeled, contains), as_pairs(dev_labeled, contains)),
    )
    called = _called(workspace, family, names, as_name)
    _check_inputs(family, ", ".join(names), inputs, options, restart)
    report, given = TrainReport(), inputs.qrels is not None or inputs.pairs
    data = training_data(workspace, inputs, report, progress) if given else None
    folder = workspace.folder / "training"
    job = TrainingJob(workspace.engine, data, folder, restart, progress, inputs.labeled)
    _fit(workspace, family.make_fitter(job, options), called, job, report)
    _encode(workspace, report, progress, skip=not encode_features)
    return report


def _called(
    workspace: Workspace, family: Family, names: Sequence[str], as_name: str | None
) -> dict[str, str]:
    """Return variant -> name."""
    if as_name is not None and len(names) != 1:
        raise UsageError(f"{as_name!r} names one ranker, not {len(names)}; train one ranker")
    called = {variant: as_name or variant for variant in names}
    for variant, name in called.items():
        workspace.check_ranker_name(name, family.name, variant)
    return called


def _encode(workspace: Workspace, report: TrainReport, progress: Progress, *, skip: bool) -> None:
    """Encode the documents, except after an interruption."""
    if report.rankers and not report.rankers[-1].interrupted and not skip:
        try:
            report.encoded = encode(workspace, progress=progress).encoded
        except BusyError as error:
            progress.say(f"{error}: the rankers are active; `rerank encode` stores the features")


_INPUTS: dict[Source, str] = {
    "judgments": "--queries and --qrels",
    "pairs": "--text-pairs",
    "labeled pairs": "--labeled-pairs",
}


def _check_inputs(family: Family, names: str, inputs: Inputs, options: Options, restart: bool) -> None:
    """Raise UsageError if an input or option cannot be used or has no effect, or the family has no input."""
    options.check()
    if restart and (not family.resumes or getattr(options, "untrained", False)):
        what = "--untrained" if family.resumes else names
        raise UsageError(f"{option_name('restart')} has no effect with {what}; leave it out")
    given = {
        "judgments": inputs.qrels is not None,
        "pairs": bool(inputs.pairs),
        "labeled pairs": bool(inputs.labeled[0]),
    }
    sources, learned = family.learns_from, " or ".join(family.learns_from)
    for source, option in _INPUTS.items():
        if source not in sources and (given[source] or (source == "labeled pairs" and inputs.labeled[1])):
            raise UsageError(f"{option}: no effect with {names}, which learns from {learned}; leave it out")
    if "links" not in sources and not any(given[source] for source in sources):
        wanted = ", or ".join(_INPUTS[source] for source in sources)
        raise UsageError(f"{names} learns from {learned}; give {wanted}")
    for name in options.unjudged if given["judgments"] else ():
        if getattr(options, name) != getattr(type(options)(), name):
            raise UsageError(f"{option_name(name)} has no effect with --qrels; leave it out")


def _fit(
    workspace: Workspace, fitter: Fitter, called: Mapping[str, str], job: TrainingJob, report: TrainReport
) -> None:
    """Fit and install rankers until an interruption."""
    for place, (variant, name) in enumerate(called.items()):
        try:
            with _training_lock(job.folder, name):
                result = fitter.fit(variant, name)
        except KeyboardInterrupt as error:
            left = ", ".join([*called][place:])
            kept = "; `rerank encode` stores the features of the others" if place else ""
            message = f"{str(error) or 'interrupted'}; not trained: {left}{kept}"
            raise KeyboardInterrupt(message) from None
        if job.data is not None:
            result = replace(result, measure=result.measure.replace("the first stage", job.data.first_stage))
        workspace.install(result.ranker, report.seen)
        if result.discard_checkpoint is not None:
            result.discard_checkpoint()
        report.rankers.append(result)
        if result.interrupted:
            job.progress.say(f"interrupted: kept {result.unit} {result.epoch} of {name}, the best one")
            break


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
