"""Training and tuning do not change the stack in use. Promotion and rollback do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Stack, Workspace, promote, rollback, tune
from rerank.common.errors import BusyError, UsageError, WorkspaceError
from rerank.evaluation.leakage import TrainingRecord
from rerank.evaluation.significance import compare
from rerank.rankers.projection.ranker import Projection, Terms
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.stack.releases import KEPT_RELEASES, Releases
from rerank.workflows.encode import encode
from rerank.workflows.status import status

WORDS = ("apple", "pear", "fig", "plum")
QUERIES = [Query(word, word) for word in WORDS]
QRELS = Qrels((word, f"{word}4", 1) for word in WORDS)
"""The words find the relevant document last."""
STACK = "tfidf,lsi"


def ranker(version: str, knows: int) -> Projection:
    """Return a ranker that is right for the first ``knows`` of the four words, and wrong for others."""

    names = [*WORDS, "wanted", "other"]
    terms = Terms(names, np.ones(len(names), np.float32), letters=0, longest=400)

    def side(rows: dict[str, list[float]]) -> np.ndarray:
        return np.array([rows.get(name, [0.0, 0.0]) for name in names], np.float16)

    query = {word: [1.0, 0.0] if i < knows else [0.0, 1.0] for i, word in enumerate(WORDS)}
    document = side({"wanted": [1.0, 0.0], "other": [0.0, 1.0]})
    return Projection(name="lsi", version=version, terms=terms, query=side(query), document=document)


def train_version(workspace: Workspace, version: str, knows: int) -> None:
    """Install and encode a new version, as a training does."""
    workspace.install(ranker(version, knows))
    encode(workspace)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A workspace whose ranker v1 is correct for two of four queries. Its stack is tuned and in use."""
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write(
        Document(f"{word}{i}", text=" ".join([word] * (6 - i) + ["wanted" if i == 4 else "other"]))
        for word in WORDS
        for i in range(5)
    )
    train_version(workspace, "v1", 2)
    tune(workspace, STACK, queries=QUERIES, qrels=QRELS)
    return workspace


def ranking(workspace: Workspace) -> list[tuple[str, float]]:
    """Return the ranking of a query for which v1 is correct and v3 is not."""
    return [(hit["id"], hit["score"]) for hit in Workspace.open(workspace.folder).search("apple").hits]


def missing_by_version(workspace: Workspace) -> dict[str, int]:
    return {f"v{i}": workspace.engine.missing_features("lsi", f"v{i}") for i in range(1, 4)}


def test_training_and_tuning_do_not_change_the_stack_in_use(workspace: Workspace) -> None:
    """This also holds if a stack of the same signals has weights tuned with another ranker version."""
    ((number, stack),) = workspace.releases.all().items()
    assert (number, stack.name, stack.versions) == (1, "lsi,tfidf", {"lsi": "v1"})
    assert [dict(one.gate) for one in workspace.releases.history] == [{}]
    before, used = ranking(workspace), workspace.releases
    train_version(workspace, "v3", 3)
    assert workspace.ranker("lsi").version == "v3"
    assert workspace.versions() == {"lsi": "v1"}  # a name selects the version in use
    assert missing_by_version(workspace) == {"v1": 0, "v2": 20, "v3": 0}  # features of both exist
    assert (ranking(workspace), workspace.releases) == (before, used)
    tuned = tune(workspace, STACK, queries=QUERIES, qrels=QRELS).stack
    assert tuned.versions == {"lsi": "v3"}
    assert workspace.stack(STACK, latest=True) == tuned
    assert (ranking(workspace), workspace.releases) == (before, used)


