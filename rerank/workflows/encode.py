"""Encode documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rerank.common.errors import NotTrainedError, WorkspaceError
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.engines.base import Encoder, IndexSlice
from rerank.formats.inputs import as_list
from rerank.rankers.base import Ranker
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import check_retrieves, ranker_names
from rerank.workspace.workspace import Workspace, WorkspaceOrPath


@dataclass
class EncodeReport(Report):
    """Result of ``encode``. encoded: ranker -> encoded documents."""

    encoded: dict[str, int]


def encode(
    workspace: WorkspaceOrPath,
    names: str | Iterable[str | Ranker] | None = None,
    *,
    retrieve: str | Sequence[str] = (),
    force: bool = False,
    slice: str | None = None,
    progress: Progress = SILENT,
) -> EncodeReport:
    """Compute the features that documents do not have yet, and store them in the engine.

    names: one ranker or several. Default: all trained rankers, and older versions in stacks.
    retrieve: rankers that also retrieve; OpenSearch needs vector fields.
    force: encode all documents again.
    slice: ``3/8`` encodes the third of eight parts of an OpenSearch index. Each part can be encoded on
        another machine with a copy of the workspace, at the same time. Documents with features are skipped.

    >>> encode(workspace).encoded  # no ranker is trained
    {}
    """
    workspace = Workspace.open(workspace)
    retrieve = ranker_names(retriever_depths(as_list(retrieve)))  # lexical signals need nothing
    for name in retrieve:
        check_retrieves(workspace.ranker(name))
    encoders: list[Encoder] = []
    for encoder in encoders_of(workspace, names, progress):
        encoders.append(encoder._replace(retrieves=encoder.name in retrieve))
    title = " ".join(("encode", *dict.fromkeys(encoder.name for encoder in encoders)))
    index_slice = None if slice is None else IndexSlice.parse(slice)
    total = len(workspace.engine) * len(encoders) // (1 if index_slice is None else index_slice.total)
    keep = workspace.versions_to_keep(include_previous=True)
    with (progress if encoders else SILENT).step(title, total, "doc") as step:
        encoded = workspace.engine.write_features(
            encoders, force=force, keep=keep, progress=step, index_slice=index_slice
        )
    return EncodeReport(encoded)


def encoders_of(
    workspace: Workspace, names: str | Iterable[str | Ranker] | None, progress: Progress
) -> list[Encoder]:
    """Return the encoders of rankers. Default: all. Load errors are reported."""
    if names is None:
        return list(map(_encoder, _loadable_rankers(workspace, progress)))
    rankers = [workspace.ranker(item) if isinstance(item, str) else item for item in as_list(names)]
    return list(map(_encoder, rankers))


def _loadable_rankers(workspace: Workspace, progress: Progress) -> Iterator[Ranker]:
    """Yield the newest version of each ranker, and the versions that stacks use."""
    older = workspace.versions_to_keep()
    for name in workspace.trained():
        try:
            versions = [workspace.ranker(name, version) for version in (None, *older.get(name, ()))]
        except (WorkspaceError, NotTrainedError) as error:
            progress.say(f"{name} is left out: {error}")
            continue
        yield from {ranker.version: ranker for ranker in versions}.values()


def _encoder(ranker: Ranker) -> Encoder:
    return Encoder(
        ranker.name,
        ranker.version,
        ranker.encode_documents,
        passages=ranker.passages,
        can_retrieve=ranker.retrieves,
    )
