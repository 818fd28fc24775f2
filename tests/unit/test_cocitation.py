"""Co-citation networks: a worked example, and properties of all networks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Mention

# Paper X: introduction, paragraph 1: {a, b}, {c}; paragraph 2: {d, X}; methods, paragraph 3: {a, e}, {a}.
X = [
    Mention("a", 0, 0, 0),
    Mention("b", 0, 0, 0),
    Mention("c", 0, 0, 1),
    Mention("d", 0, 1, 2),
    Mention("X", 0, 1, 2),
    Mention("a", 1, 2, 3),
    Mention("e", 1, 2, 3),
    Mention("a", 1, 2, 4),
]
# Paper Y has no sections, so all of it is one section. It cites d under two entries of its reference list.
Y = [
    Mention("b", 0, 0, 0),
    Mention("c", 0, 0, 0),
    Mention("b", 0, 0, 1),
    Mention("d", 0, 0, 1),
    Mention("d", 0, 0, 1),
    Mention("d", 0, 1, 2),
]


def pairs(network, level):
    keys, _ = network.levels[level].pair_counts()
    pairs = (divmod(key, len(network)) for key in keys.tolist())
    return sorted("".join(sorted(network.keys[one] for one in pair)) for pair in pairs)


def near(network, key, level):
    return "".join(sorted(network.keys[one] for one in network.neighbors(network.keys.index(key), level)))


@pytest.mark.parametrize(
    ("papers", "expected"),
    [
        ({"X": X}, ["ab ae", "ab ac ae bc", "ab ac ad ae bc bd cd"]),
        ({"Y": Y}, ["bc bd", "bc bd cd", "bc bd cd"]),
        ({"X": X, "Y": Y}, ["ab ae bc bd", "ab ac ae bc bd cd", "ab ac ad ae bc bd cd"]),
    ],
)
def test_pairs_of_the_worked_example(papers, expected):
    network = CoCitations.of(papers.items())
    assert [" ".join(pairs(network, level)) for level in LEVELS[:3]] == expected
    assert [network.levels[level].pairs() for level in LEVELS[:3]] == [len(one.split()) for one in expected]


def test_neighbors_of_the_worked_example():
    network = CoCitations.of([("X", X), ("Y", Y)])
    assert [near(network, "a", level) for level in LEVELS[:3]] == ["be", "bce", "bcde"]
    assert [near(network, "b", level) for level in LEVELS[:3]] == ["acd", "acd", "acd"]
    assert [near(network, "c", level) for level in LEVELS[:3]] == ["b", "abd", "abd"]


mentions = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=12
)
papers = st.dictionaries(st.sampled_from(["p", "q", "r"]), mentions)


def nest(found):
    """Return mentions whose sentences lie in one paragraph, and whose paragraphs lie in one section."""
    return [Mention(ref, s, 3 * s + p, 9 * s + 3 * p + one) for ref, s, p, one in found]


@given(papers)
def test_properties_of_every_network(papers):
    read = {name: nest(found) for name, found in papers.items()}
    network = CoCitations.of(read.items())
    at_level = [set(pairs(network, level)) for level in LEVELS]
    assert all(finer <= coarser for finer, coarser in pairwise(at_level))
    for level, place in zip(LEVELS, (3, 2, 1, None)):
        expected = {
            "".join(sorted((one[0], other[0])))
            for found in read.values()
            for one in found
            for other in found
            if one[0] < other[0] and (place is None or one[place] == other[place])
        }
        assert set(pairs(network, level)) == expected
        for ref in range(len(network)):
            for mate in network.neighbors(ref, level).tolist():
                assert mate != ref
                assert ref in network.neighbors(mate, level)
                assert network.levels[level].shared(ref, mate)
    again = CoCitations.of([*reversed(list(read.items())), *read.items()])
    assert [pairs(again, level) for level in LEVELS] == [pairs(network, level) for level in LEVELS]