def test_a_better_candidate_is_promoted_and_rolled_back(workspace: Workspace) -> None:
    before, first = ranking(workspace), workspace.releases.stack
    train_version(workspace, "v2", 4)
    tune(workspace, STACK, queries=QUERIES, qrels=QRELS)
    asked: dict[str, Any] = {"queries": QUERIES, "qrels": QRELS, "measure": "RR", "force": True}
    dry = promote(workspace, dry_run=True, **asked)
    assert (dry.promoted, workspace.releases.stack) == (False, first)
    # By hand: the relevant document is first for two of four queries, and last of five for the others.
    report = promote(workspace, **asked)
    assert (report.before_value, report.value) == (pytest.approx((1 + 1 + 0.2 + 0.2) / 4), 1.0)
    assert (report.wins, report.losses, report.promoted) == (2, 0, True)
    assert 0 < report.p <= 1
    assert workspace.versions() == {"lsi": "v2"}
    assert (report.version, dict(workspace.releases.history[-1].gate)["value"]) == (2, 1.0)
    used = workspace.releases
    actual = rollback(workspace, dry_run=True)
    assert (actual.version, actual.rolled_back_version, workspace.releases) == (1, 2, used)
    actual = rollback(workspace)
    assert (actual.stack, actual.rolled_back, actual.encoded) == (first, report.stack, {})
    assert (ranking(workspace), missing_by_version(workspace)["v1"]) == (before, 0)
    with pytest.raises(UsageError, match="no other stack was in use before"):
        rollback(workspace)
    assert promote(workspace, **asked).promoted  # it is a candidate again
    assert len(workspace.releases.all()) == 2  # without a new version


def test_promoted_versions_are_never_lost(workspace: Workspace) -> None:
    """They survive a training, a tuning, a refused candidate, weights of the user, and a rollback."""
    train_version(workspace, "v2", 4)
    promoted = tune(workspace, STACK, queries=QUERIES, qrels=QRELS).stack
    assert promote(workspace, queries=QUERIES, qrels=QRELS, force=True).version == 2
    best = ranking(workspace)
    train_version(workspace, "v3", 0)
    refused = Stack.parse("lsi*0.9 + tfidf*0.1", versions={"lsi": "v3"})
    refused.save(workspace.stack_path(("lsi", "tfidf")))
    assert not promote(workspace, queries=QUERIES, qrels=QRELS).promoted
    assert rollback(workspace).version == 1
    workspace.use_stack("lsi*0.5 + tfidf*0.5")
    assert workspace.stack(STACK, latest=True) == refused  # the stack in use does not overwrite a candidate
    assert workspace.use_stack("2") == promoted
    assert ranking(workspace) == best
    assert [*workspace.releases.all()] == [3, 2, 1]
    assert [rollback(workspace).version for _ in range(2)] == [3, 1]
    with pytest.raises(UsageError, match="no stack has the version 9"):
        workspace.use_stack("9")


def test_a_candidate_with_the_same_ranking_as_the_stack_is_refused(workspace: Workspace) -> None:
    """This also holds for a candidate with another measure, or written by the user."""
    used = workspace.releases
    weights = str(used.stack)
    asked: dict[str, Any] = {"queries": QUERIES, "qrels": QRELS}
    tuned = tune(workspace, STACK, measure="RR", normalizations=[used.stack.combiner.normalization], **asked)
    assert (str(tuned.stack), tuned.stack == used.stack) == (weights, False)
    with pytest.raises(UsageError, match="ranks exactly as the stack in use"):
        promote(workspace, **asked)
    assert workspace.releases == used


