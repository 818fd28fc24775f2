"""`rerank auto` on a folder with a click log: what trains, what tests, and what is not activated."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import rerank
from rerank.common.errors import InputError
from rerank.formats import read_qrels, read_queries
from rerank.judging.judgments import HandJudgment, JudgmentFile
from rerank.judging.pool import Pool, judged_file
from rerank.rankers.cnn.ranker import CnnRanker
from rerank.workflows.auto.files import read_folder
from rerank.workflows.auto.plan import CLICK_NETWORKS, RULES
from tests.support.click_logs import page, write

WORDS = [
    f"{first}{second}"
    for first in ("gra", "blu", "tor", "nel", "sim")
    for second in ("pi", "mo", "ka", "du", "le")
]


def write_collection(folder: Path) -> None:
    """Each document has two words; each word is a query, and users click the first or the second hit."""
    lines = []
    for number, word in enumerate(WORDS):
        other = WORDS[(number + 1) % len(WORDS)]
        lines.append({"_id": f"d{number}", "title": word, "text": f"{word} {other} {other} text about both"})
    write(folder / "corpus.jsonl", lines)
    records = []
    for number, word in enumerate(WORDS):
        hits = [f"d{number}", f"d{number - 1 if number else len(WORDS) - 1}"]
        for visit in range(4):
            records += page(f"{number} {visit}", word, hits, [hits[number % 2]])
        for step in range(2, 7):
            other = (number + step) % len(WORDS)
            hits = [f"d{number}", f"d{other}"]
            records += page(f"{word} {step}", f"{word} {WORDS[other]}", hits, [hits[step % 2]])
    write(folder / "ubi_events.ndjson", records)


def simplify(patch: pytest.MonkeyPatch) -> None:
    """Train no ranker, so that no encoder is needed, and draw few samples for intervals and halves."""
    patch.setattr("rerank.workflows.auto.plan.RULES", ())
    patch.setattr("rerank.workflows.auto.training.Trainings.part_seconds", 0.01)
    patch.setattr("rerank.workflows.auto.halves.DRAWS", 4)
    patch.setattr("rerank.evaluation.significance.BOOTSTRAPS", 500)


@pytest.fixture
def folder(tmp_path):
    write_collection(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a folder and its workspace after a first run, which has written a pool. Tests use a copy."""
    folder = tmp_path_factory.mktemp("built")
    write_collection(folder)
    with pytest.MonkeyPatch.context() as patch:
        simplify(patch)
        rerank.auto(folder, folder / "workspace")
    return folder


@pytest.fixture
def pooled(built, tmp_path):
    return shutil.copytree(built, tmp_path / "pooled")


@pytest.fixture(autouse=True)
def simplified(monkeypatch):
    simplify(monkeypatch)


def test_click_logs_are_found_by_their_names(folder):
    (folder / "clicks.csv.gz").touch()
    (folder / "ubi_queries.ndjson").touch()
    files = read_folder(folder)
    names = [path.name for path in files.clicks]
    assert names == ["clicks.csv.gz", "ubi_events.ndjson", "ubi_queries.ndjson"]
    assert set(files.clicks) <= set(files.files())
    (folder / "qrels.tsv").touch()
    with pytest.raises(InputError, match=r"no queries\.jsonl"):
        read_folder(folder)


def test_without_judged_queries_nothing_is_activated_or_claimed(run, folder, tmp_path):
    workspace = tmp_path / "workspace"
    done = run("auto", folder, "-w", workspace).ok()
    assert "not active" in done.out
    assert "significantly" not in done.out
    opened = rerank.Workspace.open(workspace)
    assert not opened.releases.history
    assert opened.default_stack == "bm25"
    (stack_file,) = (workspace / "stacks").glob("*.json")
    stack = json.loads(stack_file.read_text("utf-8"))
    assert stack["tuned"]["least_share"] == 0.3
    assert stack["tuned"]["protocol"] == "judged"
    assert stack["normalization"] == "fitted"
    assert not (workspace / "report.html").exists()
    assert not (workspace / "splits" / "test.tsv").exists()
    assert f"rerank serve -w {workspace} --judge {workspace / 'pool.json'}" in done.out
    assert f"rerank auto {folder} -w {workspace}" in done.out


