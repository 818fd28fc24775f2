"""Pools of hits to judge by hand: the choice of queries, and the order that hides the stacks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank import Document, Query, Workspace
from rerank.common.errors import InputError, UsageError
from rerank.judging.pool import (
    Pool,
    PoolOptions,
    difference,
    judged_file,
    make_pool,
    separate_first_stage,
)
from rerank.stack.stack import Stack

LISTS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Documents about one topic per query: `topic3` is in 3 documents with texts of different lengths.

    The first document of topics 3 and 7 has rare words, which tf-idf ranks below long repetitions of a word.
    """
    workspace = Workspace.create(tmp_path_factory.mktemp("pool") / "ws", lang="en")
    documents = []
    for topic in range(1, 9):
        for number in range(topic):
            filler = " filler" * (3 * number)
            if topic in (3, 7) and number == 0:
                filler = "".join(f" rare{topic}{word}" for word in "abcd")
            documents.append(
                Document(f"t{topic}-{number}", title=f"Title {number}", text=f"topic{topic}{filler}")
            )
    workspace.engine.write(documents)
    return workspace


def topics(*numbers, **counts):
    return [Query(f"q{n}", f"topic{n}", params={"count": counts[f"q{n}"]} if counts else {}) for n in numbers]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("abc", "abc", 0),
        ("abc", "def", 1),
        ("ab", "ba", 0.5),  # depth 1: nothing in common; depth 2: both
        ("abc", "abd", 1 / 9),  # depths 1 and 2: all; depth 3: 2 of 3
        ("a", "ab", 0.25),  # depth 2: 1 of 2
        ("", "ab", 1),
        ("", "", 0),
    ],
)
def test_the_difference_of_two_lists_by_hand(first, second, expected):
    assert difference([first, second]) == pytest.approx(expected)
    assert difference([second, first]) == pytest.approx(expected)
    assert difference([first, first, second]) == pytest.approx(2 / 3 * expected)


@given(LISTS, LISTS)
def test_the_difference_is_a_share(first, second):
    assert 0 <= difference([first, second]) <= 1
    assert (difference([first, second]) == 0) == (first == second)


def test_the_hits_of_both_stacks_are_pooled_once(workspace):
    """Each document of a topic is found by both stacks; the first two of each are pooled."""
    queries = topics(1, 3, 8)
    report = make_pool(workspace, ["bm25", "tfidf"], queries, PoolOptions(count=10, top=2))
    pool = report.pool
    assert {query.id for query in pool.queries} == {"q1", "q3", "q8"}
    for query in pool.queries:
        best = set()
        for stack in ("bm25", "tfidf"):
            best |= {hit["id"] for hit in workspace.search(query.text, 2, stack=stack).hits}
        assert sorted(hit.id for hit in query.hits) == sorted(best)
    assert pool.hits == sum(len(query.hits) for query in pool.queries)
    assert (
        "topic8" in pool.queries[0].hits[0].text + pool.queries[1].hits[0].text + pool.queries[2].hits[0].text
    )


def test_half_of_the_queries_are_frequent_and_half_differ(workspace):
    """The counts choose q2 and q5. Of the others, the stacks differ on q3 and q7 only."""
    queries = topics(1, 2, 3, 5, 6, 7, 8, q1=1, q2=90, q3=0, q5=80.5, q6=2, q7=None, q8=3)
    stacks = ["bm25", "tfidf"]
    report = make_pool(workspace, stacks, queries, PoolOptions(count=4))
    reasons = {query.id: query.reason for query in report.pool.queries}
    assert {id for id, reason in reasons.items() if reason == "traffic"} == {"q2", "q5"}
    assert report.reasons == {"traffic": 2, "difference": 2}
    assert {id for id, reason in reasons.items() if reason == "difference"} == {"q3", "q7"}


def test_without_counts_half_of_the_queries_are_random(workspace):
    queries = topics(*range(1, 9))
    chosen = set()
    for seed in range(5):
        report = make_pool(workspace, ["bm25", "tfidf"], queries, PoolOptions(count=4, seed=seed))
        assert report.reasons == {"random": 2, "difference": 2}
        chosen |= {query.id for query in report.pool.queries if query.reason == "random"}
    assert len(chosen) > 4