def test_a_candidate_changed_during_the_comparison_is_not_promoted(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_version(workspace, "v2", 4)
    tune(workspace, STACK, queries=QUERIES, qrels=QRELS)
    path, used = workspace.stack_path(("lsi", "tfidf")), workspace.releases

    def tuned_during_comparison(*args: Any, **settings: Any) -> Any:
        Stack.parse("lsi*0.1 + tfidf*0.9", versions={"lsi": "v2"}).save(path)
        return compare(*args, **settings)

    monkeypatch.setattr("rerank.workflows.promote.compare", tuned_during_comparison)
    with pytest.raises(BusyError, match="compare again"):
        promote(workspace, queries=QUERIES, qrels=QRELS, force=True)
    assert workspace.releases == used


def test_features_are_kept_if_a_stack_cannot_be_read(workspace: Workspace) -> None:
    """The needed versions are unknown then. Encoding an older version also keeps the newest features."""
    train_version(workspace, "v2", 4)
    encode(workspace, [workspace.ranker("lsi", "v1")])
    assert missing_by_version(workspace) == {"v1": 0, "v2": 0, "v3": 20}
    workspace.stack_path(("lsi", "tfidf")).write_text("{")
    workspace.engine.write([Document("fig9", text="fig wanted")])
    assert encode(workspace).encoded == {"lsi": 2}
    assert missing_by_version(workspace) == {"v1": 0, "v2": 0, "v3": 21}


def test_the_features_of_three_versions_are_kept(workspace: Workspace) -> None:
    """Features of older versions are removed. Their rankers are kept, and a rollback encodes again."""
    for i in range(2, 7):
        train_version(workspace, f"v{i}", 4)
        tune(workspace, STACK, queries=QUERIES, qrels=QRELS)
        assert promote(workspace, queries=QUERIES, qrels=QRELS, force=True).promoted
    train_version(workspace, "v7", 4)
    folders = sorted(path.name for path in (workspace.folder / "rankers").glob("lsi-*"))
    assert folders == [f"lsi-v{i}" for i in range(1, 8)]
    stored = workspace.folder / "engine" / "data-0" / "features" / "lsi"
    assert sorted(path.name for path in stored.iterdir()) == [f"v{i}" for i in range(3, 8)]
    names = [rollback(workspace).stack.versions["lsi"] for _ in range(KEPT_RELEASES + 2)]
    assert names == ["v5", "v4", "v3", "v2", "v1"]
    assert missing_by_version(workspace)["v1"] == 0
    # Results of comparisons are also kept, and the features of the latest versions.
    shown = status(workspace).releases
    assert [one.version for one in shown] == [6, 5, 4, 3, 2, 1]
    assert [one.version for one in shown if one.in_use] == [1]
    assert [bool(one.gate) for one in shown] == [True] * 5 + [False]
    assert workspace.use_stack("6").versions == {"lsi": "v6"}
    assert rollback(workspace).version == 1


def test_a_service_uses_the_stack_in_use(workspace: Workspace) -> None:
    settings = Settings(folder=str(workspace.folder))

    def version(snapshot: Snapshot, stack: str | None = None) -> str:
        _, scorer = snapshot.scorer(stack)
        return scorer.features["lsi"]

    first = Snapshot(settings)
    workspace.install(ranker("v2", 4))
    second = Snapshot(settings)
    assert second.waits_for(first) is None  # v2 has no features yet, but no stack uses it
    assert [version(second, stack) for stack in (None, STACK, "lsi", "lsi*0.5 + tfidf*0.5")] == ["v1"] * 4
    encode(workspace)
    tune(workspace, STACK, queries=QUERIES, qrels=QRELS)
    tune(workspace, f"{STACK},bm25", queries=QUERIES, qrels=QRELS)  # the first stack with these signals
    third = Snapshot(settings)
    actual = [version(third, stack) for stack in (None, STACK, "lsi", f"{STACK},bm25")]
    assert actual == ["v1", "v1", "v1", "v2"]
    promote(workspace, queries=QUERIES, qrels=QRELS, force=True)
    fourth = Snapshot(settings)
    assert (fourth.waits_for(third), version(fourth), version(fourth, "lsi")) == (None, "v2", "v2")
    workspace.engine.write([Document("new", text="apple wanted")])
    workspace.rollback()
    last = Snapshot(settings)
    assert (last.waits_for(fourth), version(last)) == (None, "v1")  # it does not wait for one document


def test_impossible_promotions_are_refused(workspace: Workspace, run: Any, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"queries": QUERIES, "qrels": QRELS}
    workspace.install(ranker("v2", 4))
    with pytest.raises(UsageError, match="lsi was trained again: tune it"):
        promote(workspace, **asked)
    empty = Workspace.create(tmp_path / "empty", lang="en")
    with pytest.raises(UsageError, match="no stack is in use, so there is nothing to compare with"):
        promote(empty, **asked)
    path = workspace.folder / "releases.json"
    path.write_text('{"history": [{}]}')
    with pytest.raises(WorkspaceError, match=r"releases\.json: damaged"):
        workspace.search("apple")
    path.write_text('{"history": [{"version": 7, "since": "", "gate": {}}], "stacks": {}}')
    with pytest.raises(WorkspaceError, match=r"releases\.json: damaged.*choose a stack"):
        workspace.search("apple")
    path.unlink()
    assert workspace.default_stack == "bm25"
    train_version(workspace, "v3", 0)
    assert workspace.versions() == {"lsi": "v3"}  # without a stack in use, the newest version


def test_a_rollback_to_a_removed_version_is_refused(workspace: Workspace) -> None:
    train_version(workspace, "v2", 4)
    tune(workspace, STACK, queries=QUERIES, qrels=QRELS)
    promote(workspace, queries=QUERIES, qrels=QRELS, force=True)
    used = workspace.releases
    (workspace.folder / "rankers" / "lsi-v1").rename(workspace.folder / "elsewhere")
    with pytest.raises(UsageError, match="needs lsi v1, which is not in"):
        rollback(workspace)
    with pytest.raises(UsageError, match="needs lsi v1, which is not in"):
        workspace.use_stack("1")
    assert workspace.releases == used


def test_status_names_rankers_that_a_stack_needs_and_the_workspace_lacks(
    workspace: Workspace, run: Any
) -> None:
    shutil.rmtree(workspace.folder / "rankers")
    assert [state.missing for state in status(workspace.folder).releases] == [["lsi"]]
    assert "missing: lsi; train again, or use another stack" in run("status", "-w", workspace.folder).out


def test_promote_and_rollback_commands(workspace: Workspace, run: Any, tmp_path: Path) -> None:
    where = ("-w", workspace.folder)
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text("".join(json.dumps({"_id": q.id, "text": q.text}) + "\n" for q in QUERIES))
    rows = "".join(f"{q}\t{d}\t1\n" for q in QRELS for d in QRELS[q])
    qrels.write_text("query-id\tcorpus-id\tscore\n" + rows)
    files = ("--queries", queries, "--qrels", qrels)
    workspace.install(ranker("v2", 4), TrainingRecord.from_queries(QRELS, trained=["fig"]))
    encode(workspace)
    assert "lsi v1" in run("query", "apple", *where).err
    assert "rerank stack promote" in run("tune", "--stack", STACK, *files, *where).out
    # Two of four queries gain. By hand: p is 0.5, because 2 of 4 sign patterns are as far from 0.
    done = run("stack", "promote", *files, "--measure", "RR", *where)
    assert (done.code, "not shown" in done.out, "p 0.5000" in done.out) == (1, True, True)
    assert workspace.releases.number == 1
    done = run("stack", "promote", *files, "--measure", "RR", "--force", *where)
    assert (done.code, "0.6000" in done.out, "1.0000" in done.out) == (0, True, True)
    assert "lsi was trained on 1" in done.err
    releases = run("status", *where, "--json").json["releases"]
    assert [(one["version"], one["in_use"]) for one in releases] == [(2, True), (1, False)]
    assert [one["versions"] for one in releases] == [{"lsi": "v2"}, {"lsi": "v1"}]
    run("stack", "rollback", *where, "--dry-run")
    assert not Releases.load(workspace.folder).rolled_back
    assert f"rerank stack use 2 -w {workspace.folder}" in run("stack", "rollback", *where).out
    assert Releases.load(workspace.folder).rolled_back
    run("stack", "rollback", *where).fails(2, f"rerank stack use STACK -w {workspace.folder}")
    Stack.parse("lsi*0.05 + tfidf*0.95", versions={"lsi": "v2"}).save(workspace.stack_path(["lsi", "tfidf"]))
    done = run("stack", "promote", *files, "--json", *where)
    assert (done.code, json.loads(done.out)["promoted"]) == (1, False)
    assert run("stack", "promote", *where).code == 2