def test_rankers_learn_from_clicks_with_several_networks(folder, tmp_path, monkeypatch):
    (text_rule,) = [rule for rule in RULES if rule.ranker == "text"]
    monkeypatch.setattr("rerank.workflows.auto.plan.RULES", (replace(text_rule, epochs=(1, 1, 1)),))
    rerank.auto(folder, tmp_path / "workspace")
    ranker = rerank.Workspace.open(tmp_path / "workspace").ranker("text")
    assert isinstance(ranker, CnnRanker)
    assert len(ranker.networks) == CLICK_NETWORKS


def judge_pool(workspace: Path, relevant: dict[str, str]) -> int:
    """Judge the pool of a workspace as a person would: query text -> its relevant document."""
    pool = Pool.load(workspace / "pool.json")
    file = JudgmentFile(judged_file(workspace / "pool.json"))
    for query in pool.queries:
        for hit in query.hits:
            file.append(HandJudgment(query.id, hit.id, 3 if relevant[query.text] == hit.id else 0, by="ann"))
    return len(pool.queries)


def test_a_judged_pool_tunes_and_tests(run, pooled):
    workspace = pooled / "workspace"
    queries = {query.text: query for query in read_queries(workspace / "clicks" / "queries.jsonl")}
    assert queries[WORDS[0]].params["count"] == 4
    train = read_qrels(workspace / "splits" / "train.tsv")
    pool = Pool.load(workspace / "pool.json")
    assert not {query.id for query in pool.queries} & set(train)
    judged = judge_pool(workspace, {text: f"d{WORDS.index(text.split()[0])}" for text in queries})
    report = run("auto", pooled, "-w", workspace, "--json").json
    splits = {
        name: set(read_qrels(workspace / "splits" / f"{name}.tsv")) for name in ("train", "dev", "test")
    }
    assert splits["train"] == set(train)
    assert len(splits["dev"]) + len(splits["test"]) == judged
    assert not splits["dev"] & splits["test"]
    assert report["evaluated"]["queries"] == len(splits["test"])
    opened = rerank.Workspace.open(workspace)
    assert opened.releases.history
    assert opened.stack(opened.default_stack).combiner.normalization == "fitted"
    again = run("auto", pooled, "-w", workspace).ok()
    assert "Test queries" in again.out


def test_queries_judged_by_hand_leave_the_training(folder, tmp_path):
    """Also if the log writes them in another case."""
    hand = [{"_id": f"hand {number}", "text": word.upper()} for number, word in enumerate(WORDS[:10])]
    write(folder / "queries.jsonl", hand)
    rows = [f"hand {number}\td{number}\t2" for number in range(10)]
    (folder / "qrels.tsv").write_text("\n".join(rows))
    report = rerank.auto(folder, tmp_path / "workspace")
    splits = {name: read_qrels(path) for name, path in report.splits.items()}
    assert set(splits["dev"]) | set(splits["test"]) == {f"hand {number}" for number in range(10)}
    assert len(splits["dev"]) == len(splits["test"]) == 5
    texts = {query.id: query.text for query in read_queries(report.queries)}
    trained = {texts[query] for query in splits["train"]}
    assert trained
    assert not trained & set(WORDS[:10])
    assert any("on 5 queries of dev: " in message for message in report.messages), "clicks compare nothing"
    assert report.evaluated is not None
    assert report.evaluated.queries == len(splits["test"])


def test_given_dev_and_test_queries_stay_as_they_are(folder, tmp_path):
    write(
        folder / "queries.jsonl", [{"_id": f"q{number}", "text": word} for number, word in enumerate(WORDS)]
    )
    (folder / "qrels").mkdir()
    for name, numbers in (("dev", range(6)), ("test", range(6, 12))):
        rows = [f"q{number}\td{number}\t1" for number in numbers]
        (folder / "qrels" / f"{name}.tsv").write_text("\n".join(rows))
    report = rerank.auto(folder, tmp_path / "workspace")
    assert set(read_qrels(report.splits["dev"])) == {f"q{number}" for number in range(6)}
    assert set(read_qrels(report.splits["test"])) == {f"q{number}" for number in range(6, 12)}


def test_train_queries_without_a_text_do_not_train(folder, tmp_path):
    hand = [{"_id": f"q{number}", "text": word} for number, word in enumerate(WORDS[:13])]
    write(folder / "queries.jsonl", hand)
    (folder / "qrels").mkdir()
    for name, ids in (("dev", range(6)), ("test", range(6, 12)), ("train", (12, 99))):
        (folder / "qrels" / f"{name}.tsv").write_text("\n".join(f"q{id}\td0\t1" for id in ids))
    report = rerank.auto(folder, tmp_path / "workspace")
    train = set(read_qrels(report.splits["train"]))
    assert "q12" in train
    assert "q99" not in train
    assert any("1 train query without text" in message for message in report.messages)


