"""Mined pairs and co-citations."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from rerank import Workspace, ingest
from rerank.errors import UsageError
from rerank.formats import read_labeled_pairs
from rerank.rankers.concept.mining import PairMining, RelatedDocuments, SampledPairs, split_units
from rerank.rankers.graphs.cocitation import LEVELS
from rerank.records import Document, Qrels
from rerank.workflows.mine import mine_pairs
from tests.unit.test_cocitation import X, Y

TOPICS = {"animal": ("cat", "dog", "cow"), "plant": ("oak", "elm", "ivy"), "stone": ("jade", "onyx", "opal")}
"""Categories by their parents."""


def documents() -> list[dict]:
    """Six documents a category; each is linked with the next two of its own."""
    return [
        {
            "_id": f"{name}{i}",
            "title": f"The {name} {i}",
            "text": f"{topic} {name}",
            "categories": ["everything", f"{topic}/{name}"],
            "links": [f"{name}{(i + step) % 6}" for step in (1, 2)],
        }
        for topic, names in TOPICS.items()
        for name in names
        for i in range(6)
    ]


SPLIT = (50, 25, 25)
KIND = {one["_id"]: one["_id"][:-1] for one in documents()}
TOPIC = {name: topic for topic, names in TOPICS.items() for name in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_lines):
    folder = tmp_path_factory.mktemp("mine")
    ingest(str(folder / "ws"), [write_lines(folder / "corpus.jsonl", documents())], lang="en")
    return folder / "ws"


@pytest.fixture
def workspace(folder):
    return Workspace.open(folder)


def check(found, related) -> None:
    """Labels are true, nothing is there twice, no document is in two files."""
    seen = Counter(pair.key for pairs in found.pairs.values() for pair in pairs)
    assert max(seen.values()) == 1
    for pairs in found.pairs.values():
        assert all(pair.a != pair.b for pair in pairs)
        assert all(pair.related == related(pair.a, pair.b) for pair in pairs)
    ends = [{one for pair in pairs for one in pair[:2]} for pairs in found.pairs.values()]
    assert not any(one & other for one, other in combinations(ends, 2))


def test_categories(workspace):
    found = mine_pairs(workspace, "categories", mining=PairMining(largest=0.2), split=SPLIT)
    check(found, lambda a, b: KIND[a] == KIND[b])
    assert (found.documents, found.left_out) == (54, 0)
    assert [(one.name, one.groups, one.documents) for one in found.files] == [
        ("train", 5, 30),
        ("dev", 2, 12),
        ("test", 2, 12),
    ]
    train = found.files[0]
    pairs = found.pairs["train"]
    assert (train.related, train.unrelated) == (sum(pair.related for pair in pairs), train.related)
    assert train.hard == train.unrelated // 2
    assert sum(not p.related and TOPIC[KIND[p.a]] == TOPIC[KIND[p.b]] for p in pairs) >= train.hard / 2


def test_qrels(workspace):
    judged = [(f"q-{name}", f"{name}{i}", 2) for name in {*KIND.values()} for i in range(6)]
    judged += [("q-cat", f"dog{i}", 0) for i in range(6)] + [("q-cat", "unknown", 1)]
    found = mine_pairs(workspace, "qrels", qrels=Qrels(judged), split=None)
    check(found, lambda a, b: KIND[a] == KIND[b])
    assert list(found.pairs) == ["pairs"]
    assert {pair.b for pair in found.pairs["pairs"] if KIND[pair.a] == "cat" and not pair.related} & {
        f"dog{i}" for i in range(6)
    }, "documents judged as not relevant for the same query are not among the unrelated ones"


def test_links(workspace):
    linked = {frozenset((one["_id"], other)) for one in documents() for other in one["links"]}
    found = mine_pairs(workspace, "links", split=(0.8, 0.2))
    check(found, lambda a, b: frozenset((a, b)) in linked)
    assert list(found.pairs) == ["train", "dev"]


def test_reproducible_by_seed_and_written(folder, workspace, run, tmp_path):
    how = {"split": SPLIT, "mining": PairMining(largest=0.2)}
    same = [mine_pairs(workspace, "categories", **how).pairs for _ in range(2)]
    assert same[0] == same[1]
    how["mining"] = PairMining(largest=0.2, seed=1)
    assert mine_pairs(workspace, "categories", **how).pairs != same[0]
    command = ("mine", "pairs", "--from", "categories", "--largest", 0.2, "-w", folder)
    done = run(*command, "--split", "50,25,25", "--out", tmp_path / "new" / "pairs", "--json").json
    for name, pairs in same[0].items():
        path = tmp_path / "new" / "pairs" / f"{name}.tsv"
        assert read_labeled_pairs(path, known=workspace.engine.contains) == pairs
    assert [one["path"] for one in done["files"]] == [
        str(tmp_path / "new" / "pairs" / f"{name}.tsv") for name in ("train", "dev", "test")
    ]
    table = run(*command, "--out", tmp_path / "one", "--split", "none")
    assert "of one topic" in table.out
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["pairs.tsv"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--from qrels", 2, "needs judgments"),
        ("--from links --qrels QRELS", 2, "--qrels"),
        ("--from qrels --qrels QRELS", 1, "no query has two relevant documents"),
        ("--from categories", 1, "no category has 5 documents and at most 5%"),
        ("--from categories --largest 0.2 --split 1,1,x", 2, "--split"),
        ("--from categories --largest 0.2 --split 1,1,0", 2, "above 0"),
        ("--from categories --largest 0.2 --split 1,1,1,1", 2, "at most 3"),
        ("--from categories --largest 0.2 --split 98,1,1", 1, "--split"),
        ("--from categories --negatives inf", 2, "--negatives"),
    ],
)
def test_bad_input(folder, run, tmp_path, words, code, message):
    (tmp_path / "qrels").write_text("q 0 cat1 1\n")
    given = words.replace("QRELS", str(tmp_path / "qrels")).split()
    run("mine", "pairs", "-w", folder, "--out", tmp_path / "pairs", *given).fails(code, message)
    assert not (tmp_path / "pairs").exists()


def test_a_collection_without_relations(run, tmp_path, write_lines):
    bare = [{"_id": f"d{i}", "title": f"word{i}", "text": "x"} for i in range(3)]
    run("ingest", write_lines(tmp_path / "c.jsonl", bare), "-w", tmp_path / "bare")
    run("mine", "pairs", "--from", "links", "-w", tmp_path / "bare", "--out", tmp_path / "p").fails(
        1, "no document links", "another source"
    )
    run("mine", "cocitation", "-w", tmp_path / "bare").fails(1, "no document has citations; ingest articles")


def test_a_document_of_several_categories_is_in_one_group_and_never_unrelated_to_the_others():
    some = [Document(f"a{i}", categories=("x",)) for i in range(3)]
    some += [
        Document("both", categories=("x", "y")),
        *(Document(f"b{i}", categories=("y",)) for i in range(2)),
    ]
    found = RelatedDocuments.by_categories(
        some, [("x", "top"), ("y", "top")], PairMining(smallest=2, largest=1.0)
    )
    place = {one: i for i, one in enumerate(found.ids)}
    assert found.units[place["both"]] == found.units[place["b0"]], "y is the smaller one"
    assert found.related(place["both"], place["a0"])
    assert not found.related(place["a0"], place["b0"])
    assert found.topics[place["a0"]] == {"top"}
    drawn = SampledPairs(found, np.arange(6), PairMining(each=5), lambda i: [])
    assert {pair.key for pair in drawn.pairs if not pair.related} <= {
        (f"a{i}", f"b{j}") for i in range(3) for j in range(2)
    }


def test_shares():
    related = RelatedDocuments(list("abcdef"), np.array([0, 0, 0, 1, 1, 2]), [np.zeros(0, int)] * 6)
    assert [len(part) for part in split_units(related, (3, 2, 1))] == [3, 2, 1]
    with pytest.raises(UsageError, match="above 0"):
        split_units(related, (1, -1))


def rows(mentions):
    found = []
    for ref, section, paragraph, sentence in mentions:
        place = {"section": section, "paragraph": paragraph, "sentence": sentence}
        found.append({"ref": ref, **place, "text": f"Sentence {sentence}."})
    return found


def test_sizes_of_cocitation_levels(run, tmp_path, write_lines):
    titles = {"a": "On the growth of yeast", "b": "On the death of yeast cells", "c": "Wolves", "e": "Owls"}
    documents = [
        {"_id": "X", "title": "The paper X", "citations": rows(X), "references": titles},
        {"_id": "Y", "title": "The paper Y", "citations": rows(Y)},
        {"_id": "d", "title": "A document", "text": "that the collection has"},
    ]
    done = run("ingest", write_lines(tmp_path / "c.jsonl", documents), "-w", tmp_path / "ws")
    assert "2 documents list 9 references and cite them 14 times" in done.out
    found = run("mine", "cocitation", "-w", tmp_path / "ws", "--json").json
    assert (found["citing"], found["references"], found["outside"], found["titled"]) == (2, 6, 4, 6)
    assert [found["levels"][level]["pairs"] for level in LEVELS] == [4, 6, 7, 10]
    assert found["levels"]["sentence"] == {"groups": 4, "largest": 2, "references": 5, "pairs": 4}
    shown = run("mine", "cocitation", "-w", tmp_path / "ws").out
    assert "2 documents cite 6 references" in shown
    assert shown.splitlines()[-1].split() == ["one", "document", "2", "5", "5", "10"]


def test_pairs_from_links_alone(run, tmp_path, write_lines):
    """Against a count over all pairs of each document's links."""
    documents = [
        {"_id": "1", "links": ["2", "10", "x", "1"]},
        {"_id": "2", "links": ["10", "x"]},
        {"_id": "10", "links": ["2", "2"]},
        {"_id": "x"},
    ]
    run("ingest", write_lines(tmp_path / "c.jsonl", documents), "-w", tmp_path / "ws")
    shown = run("mine", "cocitation", "-w", tmp_path / "ws", "--out", tmp_path / "pairs.tsv").out.splitlines()
    assert shown[3].split() == ["one", "sentence", "0", "0", "0", "0"]
    with open(tmp_path / "pairs.tsv") as file:
        found = list(csv.reader(file, delimiter="\t"))
    assert found == [
        ["a", "b", "sentence", "paragraph", "section", "document"],
        ["10", "2", "0", "0", "0", "1"],
        ["10", "x", "0", "0", "0", "2"],
        ["2", "x", "0", "0", "0", "1"],
    ]