def test_the_order_is_random_and_repeatable(workspace):
    """It depends on the seed only, not on the order of the stacks or of the queries."""
    queries = topics(*range(1, 9))
    one, two, other = (
        make_pool(workspace, stacks, listed, PoolOptions(count=8, seed=seed)).pool
        for stacks, listed, seed in (
            (["bm25", "tfidf"], queries, 0),
            (["tfidf", "bm25"], queries[::-1], 0),
            (["bm25", "tfidf"], queries, 1),
        )
    )
    orders = [
        [(query.id, [hit.id for hit in query.hits]) for query in pool.queries] for pool in (one, two, other)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
    ranked = [hit["id"] for hit in workspace.search("topic8", 10, stack="bm25").hits]
    assert dict(orders[0])["q8"] != ranked


def test_queries_without_hits_are_left_out(workspace):
    queries = [*topics(1, 2), Query("none", "nothing like it")]
    report = make_pool(workspace, ["bm25", "tfidf"], queries, PoolOptions(count=3))
    assert ({query.id for query in report.pool.queries}, report.without_hits) == ({"q1", "q2"}, 1)
    with pytest.raises(InputError, match="no hit for 1 query; check"):
        make_pool(workspace, ["bm25", "tfidf"], queries[2:])


def test_repeated_queries_are_judged_once(workspace):
    """A log of searches has the same words under several ids; other parameters are another search."""
    repeated = [
        Query("a", "topic3", params={"count": 2}),
        Query("b", " TOPIC3 ", params={"count": 9}),
        Query("c", "topic3", params={"count": 5, "shop": "it"}),
        Query("d", "topic3", categories=("animals",)),
    ]
    report = make_pool(workspace, ["bm25", "tfidf"], [*topics(1), *repeated])
    assert {query.id for query in report.pool.queries} == {"q1", "b", "c", "d"}
    assert report.repeated == 1


def test_signals_without_tuned_weights_are_pooled_as_first_stage_and_rest(workspace):
    pool = make_pool(workspace, ["bm25,tfidf"], topics(1)).pool
    assert pool.stacks == ("bm25*1.00", "tfidf*1.00")
    again = make_pool(workspace, ["bm25", "bm25,tfidf", "bm25*0.5 + tfidf*0.5"], topics(1)).pool
    assert again.stacks == ("bm25*1.00", "tfidf*1.00", "bm25*0.50 + tfidf*0.50"), "each stack is pooled once"


def test_the_rankers_are_pooled_without_the_first_stage():
    """A mix with the first stage has many of its hits, so it would add few hits of the rankers."""
    first, rankers = separate_first_stage(Stack.parse("bm25*1 + tfidf*1 + text*1 + meta*1"))
    assert (str(first), first.first_stage) == ("bm25*1.00", "bm25")
    assert (str(rankers), rankers.first_stage) == ("text*1.00 + meta*1.00", "bm25")
    assert rankers.combiner.normalization == "min-max"
    _, ranker = separate_first_stage(Stack.parse("tfidf*1 + text*1"))
    assert (str(ranker), ranker.first_stage, ranker.combiner.normalization) == ("text*1.00", "tfidf", "none")


@pytest.mark.parametrize("text", ["bm25", "text*0.50 + meta*0.50"])
def test_a_stack_without_first_stage_or_without_others_is_not_separated(text):
    assert list(map(str, separate_first_stage(Stack.parse(text)))) == [str(Stack.parse(text))]


def test_a_first_stage_is_pooled_once(workspace):
    assert make_pool(workspace, ["bm25"], topics(1)).pool.stacks == ("bm25*1.00",)


def test_one_stack_is_pooled_with_its_first_stage(workspace):
    pool = make_pool(workspace, ["tfidf*0.5 + bm25*0.5"], topics(1)).pool
    assert len(pool.stacks) == 2
    with pytest.raises(UsageError, match="no stack is named"):
        make_pool(workspace, [], topics(1))
    with pytest.raises(UsageError, match="top is 0"):
        PoolOptions(top=0)


def test_a_pool_is_saved_and_loaded(workspace, tmp_path):
    pool = make_pool(workspace, ["bm25", "tfidf"], topics(1, 5)).pool
    pool.save(tmp_path / "pool.json")
    assert Pool.load(tmp_path / "pool.json") == pool
    hits = json.loads((tmp_path / "pool.json").read_text())["queries"][0]["hits"]
    assert set(hits[0]) == {"id", "title", "text"}, "a hit must not show its stack"
    assert judged_file(tmp_path / "pool.json").name == "pool.judged.jsonl"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda pool: {**pool, "rerank_pool": 9}, "pool format 9"),
        (lambda pool: {"queries": pool["queries"]}, "not a pool"),
        (lambda pool: {**pool, "queries": []}, "nothing to judge"),
        (lambda pool: {**pool, "queries": pool["queries"] * 2}, "an id comes twice"),
        (lambda pool: {**pool, "queries": [{"id": 1}]}, r"damaged pool \(.*id"),
        (
            lambda pool: {**pool, "queries": [{"id": "q", "text": "", "hits": [{"id": "a"}] * 2}]},
            "comes twice",
        ),
    ],
)
def test_other_files_are_not_pools(workspace, tmp_path, change, problem):
    make_pool(workspace, ["bm25", "tfidf"], topics(1)).pool.save(tmp_path / "pool.json")
    changed = change(json.loads((tmp_path / "pool.json").read_text()))
    (tmp_path / "pool.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=problem):
        Pool.load(tmp_path / "pool.json")
    with pytest.raises(InputError, match="no such file; check the path"):
        Pool.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "field", [b'"title": "caf\xe9"', b'"note": ' + b"[" * 100_000], ids=["not UTF-8", "deep"]
)
def test_a_pool_that_cannot_be_decoded_is_damaged(field, tmp_path):
    begin = b'{"rerank_pool": 1, "queries": [{"id": "q", "text": "x", "hits": [{"id": "a", '
    (tmp_path / "pool.json").write_bytes(begin + field)
    with pytest.raises(InputError, match="damaged pool"):
        Pool.load(tmp_path / "pool.json")


def test_the_command_writes_a_pool(workspace, run, write_lines, tmp_path):
    queries = write_lines(tmp_path / "queries.jsonl", [{"_id": "q5", "text": "topic5", "count": 3}])
    options = (
        "judge",
        "pool",
        "--stack",
        "bm25",
        "--stack",
        "tfidf",
        "--queries",
        queries,
        "-w",
        workspace.folder,
    )
    out = tmp_path / "pool.json"
    done = run(*options, "--out", out, "--top", 2).ok()
    assert f"rerank serve --judge {out}" in done.out
    pool = Pool.load(out)
    assert [query.reason for query in pool.queries] == ["traffic"]
    assert run(*options, "--out", out, "--top", 2, "--json").json["hits"] == pool.hits
    run(*options, "--out", queries).fails(2, "other content")
    run(*options, "--out", out, "--count", 0).fails(2, "--count")
    run(
        "judge", "pool", "--stack", "nothing", "--queries", queries, "-w", workspace.folder, "--out", out
    ).fails(2, "nothing")