def test_too_few_judgments_are_refused(folder, tmp_path):
    write(folder / "queries.jsonl", [{"_id": "q", "text": "one"}])
    (folder / "qrels.tsv").write_text("q\td1\t1\n")
    with pytest.raises(InputError, match="people judged 1 query with a relevant document: 10 are needed"):
        rerank.auto(folder, tmp_path / "workspace")
    (folder / "qrels.tsv").unlink()
    write(folder / "ubi_events.ndjson", page("1", WORDS[0], ["d0", "d1"], ["d1"]))
    with pytest.raises(InputError, match=r"the clicks judge . quer.* to tune"):
        rerank.auto(folder, tmp_path / "workspace")
    (folder / "ubi_events.ndjson").write_text("{]\n")
    with pytest.raises(InputError, match=r"ubi_events\.ndjson:1: invalid JSON"):
        rerank.auto(folder, tmp_path / "workspace")
    assert not (tmp_path / "workspace").exists()  # all errors come before the documents are ingested


def test_each_kind_of_unused_records_is_counted_in_one_line(folder, tmp_path):
    events = (folder / "ubi_events.ndjson").read_text()
    others = [{**json.loads(line), "action_name": "scroll"} for line in events.splitlines()[-3:]]
    lines = "".join(json.dumps(event) + "\n" for event in others)
    (folder / "ubi_events.ndjson").write_text(events + lines)
    report = rerank.auto(folder, tmp_path / "workspace")
    assert report.clicks.dropped
    (counts,) = [line for line in report.messages if line.startswith("clicks: not used as logged: ")]
    for drop in report.clicks.dropped:
        assert f"{drop.reason} ({drop.count:,})" in counts
    assert "other actions (3)" in counts


def test_without_judgments_and_clicks_auto_writes_a_pool_and_uses_its_grades(run, folder, tmp_path):
    (folder / "ubi_events.ndjson").unlink()
    queries = [{"_id": f"q{number}", "text": word} for number, word in enumerate(WORDS)]
    write(folder / "queries.jsonl", queries)
    workspace = tmp_path / "workspace"
    done = run("auto", folder, "-w", workspace).ok()
    assert "No query is judged" in done.out
    assert f"rerank serve -w {workspace} --judge {workspace / 'pool.json'}" in done.out
    assert not rerank.Workspace.open(workspace).releases.history
    assert not (workspace / "splits").exists()
    assert len(Pool.load(workspace / "pool.json").queries) == len(WORDS)
    judge_pool(workspace, {word: f"d{number}" for number, word in enumerate(WORDS)})
    done = run("auto", folder, "-w", workspace).ok()
    assert "The stack" in done.out or "No stack is better" in done.out
    report = rerank.auto(folder, workspace)
    assert report.evaluated is not None
    assert report.evaluated.queries == 12  # half of 25
    (workspace / "pool.judged.jsonl").unlink()
    done = run("auto", folder, "-w", workspace).ok()
    assert f"no ranker is trained. {report.workspace.releases.name} is active." in done.out


@pytest.mark.parametrize("n_differing", [0, 4, 8, 15])
def test_queries_on_which_the_stacks_differ_tune_first(pooled, n_differing):
    """The others test, so that the measured gain is the gain of users. The sizes stay the same."""
    workspace = pooled / "workspace"
    path = workspace / "pool.json"
    pool = Pool.load(path)
    reasons = dict.fromkeys([query.id for query in pool.queries], "traffic")
    differing = sorted(reasons)[:n_differing]
    reasons |= dict.fromkeys(differing, "difference")
    queries = [msgspec.structs.replace(query, reason=reasons[query.id]) for query in pool.queries]
    msgspec.structs.replace(pool, queries=tuple(queries)).save(path)
    texts = {query.text for query in pool.queries}
    judged = judge_pool(workspace, {text: f"d{WORDS.index(text.split()[0])}" for text in texts})
    report = rerank.auto(pooled, workspace)
    dev = set(read_qrels(report.splits["dev"]))
    assert len(dev) == round(0.6 * judged)
    assert len(dev & set(differing)) == min(n_differing, len(dev))
    assert dev | set(read_qrels(report.splits["test"])) == set(reasons)
