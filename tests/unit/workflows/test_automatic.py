"""`rerank auto`: the stack it builds from a folder, its splits, its choice of rankers, and resuming."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from pathlib import Path

import pytest

import rerank
from rerank import Qrels, Query
from rerank.common.errors import InputError, WorkspaceError
from rerank.workflows.auto import plan as ranker_plan
from rerank.workflows.auto.files import read_folder
from rerank.workflows.auto.plan import CollectionFacts, Rule, query_seconds, unmet
from rerank.workflows.auto.splits import split
from rerank.workflows.auto.training import Deadline
from tests.support.progress import Watch
from tests.support.rankers import cnn

QUERIES = [Query(f"q{i:03}", f"word{i}") for i in range(300)]


def judged(first, last):
    return Qrels((query.id, "d", 1) for query in QUERIES[first:last])


def parts(given, **how):
    found = split(given, QUERIES, {"d"}, **how)
    return found, set(found.train), set(found.dev), set(found.test)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ["corpus.jsonl.gz", "queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv.gz"],
            {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv.gz"},
        ),
        (["corpus.jsonl", "queries.jsonl.gz", "qrels.tsv"], {"all": "qrels.tsv"}),
        (
            ["corpus.jsonl", "queries.jsonl", "qrels.tsv", "qrels/train.tsv", "qrels/test.tsv"],
            {"train": "train.tsv", "test": "test.tsv"},
        ),
    ],
)
def test_files_are_recognized_by_their_names(tmp_path, names, told):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    actual = read_folder(tmp_path)
    assert {name: path.name for name, path in actual.qrels.items()} == told
    assert actual.categories is None
    (tmp_path / "categories.tsv").touch()
    assert tmp_path / "categories.tsv" in read_folder(tmp_path).files()


@pytest.mark.parametrize("name", ["validation.tsv", "valid.csv", "val.tsv.gz"])
def test_other_names_of_the_dev_split_are_read(tmp_path, name):
    (tmp_path / "qrels").mkdir()
    for file in ("corpus.csv", "queries.jsonl.bz2", f"qrels/{name}"):
        (tmp_path / file).write_bytes(b"")
    folder = read_folder(tmp_path)
    assert folder.qrels == {"dev": tmp_path / "qrels" / name}
    assert (folder.corpus.name, folder.queries.name) == ("corpus.csv", "queries.jsonl.bz2")
    (tmp_path / "qrels" / "dev.tsv").write_bytes(b"")
    with pytest.raises(InputError, match="have the same meaning"):
        read_folder(tmp_path)


def test_judgments_of_no_split_are_named(tmp_path):
    (tmp_path / "qrels").mkdir()
    names = ("corpus.csv", "queries.tsv", "qrels.tsv", "qrels/dev.tsv", "qrels/dev.tsv.gz", "qrels/eval.tsv")
    for name in (*names, "categories.tsv", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert read_folder(tmp_path).unread_judgments() == ["qrels.tsv", "qrels/eval.tsv"]


def test_given_splits_are_used_unchanged():
    given = {"train": judged(0, 200), "dev": judged(200, 250), "test": judged(250, 300)}
    actual, *_ = parts(given)
    assert (actual.train, actual.dev, actual.test, actual.notes) == (*given.values(), ())


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"all": judged(0, 300)}, (180, 60, 60)),
        ({"test": judged(0, 300)}, (180, 60, 60)),
        ({"train": judged(0, 250), "test": judged(250, 300)}, (200, 50, 50)),
        ({"dev": judged(0, 250), "test": judged(250, 300)}, (200, 50, 50)),
        ({"train": judged(0, 250), "dev": judged(250, 300)}, (200, 50, 50)),
        ({"all": judged(0, 40)}, (0, 20, 20)),
        ({"train": judged(0, 40), "dev": judged(40, 60), "test": judged(60, 90)}, (0, 60, 30)),
        ({"dev": judged(0, 40), "test": judged(60, 90)}, (0, 40, 30)),
    ],
)
def test_missing_splits_are_sampled(given, sizes):
    actual, train, dev, test = parts(given)
    assert (len(train), len(dev), len(test)) == sizes
    assert not train & dev
    assert not (train | dev) & test
    assert actual.notes
    if "all" in given:
        names = [name for name, size in zip(("train", "dev", "test"), sizes) if size]
        assert actual.notes == (f"{', '.join(names)} queries are drawn from one file of judgments",)
    if "test" in given and len(given) > 1:
        assert actual.test == given["test"]
    assert parts(given) == parts(given)
    if "all" in given:
        assert parts(given, seed=1) != parts(given)


def test_equal_queries_are_in_the_same_split():
    queries = [Query(f"q{i:03}", f"Word  {i // 2}" if i % 2 else f"word {i // 2}") for i in range(200)]
    everything = Qrels((query.id, "d", 1) for query in queries)
    drawn = split({"all": everything}, queries, {"d"})
    texts = [{int(id[1:]) // 2 for id in one} for one in (drawn.train, drawn.dev, drawn.test)]
    assert sum(map(len, texts)) == 100
    halves = {
        "train": Qrels((q.id, "d", 1) for q in queries[::2]),
        "test": Qrels((q.id, "d", 1) for q in queries[1:40:2]),
    }
    given = split(halves, queries, {"d"})
    assert len(given.test) == 20
    assert len(given.train) + len(given.dev) == 80
    assert given.notes[0] == "20 train queries also in test or dev: not used for train"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"all": judged(0, 9)}, "9 .*10 are needed, 5 for dev and 5 for test"),
        ({"train": judged(0, 90), "test": judged(90, 93)}, "3 for test are too few"),
    ],
)
def test_too_few_queries_are_refused(given, what):
    with pytest.raises(InputError, match=f"{what}.*; judge more queries"):
        split(given, QUERIES, {"d"})
    with pytest.raises(InputError, match="0 judged queries with a text and a relevant document"):
        split(given, QUERIES, {"elsewhere"})


def test_queries_of_a_given_test_set_are_never_used_for_training():
    """This includes a query whose documents are missing. It is measured and counts as 0."""
    test = Qrels([*((query.id, "d", 1) for query in QUERIES[250:]), ("q000", "elsewhere", 1)])
    actual, train, dev, measured = parts({"train": judged(0, 250), "test": test})
    assert "q000" in measured
    assert not (train | dev) & measured
    assert actual.notes[1] == "1 train query also in test or dev: not used for train"


def test_large_collections_get_fewer_epochs():
    (rule,) = [rule for rule in ranker_plan.RULES if rule.ranker == "meta"]
    steps = [
        rule.epoch_count(CollectionFacts(documents=documents, train_queries=100, train_pairs=pairs))
        for documents, pairs in ((20_000, 20_000), (20_001, 5), (5, 20_001), (5, 200_001))
    ]
    assert steps == [12, 6, 6, 3]


def test_encoders_have_time_for_the_queries():
    """dense and adapter share an encoder, dense_judged has another one; dense_links has no links."""
    facts = CollectionFacts(documents=9, train_queries=60, dev_queries=100, test_queries=50)
    assert query_seconds(facts, {"links"}, 0.01) == pytest.approx(2 * 150 * 0.01)
    assert query_seconds(facts, {"links", "queries"}, 0.01) == pytest.approx(150 * 0.01)
    assert query_seconds(facts, {"model"}, 0.01) == 0


def test_a_fine_tuned_encoder_reads_the_passages_of_its_preset():
    """128 tokens are two parts; dense_links reads eight passages of one part, if a document has as many."""
    rules = {rule.ranker: rule for rule in ranker_plan.RULES}
    for words, judged_parts, links_parts in ((0, 1, 1), (60, 2, 3), (2_000, 2, 8)):
        facts = CollectionFacts(documents=10, words=10 * words, train_queries=60)
        actual = (rules["dense_judged"].parts(facts), rules["dense_links"].parts(facts))
        assert actual == (judged_parts, links_parts), words


def test_rules_choose_rankers_by_the_facts_of_the_collection():
    def trained(**facts):
        reasons = unmet(CollectionFacts(documents=2000, **facts))
        return [rule.ranker for rule in ranker_plan.RULES if reasons.keys().isdisjoint(rule.needs)]

    assert trained(train_queries=500) == ["s2net", "text"]
    assert trained(train_queries=500, with_categories=0.5) == ["meta", "s2net", "text"]
    assert trained(train_queries=0, with_categories=0.5) == []
    rich = {"train_queries": 500, "links": 3.0, "model": True}
    assert trained(**rich) == ["dense", "s2net", "adapter", "dense_judged", "text", "dense_links"]
    assert trained(**{**rich, "links": 0.1}) == ["dense", "s2net", "adapter", "dense_judged", "text"]
    assert trained(**{**rich, "model": False}) == ["s2net", "text"]
    assert trained(**rich, can_learn=False) == ["dense", "s2net", "adapter", "text"]
    assert trained(train_queries=20, model=True) == ["dense"]
    named = {"model": True, "with_categories": 0.5, "mentioned_names": 0.4}
    assert trained(train_queries=20, **named) == ["dense", "dense_names"]
    assert trained(train_queries=20, **{**named, "mentioned_names": 0.2}) == ["dense"]
    assert trained(train_queries=20, **named, languages=("it", "it"), reads="en") == []
    assert "dense_names" not in trained(train_queries=500, **named)  # meta learns from the judgments
    # An encoder of one language needs judgments for another. A model that the user named reads any
    # language.
    for languages, reads in (
        (("en", "en"), True),
        (("en", None), True),
        ((None, None), True),
        (("it", "it"), False),
        (("it", None), False),
        (("it", "en"), False),
    ):
        of = {**rich, "languages": languages}
        for one in ("dense_links", "dense_judged"):
            assert (one in trained(**of, reads="en")) == reads, (one, languages)
        assert ("dense" in trained(**{**of, "train_queries": 20}, reads="en")) == reads, languages
        assert "adapter" in trained(**of, reads="en"), languages
        assert "dense_links" in trained(**of), languages
    facts = CollectionFacts(documents=2000, **rich, languages=("it", "en"), reads="en")
    assert "reads 'en', but there are texts in 'it'; --model" in unmet(facts)["language"]


QUICK = {"dim": 20, "letters": 0}
LSI = Rule("lsi", (), "it is quick", config=QUICK)
CLLSI = Rule("cllsi", (), "it is quick, too", config=QUICK)


@pytest.fixture
def folder(small, tmp_path):
    """100 documents with short texts: compressed, and with a judged query for each one in one file."""
    path = tmp_path / "theirs"
    path.mkdir()
    asked = [json.loads(line)["_id"] for line in Path(small.queries).read_text().splitlines()[:100]]
    documents = [{**one, "text": one["text"][:200]} for one in small.documents if f"q:{one['_id']}" in asked]
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (path / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    shutil.copy(small.queries, path / "queries.jsonl")
    rows = [f"{id}\t{id.removeprefix('q:')}\t1\n" for id in asked]
    (path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return path


def without_encoder_measurement(patch):
    """Do not measure the speed of an encoder that no rule needs, which loads its weights."""
    patch.setattr("rerank.workflows.auto.training.Trainings.part_seconds", 0.01)


@pytest.fixture
def quick(monkeypatch):
    """Do not measure the speed of an encoder, and draw fewer samples for intervals."""
    without_encoder_measurement(monkeypatch)
    monkeypatch.setattr("rerank.evaluation.significance.BOOTSTRAPS", 1000)


@pytest.mark.usefixtures("quick")
def test_auto_builds_a_stack_from_a_folder_and_resumes(run, folder, tmp_path, monkeypatch):
    rules = (LSI, CLLSI, ranker_plan.RULES[-1])
    monkeypatch.setattr(ranker_plan, "RULES", rules)
    with pytest.raises(KeyboardInterrupt, match="; run it again to continue"):
        rerank.auto(folder, tmp_path / "ws", progress=Watch(title="fit cllsi"))
    assert rerank.Workspace.open(tmp_path / "ws").trained() == ["lsi"]
    done = run("auto", folder, "-w", tmp_path / "ws").ok()
    for part in (
        "files: corpus.jsonl.gz, queries.jsonl, qrels.tsv\n",
        "ingest: 100 documents (en): 0 added, 0 updated, 100 unchanged\n",
        "queries: train, dev, test queries are drawn from one file of judgments\n",
        "rankers: lsi is trained: it is quick (done before)\n",
        "rankers: cllsi is trained: it is quick, too\n",
        "rankers: dense_links is skipped: fewer than 0.5 links per document\n",
        f"report: {tmp_path / 'ws' / 'report.html'}\n",
    ):
        assert part in done.err
    for part in ("Test queries; ", "p nDCG@10 (Holm)", "Next:\n"):
        assert part in done.out
    # The commands that it prints give the same results.
    report = run("auto", folder, "-w", tmp_path / "ws", "--json").json
    assert report["better"] == ("is significantly better" in done.out)
    command = next(line for line in done.out.splitlines() if line.startswith("  rerank evaluate"))
    again = run(*command.split()[1:], "--json").json
    assert again["results"] == report["evaluated"]["results"]
    assert all(not row["leaks"] for row in again["results"])
    status = run("status", "-w", tmp_path / "ws", "--json").json
    (used,) = [one["stack"] for one in status["releases"] if one["in_use"]]
    assert f"tune: {used} (" in done.err
    assert "<html" in (tmp_path / "ws" / "report.html").read_text()
    # Other judgments: rankers of the previous judgments are trained again.
    rows = (folder / "qrels.tsv").read_text().splitlines()
    (folder / "qrels.tsv").write_text("\n".join(rows[:-1]) + "\n")
    said = Watch()
    (tmp_path / "ws" / "training" / "s2net").mkdir(parents=True)  # an interrupted training
    actual = rerank.auto(folder, tmp_path / "ws", progress=said)
    assert not (tmp_path / "ws" / "training").exists()
    assert "rankers: lsi is trained: it is quick" in said.said
    assert repr(actual).startswith("lsi is trained: it is quick\n")
    assert "<table>" in actual._repr_html_()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("relevant", "neighbors"), [(4, ranker_plan.NEIGHBORS), (1, 0)])
def test_documents_move_if_relevant_ones_are_near(relevant, neighbors, tmp_path, monkeypatch, tiny):
    """Ten topics have four documents and a query each; the first documents of a topic are relevant."""
    monkeypatch.setattr(ranker_plan, "RULES", ranker_plan.RULES[:1])
    folder = tmp_path / "topics"
    folder.mkdir()
    documents = []
    queries = []
    rows = []
    for topic in range(10):
        words = [f"w{4 * topic + number}" for number in range(4)]
        queries.append({"_id": f"q{topic}", "text": words[0], "lang": "en"})
        for number in range(4):
            text = " ".join([*words, words[number]])
            documents.append({"_id": f"d{topic}-{number}", "text": text, "lang": "en"})
        rows += [f"q{topic}\td{topic}-{number}\t1\n" for number in range(relevant)]
    for name, records in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    report = rerank.auto(folder, tmp_path / "ws", model=tiny)
    assert report.workspace.ranker("dense").neighbors == neighbors
    assert ("neighbors" in report.choices[0].reason) == (neighbors > 0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("names", "is_read"), [("w{}_w{}", True), ("{}.{}", False), ("voce{}", False)])
def test_an_encoder_reads_the_names_of_categories(names, is_read, tmp_path, monkeypatch, tiny):
    """Names are words of the documents, codes, or words of another language."""
    monkeypatch.setattr(ranker_plan, "RULES", ranker_plan.RULES[:2])
    folder = tmp_path / "named"
    folder.mkdir()
    documents = []
    for number in range(20):
        category = names.format(number, number + 1).replace("w", "word")
        documents.append(
            {"_id": f"d{number}", "text": f"text of word{number}", "categories": [category], "lang": "en"}
        )
    queries = [{"_id": f"q{number}", "text": f"word{number}", "lang": "en"} for number in range(20)]
    for name, records in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = [f"q{number}\td{number}\t1\n" for number in range(20)]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    report = rerank.auto(folder, tmp_path / "ws", model=tiny)
    assert [choice.trained for choice in report.choices] == [True, is_read]
    if is_read:
        assert report.workspace.ranker("dense_names").names
        assert not report.workspace.ranker("dense").names


@pytest.mark.usefixtures("quick")
def test_equal_files_give_an_equal_stack(folder, tmp_path, monkeypatch):
    """This also holds in another folder, and without the `lang` field of documents and queries."""
    monkeypatch.setattr(ranker_plan, "RULES", (LSI,))
    first = rerank.auto(folder, tmp_path / "one")
    with gzip.open(folder / "corpus.jsonl.gz", "rt") as file:
        documents = [json.loads(line) for line in file]
    lines = [json.dumps({name: value for name, value in one.items() if name != "lang"}) for one in documents]
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    guessed = rerank.auto(folder, tmp_path / "guessed")
    assert guessed.workspace.lang == first.workspace.lang == "en"
    assert guessed.stack.to_json() == first.stack.to_json()


def test_work_is_interrupted_when_its_time_is_over():
    watch = Watch()
    early = Deadline(watch, time.monotonic() + 3600)
    assert list(early.over("ab", "letters")) == ["a", "b"]
    assert not early.passed
    late = Deadline(watch, time.monotonic() - 1)
    with pytest.raises(KeyboardInterrupt):
        list(late.over("ab", "letters"))
    assert late.passed


def test_without_time_the_first_stages_are_tuned(folder, tmp_path):
    actual = rerank.auto(folder, tmp_path / "ws", minutes=1e-6)
    assert [one.ranker for one in actual.choices if one.trained] == []
    assert {one.reason for one in actual.choices if one.cut} <= {
        "no time is left for it",
        "its time was over before its first measurement",
    }
    assert {*actual.stack.signals} <= {"bm25", "tfidf"}
    # With more time, the same command trains the rankers.
    rules = (LSI,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranker_plan, "RULES", rules)
        without_encoder_measurement(patch)
        assert [one.trained for one in rerank.auto(folder, tmp_path / "ws").choices] == [True]


@pytest.mark.parametrize("name", ["qrels.csv", "qrels.json"])
def test_judgments_of_query_texts_are_read(write_lines, tmp_path, name):
    write_lines(tmp_path / "corpus.jsonl", [{"_id": "d", "text": "a wolf"}])
    write_lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "Grey wolf"}])
    quepid = "query,docid,rating\ngrey  wolf,d,2\n"
    ratings = [{"docId": "d", "rating": "2"}]
    srw = json.dumps({"judgmentRatings": [{"query": "grey wolf", "ratings": ratings}]})
    (tmp_path / name).write_text(quepid if name.endswith("csv") else srw)
    with pytest.raises(InputError, match="1 judged query with a text and a relevant document"):
        rerank.auto(tmp_path, tmp_path / "ws")


def test_auto_prints_the_remarks_of_an_ingest(write_lines, tmp_path):
    documents = [{"_id": "1", "text": "Der Wolf", "lang": "de"}, {"_id": "2"}, {"_id": "3", "text": "wolf"}]
    write_lines(tmp_path / "corpus.jsonl", documents)
    write_lines(tmp_path / "queries.jsonl", [{"_id": "q", "text": "wolf"}])
    messages = rerank.auto(tmp_path, tmp_path / "ws").messages
    assert "ingest: 1 document without title and text: no words to find them by" in messages
    assert any(message.startswith("ingest: mixed languages (none 2, de 1): words") for message in messages)


def test_bad_input_of_auto_is_refused(run, write_lines, folder, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    there = ("-w", tmp_path / "ws")
    run("auto", tmp_path / "nowhere", *there).fails(1, "nowhere: no such folder")
    run("auto", folder / "qrels.tsv", *there).fails(1, "qrels.tsv: not a folder")
    run("auto", tmp_path / "empty", *there).fails(
        1, "empty: no corpus.jsonl and no queries.jsonl and no qrels"
    )
    run("auto", folder, "--url", "http://127.0.0.1:1", *there).fails(2, "--index is missing")
    run("auto", folder, "--minutes", "0", *there).fails(2, "--minutes")
    run("auto", folder, "--model", "nobody/knows", *there).fails(2, "no model on this machine")
    (folder / "qrels.tsv").rename(folder / "judged.tsv")
    run("auto", folder, *there).fails(1, f"{folder}: no qrels, but judged.tsv could be judgments; name")
    (folder / "qrels").mkdir()
    (folder / "judged.tsv").rename(folder / "qrels" / "test.tsv")
    queries = (folder / "queries.jsonl").read_text()
    (folder / "queries.jsonl").write_text(queries + "{]\n")
    with pytest.raises(InputError, match=r"queries\.jsonl:\d+: invalid JSON"):
        rerank.auto(folder, tmp_path / "ws")
    assert not (tmp_path / "ws").exists()  # the error comes before the documents are ingested
    (folder / "queries.jsonl").write_text(queries)
    all_lines = (folder / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (folder / "qrels" / "test.tsv").write_text(all_lines[1])
    needed = "10 are needed, 5 for dev and 5 for test; judge more queries"
    few = run("auto", folder, *there)
    assert few.code == 1
    assert few.err.endswith(f"rerank: 1 judged query with a text and a relevant document: {needed}\n")
    # Judgments of other documents are as few as none, and the ids are the likely cause.
    unknown = [line.split("\t") for line in all_lines[1:]]
    others = "".join(f"{query}\tother-{document}\t{grade}" for query, document, grade in unknown)
    (folder / "qrels" / "test.tsv").write_text(others)
    unknown_documents = run("auto", folder, *there)
    assert unknown_documents.code == 1
    assert f"0 judged queries with a text and a relevant document: {needed}" in unknown_documents.err
    assert not (tmp_path / "ws").exists()


def test_workspaces_that_auto_did_not_create_are_not_changed(write_lines, folder, plain):
    write_lines(plain.parent / "other.jsonl", [{"_id": "mine", "text": "mine alone"}])
    rerank.ingest(plain, [plain.parent / "other.jsonl"])
    with pytest.raises(WorkspaceError, match=r"has 1 document not in .*theirs \('mine' first\)"):
        rerank.auto(folder, plain)
    workspace = rerank.ingest(plain.parent / "ws", [folder / "corpus.jsonl.gz"]).workspace
    for name in ("meta", "text"):
        workspace.install(cnn(name))
    with pytest.raises(WorkspaceError, match=r"has rankers of another training \(meta, text\); choose"):
        rerank.auto(folder, workspace)


def test_two_forms_of_the_same_records_are_refused(tmp_path):
    """One of them may be older. A compressed copy of the same file is not another form."""
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv", "qrels.tsv.gz"):
        (tmp_path / name).touch()
    assert read_folder(tmp_path).qrels == {"all": tmp_path / "qrels.tsv"}
    (tmp_path / "corpus.csv").touch()
    with pytest.raises(InputError, match=r"corpus\.jsonl, corpus\.csv have the same meaning"):
        read_folder(tmp_path)


def test_a_compressed_copy_of_a_click_log_is_not_read_again(tmp_path):
    for name in ("corpus.jsonl", "ubi_queries.ndjson.gz", "ubi_events.ndjson", "ubi_events.ndjson.gz"):
        (tmp_path / name).touch()
    assert [file.name for file in read_folder(tmp_path).clicks] == [
        "ubi_events.ndjson",
        "ubi_queries.ndjson.gz",
    ]
