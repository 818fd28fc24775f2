"""`tune` and `evaluate` on the judged queries of a workspace, and their reports."""

from __future__ import annotations

import json
import re

import pytest

from rerank import Document, Qrels, Query, Workspace, evaluate, train, tune
from rerank.common.errors import InputError, UsageError
from rerank.evaluation.measures import MEASURES
from rerank.reports.page import evaluation_page
from rerank.stack.stack import Stack
from tests.support.browser import check_page

TEXTS = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
QUERIES = [
    Query("q1", "hunts at night"),
    Query("q2", "mice"),
    Query("q3", "nothing like it"),
    Query("q4", "fox"),
]
QRELS = Qrels(
    [
        ("q1", "owl", 1),
        ("q1", "wolf", 2),
        ("q2", "fox", 1),
        ("q3", "wolf", 1),
        ("q4", "fox", 0),
        ("lost", "fox", 1),
    ]
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    workspace = Workspace.create(tmp_path_factory.mktemp("experiment") / "ws", lang="en")
    workspace.engine.write(Document(id, text=text) for id, text in TEXTS.items())
    return workspace


@pytest.mark.parametrize(
    ("protocol", "of_q1", "of_q2"),
    [
        # q1 has two relevant documents of three, so the only other one is drawn.
        ("pool-random:1", {"wolf", "owl", "fox"}, 2),
        ("pool-random:9", {"wolf", "owl", "fox"}, 3),
        # The fox also hunts. No other document has the word of q2.
        ("pool-tfidf:1", {"wolf", "owl", "fox"}, 1),
    ],
)
def test_pools_have_all_relevant_documents_and_some_others(workspace, tmp_path, protocol, of_q1, of_q2):
    evaluate(workspace, ["tfidf"], queries=QUERIES, qrels=QRELS, protocols=[protocol], save_run=tmp_path)
    (file,) = tmp_path.iterdir()
    assert protocol.replace(":", "-") in file.name
    rows = [line.split() for line in file.read_text("utf-8").splitlines()]
    assert {row[2] for row in rows if row[0] == "q1"} == of_q1
    pool = {row[2] for row in rows if row[0] == "q2"}
    assert "fox" in pool
    assert len(pool) == of_q2


def test_auc_compares_labeled_documents(workspace):
    """By hand: only the wolf hunts at night. Without a document of one label, a query counts 0.5."""
    wolf = {"queries": QUERIES, "protocols": ["judged"], "measures": ["AUC", "AUC(rel=2)"]}
    for grades, expected in (((1, 0), (1.0, 0.5)), ((0, 2), (0.0, 0.0)), ((2, 1), (0.5, 1.0))):
        qrels = Qrels([("q1", "wolf", grades[0]), ("q1", "fox", grades[1])])
        values = evaluate(workspace, ["tfidf"], qrels=qrels, **wolf).per_query["judged"].values["tfidf"]
        assert (values["AUC"].item(), values["AUC(rel=2)"].item()) == expected
    with pytest.raises(UsageError, match="rel must be from 1"):
        evaluate(workspace, ["tfidf"], qrels=QRELS, **{**wolf, "measures": ["AUC(rel=0)"]})


def test_evaluate_reports_rows_and_json(workspace, tmp_path):
    report = evaluate(
        workspace,
        ["tfidf", "bm25", "tfidf*0.5 + bm25*0.5"],
        queries=QUERIES,
        qrels=QRELS,
        protocols=["retrieved:10", "judged", "retrieved:1"],
        save_run=tmp_path,
    )
    labels = ["tfidf", "bm25", "tfidf*0.5 + bm25*0.5"]
    rows = report.rows()
    assert [(row["protocol"], row["stack"]) for row in rows] == [
        (protocol, label) for protocol in ("retrieved:10", "judged", "retrieved:1") for label in labels
    ]
    assert {tuple(row) for row in rows} == {("protocol", "stack", *MEASURES, "judged@10", "delta", "p_holm")}
    assert [row["delta"] is None for row in rows] == [True, False, False] * 3
    # The counts: q4 has no relevant document, `lost` has no text, and q3 has no results.
    assert (report.queries, report.none_relevant) == (3, 1)
    scoring = report.scoring["retrieved:10"]
    assert (scoring.unknown_queries, scoring.without_hits) == (1, 1)
    # A lower depth is the top of a higher depth. At depth 1, q1 finds one of two relevant documents.
    recall = {(one.protocol, one.retrieve): one.recall for one in report.candidate_recall}
    assert recall["retrieved:10", ("tfidf",)] == {"tfidf": pytest.approx((1 + 1 + 0) / 3)}
    assert recall["retrieved:1", ("tfidf",)] == {"tfidf": pytest.approx((0.5 + 1 + 0) / 3)}
    assert not any(one.protocol == "judged" for one in report.candidate_recall)
    for row in report.results:
        values = report.per_query[row.protocol].values[row.stack]
        assert row.measures["RR"] == pytest.approx(values["RR"].mean())
    told = report.to_json()
    assert json.loads(json.dumps(told)) == told
    assert "per_query" not in told
    assert [one["stack"] for one in told["results"]] == labels * 3
    assert len(told["runs"]) == len(rows) == len(list(tmp_path.iterdir()))


def test_the_judged_protocol_ranks_only_judged_documents(workspace, tmp_path):
    """For q1 the owl is relevant and the fox is not. The wolf has no judgment, so it is not ranked."""
    qrels = Qrels([("q1", "owl", 1), ("q1", "fox", 0), ("q1", "gone", 0), ("q2", "fox", 1)])
    asked = {"queries": QUERIES, "qrels": qrels, "protocols": ["judged"]}
    report = evaluate(
        workspace, ["tfidf", "bm25"], measures=["RR", "nDCG"], save_run=tmp_path, keep=5, **asked
    )
    assert [row["RR"] for row in report.rows()] == [1.0, 1.0]
    run = (tmp_path / "bm25.judged.run").read_text()
    assert [line.split()[:3:2] for line in run.splitlines()] == [["q1", "owl"], ["q1", "fox"], ["q2", "fox"]]
    assert json.loads(json.dumps(report.to_json()))["comparisons"][0]["measure"] == "RR"
    assert tune(workspace, "tfidf,bm25", queries=QUERIES, qrels=qrels, protocol="judged").tuned.value == 1.0


def test_the_judged_hits_of_a_stack_are_counted(workspace, run):
    """q1 finds all three documents, of which the fox is not judged; q2 finds the fox; q3 finds nothing."""
    judged = {"queries": QUERIES, "qrels": QRELS}
    report = evaluate(workspace, ["tfidf", "bm25"], protocols=["retrieved:10", "judged"], **judged)
    assert [row["judged@10"] for row in report.rows()] == [0.75, 0.75, 1.0, 1.0]
    expected = {"judged": 3, "hits": 4, "share": 0.75}
    assert report.to_json()["results"][0]["judged_at_10"] == expected
    tuned = tune(workspace, "tfidf,bm25", **judged)
    assert tuned.to_json()["judged_at_10"] == {"tfidf": expected, "bm25": expected}
    assert [row["judged@10"] for row in tuned.rows()] == [0.75, 0.75]
    assert not tune(workspace, "tfidf,bm25", protocol="judged", **judged).judged_at_10


@pytest.mark.parametrize("irrelevant", [True, False])
@pytest.mark.parametrize("command", ["tune", "evaluate"])
def test_mostly_unjudged_hits_are_reported(workspace, run, write_lines, tmp_path, command, irrelevant):
    """q1 finds three documents, of which only the owl is judged."""
    queries = write_lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": QUERIES[0].text}])
    rows = ["query-id\tcorpus-id\tscore", "q1\towl\t1", *["q1\tgone\t0"] * irrelevant]
    (tmp_path / "qrels.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    options = ("--queries", queries, "--qrels", tmp_path / "qrels.tsv", "-w", workspace.folder)
    result = run(command, "--stack", "tfidf,bm25", *options).ok()
    assert "2 of 3 hits at ranks 1 to 10" in result.err
    assert ("--protocol judged" in result.err) == irrelevant
    judged = run(command, "--stack", "tfidf,bm25", *options, "--protocol", "judged").ok()
    assert "not judged" not in judged.err


def test_the_smallest_share_is_an_option(workspace, run, write_lines, tmp_path):
    queries = write_lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": QUERIES[0].text}])
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\towl\t1\n", "utf-8")
    tuning = ("tune", "--stack", "tfidf,bm25", "-w", workspace.folder, "--out", tmp_path / "stack.json")
    judged = ("--queries", queries, "--qrels", tmp_path / "qrels.tsv")
    run(*tuning, *judged, "--least", 0.35).ok()
    stack = Stack.load(tmp_path / "stack.json")
    assert stack.combiner.weights_by_signal()[stack.first_stage] >= 0.35
    assert stack.tuned["least_share"] == 0.35
    assert "least_share" not in run(*tuning, *judged, "--json").json["tuned"]
    run(*tuning, *judged, "--least", 1).fails(2, "from 0 to below 1")


@pytest.mark.parametrize("measure", ["nDCG", "nDCG@1", "RR"])
def test_tune_reports_the_same_value_as_evaluate(workspace, tmp_path, measure):
    out = tmp_path / "stack.json"
    report = tune(workspace, "tfidf,bm25", queries=QUERIES, qrels=QRELS, measure=measure, out=out, depth=10)
    assert report.to_json()["tuned"]["measure"] == report.tuned.measure == measure
    actual = evaluate(
        workspace, [str(out)], queries=QUERIES, qrels=QRELS, protocols=["retrieved:10"], measures=[measure]
    )
    assert [row.measures[measure] for row in actual.results] == pytest.approx(
        [report.tuned.first_stage_value, report.tuned.value], abs=1e-12
    )
    assert [row["signal"] for row in report.rows()] == ["tfidf", "bm25"]
    assert report.rows()[0]["single_signal"] == report.tuned.first_stage_value


def test_judgments_of_another_collection_are_refused(workspace):
    active = workspace.releases.number
    for command in (tune, evaluate):
        with pytest.raises(InputError, match="none of the relevant documents"):
            command(
                workspace, "tfidf,bm25", queries=[Query("q", "apple")], qrels=Qrels([("q", "unknown", 1)])
            )
    assert workspace.releases.number == active


def test_rankings_of_several_retrievers_are_cut_at_the_depth(tmp_path):
    """Two retrievers find up to two documents at depth 1. Only the first one of each ranking counts."""
    workspace = Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write(Document(id, text=text) for id, text in TEXTS.items())
    judged = [Qrels((q, d, 1) for d in QRELS[q]) for q in ("q1", "q2")]
    train(workspace, ["lsi"], queries=QUERIES, qrels=judged[0], dev_qrels=judged[1], config={"dim": 2})
    asked = {"queries": QUERIES, "qrels": QRELS}
    union = {"retrieve": ["tfidf", "lsi"]}
    out = tmp_path / "union.json"
    tuned = tune(workspace, "tfidf,lsi", depth=1, out=out, **union, **asked).tuned
    once = {"protocols": ["retrieved:1"], "measures": ["nDCG@10"], **asked}
    report = evaluate(workspace, [str(out)], save_run=tmp_path / "runs", **once)
    assert report.results[-1].measures["nDCG@10"] == pytest.approx(tuned.value, abs=1e-12)
    for path in report.runs:
        queries = [line.split()[0] for line in path.read_text().splitlines()]
        assert len(queries) == len(set(queries))
    deep = evaluate(
        workspace, [str(out)], save_run=tmp_path / "deep", **{**once, "protocols": ["retrieved:2"]}
    )
    assert max(len(path.read_text().splitlines()) for path in deep.runs) > len(queries)


def test_stacks_whose_names_differ_only_in_signs_have_different_run_files(workspace, tmp_path):
    names = ["bm25+tfidf", "bm25 tfidf"]
    stacks = [str(tmp_path / f"{name}.json") for name in names]
    for weight, path in enumerate(stacks):
        Stack.parse(f"bm25*1 + tfidf*{weight}").save(path)
    report = evaluate(workspace, stacks, queries=QUERIES, qrels=QRELS, save_run=tmp_path)
    assert [path.name for path in report.runs] == [
        f"{name}.retrieved-1000.run" for name in ("bm25", "bm25_tfidf", "bm25_tfidf-2")
    ]
    tags = {path.read_text().split()[-1] for path in report.runs}
    assert tags == {"bm25", "bm25+tfidf", "bm25_tfidf"}


def test_training_queries_are_recorded_and_reported_as_leaks(workspace):
    """Queries: q1 trains and tunes, q2 stops training. Relevant documents of q3 are also relevant for q1."""
    judged = {q: Qrels((q, d, 1) for d in QRELS[q]) for q in ("q1", "q2", "q3")}
    train(workspace, ["lsi"], queries=QUERIES, qrels=judged["q1"], dev_qrels=judged["q2"], config={"dim": 2})
    seen = workspace.training_record("lsi")
    assert [seen.among(how, ["q1", "q2", "q3"]) for how in ("trained", "stopped")] == [["q1"], ["q2"]]
    assert seen.among("documents", ["owl", "wolf", "fox", "hen"]) == ["owl", "wolf", "fox"]

    tuned = tune(workspace, "bm25,lsi", first_stage="tfidf", queries=QUERIES, qrels=judged["q1"])
    assert [(leak.name, leak.use, leak.queries) for leak in tuned.leaks] == [("lsi", "trained", 1)]
    both = Qrels((q, d, g) for one in judged.values() for q in one for d, g in one[q].items())
    report = evaluate(workspace, ["bm25,lsi"], queries=QUERIES, qrels=both, protocols=["retrieved:10"])
    actual = {
        row.stack: [(leak.name, leak.use, leak.queries) for leak in row.leaks] for row in report.results
    }
    assert actual == {
        "tfidf": [],
        "bm25,lsi": [("lsi", "trained", 1), ("lsi", "stopped", 1), ("bm25,lsi", "tuned", 1)],
    }
    assert report.to_json()["results"][1]["leaks"][0] == {"name": "lsi", "use": "trained", "queries": 1}
    assert (report.pairs, report.seen_pairs, report.new_documents) == (4, 4, None)

    # Dev queries are meant to stop trainings, so they may also be used for tuning.
    assert tune(workspace, "bm25,lsi", queries=QUERIES, qrels=judged["q2"]).leaks == []


def test_new_documents_are_also_measured_separately(workspace):
    """Training and dev use only the fox. Without it, q1 keeps two documents and q2 none."""
    fox = [Qrels([(q, "fox", 1)]) for q in ("q2", "q4")]
    train(workspace, ["lsi"], queries=QUERIES, qrels=fox[0], dev_qrels=fox[1], config={"dim": 2})
    report = evaluate(workspace, ["lsi"], queries=QUERIES, qrels=QRELS, protocols=["retrieved:10"])
    assert (report.pairs, report.seen_pairs) == (4, 1)
    new = report.new_documents
    assert (new.queries, new.none_relevant) == (2, 2)
    left = Qrels([("q1", "owl", 1), ("q1", "wolf", 2), ("q3", "wolf", 1)])
    again = evaluate(workspace, ["lsi"], queries=QUERIES, qrels=left, protocols=["retrieved:10"])
    assert [row.measures for row in new.results] == [row.measures for row in again.results]


def test_the_default_baseline_is_the_first_stage_of_the_first_stack(workspace):
    for stack, baseline in (("bm25*0.5 + tfidf*0.5", "bm25"), ("lsi", "bm25")):
        report = evaluate(workspace, [stack], queries=QUERIES, qrels=QRELS)
        assert [row.stack for row in report.results] == [baseline, stack]


def test_the_evaluation_page_compares_rankings(workspace, tmp_path):
    """The page shows both rankings. The wolf has grade 2 and is second by bm25."""
    report = evaluate(
        workspace, ["tfidf", "bm25"], baseline="tfidf", queries=QUERIES, qrels=QRELS, keep=2,
        protocols=["retrieved:10", "retrieved:1"],
    )  # fmt: skip
    owl, wolf = report.kept_hits["retrieved:10"]["bm25"]["q1"]
    assert (owl.id, wolf.id, wolf.rank, wolf.first_stage_rank) == ("owl", "wolf", 2, 2)
    assert wolf.signals["bm25"].weighted == wolf.score
    queries = [Query("q2", "<script>mice") if query.id == "q2" else query for query in QUERIES]
    page = evaluation_page(workspace, report, queries, "test.tsv")
    (tmp_path / "page.html").write_text(page, "utf-8")
    check_page(tmp_path / "page.html", hostile=" <script>mice", sections=3)
    assert re.findall(r"<h1>(.*?)</h1>", page) == [
        "-0.05 nDCG@10 (p = 1.0000): 0 queries better, 1 worse, 2 equal"
    ]
    outcomes = re.findall(r'data-outcome="(\w+)" data-relevant="(\d)"', page)
    assert outcomes == [("worse", "1"), ("equal", "1"), ("equal", "0")]
    assert page.count("relevant (2)") == 2  # in both lists
    assert page.count('class="bar"') == page.count('class="numbers"') >= 4
    assert "(wolf)</td><td>1</td><td>not found</td><td>not found</td>" in page  # q3
